#include "store/cache/cache_dir.h"

#include <spdlog/spdlog.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <optional>

#include "store/base/digest.h"
#include "store/base/names.h"

namespace weightfs {
namespace {

constexpr char kIndex[] = "index.sqlite";
constexpr char kAside[] = "index.sqlite.damaged-";

// A number as to_string() writes it, and nothing else.
template <typename T>
std::optional<T> canonical_number(std::string_view text, T limit) {
  T value{};
  auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value > limit) return std::nullopt;
  if (std::to_string(value) != text) return std::nullopt;
  return value;
}

Status check_owner_and_mode(const struct stat& st, const std::string& path) {
  if (!S_ISDIR(st.st_mode)) return {Code::kPermission, "cache directory " + path + " is not a directory"};
  if (st.st_uid != ::geteuid()) {
    return {Code::kPermission, "cache directory " + path + " belongs to uid " + std::to_string(st.st_uid) +
                                   ", not to us (uid " + std::to_string(::geteuid()) +
                                   "): choose another with --cache-dir"};
  }
  if ((st.st_mode & 077) != 0) {
    return {Code::kPermission, "cache directory " + path + " is open to other users: run chmod 700 " + path +
                                   ", or choose another with --cache-dir"};
  }
  return {};
}

void remove_link(int dir, const std::string& name, const std::string& where) {
  spdlog::warn("cache {}: removed the symlink {}: weightfs makes none there", where, percent_encode(name));
  posix::unlink_at(dir, name).ignore("what opens it refuses a link anyway");
}

// The lock file also works read-only, so that a cache on a read-only disk can be read.
Result<Fd> open_lock_file(int dir) {
  auto lock = posix::open_at(dir, "lock", O_RDWR | O_CREAT | O_NOFOLLOW, 0600);
  if (!lock.is_ok() && lock.code() != Code::kInvalid) {
    auto existing = posix::open_at(dir, "lock", O_RDONLY | O_NOFOLLOW);
    if (existing.is_ok()) return existing;
  }
  return lock;
}

std::string owner_of_lock(int lock) {
  char buffer[32];
  ssize_t length = ::pread(lock, buffer, sizeof(buffer), 0);
  std::string_view text(buffer, length > 0 ? static_cast<std::size_t>(length) : 0);
  while (!text.empty() && text.back() == '\n') text.remove_suffix(1);
  auto pid = canonical_number<std::uint32_t>(text, 1u << 30);
  return pid ? "process " + std::to_string(*pid) : "another process";
}

Result<Fd> take_lock(int dir, const std::string& path) {
  auto lock = WFS_TRY(open_lock_file(dir).with("lock of cache directory " + path));
  auto status = posix::lock_exclusive(lock.get());
  if (status.code() == Code::kBusy) {
    return Status(Code::kBusy, "cache directory " + path + " is in use by " + owner_of_lock(lock.get()) +
                                   "; wait for it, or choose another --cache-dir");
  }
  WFS_TRY(std::move(status).with("cache directory " + path));
  auto pid = std::to_string(::getpid()) + "\n";
  auto written = posix::truncate(lock.get(), 0);
  if (written.is_ok()) written = posix::pwrite_exact(lock.get(), 0, as_bytes(pid));
  if (!written.is_ok()) spdlog::debug("cache {}: pid not noted in lock: {}", path, written.message());
  return lock;
}

}  // namespace

std::string FileKey::path() const {
  return "files/" + model + "/" + std::to_string(number) + "/" + std::to_string(file);
}

bool is_model_component(std::string_view text) {
  if (text.empty() || text.size() > 255 || text[0] == '.') return false;
  if (text.starts_with("%h")) {
    return text.size() == 66 && Sha256::parse(text.substr(2)).is_ok();
  }
  return text.size() <= 200 && percent_decode(text).is_ok();
}

CacheDir::CacheDir(std::string path, Fd dir, Fd lock)
    : path_(std::move(path)), dir_(std::move(dir)), lock_(std::move(lock)) {}

Result<CacheDir> CacheDir::open(const std::string& path) {
  auto absolute = posix::absolute(path);
  while (absolute.size() > 1 && absolute.back() == '/') absolute.pop_back();
  auto before = posix::exists(absolute);
  WFS_TRY(posix::make_dirs(absolute, 0700).with("cache directory"));
  if (before.is_ok() && !*before) posix::fsync_parent(absolute).ignore("drafts in it may be lost with the machine");
  std::error_code error;
  auto real = std::filesystem::canonical(absolute, error).string();
  if (error) return from_errno(error.value(), "cache directory " + absolute);
  auto dir = WFS_TRY(posix::open(real, O_RDONLY | O_DIRECTORY).with("cache directory"));
  auto st = WFS_TRY(posix::fstat(dir.get()));
  WFS_TRY(check_owner_and_mode(st, real));
  auto lock = WFS_TRY(take_lock(dir.get(), real));
  return CacheDir(std::move(real), std::move(dir), std::move(lock));
}

Result<Fd> CacheDir::flat_folder(const FileKey& key, bool make) const {
  auto step = make ? [](int dir, const std::string& name) { return posix::make_dir_at(dir, name); }
                   : [](int dir, const std::string& name) { return posix::open_dir_at(dir, name); };
  auto files = WFS_TRY(step(dir_.get(), "files"));
  auto model = WFS_TRY(step(files.get(), key.model));
  return step(model.get(), std::to_string(key.number));
}

Result<Fd> CacheDir::open_flat(const FileKey& key, int flags) const {
  auto folder = WFS_TRY(flat_folder(key, false).with(path_));
  auto opened = WFS_TRY(
      posix::open_at(folder.get(), std::to_string(key.file), flags | O_NOFOLLOW | O_NONBLOCK).with(file(key.path())));
  auto st = WFS_TRY(posix::fstat(opened.get()));
  if (!S_ISREG(st.st_mode) || st.st_nlink != 1) {
    return Status(Code::kCorrupt, file(key.path()) + " is not an ordinary file with one name");
  }
  return opened;
}

Result<Fd> CacheDir::create_flat(const FileKey& key, std::uint64_t size) const {
  auto attempt = [&]() -> Result<Fd> {
    auto folder = WFS_TRY(flat_folder(key, true));
    auto name = std::to_string(key.file);
    auto made = WFS_TRY(posix::open_at(folder.get(), name, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW, 0600));
    auto status = posix::truncate(made.get(), size);
    if (!status.is_ok()) {
      posix::unlink_at(folder.get(), name).ignore("the truncate's error is the one to report");
      return status;
    }
    return made;
  };
  // remove_flat() may take an emptied folder away between two steps; the next attempt makes it again.
  for (int tries = 0;; tries++) {
    auto made = attempt();
    if (made.is_ok() || made.code() != Code::kNotFound || tries == 5) return std::move(made).with(file(key.path()));
  }
}

Status CacheDir::place_flat(const FileKey& key, int from_dir, const std::string& name) const {
  Status status;
  for (int tries = 0; tries <= 5; tries++) {
    auto folder = flat_folder(key, true);
    status = folder.is_ok() ? posix::move_at(from_dir, name, folder->get(), std::to_string(key.file))
                            : std::move(folder).status();
    if (status.code() != Code::kNotFound) break;
  }
  return std::move(status).with(file(key.path()));
}

Status CacheDir::remove_flat(const FileKey& key) const {
  auto folder = flat_folder(key, false);
  if (!folder.is_ok()) return folder.code() == Code::kNotFound ? Status() : std::move(folder).status();
  auto status = posix::unlink_at(folder->get(), std::to_string(key.file));
  if (!status.is_ok() && status.code() != Code::kNotFound) {
    return std::move(status).with(file(key.path()));
  }
  auto files = posix::open_dir_at(dir_.get(), "files");
  if (!files.is_ok()) return {};
  auto model = posix::open_dir_at(files->get(), key.model);
  if (!model.is_ok()) return {};
  if (posix::rmdir_at(model->get(), std::to_string(key.number)).is_ok()) {
    posix::rmdir_at(files->get(), key.model).ignore("not empty: other versions are there");
  }
  return {};
}

namespace {

// Names in `dir` that are folders; links are removed, other things left alone.
std::vector<std::string> folders_in(int dir, const std::string& where) {
  auto names = posix::list_dir_at(dir);
  if (!names.is_ok()) {
    spdlog::warn("cache {}: {}: its files are not used", where, names.status().message());
    return {};
  }
  std::vector<std::string> folders;
  for (auto& name : *names) {
    auto st = posix::lstat_at(dir, name);
    if (!st.is_ok()) continue;
    if (S_ISDIR(st->st_mode)) {
      folders.push_back(std::move(name));
    } else if (S_ISLNK(st->st_mode)) {
      remove_link(dir, name, where);
    } else {
      spdlog::warn("cache {}: {} is not ours: left alone", where, percent_encode(name));
    }
  }
  return folders;
}

void scan_version(int folder, const FileKey& version, const std::string& where, std::vector<FoundFile>& found) {
  auto names = posix::list_dir_at(folder);
  if (!names.is_ok()) return;
  for (const auto& name : *names) {
    auto st = posix::lstat_at(folder, name);
    if (!st.is_ok()) continue;
    auto index = canonical_number<std::uint32_t>(name, ~std::uint32_t{0});
    if (S_ISLNK(st->st_mode)) {
      remove_link(folder, name, where);
    } else if (!index || !S_ISREG(st->st_mode)) {
      spdlog::warn("cache {}: {} is not ours: left alone", where, percent_encode(name));
    } else {
      found.push_back(
          {version, static_cast<std::uint64_t>(st->st_size), static_cast<std::uint64_t>(st->st_blocks) * 512});
      found.back().key.file = *index;
    }
  }
}

}  // namespace

std::vector<FoundFile> CacheDir::scan_flat() const {
  std::vector<FoundFile> found;
  auto st = posix::lstat_at(dir_.get(), "files");
  if (st.is_ok() && S_ISLNK(st->st_mode)) remove_link(dir_.get(), "files", path_);
  auto files = posix::open_dir_at(dir_.get(), "files");
  if (!files.is_ok()) return found;
  for (const auto& model : folders_in(files->get(), path_ + "/files")) {
    auto model_dir = posix::open_dir_at(files->get(), model);
    if (!model_dir.is_ok() || !is_model_component(model)) continue;
    auto where = path_ + "/files/" + model;
    for (const auto& number_name : folders_in(model_dir->get(), where)) {
      auto number = canonical_number<std::uint64_t>(number_name, kMaxNumber);
      auto folder = posix::open_dir_at(model_dir->get(), number_name);
      if (!number || !folder.is_ok()) continue;
      scan_version(folder->get(), FileKey{model, *number, 0}, where + "/" + number_name, found);
    }
  }
  return found;
}

Status CacheDir::set_index_aside() const {
  auto names = WFS_TRY(posix::list_dir_at(dir_.get()).with(path_));
  std::uint32_t last = 0;
  for (const auto& name : names) {
    if (!name.starts_with(kAside)) continue;
    auto text = std::string_view(name).substr(sizeof(kAside) - 1);
    auto number = canonical_number<std::uint32_t>(text.substr(0, text.find('-')), 1u << 30);
    if (number) last = std::max(last, *number);
    posix::unlink_at(dir_.get(), name).ignore("one too many is kept");
  }
  auto aside = kAside + std::to_string(last + 1);
  Status result;
  for (const char* suffix : {"", "-wal", "-journal", "-shm"}) {
    auto status = posix::rename_at(dir_.get(), std::string(kIndex) + suffix, aside + suffix);
    if (!status.is_ok() && status.code() != Code::kNotFound && result.is_ok()) result = std::move(status).with(path_);
  }
  return result;
}

void CacheDir::remove_index_links() const {
  for (const char* suffix : {"", "-wal", "-journal", "-shm"}) {
    auto name = std::string(kIndex) + suffix;
    auto st = posix::lstat_at(dir_.get(), name);
    if (st.is_ok() && S_ISLNK(st->st_mode)) remove_link(dir_.get(), name, path_);
  }
}

}  // namespace weightfs
