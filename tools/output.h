// What commands print on standard output, and errors on standard error.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "store/store.h"

namespace weightfs::tools {

using Json = nlohmann::ordered_json;

// One object, two spaces of indentation, bytes that are not UTF-8 replaced.
void print_json(const Json& object);

// Rows of cells in columns; the first row is the heading. Columns whose heading begins with '>' are set right.
void print_table(const std::vector<std::vector<std::string>>& rows);

// For names in text: bytes that a terminal would act on become '?'.
std::string printable(std::string_view name);

// "weightfs publish: …; what to do" on standard error: always one line.
std::string error_line(std::string_view command, const Status& status);
void print_error(std::string_view command, const Status& status);

Json publish_facts(const PublishResult& result);
void print_publish_text(const PublishResult& result);
Json version_facts(const VersionRecord& version, const ModelName& model);

// Flushes standard output; kIo where it could not all be written (a full disk, a closed pipe).
Status flush_output();

}  // namespace weightfs::tools
