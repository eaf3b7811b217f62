#include "tools/beside.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <spdlog/spdlog.h>
#include <sys/xattr.h>

#include <array>

#include "fs/mount_table.h"
#include "store/base/posix.h"
#include "store/base/posix_at.h"
#include "tools/interrupt.h"

namespace weightfs::tools {

Result<ControlClient> daemon_of_cache(const BucketArgs& args) {
  return ControlClient::connect(cache_dir_of(args) + "/control.sock");
}

namespace {

constexpr auto kLookAgain = std::chrono::milliseconds(100);
constexpr auto kSayAfter = std::chrono::seconds(1);

// Is the lock free? What cannot be asked is for the store to find out.
bool is_free(const std::string& cache_dir) {
  Fd lock(::open((cache_dir + "/lock").c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  if (!lock.valid()) return true;
  return posix::lock_exclusive(lock.get()).code() != Code::kBusy;
}

}  // namespace

Result<CacheAccess> open_cache(const BucketArgs& args) {
  auto started = std::chrono::steady_clock::now();
  bool said = false;
  for (;;) {
    auto session = Session::open(args);
    if (session) return CacheAccess{std::move(session).value(), std::nullopt};
    if (session.code() != Code::kBusy) return std::move(session).status();
    auto daemon = daemon_of_cache(args);
    if (daemon) return CacheAccess{std::nullopt, std::move(daemon).value()};
    if (interrupted()) return Status(Code::kInterrupted, "interrupted");
    if (!said && std::chrono::steady_clock::now() - started > kSayAfter) {
      said = true;
      spdlog::warn("waiting: {}", session.status().message());
    }
    Clock::system().sleep_for(kLookAgain);
  }
}

Status wait_for_free_cache(const std::string& cache_dir, Duration patience) {
  auto deadline = std::chrono::steady_clock::now() + patience;
  while (!is_free(cache_dir)) {
    auto daemon = ControlClient::connect(cache_dir + "/control.sock");
    auto status = daemon ? daemon->call({{"op", "status"}}) : Result<control::Json>(daemon.status());
    if (status) {
      return {Code::kBusy, fmt::format("{} is mounted on {} already, by process {}; use that mount, or choose another "
                                       "--cache-dir",
                                       status->value("bucket", std::string()),
                                       status->value("mountpoint", std::string()), status->value("pid", 0))};
    }
    if (std::chrono::steady_clock::now() >= deadline) return {};  // the store names who has it
    Clock::system().sleep_for(kLookAgain);
  }
  return {};
}

Result<InMount> in_mount(const std::string& path) {
  auto found = ControlClient::connect_for(path);
  if (found) return InMount{std::move(found->first), std::move(found->second)};
  if (found.code() != Code::kNotFound) return std::move(found).status();
  return Status(Code::kNotFound, found.status().message() + "; `weightfs status` lists the mounts");
}

Result<ControlClient> daemon_of_mount(const std::string& dir) {
  InMount found = WFS_TRY(in_mount(dir));
  if (found.path.empty()) return std::move(found.daemon);
  return Status(Code::kInvalid, dir + " is inside a mount, not its top; name the directory that was mounted");
}

Result<std::string> version_state(const std::string& path) {
  std::array<char, 4096> value{};
  ssize_t length = ::getxattr(path.c_str(), "user.weightfs.state", value.data(), value.size());
  if (length < 0) return from_errno(errno, "state of " + path);
  return std::string(value.data(), static_cast<std::size_t>(length));
}

PublishResult publish_result(const control::Json& answer) {
  auto version = [&](const char* field) {
    auto found = answer.find(field);
    std::string name = found != answer.end() && found->is_string() ? decoded(found->get<std::string>()) : std::string();
    return VersionRef::parse(name);
  };
  auto name = version("version");
  if (!name) throw std::runtime_error("the daemon's answer names no version; is it of another release?");
  PublishResult result{*name, std::nullopt, {name->model, answer.value("number", std::uint64_t{0})}};
  auto parent = version("parent");
  if (parent) result.parent = *parent;
  result.plain_bytes = answer.value("plain_bytes", std::uint64_t{0});
  result.sent_bytes = answer.value("sent_bytes", std::uint64_t{0});
  result.changed_elements = answer.value("changed_elements", std::uint64_t{0});
  result.total_elements = answer.value("total_elements", std::uint64_t{0});
  result.seconds = answer.value("seconds", 0.0);
  return result;
}

std::string decoded(const std::string& name) {
  auto plain = percent_decode(name);
  return plain ? *plain : name;
}

}  // namespace weightfs::tools
