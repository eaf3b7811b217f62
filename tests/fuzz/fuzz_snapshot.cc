// Input: one byte that selects a directory, or the table of a page and whether it is compressed; then that. Digests are
// made to fit.
#include "fuzz.h"
#include "store/format/snapshot.h"

using namespace weightfs;

namespace {

const ModelName& model() {
  static const auto name = *ModelName::parse("m");
  return name;
}

void run_directory(ByteSpan bytes) {
  SnapshotEntry entry{.through = 9, .size = 1000 + bytes.size(), .directory_offset = 1000};
  entry.directory_digest = Sha256::of(bytes);
  auto directory = parse_snapshot_directory(bytes, model(), entry);
  if (!directory.is_ok()) return fuzz::check_refusal(directory.status());
  for (const auto& page : directory->pages) WFS_CHECK(page.range.end() <= 1000);
}

void run_page(std::uint8_t select, ByteSpan bytes) {
  if (bytes.size() < 6) return;
  SnapshotPage page{.table = static_cast<SnapshotPage::Table>(select % 5)};
  page.first = std::to_integer<std::uint64_t>(bytes[0]);
  page.last = std::to_integer<std::uint64_t>(bytes[1]);
  page.records = 1 + std::to_integer<std::uint64_t>(bytes[2]);
  page.compressed = std::to_integer<std::uint8_t>(bytes[3]) % 2 == 1;
  auto plain_length = load_le<std::uint16_t>(bytes.data() + 4);
  bytes = bytes.subspan(6);
  page.plain_length = page.compressed ? plain_length : bytes.size();
  page.range = {0, bytes.size()};
  page.digest = Sha256::of(bytes);
  Snapshot into(model());
  into.through = 300;
  auto status = parse_snapshot_page(bytes, page, into);
  if (!status.is_ok()) return fuzz::check_refusal(status);
  WFS_CHECK(check_snapshot(into).is_ok());
  auto written = serialize_snapshot(into);
  auto again = parse_snapshot(written.object, model(), written.entry);
  WFS_CHECK(again.is_ok());
  WFS_CHECK(*again == into);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  auto bytes = fuzz::input(data, size).subspan(1);
  if (data[0] % 8 < 2) {
    run_directory(bytes);
  } else {
    run_page(data[0] % 8 - 2, bytes);
  }
  return 0;
}
