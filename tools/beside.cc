#include "tools/beside.h"

#include <sys/xattr.h>

#include <array>

#include "fs/mount_table.h"
#include "store/base/posix.h"

namespace weightfs::tools {

Result<ControlClient> daemon_of_cache(const BucketArgs& args) {
  return ControlClient::connect(cache_dir_of(args) + "/control.sock");
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
