#include "store/cache/draft_record.h"

#include <algorithm>
#include <nlohmann/json.hpp>

namespace weightfs {
namespace {

constexpr int kFormat = 1;

struct Field {
  const char* name;
  std::string DraftRecord::* member;
};
constexpr Field kFields[] = {
    {"id", &DraftRecord::id},         {"model", &DraftRecord::model},         {"name", &DraftRecord::name},
    {"parent", &DraftRecord::parent}, {"state", &DraftRecord::state},         {"reason", &DraftRecord::reason},
    {"extra", &DraftRecord::extra},   {"commit_id", &DraftRecord::commit_id},
};

}  // namespace

bool is_draft_id(std::string_view text) {
  return text.size() == 32 &&
         std::all_of(text.begin(), text.end(), [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); });
}

Bytes encode_draft_record(const DraftRecord& record) {
  nlohmann::json json;
  json["format"] = kFormat;
  for (const auto& field : kFields) json[field.name] = percent_encode(record.*field.member);
  return to_bytes(json.dump(1) + "\n");
}

Result<DraftRecord> decode_draft_record(ByteSpan bytes) {
  auto bad = [](const std::string& why) { return Status(Code::kCorrupt, "draft record: " + why); };
  if (bytes.size() > kMaxDraftRecordBytes) return bad("too long");
  auto text = as_text(bytes);
  // One flat object: anything deeper is refused before it can cost a stack.
  auto shallow = [](int depth, nlohmann::json::parse_event_t, nlohmann::json&) { return depth <= 2; };
  auto json = nlohmann::json::parse(text.begin(), text.end(), shallow, /*allow_exceptions=*/false);
  if (!json.is_object()) return bad("not a JSON object");
  auto format = json.find("format");
  if (format == json.end() || !format->is_number_integer()) return bad("no format");
  if (*format != kFormat) return Status(Code::kUnsupported, "draft record of format " + format->dump());
  DraftRecord record;
  for (const auto& field : kFields) {
    auto value = json.find(field.name);
    if (value == json.end() || !value->is_string()) return bad(std::string("no ") + field.name);
    auto decoded = percent_decode(value->get_ref<const std::string&>());
    if (!decoded.is_ok()) return bad(std::string(field.name) + ": " + decoded.status().message());
    record.*field.member = std::move(decoded).value();
  }
  if (!is_draft_id(record.id)) return bad("bad id");
  return record;
}

}  // namespace weightfs
