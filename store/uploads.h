// What a draft's writers write is encoded and uploaded behind them, so that little is left to do when it is committed.
// Nothing here decides what is published: that is read again at the commit, and what was made of other bytes is left
// unused.
#pragma once

#include <functional>

#include "store/base/bytes.h"
#include "store/base/posix.h"
#include "store/base/status.h"
#include "store/store.h"

namespace weightfs {

// Of one draft. Files are told apart by inode number. Any thread may call; nothing waits for network or disk.
class DraftUploads {
 public:
  virtual ~DraftUploads() = default;
  // A file is about to be written; `readable` reads it. As many times as released().
  virtual void opened(std::uint64_t inode, Fd readable) = 0;
  virtual void wrote(std::uint64_t inode, ByteRange range) = 0;
  // A descriptor of the file was closed: `done` comes once, on a thread of the store with no lock held, when what is in
  // it now is in the bucket (OK), or with why not; and also with kUnavailable when nothing has moved for a while. The
  // upload goes on even so, and the next call says how far it got.
  virtual Ticket closed(std::uint64_t inode, std::function<void(Status)> done) = 0;
  virtual void released(std::uint64_t inode) = 0;
  // The draft is gone, or the store shuts down: what runs is cancelled and waited for, `done`s come with kInterrupted.
  virtual void drop() = 0;
};

}  // namespace weightfs
