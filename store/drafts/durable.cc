#include "store/drafts/durable.h"

#include <unistd.h>
#include <cerrno>

#include "store/base/posix.h"

namespace weightfs {
namespace {

// A file that may not be read can be flushed with all the rest only.
Status sync_filesystem(const std::string& root) {
  auto dir = WFS_TRY(posix::open(root, O_RDONLY | O_DIRECTORY | O_NOFOLLOW));
  return ::syncfs(dir.get()) == 0 ? Status() : from_errno(errno, "syncfs");
}

Status sync_below(const std::string& dir) {
  for (const auto& name : WFS_TRY(posix::list_dir(dir))) {
    auto path = dir + "/" + name;
    auto st = posix::lstat(path);
    if (st.code() == Code::kNotFound) continue;
    if (!st.is_ok()) return std::move(st).status();
    if (S_ISDIR(st->st_mode)) {
      WFS_TRY(sync_below(path));
    } else if (S_ISREG(st->st_mode)) {
      auto file = posix::open(path, O_RDONLY | O_NOFOLLOW);
      if (file.code() == Code::kNotFound) continue;
      if (!file.is_ok()) return std::move(file).status();
      WFS_TRY(posix::fsync(file->get()).with(path));
    }
  }
  return posix::fsync_dir(dir);
}

}  // namespace

Status sync_tree(const std::string& root) {
  auto status = sync_below(root);
  return status.code() == Code::kPermission ? sync_filesystem(root) : status;
}

}  // namespace weightfs
