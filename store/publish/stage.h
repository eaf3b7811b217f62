// The frames of one draft that are made and uploaded before its commit, behind its writers: the beginning of the pack
// that the commit will announce. A frame is found again by the digest of what it decodes to, so whatever the writers do
// afterwards (rewrite, rename, remove), the commit reads the files, takes the frames that fit and makes the rest.
//
//   wrote, closed ──> kick ──> run, on a thread of the pool, one at a time for a draft:
//                                look at a file, take blocks, encode them on all cores, append, seal at a close
//   uploads end, a second passes ──> settle: closes that have their bytes in the bucket are answered, or fail
//   a commit ──> lend: run has ended and does not start; the pack and its frames are the commit's
// Memory: `window` plain bytes under way, and `most_frames` remembered; what is beyond goes with the commit.
#pragma once

#include <list>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "store/base/timer.h"
#include "store/publish/base_match.h"
#include "store/publish/edge_writer.h"
#include "store/publish/stage_file.h"
#include "store/publish/stall_watch.h"
#include "store/publish/version_reader.h"
#include "store/uploads.h"

namespace weightfs {

// What a draft says of itself, as of now.
struct StageWants {
  ParentChoice parent;
  std::string name;
  bool wait = false;  // an older draft of the model is about to be committed: it will be the better parent
};

struct StageSetup {
  std::string id, root, spool_dir;  // of the draft
  ModelName model;
  std::function<StageWants()> wants;
  Duration patience = kStallPatience;
  Duration older_patience = std::chrono::seconds(10);  // waits so long for an older draft
};

// Shared by all drafts of a store.
struct StageTools {
  Bucket& bucket;
  Versions& versions;
  WorkerPool& run_pool;     // one job per draft
  WorkerPool& encode_pool;  // for closes, which somebody waits for
  WorkerPool& behind_pool;  // behind writers: of low priority
  WorkerPool& upload_pool;
  Timer& timer;
  std::uint64_t window, most_frames;
  // The version to build on, by a sample of what is there; none: nothing. Blocking.
  std::function<Result<std::optional<NodeRef>>(const StageSetup&, const StageWants&, const SourceTree& sample,
                                               const CallOptions&)>
      choose_base;
  // The bucket can be written to, and the model's log is known. Blocking.
  std::function<Status(const ModelName&, const CallOptions&)> greet;
};

class FrameStore final : public FrameTable {
 public:
  std::optional<Found> find(const ListedBlock& block) const override EXCLUDES(mutex_);
  void add(const ListedBlock& block, const Found& found) override EXCLUDES(mutex_);
  std::size_t size() const EXCLUDES(mutex_);
  // What all frames build on. set_base: false when there are frames that build on something else.
  std::optional<NodeRef> base() const EXCLUDES(mutex_);
  bool set_base(const std::optional<NodeRef>& base) EXCLUDES(mutex_);

 private:
  struct Hash {
    std::size_t operator()(const Xxh128& digest) const { return load_le<std::uint64_t>(digest.bytes.data()); }
  };
  struct Kept {
    std::uint32_t length = 0;
    std::uint8_t type = 0;
    Found found;
  };
  mutable Mutex mutex_;
  std::unordered_map<Xxh128, Kept, Hash> frames_ GUARDED_BY(mutex_);
  std::optional<NodeRef> base_ GUARDED_BY(mutex_);
};

class Stage final : public DraftUploads, public std::enable_shared_from_this<Stage> {
 public:
  Stage(StageTools& tools, StageSetup setup);
  ~Stage() override;

  void opened(std::uint64_t inode, Fd readable) override EXCLUDES(mutex_);
  void wrote(std::uint64_t inode, ByteRange range) override EXCLUDES(mutex_);
  Ticket closed(std::uint64_t inode, std::function<void(Status)> done) override EXCLUDES(mutex_);
  void released(std::uint64_t inode) override EXCLUDES(mutex_);
  void drop() override EXCLUDES(mutex_);

  // For the commit. Ends what runs, which begins anew after give_back(), and waits for that; not for the network. The
  // pack is the caller's until then.
  struct Loan {
    PackWriter* pack = nullptr;  // null: dropped
    FrameStore* frames = nullptr;
  };
  Loan lend() EXCLUDES(mutex_);
  // `lost`: its objects are not to be counted on (gc has named them), or are of no use: the next ones are in a new
  // pack.
  void give_back(bool lost) EXCLUDES(mutex_);

 private:
  struct Base {
    bool chosen = false;
    std::shared_ptr<VersionReader> reader;
    std::shared_ptr<BaseMatcher> matcher;
  };
  struct Close {
    std::uint64_t id = 0, inode = 0;
    std::function<void(Status)> done;
    bool encoded = false;
    std::size_t objects = 0;  // of the pack, that it waits for
  };
  struct Task {
    std::uint64_t inode = 0;
    bool close = false;
    std::uint64_t last_close = 0;  // of those that it answers
    std::shared_ptr<Fd> fd;
    std::uint64_t settled = 0;
    std::shared_ptr<const StageCuts> known;
  };
  enum class Step : std::uint8_t { kDone, kMore, kLater };

  void forget_closed() REQUIRES(mutex_);
  void kick() EXCLUDES(mutex_);
  void kick_later(Duration delay);
  void run() EXCLUDES(mutex_);
  std::optional<Task> next_task() REQUIRES(mutex_);
  Result<Step> work(const Task& task) EXCLUDES(mutex_);
  Result<Step> encode(const Task& task, const StageCuts& cuts) EXCLUDES(mutex_);
  Status encode_blocks(const Task& task, const StageCuts& cuts, const std::vector<std::size_t>& blocks)
      EXCLUDES(mutex_);
  Result<bool> prepare(const StageCuts& cuts, const std::vector<std::size_t>& blocks) EXCLUDES(mutex_);
  Status contact() EXCLUDES(mutex_);
  Result<std::size_t> after_close() EXCLUDES(mutex_);
  void note(const Task& task, const Result<Step>& step) EXCLUDES(mutex_);
  PackWriter& pack() EXCLUDES(mutex_);
  void make_pack() REQUIRES(mutex_);
  void settle() EXCLUDES(mutex_);
  void beat_later();
  void tick() EXCLUDES(mutex_);
  void arm() EXCLUDES(mutex_);
  bool stopped() const { return cancel_->cancelled(); }
  CallOptions call_options(Duration deadline) const EXCLUDES(mutex_);

  StageTools& tools_;
  const StageSetup setup_;
  const std::string root_;
  const std::shared_ptr<CancelToken> cancel_ = std::make_shared<CancelToken>();

  mutable Mutex mutex_;
  CondVar changed_;
  std::map<std::uint64_t, StageFile> files_ GUARDED_BY(mutex_);
  std::map<std::uint64_t, int> writers_ GUARDED_BY(mutex_);  // of each file
  std::list<Close> closes_ GUARDED_BY(mutex_);
  std::uint64_t last_close_ GUARDED_BY(mutex_) = 0;
  bool beat_due_ GUARDED_BY(mutex_) = false, stalled_ GUARDED_BY(mutex_) = false;
  bool running_ GUARDED_BY(mutex_) = false, lent_ GUARDED_BY(mutex_) = false, armed_ GUARDED_BY(mutex_) = false;
  bool greeted_ GUARDED_BY(mutex_) = false;
  // Of what runs for the writers: cancelled by drop() and while lent.
  std::shared_ptr<CancelToken> work_cancel_ GUARDED_BY(mutex_) = std::make_shared<CancelToken>();
  // While running, the thread that runs uses what is behind these; while lent, the commit does.
  std::unique_ptr<PackWriter> pack_ GUARDED_BY(mutex_);
  std::shared_ptr<CancelToken> pack_cancel_ GUARDED_BY(mutex_);  // of its uploads
  std::unique_ptr<FrameStore> frames_ GUARDED_BY(mutex_);
  Base base_ GUARDED_BY(mutex_);

  // Whether things move.
  BucketProgress progress_ GUARDED_BY(mutex_);
  SteadyTime moved_at_ GUARDED_BY(mutex_);
  std::uint64_t steps_ GUARDED_BY(mutex_) = 0, seen_ GUARDED_BY(mutex_) = 0;  // done, and when last looked
  bool moved() REQUIRES(mutex_);
  Status last_failure_ GUARDED_BY(mutex_);
  SteadyTime answered_at_ GUARDED_BY(mutex_){};    // the bucket took something of this draft
  SteadyTime waiting_since_ GUARDED_BY(mutex_){};  // for an older draft
  SteadyTime not_before_ GUARDED_BY(mutex_){};     // after a failure behind a writer
  SteadyTime later_ GUARDED_BY(mutex_){};          // nothing is encoded before
};

}  // namespace weightfs
