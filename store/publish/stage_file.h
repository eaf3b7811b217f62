// One file of a draft while it is written: which of its blocks are worth encoding now. Not thread-safe.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "store/base/posix.h"
#include "store/publish/source_tree.h"

namespace weightfs {

// How a file is cut, as far as its bytes tell.
struct StageCuts {
  SourceFile file;         // its path in the draft, header, blocks
  std::uint64_t size = 0;  // of the file, now or as its header says it will be
  bool at_commit = false;  // nothing of it is made before the commit
};

class StageFile {
 public:
  explicit StageFile(Fd readable) : fd_(std::make_shared<Fd>(std::move(readable))) {}
  const std::shared_ptr<Fd>& fd() const { return fd_; }

  void wrote(ByteRange range);
  // Enough was written behind the front since the last plan.
  bool worth_a_look() const { return unseen_ >= kLook && !scattered_; }
  void looked() { unseen_ = 0; }
  // Bytes from the beginning that were written and left behind by the writer.
  std::uint64_t settled_prefix() const;

  const std::shared_ptr<const StageCuts>& cuts() const { return cuts_; }
  void set_cuts(std::shared_ptr<const StageCuts> cuts);
  // Some blocks to encode, at most `bytes` of them, marked as done: a write to them from now on takes the mark away.
  // `all`: whatever is there; else only what the writer seems to be done with.
  std::vector<std::size_t> take(bool all, std::uint64_t bytes);
  void failed(const std::vector<std::size_t>& blocks);  // they are to be taken again

 private:
  static constexpr std::uint64_t kLook = std::uint64_t{16} << 20;
  static constexpr std::uint64_t kBehind = std::uint64_t{4} << 20;  // of the last write: may still change
  static constexpr std::size_t kMostRanges = 256;                   // written ranges remembered
  static constexpr std::uint8_t kDone = 0x80, kMostTimes = 2;       // encoded behind a writer that comes back

  bool settled(ByteRange range) const;
  std::size_t block_at(std::uint64_t offset) const;

  std::shared_ptr<Fd> fd_;
  std::vector<ByteRange> written_;  // ascending, apart
  std::uint64_t front_ = 0;         // where the last write ended
  std::uint64_t unseen_ = 0;
  bool scattered_ = false;
  std::shared_ptr<const StageCuts> cuts_;
  std::vector<std::uint8_t> blocks_;  // kDone, and how often it was rewritten after that
};

// Looks at the file. `settled`: bytes from the beginning that may be believed; ~0: the file is whole. Null: not yet to
// be told. kNotFound: it has no name any more. Blocking (disk).
Result<std::shared_ptr<const StageCuts>> look_at(int fd, const std::string& root, std::uint64_t settled);

}  // namespace weightfs
