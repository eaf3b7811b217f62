#include "store/verify_edge.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "store/codec/codec.h"

namespace weightfs {
namespace {

constexpr std::uint64_t kReadAtOnce = std::uint64_t{8} << 20;

bool is_damage(Code code) { return code == Code::kCorrupt || code == Code::kNotFound || code == Code::kInvalid; }

// One page of one file: its frames, and what they decode to.
class PageCheck {
 public:
  PageCheck(const PathEdge& edge, const EdgePage& page, std::string name, Versions* versions, const VersionPtr& base,
            Findings& findings)
      : edge_(edge), page_(page), name_(std::move(name)), versions_(versions), base_(base), findings_(findings) {}

  void run() {
    std::vector<std::size_t> order;
    for (std::size_t i = 0; i < page_.frames.size(); i++) {
      if (page_.frames[i].length > 0) {
        order.push_back(i);
      } else if (versions_ != nullptr) {
        decode(i, {});
      }
    }
    std::sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
      return std::pair(page_.frames[a].object, page_.frames[a].offset) <
             std::pair(page_.frames[b].object, page_.frames[b].offset);
    });
    for (std::size_t at = 0; at < order.size() && !findings_.stopped();) at = run_of_frames(order, at);
  }

 private:
  // Frames that follow each other in an object are read in one range. Returns where the next run begins.
  std::size_t run_of_frames(const std::vector<std::size_t>& order, std::size_t first) {
    const BlockFrame& head = page_.frames[order[first]];
    ByteRange range{head.offset, head.length};
    std::size_t last = first + 1;
    for (; last < order.size(); last++) {
      const BlockFrame& next = page_.frames[order[last]];
      if (next.object != head.object || next.offset != range.end() || range.length + next.length > kReadAtOnce) break;
      range.length += next.length;
    }
    ObjectKey key = pack_object_key(edge_.model, edge_.edge.pack, head.object);
    auto bytes = findings_.read(key, range);
    if (!bytes) return last;
    for (std::size_t i = first; i < last; i++) {
      const BlockFrame& frame = page_.frames[order[i]];
      ByteSpan piece = ByteSpan(*bytes).subspan(frame.offset - range.offset, frame.length);
      if (Sha256::of(piece) != frame.digest) {
        findings_.damage(key.str(), fmt::format("frame at {}+{}: digest mismatch", frame.offset, frame.length));
      } else if (versions_ != nullptr) {
        decode(order[i], piece);
      }
    }
    return last;
  }

  void decode(std::size_t block, ByteSpan frame) {
    const ListedBlock& listed = page_.blocks[block];
    const BlockFrame& how = page_.frames[block];
    Bytes base;
    if (!read_base(how, &base)) return;
    Bytes plain(listed.length);
    std::string what = fmt::format("{}: block {}", name_, block);
    Status decoded = codec::decode_block(scratch_, static_cast<codec::CodecId>(how.codec),
                                         static_cast<codec::ElementType>(listed.type), frame, base, plain);
    ObjectKey key = pack_object_key(edge_.model, edge_.edge.pack, how.object);
    if (!decoded) {
      findings_.take(key.str(), std::move(decoded).with(what));
    } else if (Xxh128::of(plain) != listed.digest) {
      findings_.damage(key.str(), what + " decodes to other bytes");
    } else {
      findings_.add_plain(plain.size());
    }
  }

  // The bytes that stand for the block in the base version. False: not to be had, and noted.
  bool read_base(const BlockFrame& how, Bytes* out) {
    for (const BaseSegment& segment : how.base) {
      std::size_t at = out->size();
      out->resize(at + segment.length);
      if (segment.file == BaseSegment::kNone || segment.length == 0) continue;
      if (base_ == nullptr || segment.file >= base_->manifest().files.size()) {
        findings_.damage(name_, "builds on a file that its base does not have");
        return false;
      }
      auto file = versions_->open_file(base_, segment.file, findings_.options());
      Status read = file.status();
      if (file) {
        const FileEntry& entry = base_->manifest().files[segment.file];
        if (segment.offset > entry.size || segment.length > entry.size - segment.offset) {
          findings_.damage(name_, "builds on bytes behind the end of its base's file " + entry.path.str());
          return false;
        }
        read =
            (*file)->read_now({segment.offset, segment.length}, MutableByteSpan(*out).subspan(at), findings_.options());
      }
      if (!read) {
        findings_.take(name_, std::move(read).with("cannot be decoded"));
        return false;
      }
    }
    return true;
  }

  const PathEdge& edge_;
  const EdgePage& page_;
  const std::string name_;
  Versions* const versions_;
  const VersionPtr& base_;
  Findings& findings_;
  codec::Scratch scratch_;
};

}  // namespace

std::optional<Bytes> Findings::note(const ObjectKey& key, Result<Bytes> bytes) {
  if (!bytes) {
    take(key.str(), bytes.status());
    return std::nullopt;
  }
  std::uint64_t done, total;
  {
    MutexLock lock(mutex_);
    objects_.insert(key.str());
    bytes_ += bytes->size();
    done = bytes_;
    total = std::max(total_, bytes_);
  }
  if (progress_) progress_(done, total);
  return std::move(bytes).value();
}

std::optional<Bytes> Findings::read(const ObjectKey& key, ByteRange range) {
  if (stopped()) return std::nullopt;
  Bytes bytes(range.length);
  Status got = range.empty() ? Status() : bucket_.get(key, range, bytes, options_);
  return note(key, got ? Result<Bytes>(std::move(bytes)) : Result<Bytes>(std::move(got)));
}

std::optional<Bytes> Findings::read_all(const ObjectKey& key, std::uint64_t limit) {
  if (stopped()) return std::nullopt;
  return note(key, bucket_.get_all(key, limit, options_));
}

void Findings::damage(const std::string& object, const std::string& problem) {
  MutexLock lock(mutex_);
  damaged_.push_back({object, problem});
}

void Findings::take(const std::string& object, const Status& status) {
  if (status.code() == Code::kNotFound) return damage(object, "missing: " + status.message());
  if (is_damage(status.code())) return damage(object, status.message());
  MutexLock lock(mutex_);
  if (stopped_) stopped_ = status;
}

void Findings::expect_bytes(std::uint64_t more) {
  MutexLock lock(mutex_);
  total_ += more;
}

void Findings::add_plain(std::uint64_t bytes) {
  MutexLock lock(mutex_);
  plain_ += bytes;
}

bool Findings::stopped() const {
  if (options_.cancel && options_.cancel->cancelled()) return true;
  MutexLock lock(mutex_);
  return !stopped_;
}

Result<VerifyReport> Findings::finish(VerifyReport report) {
  if (options_.cancel && options_.cancel->cancelled()) return Status(Code::kInterrupted, "interrupted");
  MutexLock lock(mutex_);
  if (!stopped_) return stopped_;
  report.objects += objects_.size();
  report.bytes += bytes_;
  report.plain_bytes += plain_;
  report.damaged.insert(report.damaged.end(), damaged_.begin(), damaged_.end());
  std::sort(report.damaged.begin(), report.damaged.end());
  report.damaged.erase(std::unique(report.damaged.begin(), report.damaged.end()), report.damaged.end());
  return report;
}

void verify_edge(const PathEdge& edge, const ManifestPtr& target, Versions* versions_for_deep, WorkerPool& pool,
                 Findings& findings) {
  ObjectKey tail = pack_object_key(edge.model, edge.edge.pack, edge.edge.objects - 1);
  auto index_bytes = findings.read(tail, index_range(edge.edge));
  if (!index_bytes) return;
  if (Sha256::of(*index_bytes) != edge.edge.index_digest) return findings.damage(tail.str(), "index: digest mismatch");
  auto index = parse_index(*index_bytes, edge.edge);
  if (!index) return findings.take(tail.str(), index.status().with("index"));
  if (target && target->files.size() != index->files.size()) {
    return findings.damage(tail.str(), "index: has another number of files than the manifest");
  }

  VersionPtr base;
  if (versions_for_deep != nullptr && edge.edge.from) {
    auto opened = versions_for_deep->open(*edge.edge.from, findings.options());
    if (!opened) return findings.take(tail.str(), opened.status().with("its base cannot be opened"));
    base = *opened;
  }
  std::vector<std::pair<std::size_t, std::size_t>> pages;
  for (std::size_t file = 0; file < index->files.size(); file++) {
    for (std::size_t page = 0; page < index->files[file].size(); page++) pages.emplace_back(file, page);
  }
  const auto limits = frame_limits(*index, edge.edge);
  run_all(pool, pages.size(), [&](std::size_t at) {
    auto [file, number] = pages[at];
    const PageRef& ref = index->files[file][number];
    std::string name =
        target ? fmt::format("{}/{}/{}", edge.model.str(), target->version.str(), target->files[file].path.str())
               : fmt::format("{} file {}", tail.str(), file);
    auto bytes = findings.read(tail, {ref.offset, ref.length});
    if (!bytes) return;
    if (Sha256::of(*bytes) != ref.digest) {
      return findings.damage(tail.str(), fmt::format("page {} of {}: digest mismatch", number, name));
    }
    auto page = parse_page(*bytes, limits);
    if (!page) return findings.take(tail.str(), page.status().with("page of " + name));
    auto list = block_list_digest_of_page(*bytes);
    if (target && (!list || number >= target->files[file].pages.size() || *list != target->files[file].pages[number])) {
      return findings.damage(tail.str(),
                             fmt::format("page {} of {}: other blocks than the manifest has", number, name));
    }
    PageCheck(edge, *page, name, versions_for_deep, base, findings).run();
  });
}

}  // namespace weightfs
