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
  struct Object {
    std::shared_ptr<Fd> file;  // until it is uploaded
    std::uint64_t size = 0;
    bool under_way = false;
    Status failed;
  };
  mutable Mutex mutex;
  CondVar changed;
  std::vector<Object> objects GUARDED_BY(mutex);
  std::size_t under_way GUARDED_BY(mutex) = 0;
  std::uint64_t done GUARDED_BY(mutex) = 0;
  std::uint64_t acknowledged GUARDED_BY(mutex) = 0;
  SteadyTime beaten GUARDED_BY(mutex) = std::chrono::steady_clock::now();
  std::size_t waiting() const REQUIRES(mutex) {
    return static_cast<std::size_t>(std::count_if(objects.begin(), objects.end(), [](auto& o) { return o.file; }));
  }
  Status failure() const REQUIRES(mutex) {
    for (const auto& object : objects) {
      if (!object.failed.is_ok()) return object.failed;
    }
    return {};
  }
};

PackWriter::PackWriter(Bucket& bucket, WorkerPool& upload_pool, PackPlace place, CallOptions options,
                       std::function<void()> changed)
    : bucket_(bucket),
      upload_pool_(upload_pool),
      place_(std::move(place)),
      object_size_(std::min(place_.object_size, kMaxPackObject / 2)),
      options_(std::move(options)),
      changed_(std::move(changed)),
      uploads_(std::make_shared<Uploads>()) {
  edge_.pack = random_id();
}

PackWriter::~PackWriter() {
  MutexLock lock(uploads_->mutex);
  while (uploads_->under_way > 0) uploads_->changed.wait(uploads_->mutex);
}

// Without a name: it goes with its last descriptor, however the process ends.
Status PackWriter::begin_object() {
  WFS_TRY(posix::make_dirs(place_.spool_dir));
  auto path = place_.spool_dir + "/" + edge_.pack + "-" + std::to_string(sizes_.size());
  object_ = WFS_TRY(posix::open(path, O_RDWR | O_CREAT | O_EXCL));
  posix::unlink_if_there(path).ignore("the cache empties its spool folders when it opens");
  written_ = 0;
  return {};
}

Status PackWriter::write_buffer() {
  // Where it stops half way (the disk is full), the next try begins at the same place.
  auto start = written_ - buffer_.size();
  WFS_TRY(posix::pwrite_exact(object_.get(), start, buffer_).with(place_.spool_dir));
  buffer_.clear();
  return {};
}

Result<BlockFrame> PackWriter::append(ByteSpan frame) {
  if (written_ > 0 && written_ + frame.size() > object_size_) WFS_TRY(end_object());
  if (!object_.valid()) WFS_TRY(begin_object());
  if (buffer_.size() >= kBuffer) WFS_TRY(write_buffer());
  BlockFrame place;
  place.object = static_cast<std::uint32_t>(sizes_.size());
  place.offset = written_;
  place.length = static_cast<std::uint32_t>(frame.size());
  buffer_.insert(buffer_.end(), frame.begin(), frame.end());
  written_ += frame.size();
  appended_ += frame.size();
  frames_++;
  return place;
}

Status PackWriter::wait_for_room() {
  MutexLock lock(uploads_->mutex);
  while (uploads_->waiting() >= kWaiting && uploads_->failure().is_ok()) WFS_TRY(wait_a_little());
  return uploads_->failure();
}

// Uploads may go on when the one who waits for them is cancelled.
Status PackWriter::wait_a_little() {
  uploads_->changed.wait_until(uploads_->mutex, std::chrono::steady_clock::now() + std::chrono::milliseconds(100));
  if (tell_ && std::exchange(told_, uploads_->acknowledged) != uploads_->acknowledged) tell_();
  if (waiter_ && waiter_->cancelled()) return {Code::kInterrupted, "cancelled"};
  return {};
}

bool PackWriter::has_room() const {
  MutexLock lock(uploads_->mutex);
  return uploads_->waiting() < kWaiting;
}

Status PackWriter::end_object() {
  WFS_TRY(write_buffer());
  sizes_.push_back(written_);
  {
    MutexLock lock(uploads_->mutex);
    uploads_->objects.push_back({std::make_shared<Fd>(std::move(object_)), written_, false, {}});
  }
  object_ = Fd();
  written_ = 0;
  post(sizes_.size() - 1);
  return {};
}

void PackWriter::post(std::size_t object) {
  std::shared_ptr<Fd> file;
  std::uint64_t size;
  {
    MutexLock lock(uploads_->mutex);
    auto& it = uploads_->objects[object];
    if (it.under_way || !it.file) return;
    it.under_way = true;
    it.failed = Status();
    uploads_->under_way++;
    file = it.file;
    size = it.size;
  }
  if (upload_pool_.post([this, object, file, size] { upload(object, file, size); })) return;
  MutexLock lock(uploads_->mutex);
  auto& it = uploads_->objects[object];
  it.under_way = false;
  it.failed = {Code::kInterrupted, "shutting down"};
  uploads_->under_way--;
}

void PackWriter::upload(std::size_t object, const std::shared_ptr<Fd>& file, std::uint64_t size) {
  auto uploads = uploads_;  // once none is under way, this object may be gone
  auto changed = changed_;
  bool due;
  {
    MutexLock lock(uploads->mutex);
    due = std::chrono::steady_clock::now() - uploads->beaten > kHeartbeat;
  }
  auto status = due ? beat(options_) : Status();
  auto key = pack_object_key(place_.model, edge_.pack, static_cast<std::uint32_t>(object));
  auto progress = [&uploads](std::uint64_t bytes) {
    MutexLock lock(uploads->mutex);
    uploads->acknowledged += bytes;
  };
  if (status.is_ok()) status = bucket_.put_file(key, file->get(), size, options_, progress);
  status = std::move(status).with("upload " + key.str());
  {
    MutexLock lock(uploads->mutex);
    auto& it = uploads->objects[object];
    it.under_way = false;
    it.failed = status;
    if (status.is_ok()) it.file.reset();
    if (status.is_ok()) {
      uploads->done++;
      uploads->acknowledged++;
    }
    uploads->under_way--;
    uploads->changed.notify_all();
  }
  if (changed) changed();
}

Status PackWriter::beat(const CallOptions& options) {
  WFS_TRY(bucket_.put(heartbeat_key(place_.model, edge_.pack), as_bytes("uploading\n"), IfExists::kOverwrite, options));
  MutexLock lock(uploads_->mutex);
  uploads_->beaten = std::chrono::steady_clock::now();
  return {};
}

Result<std::size_t> PackWriter::seal() {
  if (object_.valid()) WFS_TRY(end_object());
  return sizes_.size();
}

std::optional<Status> PackWriter::uploaded(std::size_t objects) const {
  MutexLock lock(uploads_->mutex);
  bool all = true;
  for (std::size_t i = 0; i < objects && i < uploads_->objects.size(); i++) {
    const auto& object = uploads_->objects[i];
    if (!object.file) continue;
    if (!object.failed.is_ok()) return object.failed;
    all = false;
  }
  if (all) return Status();
  return std::nullopt;
}

void PackWriter::retry() {
  std::vector<std::size_t> failed;
  {
    MutexLock lock(uploads_->mutex);
    for (std::size_t i = 0; i < uploads_->objects.size(); i++) {
      if (!uploads_->objects[i].failed.is_ok()) failed.push_back(i);
    }
  }
  for (auto object : failed) post(object);
}

std::uint64_t PackWriter::objects_uploaded() const {
  MutexLock lock(uploads_->mutex);
  return uploads_->done;
}

std::uint64_t PackWriter::bytes_acknowledged() const {
  MutexLock lock(uploads_->mutex);
  return uploads_->acknowledged;
}

Status PackWriter::wait_for_all() {
  retry();
  MutexLock lock(uploads_->mutex);
  while (uploads_->under_way > 0) WFS_TRY(wait_a_little());
  return uploads_->failure();
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
  WFS_TRY(write_buffer());
  WFS_TRY(posix::pwrite_exact(object_.get(), edge_.meta_offset, pages).with(place_.spool_dir));
  WFS_TRY(posix::pwrite_exact(object_.get(), edge_.index_offset, index).with(place_.spool_dir));
  written_ = edge_.last_size;
  WFS_TRY(end_object());
  WFS_TRY(wait_for_all());
  edge_.objects = static_cast<std::uint32_t>(sizes_.size());
  edge_.frames = frames_;
  edge_.total_bytes = 0;
  for (auto size : sizes_) edge_.total_bytes += size;
  return {};
}

}  // namespace weightfs
