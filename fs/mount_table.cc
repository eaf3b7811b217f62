#include "fs/mount_table.h"

#include <dirent.h>
#include <fcntl.h>
#include <spawn.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <memory>

#include "store/base/posix.h"

extern char** environ;

namespace weightfs {
namespace {

// mountinfo writes space, tab, newline and backslash as three octal digits.
std::string unescape(std::string_view text) {
  std::string out;
  for (std::size_t i = 0; i < text.size(); i++) {
    if (text[i] == '\\' && i + 3 < text.size()) {
      out.push_back(static_cast<char>((text[i + 1] - '0') * 64 + (text[i + 2] - '0') * 8 + (text[i + 3] - '0')));
      i += 3;
    } else {
      out.push_back(text[i]);
    }
  }
  return out;
}

std::string_view take_word(std::string_view& line) {
  auto word = line.substr(0, line.find(' '));
  line.remove_prefix(std::min(word.size() + 1, line.size()));
  return word;
}

std::optional<std::string> read_whole(const std::string& path) {
  Fd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd.valid()) return std::nullopt;
  std::string text;
  char buffer[65536];
  while (true) {
    ssize_t got = ::read(fd.get(), buffer, sizeof(buffer));
    if (got < 0) return std::nullopt;
    if (got == 0) return text;
    text.append(buffer, static_cast<std::size_t>(got));
  }
}

std::vector<std::string> names_in(const std::string& path) {
  std::unique_ptr<DIR, int (*)(DIR*)> dir(::opendir(path.c_str()), ::closedir);
  std::vector<std::string> names;
  if (!dir) return names;
  while (const auto* entry = ::readdir(dir.get())) names.emplace_back(entry->d_name);
  return names;
}

bool is_below(std::string_view path, const std::string& directory) {
  return path.starts_with(directory) && (path.size() == directory.size() || path[directory.size()] == '/');
}

std::string link_target(const std::string& path) {
  char target[4096];
  ssize_t length = ::readlink(path.c_str(), target, sizeof(target));
  return length < 0 ? std::string() : std::string(target, static_cast<std::size_t>(length));
}

std::optional<std::string> why_busy(const std::string& proc, const std::string& mountpoint) {
  for (const char* link : {"cwd", "root", "exe"}) {
    auto target = link_target(proc + "/" + link);
    if (is_below(target, mountpoint)) return std::string(link) + ": " + target;
  }
  for (const auto& fd : names_in(proc + "/fd")) {
    auto target = link_target(proc + "/fd/" + fd);
    if (is_below(target, mountpoint)) return "fd " + fd + ": " + target;
  }
  auto maps = read_whole(proc + "/maps");
  if (!maps) return std::nullopt;
  std::string_view rest = *maps;
  while (!rest.empty()) {
    auto line = rest.substr(0, rest.find('\n'));
    rest.remove_prefix(std::min(line.size() + 1, rest.size()));
    auto slash = line.find('/');
    if (slash != line.npos && is_below(line.substr(slash), mountpoint))
      return "map: " + std::string(line.substr(slash));
  }
  return std::nullopt;
}

}  // namespace

std::vector<MountEntry> parse_mountinfo(std::string_view text) {
  std::vector<MountEntry> entries;
  while (!text.empty()) {
    auto line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(line.size() + 1, text.size()));
    // id parent major:minor root mountpoint options [optional fields…] - type source superoptions
    MountEntry entry;
    take_word(line);
    take_word(line);
    entry.device = take_word(line);
    take_word(line);
    entry.mountpoint = unescape(take_word(line));
    auto dash = line.find(" - ");
    if (dash == line.npos) continue;
    line.remove_prefix(dash + 3);
    entry.type = unescape(take_word(line));
    entry.source = unescape(take_word(line));
    entries.push_back(std::move(entry));
  }
  return entries;
}

Result<std::vector<MountEntry>> mounted() {
  auto text = read_whole("/proc/self/mountinfo");
  if (!text) return from_errno(errno, "read /proc/self/mountinfo");
  return parse_mountinfo(*text);
}

std::optional<MountEntry> mount_at(const std::string& mountpoint) {
  auto entries = mounted();
  if (!entries.is_ok()) return std::nullopt;
  auto found = std::find_if(entries->rbegin(), entries->rend(),
                            [&](const MountEntry& entry) { return entry.mountpoint == mountpoint; });
  return found == entries->rend() ? std::nullopt : std::optional(*found);
}

std::optional<std::pair<MountEntry, std::string>> mount_of(const std::string& path) {
  auto entries = mounted();
  if (!entries.is_ok()) return std::nullopt;
  const MountEntry* best = nullptr;
  for (const auto& entry : *entries) {
    bool below = entry.mountpoint == "/" || is_below(path, entry.mountpoint);
    if (below && (best == nullptr || entry.mountpoint.size() >= best->mountpoint.size())) best = &entry;
  }
  if (best == nullptr || best->type != "fuse.weightfs") return std::nullopt;
  auto rest = path.substr(std::min(path.size(), best->mountpoint.size() + 1));
  return std::pair(*best, rest);
}

dev_t device_number(const MountEntry& entry) {
  auto colon = entry.device.find(':');
  if (colon == std::string::npos) return 0;
  return makedev(static_cast<unsigned>(std::strtoul(entry.device.c_str(), nullptr, 10)),
                 static_cast<unsigned>(std::strtoul(entry.device.c_str() + colon + 1, nullptr, 10)));
}

std::vector<BusyProcess> busy_processes(const std::string& mountpoint) {
  std::vector<BusyProcess> busy;
  for (const auto& name : names_in("/proc")) {
    if (name.empty() || name.find_first_not_of("0123456789") != name.npos) continue;
    auto proc = "/proc/" + name;
    auto why = why_busy(proc, mountpoint);
    if (!why) continue;
    auto comm = read_whole(proc + "/comm").value_or("?");
    while (!comm.empty() && comm.back() == '\n') comm.pop_back();
    busy.push_back({static_cast<pid_t>(std::strtol(name.c_str(), nullptr, 10)), comm, *why});
  }
  return busy;
}

Status unmount(const std::string& mountpoint, bool lazy) {
  if (::geteuid() == 0) {
    if (::umount2(mountpoint.c_str(), UMOUNT_NOFOLLOW | (lazy ? MNT_DETACH : 0)) == 0) return {};
    return from_errno(errno, "umount " + mountpoint);
  }
  std::vector<std::string> words = {"fusermount3", "-u", "-q"};
  if (lazy) words.emplace_back("-z");
  words.insert(words.end(), {"--", mountpoint});
  std::vector<char*> argv;
  for (auto& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  pid_t pid = 0;
  int error = ::posix_spawnp(&pid, "fusermount3", nullptr, nullptr, argv.data(), environ);
  if (error != 0) return from_errno(error, "run fusermount3");
  int status = 0;
  while (::waitpid(pid, &status, 0) < 0) {
    if (errno != EINTR) return from_errno(errno, "wait for fusermount3");
  }
  if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return {};
  if (!mount_at(mountpoint)) return {};
  return {Code::kBusy, "fusermount3 -u " + mountpoint + " failed: something is open there"};
}

bool is_dead_mount(const std::string& mountpoint) {
  struct stat st;
  return ::stat(mountpoint.c_str(), &st) != 0 && errno == ENOTCONN;
}

}  // namespace weightfs
