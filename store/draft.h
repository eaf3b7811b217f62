// Versions being written. A draft is an ordinary local directory (Draft::root) that the filesystem passes calls through
// to, telling the draft what its writers do. The draft decides when it is complete, at rest and done (the settle
// rules), and is published by the store then, or when asked. Its life is a state machine, drawn in
// store/drafts/draft_machine.h.
//
// What the filesystem calls, in order:
//   open for writing, create   begin_change · the system call · writer_opened · end_change
//   write, fallocate … through such a handle    (charge) · the system call · changed
//   anything else that changes names, times, modes, sizes   begin_change · the system call · end_change
//   FLUSH, RELEASE of such a handle   flushed, released
//   whatever of these failed with an error the writer sees: writer_failed, too
// A publish that the settle rule began gives way to a change until it commits: begin_change cancels it and is OK. One
// that was asked for (commit, a rename from a temporary name), or that is past that point, does not: kReadOnly.
#pragma once

#include <sys/types.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "store/base/names.h"
#include "store/base/posix.h"
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
  std::uint64_t done_bytes = 0, total_bytes = 0;  // while publishing
  std::string text()
      const;  // as user.weightfs.state shows it: "draft: …", "interrupted: …", "publishing", "committed", "failed: …"
};

// Files of a draft are told apart by the inode number of the local file, for names change while writers write.
using DraftInode = std::uint64_t;
// An open file description: the filesystem's own number of it, unique among the open ones of one draft. Two handles of
// one file have each their own end.
using WriterHandle = std::uint64_t;

// Any thread may call; nothing here waits for network, or for the disk longer than a small durable record takes.
class Draft {
 public:
  virtual ~Draft() = default;
  virtual const std::string& id() const = 0;
  virtual ModelName model() const = 0;
  virtual std::string name() const = 0;         // of the directory now; may be temporary
  virtual const std::string& root() const = 0;  // the local directory with its files
  virtual DraftStatus status() const = 0;

  // What writers do. `tid` is the thread FUSE names (0 where it names none).

  // Brackets a change that no writable handle covers, and open itself. kReadOnly: it is publishing or committed (then
  // end_change is not called). Nothing is published between the two. Brackets may nest and overlap.
  virtual Status begin_change(pid_t tid) = 0;
  virtual void end_change() = 0;
  // `handle` can write to the file `inode` now. Pairs with released(). kReadOnly as above; never inside a bracket.
  virtual Status writer_opened(WriterHandle handle, DraftInode inode, pid_t tid) = 0;
  // Bytes or size changed through a writable handle: puts off the settle time. Cheap: call it for every write.
  virtual void changed(pid_t tid) = 0;
  // A write, truncate or fsync of a writer failed with an error it saw: the draft is not published by itself.
  virtual void writer_failed(DraftInode inode, const Status& why) = 0;
  // FLUSH of a writable handle: `exiting` is PF_EXITING of the caller (closed by its end, not by close()).
  virtual void flushed(WriterHandle handle, pid_t tid, bool exiting) = 0;
  // RELEASE of a writable handle: its last flush decides whether it was interrupted.
  virtual void released(WriterHandle handle) = 0;
  // The file's bytes are uploaded behind its writers, read through `readable`; after writer_opened. May be left out:
  // then they are uploaded at the commit.
  virtual void read_behind(DraftInode /*inode*/, Fd /*readable*/) {}
  // changed(), and where.
  virtual void wrote(pid_t tid, DraftInode /*inode*/, ByteRange /*range*/) { changed(tid); }
  // close() of a writable handle, after flushed(): `done` comes once, maybe at once, with what close() is to answer: OK
  // when what is in the file now is in the bucket, or where nobody wants to wait (StoreOptions::close_waits).
  virtual Ticket close_file(DraftInode /*inode*/, std::function<void(Status)> done) {
    done(Status());
    return {};
  }
  virtual int writers() const = 0;                // writable handles open now
  virtual Status charge(std::int64_t bytes) = 0;  // about to grow; kNoSpace

  virtual Status set_parent(const ParentChoice& parent) = 0;  // durable; a change: kReadOnly as begin_change
  virtual std::optional<VersionRef> parent() const = 0;       // chosen, or that it will build on as of now
};
using DraftPtr = std::shared_ptr<Draft>;

// Whatever it handed out is not called any more when it goes (but may be let go later).
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
  // Renames the directory (on the local disk it stays where it is). From a temporary to a final name it also asks for
  // publishing, which begins when no handle is open for writing. kExists, kInvalid, kReadOnly as above.
  virtual Status rename(const DraftPtr& draft, std::string_view new_name) = 0;
  // rmdir: kExists when something is in it, kBusy while it publishes.
  virtual Status remove(const DraftPtr& draft) = 0;

  // Publishes it whatever is in it; `done` comes once when the version is durable in the bucket (OK at once when it is
  // already), or with what failed. On a thread of the store, or on the caller's when that is known at once. kBusy: a
  // file is open for writing (one whose last descriptor seems closed gets half a second for its RELEASE to come).
  // kInvalid: its name is temporary. kInterrupted: the store shut down first; the draft is kept. A commit under way is
  // joined. While nobody knows whether the bucket took the commit, `done` waits.
  virtual void commit(const DraftPtr& draft, std::function<void(Result<PublishResult>)> done) = 0;

  // Publishes what is complete and whose writer has ended without waiting for the settle time, then nothing more
  // (umount); waits at most until `deadline` for commits under way. What is left is kept, and stays listed.
  virtual void shut_down(SteadyTime deadline) = 0;
};

}  // namespace weightfs
