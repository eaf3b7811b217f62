#include "store/format/manifest.h"

#include <algorithm>

#include "store/format/json.h"

namespace weightfs {
namespace {

constexpr std::uint64_t kFormat = 1;
// Least bytes of a block in a list: length, type, digest.
constexpr std::size_t kLeastListedBlock = 1 + 1 + 16;

Status corrupt(std::string message) { return {Code::kCorrupt, std::move(message)}; }

constexpr std::uint64_t ceil_div(std::uint64_t a, std::uint64_t b) { return a / b + (a % b != 0 ? 1 : 0); }

const FileEntry* find_in(std::span<const FileEntry> files, std::string_view path) {
  auto at = std::lower_bound(files.begin(), files.end(), path,
                             [](const FileEntry& file, std::string_view wanted) { return file.path.str() < wanted; });
  return at != files.end() && at->path.str() == path ? &*at : nullptr;
}

Status check_file(const FileEntry& file) {
  if (file.mode > 07777) return corrupt("mode over 07777");
  if (file.kind != FileKind::kFile && (file.size != 0 || !file.pages.empty()))
    return corrupt("size of what is no file");
  if (file.kind == FileKind::kSymlink) {
    if (file.target.empty() || file.target.size() > 4095) return corrupt("length of a link's target");
    if (file.target.find('\0') != std::string::npos) return corrupt("NUL in a link's target");
  } else if (!file.target.empty()) {
    return corrupt("target of what is no link");
  }
  if (file.size > kMaxFileSize) return corrupt("size over the limit");
  // Every page but the last has kPageBlocks blocks of 1 .. kMaxBlock bytes.
  if (file.pages.size() < ceil_div(file.size, kPageBlocks * codec::kMaxBlock) ||
      file.pages.size() > ceil_div(file.size, kPageBlocks)) {
    return corrupt("number of pages does not fit the size");
  }
  return {};
}

// `before`: all entries that precede `file`.
Status check_place(std::span<const FileEntry> before, const FileEntry& file) {
  if (before.size() >= kMaxFiles) return corrupt("more than a million files");
  if (!before.empty() && before.back().path >= file.path) return corrupt("files are not in ascending order");
  if (auto parent = file.path.parent(); !parent.empty()) {
    const auto* entry = find_in(before, parent);
    if (entry == nullptr || entry->kind != FileKind::kDirectory) return corrupt("its directory is not an entry");
  }
  return {};
}

Status check_total(std::uint64_t& total, std::uint64_t size) {
  auto sum = checked_add(total, size);
  if (!sum || *sum > json::kMaxNumber) return corrupt("sum of the sizes over 2^63");
  total = *sum;
  return {};
}

std::string_view kind_name(FileKind kind) {
  switch (kind) {
    case FileKind::kFile:
      return "file";
    case FileKind::kDirectory:
      return "directory";
    case FileKind::kSymlink:
      return "symlink";
  }
  return "";
}

void write_file(json::Writer& out, const FileEntry& file) {
  out.begin_object().key("path").bytes(file.path.str());
  out.key("kind").text(kind_name(file.kind));
  out.key("mode").number(file.mode).key("mtime_ns").signed_number(file.mtime_ns);
  if (file.kind == FileKind::kFile) {
    out.key("size").number(file.size).key("pages").begin_array();
    for (const auto& page : file.pages) out.text(page.hex());
    out.end_array();
  } else if (file.kind == FileKind::kSymlink) {
    out.key("target").bytes(file.target);
  }
  out.end_object();
}

Result<FileEntry> read_file_fields(const json::Value& object, FilePath path) {
  FileEntry file{.path = std::move(path)};
  auto kind = WFS_TRY(json::get_text(object, "kind"));
  file.mode = static_cast<std::uint32_t>(WFS_TRY(json::get_number(object, "mode", 07777)));
  file.mtime_ns = WFS_TRY(json::get_signed(object, "mtime_ns"));
  if (kind == kind_name(FileKind::kFile)) {
    file.size = WFS_TRY(json::get_number(object, "size", kMaxFileSize));
    const auto* pages = WFS_TRY(json::get_array(object, "pages"));
    file.pages.reserve(pages->size());
    for (const auto& page : *pages) {
      file.pages.push_back(WFS_TRY(json::as_sha256(page).with("field 'pages'")));
    }
  } else if (kind == kind_name(FileKind::kDirectory)) {
    file.kind = FileKind::kDirectory;
  } else if (kind == kind_name(FileKind::kSymlink)) {
    file.kind = FileKind::kSymlink;
    file.target = WFS_TRY(json::get_bytes(object, "target"));
  } else {
    return Status(Code::kUnsupported, "a file of a kind that this version does not know: update weightfs");
  }
  WFS_TRY(check_file(file));
  return file;
}

Result<FileEntry> read_file(const json::Value& object) {
  WFS_TRY(json::require_object(object, "an entry of 'files'"));
  auto path = WFS_TRY(json::get_name<FilePath>(object, "path"));
  auto context = percent_encode(path.str());
  return read_file_fields(object, std::move(path)).with(context);
}

}  // namespace

const FileEntry* Manifest::find(std::string_view path) const { return find_in(files, path); }

Status check_manifest(const Manifest& manifest) {
  if (!manifest.id.empty() && !json::is_id(manifest.id)) return corrupt("field 'id' is not 32 hex digits");
  std::uint64_t total = 0;
  std::span<const FileEntry> files = manifest.files;
  for (std::size_t i = 0; i < files.size(); i++) {
    WFS_TRY(check_file(files[i]).with(percent_encode(files[i].path.str())));
    WFS_TRY(check_place(files.first(i), files[i]).with(percent_encode(files[i].path.str())));
    WFS_TRY(check_total(total, files[i].size));
  }
  return {};
}

Bytes serialize(const Manifest& manifest) {
  WFS_CHECK(check_manifest(manifest).is_ok());
  json::Writer out;
  out.begin_object().key("format").number(kFormat);
  out.key("model").bytes(manifest.model.str()).key("version").bytes(manifest.version.str());
  if (!manifest.id.empty()) out.key("id").text(manifest.id);
  out.key("files").begin_array();
  for (const auto& file : manifest.files) write_file(out, file);
  out.end_array().end_object();
  return out.take();
}

Result<Manifest> parse_manifest(ByteSpan text) {
  if (text.size() > kMaxManifest) return corrupt("manifest over " + std::to_string(kMaxManifest) + " bytes");
  std::vector<FileEntry> files;
  std::uint64_t total = 0;
  auto on_file = [&](json::Value&& object) -> Status {
    auto file = WFS_TRY(read_file(object));
    WFS_TRY(check_place(files, file).with(percent_encode(file.path.str())));
    WFS_TRY(check_total(total, file.size));
    files.push_back(std::move(file));
    return {};
  };
  Status stopped;
  auto root = WFS_TRY(json::parse_streaming(text, "files", on_file, stopped));
  WFS_TRY(json::require_object(root, "manifest"));
  WFS_TRY(json::check_format(root, kFormat));
  WFS_TRY(std::move(stopped));
  WFS_TRY(json::get_array(root, "files"));
  auto model = WFS_TRY(json::get_name<ModelName>(root, "model"));
  auto version = WFS_TRY(json::get_name<VersionName>(root, "version"));
  std::string id;
  if (json::find(root, "id") != nullptr) id = WFS_TRY(json::get_id(root, "id"));
  return Manifest{std::move(model), std::move(version), std::move(files), std::move(id)};
}

Bytes serialize_block_list(const BlockList& page) {
  WFS_CHECK(!page.empty() && page.size() <= kPageBlocks);
  Bytes out;
  out.reserve(page.size() * (kLeastListedBlock + 2) + 2);
  ByteWriter to(out);
  to.varint(page.size());
  for (const auto& block : page) {
    WFS_CHECK(block.length >= 1 && block.length <= codec::kMaxBlock);
    to.varint(block.length);
    to.u8(block.type);
    to.bytes(block.digest.bytes);
  }
  return out;
}

Result<BlockList> parse_block_list(ByteSpan bytes) {
  ByteReader from(bytes);
  auto count = from.varint();
  if (from.failed() || count == 0 || count > kPageBlocks || count > from.remaining() / kLeastListedBlock) {
    return corrupt("block list: bad number of blocks");
  }
  BlockList page(count);
  for (auto& block : page) {
    auto length = from.varint();
    block.type = from.u8();
    auto digest = from.bytes(block.digest.bytes.size());
    if (from.failed()) return corrupt("block list: cut short");
    if (length < 1 || length > codec::kMaxBlock) return corrupt("block list: bad length of a block");
    block.length = static_cast<std::uint32_t>(length);
    std::copy(digest.begin(), digest.end(), block.digest.bytes.begin());
  }
  if (!from.done()) return corrupt("block list: bytes after its end");
  return page;
}

}  // namespace weightfs
