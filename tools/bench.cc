#include "tools/bench.h"

#include <zstd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <filesystem>

#include "store/base/threads.h"
#include "store/format/log_entry.h"
#include "store/materialize/meta.h"
#include "store/publish/base_match.h"
#include "store/publish/edge_writer.h"
#include "store/publish/source_tree.h"

namespace weightfs::tools {
namespace {

constexpr int kZstdLevel = 3;
// Each pass goes over so much, so that it works from memory and not from a processor's cache.
constexpr std::uint64_t kWindow = std::uint64_t{48} << 20;

double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

// Takes a pack and forgets it.
class NowhereBucket final : public Bucket {
 public:
  Status get(const ObjectKey&, ByteRange, MutableByteSpan, const CallOptions&) override { return nothing(); }
  Result<Bytes> get_all(const ObjectKey&, std::uint64_t, const CallOptions&) override { return nothing(); }
  Result<ObjectInfo> head(const ObjectKey&, const CallOptions&) override { return nothing(); }
  Status put(const ObjectKey&, ByteSpan, IfExists, const CallOptions&) override { return {}; }
  Status put_file(const ObjectKey&, int, std::uint64_t, const CallOptions&,
                  const std::function<void(std::uint64_t)>&) override {
    return {};
  }
  Status remove(const ObjectKey&, const CallOptions&) override { return {}; }
  Result<std::vector<ListedObject>> list(const std::string&, const CallOptions&) override { return nothing(); }
  Result<std::vector<std::string>> list_prefixes(const std::string&, const CallOptions&) override { return nothing(); }
  Result<WallTime> server_time(const CallOptions&) override { return nothing(); }
  const std::string& url() const override { return url_; }

 private:
  static Status nothing() { return {Code::kUnsupported, "nothing is kept"}; }
  std::string url_ = "nowhere";
};

// A directory as publish sees it, or one file as a directory with that file.
Result<SourceTree> source_of(const std::string& path) {
  struct stat info = WFS_TRY(posix::stat(path));
  if (S_ISDIR(info.st_mode)) return scan_source(path);
  if (!S_ISREG(info.st_mode)) return Status(Code::kInvalid, path + " is neither a file nor a directory");
  SourceFile file{.entry = {.path = WFS_TRY(FilePath::parse("model.safetensors"))}, .local_path = path};
  file.entry.size = static_cast<std::uint64_t>(info.st_size);
  Fd fd = WFS_TRY(posix::open(path, O_RDONLY));
  auto header = safetensors::read_header(
      [&](std::uint64_t offset, MutableByteSpan out) { return posix::pread_exact(fd.get(), offset, out); },
      file.entry.size);
  if (header) {
    file.header = std::make_shared<const safetensors::Header>(std::move(header).value());
  } else if (header.code() != Code::kInvalid) {
    return std::move(header).status();
  }
  file.cuts = cut_blocks(file.entry.size, file.header.get());
  SourceTree tree;
  tree.plain_bytes = file.entry.size;
  if (file.header) {
    for (const safetensors::Tensor& tensor : file.header->tensors) {
      tree.total_elements += tensor.bytes.length / codec::width(safetensors::element_type(tensor.dtype));
    }
  }
  tree.files.push_back(std::move(file));
  return tree;
}

class Bench {
 public:
  Bench(SourceTree before, SourceTree after, std::size_t threads, const Progress& progress, const CallOptions& options)
      : before_(std::move(before)),
        after_(std::move(after)),
        old_reader_(before_),
        new_reader_(after_),
        threads_(threads),
        progress_(progress),
        options_(options),
        pool_("bench", threads) {}

  Result<BenchResult> run() {
    const double started = now();
    base_manifest_ = manifest_of(before_, "old", {});
    matcher_ =
        WFS_TRY(BaseMatcher::make(*base_manifest_, [this](std::uint32_t file, ByteRange range, MutableByteSpan out) {
          return old_reader_.read(file, range, out);
        }));
    WFS_TRY(measure_size());
    WFS_TRY(measure_speed());
    result_.plain_bytes = after_.plain_bytes;
    result_.total_elements = after_.total_elements;
    result_.seconds = now() - started;
    return result_;
  }

 private:
  // One block, in memory.
  struct Block {
    codec::ElementType type;
    Bytes base, target, frame, out;
    codec::Encoded encoded;
  };
  struct Times {
    double encode = 0, decode = 0, memcpy = 0, zstd_encode = 0, zstd_decode = 0;
    std::uint64_t bytes = 0, zstd_bytes = 0;
  };

  static std::optional<Manifest> manifest_of(const SourceTree& tree, const char* version,
                                             const std::vector<std::vector<Sha256>>& pages) {
    Manifest manifest{ModelName::parse("bench").value(), VersionName::parse(version).value(), {}, random_id()};
    for (std::size_t i = 0; i < tree.files.size(); i++) {
      manifest.files.push_back(tree.files[i].entry);
      if (i < pages.size()) manifest.files.back().pages = pages[i];
    }
    return manifest;
  }

  std::vector<BaseSegment> base_of(std::uint32_t file, const BlockSpan& block) const {
    return matcher_->segments(after_.files[file].entry, after_.files[file].header.get(), block);
  }

  // Publish's own code, with nowhere to send to.
  Status measure_size() {
    EdgeInput input{.model = base_manifest_->model, .from = NodeRef{base_manifest_->model, 1}};
    for (const SourceFile& file : after_.files) {
      input.files.push_back({file.cuts, file.header ? file.header->data_start : ~std::uint64_t{0}});
    }
    input.read_target = [this](std::uint32_t file, ByteRange range, MutableByteSpan out) {
      return new_reader_.read(file, range, out);
    };
    input.read_base = [this](std::uint32_t file, ByteRange range, MutableByteSpan out) {
      return old_reader_.read(file, range, out);
    };
    input.base_of = [this](std::uint32_t file, const BlockSpan& block) { return base_of(file, block); };
    input.base_map = [this](std::uint32_t file) { return map_of(file); };
    std::string spool = std::filesystem::temp_directory_path().string() + "/weightfs-bench-" + random_id();
    input.spool_dir = spool;
    NowhereBucket nowhere;
    WorkerPool upload("upload", 1);
    auto tell = [this](std::uint64_t bytes) { advance(bytes); };
    auto output = write_edge(input, nowhere, pool_, upload, tell, options_);
    posix::remove_tree(spool).ignore("the system's temporary files are cleaned up anyway");
    EdgeOutput edge = WFS_TRY(std::move(output));
    Manifest manifest = *manifest_of(after_, "new", edge.list_digests);
    Bytes manifest_bytes = serialize(manifest);
    PublishEntry entry{.version = manifest.version, .manifest = {Sha256::of(manifest_bytes), manifest_bytes.size()}};
    entry.parent = input.from;
    entry.parent_version = base_manifest_->version;
    entry.edge = edge.edge;
    entry.edge.to = 2;
    entry.plain_bytes = after_.plain_bytes;
    entry.stored_bytes = edge.edge.total_bytes + manifest_bytes.size();
    entry.changed_elements = edge.changed_elements;
    entry.total_elements = after_.total_elements;
    LogEntry logged{
        .number = 2, .id = random_id(), .previous = Sha256::of(manifest_bytes), .model = manifest.model, .body = entry};
    result_.changed_elements = edge.changed_elements;
    result_.sent_bytes = entry.stored_bytes + serialize(logged).size();
    return {};
  }

  // Where the old file's blocks begin; their digests are of no interest here.
  Result<FileMapPtr> map_of(std::uint32_t file) {
    std::vector<BlockListPtr> pages;
    auto page = std::make_shared<BlockList>();
    for (const BlockSpan& cut : before_.files[file].cuts) {
      page->push_back({static_cast<std::uint32_t>(cut.range.length), static_cast<std::uint8_t>(cut.type), {}});
      if (page->size() == kPageBlocks) pages.push_back(std::exchange(page, std::make_shared<BlockList>()));
    }
    if (!page->empty()) pages.push_back(page);
    return FileMap::make(pages, before_.files[file].entry.size);
  }

  Status measure_speed() {
    std::vector<std::pair<std::uint32_t, BlockSpan>> blocks;
    for (std::uint32_t file = 0; file < after_.files.size(); file++) {
      for (const BlockSpan& cut : after_.files[file].cuts) blocks.emplace_back(file, cut);
    }
    std::vector<Times> times(threads_);
    std::vector<Status> failed(threads_);
    std::atomic<std::size_t> next = 0;
    run_all(pool_, threads_, [&](std::size_t thread) {
      for (;;) {
        // A window of blocks for this thread.
        std::vector<Block> window;
        std::uint64_t bytes = 0;
        while (bytes < kWindow && failed[thread]) {
          std::size_t at = next.fetch_add(1);
          if (at >= blocks.size()) break;
          window.emplace_back();
          failed[thread] = load(blocks[at].first, blocks[at].second, window.back());
          bytes += blocks[at].second.range.length;
        }
        if (options_.cancel && options_.cancel->cancelled()) failed[thread] = {Code::kInterrupted, "interrupted"};
        if (window.empty() || !failed[thread]) return;
        failed[thread] = measure(window, times[thread]);
        advance(bytes);
      }
    });
    for (Status& status : failed) WFS_TRY(std::move(status));
    Times sum;
    for (const Times& one : times) {
      sum.encode += one.encode, sum.decode += one.decode, sum.memcpy += one.memcpy;
      sum.zstd_encode += one.zstd_encode, sum.zstd_decode += one.zstd_decode;
      sum.bytes += one.bytes, sum.zstd_bytes += one.zstd_bytes;
    }
    auto speed = [&](double seconds) { return seconds > 0 ? static_cast<double>(sum.bytes) / seconds : 0; };
    result_.encode = speed(sum.encode);
    result_.decode = speed(sum.decode);
    result_.memcpy = speed(sum.memcpy);
    result_.zstd_encode = speed(sum.zstd_encode);
    result_.zstd_decode = speed(sum.zstd_decode);
    result_.zstd_bytes = sum.zstd_bytes;
    return {};
  }

  Status load(std::uint32_t file, const BlockSpan& cut, Block& block) {
    block.type = cut.type;
    block.target.resize(cut.range.length);
    block.out.resize(cut.range.length);
    block.frame.resize(codec::kMaxFrame);
    WFS_TRY(new_reader_.read(file, cut.range, block.target));
    for (const BaseSegment& segment : base_of(file, cut)) {
      std::size_t at = block.base.size();
      block.base.resize(at + segment.length);
      if (segment.file == BaseSegment::kNone || segment.length == 0) continue;
      WFS_TRY(
          old_reader_.read(segment.file, {segment.offset, segment.length}, MutableByteSpan(block.base).subspan(at)));
    }
    return {};
  }

  static Status measure(std::vector<Block>& window, Times& times) {
    codec::Scratch scratch;
    double started = now();
    for (Block& block : window) std::memcpy(block.out.data(), block.target.data(), block.target.size());
    times.memcpy += now() - started;

    started = now();
    for (Block& block : window) {
      block.encoded = codec::encode_block(scratch, block.type, block.base, block.target, block.frame);
    }
    times.encode += now() - started;

    started = now();
    Status decoded;
    for (Block& block : window) {
      ByteSpan frame = ByteSpan(block.frame).first(block.encoded.frame_length);
      ByteSpan base = codec::needs_base(block.encoded.codec) ? ByteSpan(block.base) : ByteSpan();
      Status status = codec::decode_block(scratch, block.encoded.codec, block.type, frame, base, block.out);
      if (!status) decoded = std::move(status);
    }
    times.decode += now() - started;
    WFS_TRY(std::move(decoded));
    for (Block& block : window) {
      if (block.out != block.target)
        return {Code::kCorrupt, "a block decodes to other bytes; this is a bug of weightfs"};
    }
    return measure_zstd(window, times);
  }

  static Status measure_zstd(std::vector<Block>& window, Times& times) {
    Bytes compressed(ZSTD_compressBound(codec::kMaxBlock));
    double encode = 0, decode = 0;
    for (Block& block : window) {
      double started = now();
      std::size_t size =
          ZSTD_compress(compressed.data(), compressed.size(), block.target.data(), block.target.size(), kZstdLevel);
      encode += now() - started;
      if (ZSTD_isError(size) != 0) return {Code::kIo, ZSTD_getErrorName(size)};
      started = now();
      std::size_t back = ZSTD_decompress(block.out.data(), block.out.size(), compressed.data(), size);
      decode += now() - started;
      if (back != block.target.size()) return {Code::kIo, "zstd does not decompress what it compressed"};
      times.zstd_bytes += size;
      times.bytes += block.target.size();
    }
    times.zstd_encode += encode;
    times.zstd_decode += decode;
    return {};
  }

  void advance(std::uint64_t bytes) {
    std::uint64_t done = done_.fetch_add(bytes) + bytes;
    if (progress_) progress_(done, 2 * after_.plain_bytes);
  }

  const SourceTree before_, after_;
  SourceReader old_reader_, new_reader_;
  const std::size_t threads_;
  const Progress& progress_;
  const CallOptions& options_;
  std::optional<Manifest> base_manifest_;
  std::unique_ptr<BaseMatcher> matcher_;
  BenchResult result_;
  std::atomic<std::uint64_t> done_ = 0;
  WorkerPool pool_;
};

}  // namespace

Result<BenchResult> bench_delta(const std::string& old_path, const std::string& new_path, std::size_t threads,
                                const Progress& progress, const CallOptions& options) {
  SourceTree before = WFS_TRY(source_of(old_path).with(old_path));
  SourceTree after = WFS_TRY(source_of(new_path).with(new_path));
  return Bench(std::move(before), std::move(after), threads, progress, options).run();
}

}  // namespace weightfs::tools
