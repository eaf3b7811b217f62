#include "store/publish/pack_writer.h"

#include <algorithm>

#include "store/format/log_entry.h"

namespace weightfs {
namespace {

constexpr std::size_t kBuffer = 1 << 20;
constexpr std::size_t kWaiting = 4;  // objects closed and not yet uploaded
constexpr auto kHeartbeat =
    std::chrono::minutes(1);  // gc spares uploads whose heartbeat is younger than its grace time

}  // namespace

struct PackWriter::Uploads {
  Mutex mutex;
  CondVar changed;
  std::size_t waiting GUARDED_BY(mutex) = 0;
  Status failed GUARDED_BY(mutex);
};

PackWriter::PackWriter(Bucket& bucket, WorkerPool& upload_pool, ModelName model, std::string spool_dir,
                       std::uint64_t object_size, CallOptions options)
    : bucket_(bucket),
      upload_pool_(upload_pool),
      model_(std::move(model)),
      spool_dir_(std::move(spool_dir)),
      object_size_(std::min(object_size, kMaxPackObject / 2)),
      options_(std::move(options)),
      heartbeat_(std::chrono::steady_clock::now()),
      uploads_(std::make_shared<Uploads>()) {
  edge_.pack = random_id();
}

PackWriter::~PackWriter() {
  {
    MutexLock lock(uploads_->mutex);
    while (uploads_->waiting > 0) uploads_->changed.wait(uploads_->mutex);
  }
  if (!object_path_.empty())
    posix::unlink_if_there(object_path_).ignore("the cache empties its spool folders when it opens");
}

Status PackWriter::begin_object() {
  WFS_TRY(posix::make_dirs(spool_dir_));
  object_path_ = spool_dir_ + "/" + edge_.pack + "-" + std::to_string(sizes_.size());
  object_ = WFS_TRY(posix::open(object_path_, O_RDWR | O_CREAT | O_EXCL));
  written_ = 0;
  return {};
}

Result<BlockFrame> PackWriter::append(ByteSpan frame) {
  if (written_ > 0 && written_ + frame.size() > object_size_) WFS_TRY(end_object());
  if (!object_.valid()) WFS_TRY(begin_object());
  BlockFrame place;
  place.object = static_cast<std::uint32_t>(sizes_.size());
  place.offset = written_;
  place.length = static_cast<std::uint32_t>(frame.size());
  buffer_.insert(buffer_.end(), frame.begin(), frame.end());
  written_ += frame.size();
  frames_++;
  if (buffer_.size() >= kBuffer) {
    WFS_TRY(posix::write_exact(object_.get(), buffer_).with(object_path_));
    buffer_.clear();
  }
  return place;
}

Status PackWriter::end_object() {
  WFS_TRY(posix::write_exact(object_.get(), buffer_).with(object_path_));
  buffer_.clear();
  auto key = pack_object_key(model_, edge_.pack, static_cast<std::uint32_t>(sizes_.size()));
  sizes_.push_back(written_);
  {
    MutexLock lock(uploads_->mutex);
    while (uploads_->waiting >= kWaiting && uploads_->failed.is_ok()) uploads_->changed.wait(uploads_->mutex);
    WFS_TRY(uploads_->failed);
    uploads_->waiting++;
  }
  if (auto now = std::chrono::steady_clock::now(); now - heartbeat_ > kHeartbeat) {
    heartbeat_ = now;
    WFS_TRY(bucket_.put(heartbeat_key(model_, edge_.pack), as_bytes("uploading\n"), IfExists::kOverwrite, options_));
  }
  auto upload = [this, uploads = uploads_, key, fd = std::make_shared<Fd>(std::move(object_)),
                 path = std::move(object_path_), size = written_] {
    auto status = bucket_.put_file(key, fd->get(), size, options_).with("upload " + key.str());
    posix::unlink_if_there(path).ignore("the cache empties its spool folders when it opens");
    MutexLock lock(uploads->mutex);
    if (!status.is_ok() && uploads->failed.is_ok()) uploads->failed = std::move(status);
    uploads->waiting--;
    uploads->changed.notify_all();
  };
  object_ = Fd();
  object_path_.clear();
  written_ = 0;
  if (!upload_pool_.post(upload)) {
    MutexLock lock(uploads_->mutex);
    uploads_->waiting--;
    return {Code::kInterrupted, "shutting down"};
  }
  return {};
}

Status PackWriter::finish(ByteSpan pages,
                          const std::function<Bytes(const std::vector<std::uint64_t>&, std::uint64_t)>& make_index) {
  if (object_.valid() && written_ + pages.size() > kMaxPackObject - (std::uint64_t{1} << 20)) WFS_TRY(end_object());
  if (!object_.valid()) WFS_TRY(begin_object());
  edge_.meta_offset = written_;
  edge_.index_offset = written_ + pages.size();
  auto index = make_index(sizes_, edge_.meta_offset);
  edge_.index_digest = Sha256::of(index);
  edge_.last_size = edge_.index_offset + index.size();
  if (edge_.last_size > kMaxPackObject * 4) return {Code::kInvalid, "too many blocks for one version's index"};
  WFS_TRY(posix::write_exact(object_.get(), buffer_).with(object_path_));
  buffer_.clear();
  WFS_TRY(posix::write_exact(object_.get(), pages).with(object_path_));
  WFS_TRY(posix::write_exact(object_.get(), index).with(object_path_));
  written_ = edge_.last_size;
  WFS_TRY(end_object());
  {
    MutexLock lock(uploads_->mutex);
    while (uploads_->waiting > 0) uploads_->changed.wait(uploads_->mutex);
    WFS_TRY(uploads_->failed);
  }
  edge_.objects = static_cast<std::uint32_t>(sizes_.size());
  edge_.frames = frames_;
  for (auto size : sizes_) edge_.total_bytes += size;
  return {};
}

}  // namespace weightfs
