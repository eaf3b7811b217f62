#include "store/publish/publisher.h"

#include <spdlog/spdlog.h>

#include <algorithm>

#include "store/base/posix.h"
#include "store/log/operations.h"
#include "store/log/probe.h"
#include "store/publish/base_match.h"
#include "store/publish/edge_writer.h"
#include "store/publish/parent_choice.h"
#include "store/publish/version_reader.h"

namespace weightfs {
namespace {

constexpr int kAttempts = 4;
constexpr std::uint64_t kFrameMemory = 256;  // bytes that a frame takes while its draft waits for the commit

PublishResult result_of(const ModelName& model, const VersionRecord& record) {
  PublishResult result{.version = {model, record.name}, .node = {model, record.number}};
  if (record.parent && record.parent_version) result.parent = VersionRef{record.parent->model, *record.parent_version};
  result.plain_bytes = record.plain_bytes;
  result.sent_bytes = record.stored_bytes;
  result.changed_elements = record.changed_elements;
  result.total_elements = record.total_elements;
  return result;
}

}  // namespace

Publisher::Publisher(Bucket& bucket, Cache& cache, ModelLogs& logs, Versions& versions, std::size_t threads,
                     std::uint64_t memory)
    : bucket_(bucket),
      cache_(cache),
      logs_(logs),
      versions_(versions),
      window_(std::max<std::uint64_t>(memory / 8, 8 << 20)),
      encode_pool_("encode", threads),
      behind_pool_("behind", threads),
      upload_pool_("upload", 4),
      stage_pool_("stage", 8),
      stage_timer_("stage-timer"),
      stage_tools_{bucket, versions, stage_pool_, encode_pool_, behind_pool_, upload_pool_, stage_timer_, 0,
                   0,      {},       {}} {
  stage_tools_.window = std::max<std::uint64_t>(memory / 16, 8 << 20);
  stage_tools_.most_frames = std::max<std::uint64_t>(memory / 16 / kFrameMemory, 4096);
  stage_tools_.choose_base = [this](const StageSetup& setup, const StageWants& wants, const SourceTree& sample,
                                    const CallOptions& options) { return stage_base(setup, wants, sample, options); };
  stage_tools_.greet = [this](const ModelName& model, const CallOptions& options) -> Status {
    WFS_TRY(probe_once(options));
    return refresh(model, options).status();
  };
}

void Publisher::stop() {
  stage_timer_.stop();
  stage_pool_.stop();
  encode_pool_.stop();
  behind_pool_.stop();
  upload_pool_.stop();
}

std::shared_ptr<Stage> Publisher::stage(StageSetup setup) {
  return std::make_shared<Stage>(stage_tools_, std::move(setup));
}

namespace {

constexpr std::size_t kRecent = 4;  // versions that are sampled besides the newest

}  // namespace

// The newest version, unless a sample shows another that is whole in the cache to be a fifth cheaper: a recent one (a
// run that went back to an earlier checkpoint), or the one of the same name in the model that this one was forked from.
Result<NodeRef> Publisher::cheapest_parent(const Wanted& wanted, const SourceTree& tree, const ModelState& state,
                                           const CallOptions& options) {
  auto live = state.live_versions();
  auto is_live = [&](const NodeRef& node) {
    auto other = logs_.get(node.model).state();
    const auto* record = other->version(node.number);
    return record != nullptr && record->removed == 0;
  };
  std::vector<NodeRef> candidates{{state.model, live.back()->number}};
  auto add = [&](const NodeRef& node) {
    auto other = logs_.get(node.model).state();
    const auto* record = other->version(node.number);
    bool whole = record != nullptr && cache_.cached_bytes(node.model.str(), node.number) >= record->plain_bytes;
    if (whole && std::find(candidates.begin(), candidates.end(), node) == candidates.end()) candidates.push_back(node);
  };
  // What is uploaded already is as good as the newest, unless that is far cheaper.
  if (wanted.staged && is_live(*wanted.staged)) {
    if (*wanted.staged == candidates[0]) return candidates[0];
    candidates.insert(candidates.begin(), *wanted.staged);
  }
  for (std::size_t i = 1; i <= kRecent && i < live.size(); i++) add({state.model, live[live.size() - 1 - i]->number});
  for (const auto& origin : bases_of(state)) {
    auto other = logs_.get(origin).state();
    auto version = VersionName::parse(wanted.name);
    const auto* same = version.is_ok() ? other->live(*version) : nullptr;
    if (same != nullptr) add({origin, same->number});
  }
  if (candidates.size() == 1) return candidates[0];
  SourceReader reader(tree);
  std::vector<std::uint64_t> costs;
  for (const auto& candidate : candidates) {
    VersionReader base(versions_, WFS_TRY(versions_.open(candidate, options)), options);
    auto read = [&](std::uint32_t file, ByteRange range, MutableByteSpan out) { return base.read(file, range, out); };
    costs.push_back(WFS_TRY(sample_cost(tree, reader, base.manifest(), read)));
  }
  return candidates[cheapest_candidate(costs)];
}

Result<std::optional<NodeRef>> Publisher::choose_parent(const Wanted& wanted, const SourceTree& tree,
                                                        const ModelState& state, const CallOptions& options) {
  if (wanted.parent.none) return std::optional<NodeRef>();
  if (!wanted.parent.named) {
    if (state.latest() == nullptr) return std::optional<NodeRef>();
    return std::optional<NodeRef>(WFS_TRY(cheapest_parent(wanted, tree, state, options)));
  }
  const auto& named = *wanted.parent.named;
  ModelStatePtr other;
  if (named.model != state.model) {
    WFS_TRY(logs_.refresh_with_bases(named.model, options));
    other = logs_.get(named.model).state();
  }
  const auto* record = (other ? *other : state).live(named.version);
  if (record == nullptr) return Status(Code::kNotFound, "parent " + named.str() + ": no such version");
  return std::optional<NodeRef>(NodeRef{named.model, record->number});
}

Result<std::optional<NodeRef>> Publisher::stage_base(const StageSetup& setup, const StageWants& wants,
                                                     const SourceTree& sample, const CallOptions& options) {
  WFS_TRY(refresh(setup.model, options));
  auto state = logs_.get(setup.model).state();
  auto chosen = choose_parent({wants.parent, wants.name, {}}, sample, *state, options);
  // The sample's file has another name now, or is shorter.
  bool gone = chosen.code() == Code::kNotFound || chosen.code() == Code::kCorrupt;
  if (!gone || wants.parent.named || state->latest() == nullptr) return chosen;
  return std::optional<NodeRef>(NodeRef{state->model, state->latest()->number});
}

// False: a store without list rights says "forbidden" of a model that does not exist yet: the append will see.
Result<bool> Publisher::refresh(const ModelName& model, const CallOptions& options) {
  auto refreshed = logs_.get(model).refresh(options);
  if (refreshed.is_ok()) return true;
  if (refreshed.code() == Code::kPermission && logs_.get(model).state()->head == 0) return false;
  return std::move(refreshed).status().with(model.str());
}

Status Publisher::probe_once(const CallOptions& options) {
  {
    MutexLock lock(mutex_);
    if (probed_) return {};
  }
  WFS_TRY(probe_conditional_put(bucket_, options));
  MutexLock lock(mutex_);
  probed_ = true;
  return {};
}

Result<PublishResult> Publisher::run(const PublishJob& job, const Progress& progress, const CallOptions& options) {
  StallWatch watch(bucket_.counters(), options.cancel);
  auto tell = [&](std::uint64_t done, std::uint64_t total) {
    watch.moved();
    if (progress) progress(done, total);
  };
  PublishJob watched = job;
  watched.moved = [&] { watch.moved(); };
  watched.local_work = [&](bool begins) { watch.pause(begins); };
  if (job.before_commit) {
    watched.before_commit = [&] {
      watch.pause(true);  // the files are flushed
      bool go_on = job.before_commit();
      watch.pause(false);
      return go_on;
    };
  }
  auto result = try_run(watched, tell, {options.deadline, watch.token()});
  if (result.is_ok()) return result;
  return watch.explain(std::move(result).status());
}

Result<PublishResult> Publisher::try_run(const PublishJob& job, const Progress& progress, const CallOptions& options) {
  const auto started = std::chrono::steady_clock::now();
  const auto name = job.model.str() + "/" + job.version.str();
  WFS_TRY(probe_once(options));
  for (int attempts = 1;; attempts++) {
    bool log_read = WFS_TRY(refresh(job.model, options));
    job.moved();
    auto state = logs_.get(job.model).state();
    for (const auto& [number, record] : state->versions) {
      if (record.id == job.commit_id) return committed(job, record, options);
    }
    if (log_read && job.not_committed) job.not_committed();
    if (state->broken) return state->broken->with(name);
    if (state->live(job.version) != nullptr) {
      return Status(Code::kExists,
                    name + ": a version of that name is there; publish under another name, or remove it first");
    }
    auto result = try_once(job, *state, progress, options);
    // The parent was removed, or gc was faster than the upload: with a fresh parent and new objects it can be done.
    bool again = attempts < kAttempts &&
                 (result.code() == Code::kBusy || (result.code() == Code::kNotFound && !job.parent.named));
    if (again) {
      spdlog::warn("publish {}: {}: starting over", name, result.status().to_string());
      continue;
    }
    if (!result.is_ok()) return std::move(result).with(name);
    result->seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - started).count();
    return result;
  }
}

Result<PublishResult> Publisher::try_once(const PublishJob& job, const ModelState& state, const Progress& progress,
                                          const CallOptions& options) {
  auto tree = WFS_TRY(scan_source(job.source_dir));
  Stage::Loan loan;
  if (!job.stage) return attempt(job, tree, state, loan, progress, options);
  loan = job.stage->lend();
  auto result = attempt(job, tree, state, loan, progress, options);
  bool keep = result.is_ok() || result.code() == Code::kUnavailable || result.code() == Code::kInterrupted ||
              result.code() == Code::kPermission || result.code() == Code::kNoSpace || result.code() == Code::kExists;
  job.stage->give_back(!keep || loan.pack == nullptr);
  return result;
}

// An earlier run of the same job got as far as the commit.
Result<PublishResult> Publisher::committed(const PublishJob& job, const VersionRecord& record,
                                           const CallOptions& options) {
  job.local_work(true);
  if (job.keep_copy) keep_files(job.source_dir, {job.model, record.number}, false, options);
  return result_of(job.model, record);
}

void Publisher::keep_files(const std::string& dir, const NodeRef& node, bool move, const CallOptions& options) {
  auto kept = adopt(dir, node, move, options);
  if (kept.is_ok()) return;
  spdlog::warn("{} commit {}: the cache does not keep its files, the next publish will fetch them: {}",
               node.model.str(), node.number, kept.to_string());
}

// The published files become the materialized copy: they are the base of the next version. Their digests are checked at
// their first use.
Status Publisher::adopt(const std::string& dir, const NodeRef& node, bool move, const CallOptions& options) {
  auto version = WFS_TRY(versions_.open(node, options));
  for (std::uint32_t i = 0; i < version->manifest().files.size(); i++) {
    const auto& entry = version->manifest().files[i];
    if (entry.kind != FileKind::kFile || entry.size == 0) continue;
    auto map = WFS_TRY(versions_.file_map(version, i, options));
    auto sizes = map->sizes();
    FileId id{node.model.str(), node.number, i};
    auto source = dir + "/" + entry.path.str();
    WFS_TRY(move ? cache_.adopt(source, id, sizes) : cache_.adopt_copy(source, id, sizes));
  }
  return {};
}

Result<PublishResult> Publisher::attempt(const PublishJob& job, const SourceTree& tree, const ModelState& state,
                                         Stage::Loan& loan, const Progress& progress, const CallOptions& options) {
  Wanted wanted{job.parent, job.version.str(), {}};
  if (loan.pack != nullptr && loan.frames->size() > 0) wanted.staged = loan.frames->base();
  auto parent = WFS_TRY(choose_parent(wanted, tree, state, options));
  // Frames on another base are of no use.
  if (loan.pack != nullptr && !loan.frames->set_base(parent)) loan.pack = nullptr;
  EdgeInput input{.model = job.model, .from = parent, .spool_dir = job.spool_dir, .window = window_};
  if (loan.pack != nullptr) {
    input.pack = loan.pack;
    input.frames = loan.frames;
    loan.pack->wait_for(options.cancel, job.moved);
    loan.pack->retry();
  }
  SourceReader reader(tree);
  input.read_target = [&](std::uint32_t file, ByteRange range, MutableByteSpan out) {
    return reader.read(file, range, out);
  };
  for (const auto& file : tree.files) {
    input.files.push_back({file.cuts, file.header ? file.header->data_start : ~std::uint64_t{0}});
  }
  std::optional<VersionReader> base;
  std::unique_ptr<BaseMatcher> matcher;
  if (parent) {
    base.emplace(versions_, WFS_TRY(versions_.open(*parent, options).with("parent")), options);
    input.read_base = [&](std::uint32_t file, ByteRange range, MutableByteSpan out) {
      return base->read(file, range, out);
    };
    matcher = WFS_TRY(BaseMatcher::make(base->manifest(), input.read_base));
    input.base_of = [&](std::uint32_t file, const BlockSpan& block) {
      return matcher->segments(tree.files[file].entry, tree.files[file].header.get(), block);
    };
    input.base_map = [&](std::uint32_t file) { return base->map(file); };
  }
  std::uint64_t encoded_bytes = 0;
  auto tell = [&](std::uint64_t bytes) {
    encoded_bytes += bytes;
    if (progress) progress(encoded_bytes, tree.plain_bytes);
  };
  auto output = WFS_TRY(write_edge(input, bucket_, encode_pool_, upload_pool_, tell, options));

  Manifest manifest{job.model, job.version, {}, random_id()};
  for (std::size_t i = 0; i < tree.files.size(); i++) {
    manifest.files.push_back(tree.files[i].entry);
    manifest.files.back().pages = output.list_digests[i];
  }
  WFS_TRY(check_manifest(manifest).with("manifest"));
  auto bytes = serialize(manifest);
  ManifestRef ref{Sha256::of(bytes), bytes.size()};
  WFS_TRY(bucket_.put(manifest_key(job.model, ref.digest), bytes, IfExists::kOverwrite, options).with("manifest"));

  PublishEntry entry{.version = job.version, .manifest = ref, .parent = parent, .edge = output.edge};
  if (parent) entry.parent_version = base->version()->record().name;
  entry.plain_bytes = tree.plain_bytes;
  entry.stored_bytes = output.edge.total_bytes + bytes.size();
  entry.changed_elements = output.changed_elements;
  entry.total_elements = tree.total_elements;
  job.moved();
  if (job.before_commit && !job.before_commit()) return Status(Code::kInterrupted, "given up before the commit");
  auto logged = WFS_TRY(weightfs::publish(logs_, job.model, job.commit_id, entry, options));

  job.local_work(true);
  // It is a version now. What follows spares this host the download of what it has.
  cache_.put_blob(ref.digest, bytes);
  for (std::size_t i = 0; i < output.lists.size(); i++) {
    for (std::size_t page = 0; page < output.lists[i].size(); page++) {
      versions_.meta().keep_block_list(output.list_digests[i][page], output.lists[i][page]);
    }
  }
  NodeRef node{job.model, logged.number};
  if (job.keep_copy) keep_files(job.source_dir, node, false, options);
  PublishResult result{.version = {job.model, job.version}, .node = node};
  if (parent) result.parent = VersionRef{parent->model, base->version()->record().name};
  result.plain_bytes = entry.plain_bytes;
  result.sent_bytes = entry.stored_bytes + serialize(logged).size();
  result.changed_elements = entry.changed_elements;
  result.total_elements = entry.total_elements;
  return result;
}

}  // namespace weightfs
