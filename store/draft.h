// Versions being written. A draft is an ordinary local directory (Draft::root) that the filesystem passes calls through
// to, telling the draft what its writers do. The draft decides when it is complete, at rest and done (the settle
// rules), and is published by the store then, or when asked. Its life is a state machine, drawn in
// store/publish/draft_machine.h.
#pragma once

#include <sys/types.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "store/base/names.h"
#include "store/base/status.h"
#include "store/store.h"

namespace weightfs {

enum class DraftState : std::uint8_t {
  kOpen,         // being written, or incomplete
  kInterrupted,  // a writer died or got an error, or the daemon restarted: only an explicit commit or a rename
                 // publishes it
  kPublishing,   // a commit is under way; files are read-only meanwhile
  kCommitted,    // it is a version now
  kFailed,       // the last commit failed; still a writable draft
};
std::string_view to_string(DraftState state);

struct DraftStatus {
  DraftState state = DraftState::kOpen;
  std::string reason;  // what is missing, why interrupted, why failed: something a person can act on
  std::string text()
      const;  // as user.weightfs.state shows it: "draft: …", "interrupted: …", "publishing", "committed", "failed: …"
};

// Files of a draft are told apart by the inode number of the local file, for names change while writers write.
using DraftInode = std::uint64_t;

// Any thread may call; nothing here waits for network, or for the disk longer than a small durable record takes.
class Draft {
 public:
  virtual ~Draft() = default;
  virtual const std::string& id() const = 0;
  virtual ModelName model() const = 0;
  virtual std::string name() const = 0;         // of the directory now; may be temporary
  virtual const std::string& root() const = 0;  // the local directory with its files
  virtual DraftStatus status() const = 0;

  // What writers do. `tid` is the thread FUSE names (0 where it names none). kReadOnly: it is publishing or committed.
  // Opened for writing, or created. Pairs with released().
  virtual Status writer_opened(DraftInode inode, pid_t tid) = 0;
  // Bytes, size, name, times, modes changed: puts off the settle time. `tid` as above.
  virtual void changed(pid_t tid) = 0;
  // A write, truncate or fsync of a writer failed with an error it saw.
  virtual void writer_failed(DraftInode inode, const Status& why) = 0;
  // FLUSH of a writable handle: `exiting` is PF_EXITING of the caller (closed by its end, not by close()).
  virtual void flushed(DraftInode inode, pid_t tid, bool exiting) = 0;
  // RELEASE of a writable handle: the last flush decides whether it was interrupted.
  virtual void released(DraftInode inode) = 0;
  virtual int writers() const = 0;                // writable handles open now
  virtual Status charge(std::int64_t bytes) = 0;  // about to grow; kNoSpace

  virtual Status set_parent(const ParentChoice& parent) = 0;  // durable
  virtual std::optional<VersionRef> parent() const = 0;       // chosen, or that it will build on as of now
};
using DraftPtr = std::shared_ptr<Draft>;

class Drafts {
 public:
  virtual ~Drafts() = default;
  virtual std::vector<DraftPtr> list() const = 0;
  virtual std::vector<DraftPtr> list(const ModelName& model) const = 0;
  virtual DraftPtr find(const ModelName& model, std::string_view name) const = 0;  // null: none
  virtual DraftPtr find_id(const std::string& id) const = 0;

  // mkdir MODEL/name by thread `tid` with `mode`. kExists: a draft or a live version (as known now) has the name.
  // kInvalid: not a name for a version, nor a temporary one. kReadOnly: the store or mount is read-only.
  virtual Result<DraftPtr> create(const ModelName& model, std::string_view name, pid_t tid, mode_t mode) = 0;
  // Renames the directory; from a temporary to a final name it also starts publishing. kExists, kInvalid, kReadOnly as
  // above.
  virtual Status rename(const DraftPtr& draft, std::string_view new_name) = 0;
  // rmdir: kExists when something is in it, kBusy while it publishes.
  virtual Status remove(const DraftPtr& draft) = 0;

  // Publishes it whatever is in it; `done` comes once, on a thread of the store, when the version is durable in the
  // bucket, or failed. kBusy at once while a file is open for writing. A commit under way is joined.
  virtual void commit(const DraftPtr& draft, std::function<void(Result<PublishResult>)> done) = 0;

  // Stops publishing on its own (umount); waits at most until `deadline` for commits under way. What is left is kept.
  virtual void shut_down(SteadyTime deadline) = 0;
};

}  // namespace weightfs
