#include "fs/draft_nodes.h"

#include <fcntl.h>
#include <unistd.h>

namespace weightfs {

std::string proc_path(int fd) { return "/proc/self/fd/" + std::to_string(fd); }

bool is_frozen(const Draft& draft) {
  auto state = draft.status().state;
  return state == DraftState::kPublishing || state == DraftState::kCommitted;
}

OrErrno<DraftNodePtr> DraftNodes::adopt(const DraftPtr& draft, const DraftNodePtr& parent, const std::string& name,
                                        Fd path) {
  struct stat st;
  if (::fstat(path.get(), &st) != 0) return Errno::last();
  auto candidate = std::make_shared<DraftNode>(draft, std::move(path), st.st_ino);
  candidate->set_charged(st.st_blocks * 512);
  auto node = std::static_pointer_cast<DraftNode>(inodes_.look_up(candidate));
  node->set_place(parent, name);
  return node;
}

OrErrno<DraftNodePtr> DraftNodes::top(const DraftPtr& draft) {
  Fd path(::open(draft->root().c_str(), O_PATH | O_NOFOLLOW | O_DIRECTORY | O_CLOEXEC));
  if (!path.valid()) return Errno::last();
  return adopt(draft, nullptr, "", std::move(path));
}

OrErrno<DraftNodePtr> DraftNodes::child(const DraftNodePtr& parent, const std::string& name) {
  if (name.find('/') != name.npos || name == "..") return answer::kInvalid;
  Fd path(::openat(parent->path.get(), name.c_str(), O_PATH | O_NOFOLLOW | O_CLOEXEC));
  if (!path.valid()) return Errno::last();
  return adopt(parent->draft, parent, name, std::move(path));
}

OrErrno<DraftNodePtr> DraftNodes::of_descriptor(const DraftNodePtr& parent, const std::string& name, int fd) {
  Fd path(::open(proc_path(fd).c_str(), O_PATH | O_CLOEXEC));
  if (!path.valid()) return Errno::last();
  return adopt(parent->draft, parent, name, std::move(path));
}

void DraftNodes::moved(const DraftNodePtr& parent, const std::string& name) {
  struct stat st;
  if (::fstatat(parent->path.get(), name.c_str(), &st, AT_SYMLINK_NOFOLLOW) != 0) return;
  auto node = inodes_.known(DraftNode::key_of(parent->draft, st.st_ino));
  if (node) static_cast<DraftNode&>(*node).set_place(parent, name);
}

void DraftNodes::watch_last_link(const DraftNodePtr& parent, const std::string& name) {
  struct stat st;
  if (::fstatat(parent->path.get(), name.c_str(), &st, AT_SYMLINK_NOFOLLOW) != 0 || !S_ISREG(st.st_mode)) return;
  auto node = inodes_.known(DraftNode::key_of(parent->draft, st.st_ino));
  if (node) static_cast<DraftNode&>(*node).refund_when_gone();
}

OrErrno<struct stat> DraftNodes::attributes(const DraftNode& node) {
  struct stat st;
  if (::fstat(node.path.get(), &st) != 0) return Errno::last();
  st.st_ino = node.st_ino;
  if (node.draft->status().state == DraftState::kCommitted) st.st_mode &= ~mode_t{0222};
  return st;
}

}  // namespace weightfs
