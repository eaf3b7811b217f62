// Makes a bucket of a shape that is too large to publish: many models with many versions, and one version of many
// blocks. Metadata only: the logs, manifests and indexes are real; of each model the newest version can be read, of the
// others only the log tells.
//
//   weightfs_bench_scale BUCKET_DIR MODELS VERSIONS BLOCKS
//
// model-0000 … with step-000000 …; huge/v0 has BLOCKS blocks of 1 MiB, all zero, in files of 10 GiB.
#include <fmt/format.h>

#include <cstdlib>

#include "store/bucket/open.h"
#include "store/codec/codec.h"
#include "store/format/log_entry.h"
#include "store/format/manifest.h"
#include "store/log/model_log.h"

namespace weightfs {
namespace {

constexpr std::uint64_t kFileBlocks = 10 * 1024;
constexpr int kFullEvery = 16, kSinceSnapshot = 30;

template <typename T>
T must(Result<T> result, const std::string& what) {
  if (!result.is_ok()) {
    fmt::print(stderr, "{}: {}\n", what, result.status().to_string());
    std::exit(1);
  }
  return std::move(result).value();
}

void must(const Status& status, const std::string& what) {
  if (status.is_ok()) return;
  fmt::print(stderr, "{}: {}\n", what, status.to_string());
  std::exit(1);
}

struct Made {
  ManifestRef manifest;
  EdgeRef edge;
  std::uint64_t bytes = 0;
};

EdgeRef some_edge(const std::optional<NodeRef>& from, std::uint64_t to) {
  EdgeRef edge;
  edge.from = from;
  edge.to = to;
  edge.pack = random_id();
  edge.last_size = from ? 30'000'000 : 200'000'000;
  edge.meta_offset = edge.last_size - 200'000;
  edge.index_offset = edge.last_size - 10'000;
  edge.index_digest = Sha256::of(as_bytes(edge.pack));
  edge.total_bytes = edge.last_size;
  edge.frames = 900;
  return edge;
}

// A version of `files` files of zeros, really there: `blocks` blocks in all.
Made make_version(Bucket& bucket, const ModelName& model, const std::string& name, std::uint64_t blocks) {
  const Bytes zeros(codec::kMaxBlock);
  const ListedBlock listed{codec::kMaxBlock, static_cast<std::uint8_t>(codec::ElementType::kBf16), Xxh128::of(zeros)};
  BlockFrame frame;
  frame.codec = static_cast<std::uint8_t>(codec::CodecId::kZero);
  Made made;
  Manifest manifest{model, must(VersionName::parse(name), name), {}, random_id()};
  PackIndex index;
  Bytes tail;
  for (std::uint64_t at = 0; at < blocks; at += kFileBlocks) {
    auto count = std::min(kFileBlocks, blocks - at);
    FileEntry file{must(FilePath::parse(fmt::format("model-{:05}.safetensors", at / kFileBlocks)), "name")};
    file.size = count * codec::kMaxBlock;
    std::vector<PageRef> pages;
    for (std::uint64_t in_file = 0; in_file < count; in_file += kPageBlocks) {
      EdgePage page;
      page.blocks.assign(std::min<std::uint64_t>(kPageBlocks, count - in_file), listed);
      page.frames.assign(page.blocks.size(), frame);
      auto bytes = serialize_page(page);
      file.pages.push_back(Sha256::of(serialize_block_list(page.blocks)));
      pages.push_back({tail.size(),
                       static_cast<std::uint32_t>(bytes.size()),
                       Sha256::of(bytes),
                       page.blocks.size() * codec::kMaxBlock,
                       {}});
      tail.insert(tail.end(), bytes.begin(), bytes.end());
    }
    made.bytes += file.size;
    manifest.files.push_back(std::move(file));
    index.files.push_back(std::move(pages));
  }
  made.edge.pack = random_id();
  made.edge.index_offset = tail.size();
  index.object_sizes = {0};
  auto index_bytes = serialize_index(index);
  made.edge.index_digest = Sha256::of(index_bytes);
  tail.insert(tail.end(), index_bytes.begin(), index_bytes.end());
  made.edge.last_size = made.edge.total_bytes = tail.size();
  must(bucket.put(pack_object_key(model, made.edge.pack, 0), tail, IfExists::kFail), "pack");
  auto text = serialize(manifest);
  made.manifest = {Sha256::of(text), text.size()};
  must(bucket.put(manifest_key(model, made.manifest.digest), text, IfExists::kFail), "manifest");
  return made;
}

// The log of one model, entry by entry; a snapshot some entries before its end.
void make_model(Bucket& bucket, const std::string& name, std::uint64_t versions, std::uint64_t blocks) {
  auto model = must(ModelName::parse(name), name);
  std::optional<Sha256> previous;
  std::uint64_t number = 0, snapshot = 0;
  std::optional<NodeRef> newest;
  for (std::uint64_t i = 0; i < versions; i++) {
    bool last = i + 1 == versions;
    auto version = versions == 1 ? std::string("v0") : fmt::format("step-{:06}", i);
    number++;
    PublishEntry body{.version = must(VersionName::parse(version), version)};
    if (last) {
      auto made = make_version(bucket, model, version, blocks);
      body.manifest = made.manifest;
      body.edge = made.edge;
      body.plain_bytes = made.bytes;
    } else {
      body.edge = some_edge(i % kFullEvery == 0 ? std::nullopt : newest, number);
      body.manifest = {Sha256::of(as_bytes(body.edge.pack)), 20'000};
      body.plain_bytes = 940'000'000;
      if (body.edge.from) {
        body.parent = newest;
        body.parent_version = must(VersionName::parse(fmt::format("step-{:06}", i - 1)), "parent");
      }
    }
    body.edge.to = number;
    body.stored_bytes = body.edge.total_bytes + body.manifest.size;
    body.total_elements = body.plain_bytes / 2;
    newest = NodeRef{model, number};
    LogEntry entry{.number = number,
                   .id = random_id(),
                   .previous = previous,
                   .snapshot = snapshot,
                   .time = WallTime(std::chrono::milliseconds(1'764'000'000'000 + static_cast<std::int64_t>(i))),
                   .model = model,
                   .body = std::move(body)};
    auto bytes = serialize(entry);
    previous = Sha256::of(bytes);
    must(bucket.put(log_entry_key(model, number), bytes, IfExists::kFail), "log entry");
    if (i + kSinceSnapshot + 1 == versions) {
      must(bucket.put(log_hint_key(model), serialize_hint(number), IfExists::kOverwrite), "hint");
      ModelLog log(bucket, model, Clock::system(), nullptr);
      must(log.refresh(), name);
      must(log.write_snapshot_now(), "snapshot");
      snapshot = number = log.state()->head;
      previous = log.state()->head_digest;
    }
  }
  must(bucket.put(log_hint_key(model), serialize_hint(number), IfExists::kOverwrite), "hint");
}

int run(const char* url, std::uint64_t models, std::uint64_t versions, std::uint64_t blocks) {
  auto bucket = must(open_bucket(url), url);
  for (std::uint64_t i = 0; i < models; i++) make_model(*bucket, fmt::format("model-{:04}", i), versions, 1);
  make_model(*bucket, "huge", 1, blocks);
  return 0;
}

}  // namespace
}  // namespace weightfs

int main(int argc, char** argv) {
  if (argc != 5) {
    fmt::print(stderr, "usage: weightfs_bench_scale BUCKET_DIR MODELS VERSIONS BLOCKS\n");
    return 2;
  }
  auto number = [&](int at) { return std::strtoull(argv[at], nullptr, 10); };
  return weightfs::run(argv[1], number(2), number(3), number(4));
}
