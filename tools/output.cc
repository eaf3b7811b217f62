#include "tools/output.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>

#include "store/base/posix.h"
#include "tools/units.h"

namespace weightfs::tools {
namespace {

// What the user can do, where the code alone tells. Messages that already say it win.
std::string_view remedy(const Status& status) {
  if (status.message().find("; ") != std::string::npos) return "";
  switch (status.code()) {
    case Code::kNotFound:
      if (status.message().find(": no such version") != std::string::npos) {
        return "; `weightfs log BUCKET MODEL` lists the versions";
      }
      if (status.message().find(": no such model") != std::string::npos) {
        return "; `weightfs ls BUCKET` lists the models";
      }
      return "";
    case Code::kUnavailable:
      return "; check the network and the endpoint, then try again";
    case Code::kPermission:
      return "; check the credentials (AWS_ACCESS_KEY_ID …, AWS_PROFILE) or the directory's modes";
    case Code::kCorrupt:
      return "; `weightfs verify` tells what else is damaged";
    case Code::kNoSpace:
      return "; free some space or choose another --cache-dir";
    case Code::kUnsupported:
      return "; a newer weightfs may be needed";
    case Code::kIo:
      return "; see the kernel's log for the disk's errors";
    default:
      return "";
  }
}

std::string one_line(std::string text) {
  std::replace(text.begin(), text.end(), '\n', ' ');
  return text;
}

std::string parent_text(const std::optional<NodeRef>& parent, const std::optional<VersionName>& version) {
  if (!parent || !version) return "";
  return parent->model.str() + "/" + version->str();
}

}  // namespace

void print_json(const Json& object) { fmt::print("{}\n", object.dump(2, ' ', false, Json::error_handler_t::replace)); }

void print_table(const std::vector<std::vector<std::string>>& rows) {
  if (rows.empty()) return;
  std::vector<std::size_t> widths;
  std::vector<bool> right;
  for (const auto& heading : rows.front()) right.push_back(heading.starts_with(">"));
  auto cell = [&](std::size_t row, std::size_t column) {
    std::string_view text = rows[row][column];
    return row == 0 && right[column] ? text.substr(1) : text;
  };
  for (std::size_t row = 0; row < rows.size(); row++) {
    widths.resize(std::max(widths.size(), rows[row].size()));
    for (std::size_t i = 0; i < rows[row].size(); i++) widths[i] = std::max(widths[i], cell(row, i).size());
  }
  for (std::size_t row = 0; row < rows.size(); row++) {
    std::string line;
    for (std::size_t i = 0; i < rows[row].size(); i++) {
      if (i > 0) line += "  ";
      line +=
          right[i] ? fmt::format("{:>{}}", cell(row, i), widths[i]) : fmt::format("{:<{}}", cell(row, i), widths[i]);
    }
    line.erase(line.find_last_not_of(' ') + 1);
    fmt::print("{}\n", line);
  }
}

std::string printable(std::string_view name) {
  std::string out(name);
  for (char& c : out) {
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) c = '?';
  }
  return out;
}

std::string error_line(std::string_view command, const Status& status) {
  std::string text = printable(one_line(status.message()));
  return fmt::format("weightfs{}{}: {}{}", command.empty() ? "" : " ", command, text, remedy(status));
}

void print_error(std::string_view command, const Status& status) {
  fmt::print(stderr, "{}\n", error_line(command, status));
}

Json publish_facts(const PublishResult& result) {
  Json facts;
  facts["version"] = result.version.str();
  facts["parent"] = result.parent ? Json(result.parent->str()) : Json(nullptr);
  facts["plain_bytes"] = result.plain_bytes;
  facts["sent_bytes"] = result.sent_bytes;
  facts["changed_elements"] = result.changed_elements;
  facts["total_elements"] = result.total_elements;
  facts["seconds"] = result.seconds;
  return facts;
}

void print_publish_text(const PublishResult& result) {
  double density = result.total_elements == 0
                       ? 0
                       : static_cast<double>(result.changed_elements) / static_cast<double>(result.total_elements);
  fmt::print("{} published: {} as {} ({}), {} in {}\n", printable(result.version.str()),
             format_size(result.plain_bytes), format_size(result.sent_bytes),
             format_ratio(static_cast<double>(result.plain_bytes) / static_cast<double>(result.sent_bytes)),
             result.parent ? fmt::format("{} of {} elements changed ({}) since {}",
                                         format_count(result.changed_elements), format_count(result.total_elements),
                                         format_percent(density), printable(result.parent->str()))
                           : "without a parent",
             format_seconds(result.seconds));
}

Json version_facts(const VersionRecord& version, const ModelName& model) {
  Json facts;
  facts["name"] = version.name.str();
  facts["model"] = model.str();
  std::string parent = parent_text(version.parent, version.parent_version);
  facts["parent"] = parent.empty() ? Json(nullptr) : Json(parent);
  facts["number"] = version.number;
  facts["plain_bytes"] = version.plain_bytes;
  facts["stored_bytes"] = version.stored_bytes;
  facts["changed_elements"] = version.changed_elements;
  facts["total_elements"] = version.total_elements;
  facts["time"] = to_rfc3339(version.time);
  return facts;
}

Status flush_output() {
  if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0) return {};
  return from_errno(errno, "write standard output");
}

}  // namespace weightfs::tools
