// Files of drafts as inodes: found below the draft's local directory by openat-family calls, one name at a time, never
// through a symlink, so no name leads out of it.
#pragma once

#include <sys/stat.h>

#include <string>
#include <variant>

#include "fs/errno.h"
#include "fs/inodes.h"

namespace weightfs {

template <typename T>
using OrErrno = std::variant<T, Errno>;

class DraftNodes {
 public:
  explicit DraftNodes(Inodes& inodes) : inodes_(inodes) {}

  // Each counts a lookup of the node it returns.
  OrErrno<DraftNodePtr> top(const DraftPtr& draft);
  OrErrno<DraftNodePtr> child(const DraftNodePtr& parent, const std::string& name);
  OrErrno<DraftNodePtr> of_descriptor(const DraftNodePtr& parent, const std::string& name, int fd);

  static OrErrno<struct stat> attributes(const DraftNode& node);

  // `name` was renamed to here: nodes remember where they are.
  void moved(const DraftNodePtr& parent, const std::string& name);
  // `name` is about to go. When that was a file's last name, the draft gets back what it was charged for it, once the
  // last handle is closed too.
  void watch_last_link(const DraftNodePtr& parent, const std::string& name);

 private:
  OrErrno<DraftNodePtr> adopt(const DraftPtr& draft, const DraftNodePtr& parent, const std::string& name, Fd path);
  Inodes& inodes_;
};

// The path by which a system call that takes no descriptor reaches an O_PATH descriptor's file itself.
std::string proc_path(int fd);

// For what is only asked (access); a change asks Draft::begin_change.
bool is_frozen(const Draft& draft);

// A change of a draft that no writable handle covers: nothing is published while it lives.
class Change {
 public:
  Change(Draft& draft, pid_t tid) : draft_(draft), status_(draft.begin_change(tid)), open_(status_.is_ok()) {}
  ~Change() { end(); }
  Change(const Change&) = delete;
  Change& operator=(const Change&) = delete;
  bool allowed() const { return status_.is_ok(); }
  const Status& status() const { return status_; }
  // Before the answer: who has it may commit at once.
  void end() {
    if (std::exchange(open_, false)) draft_.end_change();
  }

 private:
  Draft& draft_;
  Status status_;
  bool open_;
};

}  // namespace weightfs
