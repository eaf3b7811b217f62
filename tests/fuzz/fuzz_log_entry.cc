// Input: an entry 9 of model "m" without its check, which is added here. The same bytes as a hint.
#include "fuzz.h"
#include "store/format/log_entry.h"

using namespace weightfs;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  auto bytes = fuzz::input(data, size);
  const auto model = *ModelName::parse("m");
  auto parse = [&](ByteSpan text) { return parse_log_entry(text, model, 9); };
  auto write = [](const LogEntry& entry) { return serialize(entry); };
  fuzz::check_round_trip(parse(bytes), write, parse);
  std::string text(as_text(bytes));
  if (text.ends_with('}')) fuzz::check_round_trip(parse(as_bytes(with_check(text))), write, parse);
  fuzz::check_round_trip(parse_hint(bytes), serialize_hint, parse_hint);
  return 0;
}
