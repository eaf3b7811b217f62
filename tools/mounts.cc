#include "tools/mounts.h"

#include <sys/xattr.h>

#include <array>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "store/base/posix.h"

namespace weightfs::tools {
namespace {

// The kernel writes space, tab, newline and backslash as \ooo.
std::string unescape(std::string_view text) {
  std::string out;
  for (std::size_t i = 0; i < text.size(); i++) {
    if (text[i] == '\\' && i + 3 < text.size()) {
      out += static_cast<char>((text[i + 1] - '0') * 64 + (text[i + 2] - '0') * 8 + (text[i + 3] - '0'));
      i += 3;
    } else {
      out += text[i];
    }
  }
  return out;
}

bool is_below(std::string_view path, std::string_view dir) {
  return dir == "/" || path == dir || (path.starts_with(dir) && path.size() > dir.size() && path[dir.size()] == '/');
}

// With links in its directories resolved as far as they exist, so that it compares with what the kernel lists.
std::string resolved(const std::string& path) {
  std::error_code error;
  auto real = std::filesystem::weakly_canonical(posix::absolute(path), error);
  return error ? posix::absolute(path) : real.string();
}

// "a b c … - fuse.weightfs SOURCE options"
bool parse_line(const std::string& line, MountPoint* mount) {
  std::istringstream fields(line);
  std::string id, parent, device, root, point, word, type, source;
  fields >> id >> parent >> device >> root >> point;
  while (fields >> word && word != "-") {
  }
  fields >> type >> source;
  if (!fields || type != "fuse.weightfs") return false;
  *mount = {unescape(point), unescape(source)};
  return true;
}

}  // namespace

Result<std::vector<MountPoint>> list_mounts() {
  std::ifstream file("/proc/self/mountinfo");
  if (!file) return Status(Code::kIo, "/proc/self/mountinfo cannot be read");
  std::vector<MountPoint> mounts;
  MountPoint mount;
  for (std::string line; std::getline(file, line);) {
    if (parse_line(line, &mount)) mounts.push_back(mount);
  }
  return mounts;
}

bool is_mount(const std::string& path) {
  auto mounts = list_mounts();
  if (!mounts) return false;
  std::string absolute = posix::absolute(path), real;
  for (const MountPoint& mount : *mounts) {
    if (mount.dir == absolute) return true;
  }
  real = resolved(path);
  for (const MountPoint& mount : *mounts) {
    if (mount.dir == real) return true;
  }
  return false;
}

Result<MountPoint> mount_of(const std::string& path) {
  std::vector<MountPoint> mounts = WFS_TRY(list_mounts());
  const MountPoint* best = nullptr;
  for (const std::string& candidate : {posix::absolute(path), mounts.empty() ? std::string() : resolved(path)}) {
    for (const MountPoint& mount : mounts) {
      if (is_below(candidate, mount.dir) && (best == nullptr || mount.dir.size() >= best->dir.size())) best = &mount;
    }
    if (best != nullptr) return *best;
  }
  return Status(Code::kInvalid, path + " is in no weightfs mount; `weightfs status` lists the mounts");
}

Result<std::string> version_state(const std::string& path) {
  std::array<char, 4096> value{};
  ssize_t length = ::getxattr(path.c_str(), "user.weightfs.state", value.data(), value.size());
  if (length < 0) return from_errno(errno, "state of " + path);
  return std::string(value.data(), static_cast<std::size_t>(length));
}

}  // namespace weightfs::tools
