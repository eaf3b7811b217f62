#include "store/materialize/shards.h"

#include <algorithm>
#include <charconv>

#include "store/format/safetensors.h"
#include "store/materialize/versions.h"

namespace weightfs {
namespace {

constexpr std::uint64_t kMaxIndexFile = 16 << 20;
constexpr std::string_view kIndex = ".index.json", kOf = "-of-";

bool is_digit(char c) { return c >= '0' && c <= '9'; }

std::string_view folder_of(std::string_view path) {
  auto slash = path.rfind('/');
  return slash == path.npos ? std::string_view() : path.substr(0, slash + 1);
}

std::optional<std::uint32_t> find(const Manifest& manifest, const std::string& path) {
  for (std::uint32_t i = 0; i < manifest.files.size(); i++) {
    if (manifest.files[i].kind == FileKind::kFile && manifest.files[i].path.str() == path) return i;
  }
  return std::nullopt;
}

// The names of the index at `file` of the manifest; none when it cannot be had.
std::vector<std::string> names_of_index(Versions& versions, const VersionPtr& version, std::uint32_t file,
                                        const CallOptions& options) {
  auto opened = versions.open_file(version, file, options);
  if (!opened.is_ok()) return {};
  Bytes text(version->manifest().files[file].size);
  if (!(*opened)->read_now({0, text.size()}, text, options).is_ok()) return {};
  auto names = safetensors::shards_of_index(text);
  return names.is_ok() ? std::move(names).value() : std::vector<std::string>();
}

}  // namespace

std::optional<std::string> next_numbered(std::string_view name) {
  auto of = name.rfind(kOf);
  if (of == name.npos) return std::nullopt;
  auto begin = of;
  while (begin > 0 && is_digit(name[begin - 1])) begin--;
  auto digits = name.substr(begin, of - begin);
  if (digits.empty() || digits.size() > 9) return std::nullopt;
  std::uint32_t number = 0;
  std::from_chars(digits.data(), digits.data() + digits.size(), number);
  auto next = std::to_string(number + 1);
  if (next.size() < digits.size()) next.insert(0, digits.size() - next.size(), '0');
  return std::string(name.substr(0, begin)) + next + std::string(name.substr(of));
}

std::optional<std::uint32_t> next_shard(Versions& versions, const VersionPtr& version, std::uint32_t file,
                                        const CallOptions& options) {
  const auto& files = version->manifest().files;
  const auto& path = files[file].path.str();
  auto folder = folder_of(path);
  auto name = path.substr(folder.size());
  for (std::uint32_t i = 0; i < files.size(); i++) {
    const auto& other = files[i].path.str();
    bool is_index = files[i].kind == FileKind::kFile && other.ends_with(kIndex) && folder_of(other) == folder &&
                    files[i].size > 0 && files[i].size <= kMaxIndexFile;
    if (!is_index) continue;
    auto names = names_of_index(versions, version, i, options);
    auto here = std::find(names.begin(), names.end(), name);
    if (here == names.end()) continue;
    if (++here == names.end()) return std::nullopt;
    return find(version->manifest(), std::string(folder) + *here);
  }
  auto next = next_numbered(name);
  return next ? find(version->manifest(), std::string(folder) + *next) : std::nullopt;
}

}  // namespace weightfs
