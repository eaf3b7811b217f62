#include "store/publish/compactor.h"

#include <spdlog/spdlog.h>

#include <algorithm>

#include "store/log/operations.h"
#include "store/log/probe.h"
#include "store/publish/base_match.h"
#include "store/publish/edge_writer.h"
#include "store/publish/version_reader.h"

namespace weightfs {
namespace {

std::string declined_key(const ModelName& model) { return "declined/" + model.str(); }

}  // namespace

Compactor::Compactor(Bucket& bucket, Cache& cache, ModelLogs& logs, Versions& versions, std::size_t threads,
                     std::uint64_t memory)
    : bucket_(bucket),
      cache_(cache),
      logs_(logs),
      versions_(versions),
      window_(std::max<std::uint64_t>(memory / 16, 8 << 20)),
      encode_pool_("compact", threads),
      upload_pool_("compact-up", 2) {}

void Compactor::stop() {
  encode_pool_.stop();
  upload_pool_.stop();
}

std::set<std::pair<std::uint64_t, std::uint64_t>> Compactor::load_declined(const ModelName& model) {
  std::set<std::pair<std::uint64_t, std::uint64_t>> declined;
  auto saved = cache_.load_state(declined_key(model));
  if (!saved) return declined;
  ByteReader reader(*saved);
  while (!reader.done() && !reader.failed()) {
    auto from = reader.varint(), to = reader.varint();
    if (!reader.failed()) declined.insert({from, to});
  }
  return declined;
}

void Compactor::save_declined(const ModelName& model,
                              const std::set<std::pair<std::uint64_t, std::uint64_t>>& declined) {
  Bytes bytes;
  ByteWriter writer(bytes);
  for (auto [from, to] : declined) {
    writer.varint(from);
    writer.varint(to);
  }
  cache_.save_state(declined_key(model), bytes);
}

Result<CompactResult> Compactor::run(const ModelName& model, const Options& options,
                                     const std::function<void(const WantedEdge&)>& step, const CallOptions& call) {
  CompactResult result;
  WFS_TRY(logs_.refresh_with_bases(model, call));
  bool probed = false;
  auto declined = load_declined(model);
  auto whole = [&](const NodeRef& node) {
    auto state = logs_.get(node.model).state();
    const auto* record = state->version(node.number);
    return record != nullptr && cache_.cached_bytes(node.model.str(), node.number) >= record->plain_bytes;
  };
  std::function<bool(const NodeRef&)> can;
  if (options.only_cached) can = whole;
  for (std::uint64_t tried = 0; options.max_edges == 0 || tried < options.max_edges; tried++) {
    if (call.cancel && call.cancel->cancelled()) return Status(Code::kInterrupted, "cancelled");
    auto wanted = next_wanted_edge(model, logs_.known(), options.rules, declined, can);
    if (!wanted) break;
    if (!probed) {
      WFS_TRY(probe_conditional_put(bucket_, call));
      probed = true;
    }
    if (step) step(*wanted);
    auto edge = WFS_TRY(make(model, *wanted, options, call));
    if (!edge) {
      declined.insert({wanted->from ? wanted->from->number : 0, wanted->to});
      save_declined(model, declined);
      result.declined++;
      continue;
    }
    auto announced = add_edge(logs_, model, random_id(), *edge, call);
    if (announced.code() == Code::kNotFound || announced.code() == Code::kExists || announced.code() == Code::kBusy) {
      spdlog::debug("compact {}: {}", model.str(), announced.status().to_string());  // the log moved on meanwhile
    } else {
      WFS_TRY(std::move(announced));
      (wanted->from ? result.skip_edges : result.full_edges)++;
    }
    result.sent_bytes += edge->total_bytes;
    WFS_TRY(logs_.refresh_with_bases(model, call));
  }
  auto snapshot = logs_.get(model).snapshot_if_due(call);
  if (!snapshot.is_ok()) spdlog::warn("snapshot of {}: {}", model.str(), snapshot.to_string());
  return result;
}

Result<std::optional<EdgeRef>> Compactor::make(const ModelName& model, const WantedEdge& wanted, const Options& options,
                                               const CallOptions& call) {
  VersionReader target(versions_, WFS_TRY(versions_.open({model, wanted.to}, call)), call);
  const auto& files = target.manifest().files;
  EdgeInput input{.model = model, .from = wanted.from, .spool_dir = cache_.dir() + "/spool", .window = window_};
  input.read_target = [&](std::uint32_t file, ByteRange range, MutableByteSpan out) {
    return target.read(file, range, out);
  };
  std::vector<std::optional<safetensors::Header>> headers(files.size());
  for (std::uint32_t i = 0; i < files.size(); i++) {
    input.files.push_back({{}, ~std::uint64_t{0}});
    if (files[i].kind != FileKind::kFile || files[i].size == 0) continue;
    auto map = WFS_TRY(target.map(i));
    for (std::size_t block = 0; block < map->blocks.size(); block++) {
      if (map->blocks[block].type >= codec::kElementTypes) {
        return Status(Code::kUnsupported, files[i].path.str() + ": has an element type of a later version");
      }
      input.files[i].cuts.push_back({map->range(block), static_cast<codec::ElementType>(map->blocks[block].type)});
    }
    if (!wanted.from || !files[i].path.leaf().ends_with(".safetensors")) continue;
    auto header = safetensors::read_header(
        [&](std::uint64_t offset, MutableByteSpan out) { return target.read(i, {offset, out.size()}, out); },
        files[i].size);
    if (header.is_ok()) {
      headers[i] = std::move(header).value();
    } else if (header.code() != Code::kInvalid) {
      return std::move(header).status();
    }
  }
  std::optional<VersionReader> base;
  std::unique_ptr<BaseMatcher> matcher;
  if (wanted.from) {
    base.emplace(versions_, WFS_TRY(versions_.open(*wanted.from, call)), call);
    input.read_base = [&](std::uint32_t file, ByteRange range, MutableByteSpan out) {
      return base->read(file, range, out);
    };
    matcher = WFS_TRY(BaseMatcher::make(base->manifest(), input.read_base));
    input.base_of = [&](std::uint32_t file, const BlockSpan& block) {
      return matcher->segments(files[file], headers[file] ? &*headers[file] : nullptr, block);
    };
    input.base_map = [&](std::uint32_t file) { return base->map(file); };
  }
  const auto started = std::chrono::steady_clock::now();
  std::uint64_t encoded = 0;
  auto pace = [&](std::uint64_t bytes) {
    encoded += bytes;
    if (options.bytes_per_second == 0) return;
    auto due = started + std::chrono::duration_cast<std::chrono::steady_clock::duration>(std::chrono::duration<double>(
                             static_cast<double>(encoded) / static_cast<double>(options.bytes_per_second)));
    while (std::chrono::steady_clock::now() < due && !(call.cancel && call.cancel->cancelled())) {
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
    }
  };
  auto output = WFS_TRY(write_edge(input, bucket_, encode_pool_, upload_pool_, pace, call));
  for (std::size_t i = 0; i < files.size(); i++) {
    // The bytes were read through their digests; this holds the cut and order against the manifest, too.
    if (output.list_digests[i] != files[i].pages) {
      return Status(Code::kCorrupt, model.str() + "/" + target.version()->record().name.str() + "/" +
                                        files[i].path.str() + ": read back as other blocks than its manifest has");
    }
  }
  output.edge.to = wanted.to;
  if (wanted.from && output.edge.total_bytes >= wanted.beats) return std::optional<EdgeRef>();
  return std::optional<EdgeRef>(output.edge);
}

}  // namespace weightfs
