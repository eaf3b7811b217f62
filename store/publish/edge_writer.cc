#include "store/publish/edge_writer.h"

#include <algorithm>
#include <deque>
#include <set>

#include "store/base/mutex.h"

namespace weightfs {
namespace {

// What one block became; waits in line until those before it are written.
struct Coded {
  Status status;
  EncodedBlock block;
  bool placed = false;  // its frame is in the pack already
  bool done = false;
};

class EdgeWriter {
 public:
  EdgeWriter(const EdgeInput& input, Bucket& bucket, WorkerPool& encode_pool, WorkerPool& upload_pool,
             const std::function<void(std::uint64_t)>& progress, const CallOptions& options)
      : input_(input),
        encode_pool_(encode_pool),
        progress_(progress),
        options_(options),
        own_pack_(input.pack != nullptr
                      ? nullptr
                      : std::make_unique<PackWriter>(
                            bucket, upload_pool, PackPlace{input.model, input.spool_dir, input.object_size}, options)),
        pack_(input.pack != nullptr ? *input.pack : *own_pack_) {}

  Result<EdgeOutput> run() {
    auto status = encode_all();
    drain();
    WFS_TRY(std::move(status));
    WFS_TRY(pack_.finish(meta_, [&](const std::vector<std::uint64_t>& sizes, std::uint64_t meta_offset) {
      for (auto& pages : index_.files) {
        for (auto& page : pages) page.offset += meta_offset;
      }
      index_.object_sizes = sizes;
      index_.object_sizes.push_back(0);
      return serialize_index(index_);
    }));
    output_.edge = pack_.edge();
    output_.edge.frames = frames_;
    output_.edge.from = input_.from;
    return std::move(output_);
  }

 private:
  struct Place {
    std::uint32_t file = 0;
    BlockSpan block;
    std::shared_ptr<Coded> coded;
  };

  Status encode_all() {
    for (std::uint32_t file = 0; file < input_.files.size(); file++) {
      output_.lists.emplace_back();
      output_.list_digests.emplace_back();
      index_.files.emplace_back();
      for (const auto& block : input_.files[file].cuts) {
        while (under_way_ > 0 && under_way_ + block.range.length > input_.window) WFS_TRY(write_first());
        submit(file, block);
      }
      while (!line_.empty()) WFS_TRY(write_first());
      WFS_TRY(end_page(file));
    }
    return {};
  }

  void submit(std::uint32_t file, const BlockSpan& block) {
    auto coded = std::make_shared<Coded>();
    line_.push_back({file, block, coded});
    under_way_ += block.range.length;
    auto job = [this, file, block, coded] {
      encode(file, block, *coded);
      MutexLock lock(mutex_);
      coded->done = true;
      changed_.notify_all();
    };
    if (!encode_pool_.post(job)) {
      coded->status = Status(Code::kInterrupted, "shutting down");
      coded->done = true;
    }
  }

  void encode(std::uint32_t file, const BlockSpan& block, Coded& coded) {
    if (options_.cancel && options_.cancel->cancelled()) {
      coded.status = Status(Code::kInterrupted, "cancelled");
      return;
    }
    coded.status = try_encode(file, block, coded);
  }

  Status try_encode(std::uint32_t file, const BlockSpan& block, Coded& coded) {
    auto target =
        WFS_TRY(read_block(block, [&](MutableByteSpan out) { return input_.read_target(file, block.range, out); }));
    coded.block.listed = listed_block(block, target);
    if (auto found = input_.frames != nullptr ? input_.frames->find(coded.block.listed) : std::nullopt) {
      coded.block.frame = std::move(found->frame);
      coded.block.changed_elements = found->changed_elements;
      coded.placed = true;
      return {};
    }
    std::vector<BaseSegment> segments;
    if (input_.base_of) segments = input_.base_of(file, block);
    bool tensor = block.range.offset >= input_.files[file].data_start;
    return encode_frame(block, target, tensor, std::move(segments), input_.read_base, coded.block);
  }

  // Writes the first block of the line once it is encoded.
  Status write_first() {
    auto place = std::move(line_.front());
    line_.pop_front();
    {
      MutexLock lock(mutex_);
      while (!place.coded->done) changed_.wait(mutex_);
    }
    under_way_ -= place.block.range.length;
    auto& coded = *place.coded;
    WFS_TRY(std::move(coded.status));
    auto& frame = coded.block.frame;
    if (!coded.placed && !coded.block.bytes.empty()) {
      WFS_TRY(pack_.wait_for_room());
      auto at = WFS_TRY(pack_.append(coded.block.bytes));
      frame.object = at.object;
      frame.offset = at.offset;
      frame.length = at.length;
    }
    if (!coded.placed && input_.frames != nullptr) {
      input_.frames->add(coded.block.listed, {frame, coded.block.changed_elements});
    }
    frames_ += frame.length > 0 ? 1 : 0;
    output_.changed_elements += coded.block.changed_elements;
    WFS_TRY(note_base_pages(frame));
    page_.blocks.push_back(coded.block.listed);
    page_.frames.push_back(std::move(frame));
    if (page_.blocks.size() == kPageBlocks) WFS_TRY(end_page(place.file));
    if (progress_) progress_(place.block.range.length);
    return {};
  }

  Status note_base_pages(const BlockFrame& frame) {
    for (const auto& segment : frame.base) {
      if (segment.file == BaseSegment::kNone || segment.length == 0) continue;
      auto& map = base_maps_[segment.file];
      if (!map) map = WFS_TRY(input_.base_map(segment.file));
      auto first = map->block_at(segment.offset), last = map->block_at(segment.offset + segment.length - 1);
      for (auto page = first / kPageBlocks; page <= last / kPageBlocks; page++) {
        base_pages_.insert({segment.file, static_cast<std::uint32_t>(page)});
      }
    }
    return {};
  }

  Status end_page(std::uint32_t file) {
    if (page_.blocks.empty()) return {};
    auto bytes = serialize_page(page_);
    if (bytes.size() > kMaxPage) return {Code::kInvalid, "a page of the block map is too large"};
    PageRef ref;
    ref.offset = meta_.size();  // the pack adds where the pages begin
    ref.length = static_cast<std::uint32_t>(bytes.size());
    ref.digest = Sha256::of(bytes);
    for (const auto& block : page_.blocks) ref.plain_bytes += block.length;
    ref.base_pages.assign(base_pages_.begin(), base_pages_.end());
    meta_.insert(meta_.end(), bytes.begin(), bytes.end());
    index_.files[file].push_back(std::move(ref));
    output_.list_digests[file].push_back(Sha256::of(serialize_block_list(page_.blocks)));
    output_.lists[file].push_back(std::move(page_.blocks));
    page_ = {};
    base_pages_.clear();
    return {};
  }

  // Jobs refer to this object: wait for all.
  void drain() {
    for (auto& place : line_) {
      MutexLock lock(mutex_);
      while (!place.coded->done) changed_.wait(mutex_);
    }
    line_.clear();
  }

  const EdgeInput& input_;
  WorkerPool& encode_pool_;
  const std::function<void(std::uint64_t)>& progress_;
  const CallOptions& options_;
  const std::unique_ptr<PackWriter> own_pack_;
  PackWriter& pack_;
  std::uint64_t frames_ = 0;  // that blocks have
  EdgeOutput output_;
  PackIndex index_;
  Bytes meta_;     // pages, in order
  EdgePage page_;  // being filled
  std::set<std::pair<std::uint32_t, std::uint32_t>> base_pages_;
  std::map<std::uint32_t, FileMapPtr> base_maps_;
  std::deque<Place> line_;
  std::uint64_t under_way_ = 0;

  Mutex mutex_;  // guards Coded::done
  CondVar changed_;
};

}  // namespace

Result<EdgeOutput> write_edge(const EdgeInput& input, Bucket& bucket, WorkerPool& encode_pool, WorkerPool& upload_pool,
                              const std::function<void(std::uint64_t)>& progress, const CallOptions& options) {
  EdgeWriter writer(input, bucket, encode_pool, upload_pool, progress, options);
  return writer.run();
}

}  // namespace weightfs
