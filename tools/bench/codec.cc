// weightfs_bench_codec [options] OLD NEW [NEWER...]: what an update costs in bytes and time, this codec and others side
// by side on the same bytes, memcpy of the same bytes beside them. OLD, NEW: directories with safetensors files, same
// tensors. With more than two, the deltas between neighbours are also replayed onto OLD.
//   --block KIB      size of blocks (1024)
//   --reps N         passes, of which the fastest counts for each block (5)
//   --rivals DIR     also TRL, XOR + zstd, zstd --patch-from, xdelta3 (temporary files in DIR), zstd
//   --overhead N     bytes a block costs beside its frame: map entry, digests (60)
//   --threads N      also with 1, 2, 4 … up to N threads at once
#include <algorithm>
#include <barrier>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <functional>
#include <numeric>
#include <string>
#include <thread>

#include "store/base/digest.h"
#include "store/codec/codec.h"
#include "store/codec/dispatch.h"
#include "store/codec/element.h"
#include "tools/bench/codec_data.h"
#include "tools/bench/codec_rivals.h"

namespace weightfs::bench {
namespace {

struct Options {
  std::size_t block = codec::kMaxBlock;
  int repetitions = 5;
  std::string rivals_dir;
  std::size_t overhead = 60;
  int threads = 0;
  std::vector<std::string> dirs;
};

double seconds(const std::function<void()>& work) {
  auto start = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// The fastest of several passes, block by block: on a machine that does other things too, a whole pass is never
// undisturbed.
class BestTimes {
 public:
  explicit BestTimes(std::size_t blocks) : best_(blocks, 1e30) {}
  void pass(const std::function<void(std::size_t)>& work) {
    for (std::size_t b = 0; b < best_.size(); ++b) best_[b] = std::min(best_[b], seconds([&] { work(b); }));
  }
  double total() const { return std::accumulate(best_.begin(), best_.end(), 0.0); }

 private:
  std::vector<double> best_;
};

struct EncodedBlock {
  codec::Encoded head;
  std::size_t at = 0;  // in Encoding::frames
};
struct Encoding {
  std::vector<EncodedBlock> blocks;
  Bytes frames;
  std::size_t frame_bytes = 0;
  std::uint64_t changed = 0;
};

class Bench {
 public:
  explicit Bench(Options options) : options_(std::move(options)) {
    for (const auto& dir : options_.dirs) versions_.push_back(load(dir));
    for (const auto& version : versions_) {
      if (version.bytes.size() != versions_[0].bytes.size()) {
        std::fprintf(stderr, "the versions differ in size\n");
        std::exit(1);
      }
    }
    blocks_ = cut_blocks(versions_[0], options_.block);
    out_.resize(versions_[0].bytes.size());
  }

  void run() {
    const auto& base = versions_[0];
    const auto& target = versions_[1];
    auto encoding = encode_all(base.bytes, target.bytes);
    std::printf("# %s -> %s: %zu bytes, %zu blocks of at most %zu KiB, %llu elements changed (%.3f %%)\n",
                options_.dirs[0].c_str(), options_.dirs[1].c_str(), out_.size(), blocks_.size(), options_.block / 1024,
                static_cast<unsigned long long>(encoding.changed), 100.0 * encoding.changed / elements());
    changed_ = encoding.changed;
    print_modes(encoding);
    std::printf("%-40s %9s %9s %9s %9s %9s %9s\n", "", "B/changed", "of plain", "enc GB/s", "/memcpy", "dec GB/s",
                "/memcpy");
    ours(base.bytes, target.bytes);
    if (versions_.size() > 2) replay();
    for (int threads = 1; threads <= options_.threads; threads *= 2) with_threads(encoding, threads);
    row_unchanged(base.bytes);
    row_full(target.bytes);
    if (!options_.rivals_dir.empty()) {
      for (auto& rival : rivals(options_.rivals_dir)) row_rival(*rival);
    }
  }

 private:
  std::size_t elements() const {
    std::size_t all = 0;
    for (const auto& tensor : versions_[0].tensors) all += tensor.length / codec::width(tensor.type);
    return all;
  }
  ByteSpan of(const Bytes& version, const Span& block) const {
    return version.empty() ? ByteSpan() : ByteSpan(version).subspan(block.offset, block.length);
  }
  double copy(const Bytes& from) {
    return seconds([&] {
      for (const auto& block : blocks_)
        std::memcpy(out_.data() + block.offset, from.data() + block.offset, block.length);
    });
  }

  Encoding encode_all(const Bytes& base, const Bytes& target) {
    Encoding out;
    out.blocks.resize(blocks_.size());
    out.frames.resize(target.size() + codec::kMaxFrame);
    encode_into(base, target, out);
    return out;
  }
  void encode_into(const Bytes& base, const Bytes& target, Encoding& out) {
    out.frame_bytes = 0;
    out.changed = 0;
    for (std::size_t b = 0; b < blocks_.size(); ++b) encode_one(base, target, b, out);
  }
  // Blocks in order.
  void encode_one(const Bytes& base, const Bytes& target, std::size_t b, Encoding& out) {
    auto& block = out.blocks[b];
    block.at = b == 0 ? 0 : out.blocks[b - 1].at + out.blocks[b - 1].head.frame_length;
    block.head = codec::encode_block(scratch_, blocks_[b].type, of(base, blocks_[b]), of(target, blocks_[b]),
                                     MutableByteSpan(out.frames).subspan(block.at));
    out.frame_bytes = block.at + block.head.frame_length;
    out.changed += block.head.changed_elements;
  }
  ByteSpan frame(const Encoding& encoding, std::size_t b) const {
    return ByteSpan(encoding.frames).subspan(encoding.blocks[b].at, encoding.blocks[b].head.frame_length);
  }
  void decode_one(const Encoding& encoding, const Bytes& base, std::size_t b) {
    check(codec::decode_block(scratch_, encoding.blocks[b].head.codec, blocks_[b].type, frame(encoding, b),
                              of(base, blocks_[b]),
                              MutableByteSpan(out_).subspan(blocks_[b].offset, blocks_[b].length)));
  }
  static void check(const Status& status) {
    if (status.is_ok()) return;
    std::fprintf(stderr, "decoding failed: %s\n", status.to_string().c_str());
    std::exit(1);
  }
  void check_equal(const Bytes& target, const std::string& name) const {
    if (out_ == target) return;
    std::fprintf(stderr, "%s: decoded to other bytes\n", name.c_str());
    std::exit(1);
  }

  struct Times {
    double encode = 1e30, decode = 1e30, memcpy_encode = 1e30, memcpy_decode = 1e30;
  };
  void row(const std::string& name, std::size_t bytes, std::uint64_t changed, const Times& t) const {
    double size = static_cast<double>(out_.size());
    auto per_changed = changed ? static_cast<double>(bytes) / static_cast<double>(changed) : 0;
    std::printf("%-40s %9.4f %9.5f %9.2f %9.3f %9.2f %9.3f\n", name.c_str(), per_changed, bytes / size,
                size / t.encode * 1e-9, t.memcpy_encode / t.encode, size / t.decode * 1e-9, t.memcpy_decode / t.decode);
    std::fflush(stdout);
  }

  Times measure(const Bytes& base, const Bytes& target, Encoding& encoding, const std::string& name) {
    BestTimes encode(blocks_.size()), decode(blocks_.size()), copying(blocks_.size());
    for (int r = 0; r < options_.repetitions; ++r) {
      encoding.changed = 0;
      encode.pass([&](std::size_t b) { encode_one(base, target, b, encoding); });
      copying.pass([&](std::size_t b) { copy_one(base.empty() ? target : base, b); });
      decode.pass([&](std::size_t b) { decode_one(encoding, base, b); });
      if (r == 0) check_equal(target, name);
    }
    return {encode.total(), decode.total(), copying.total(), copying.total()};
  }
  void copy_one(const Bytes& from, std::size_t b) {
    std::memcpy(out_.data() + blocks_[b].offset, from.data() + blocks_[b].offset, blocks_[b].length);
  }

  void ours(const Bytes& base, const Bytes& target) {
    auto best = codec::simd_level();
    for (int level = static_cast<int>(best); level >= 0; --level) {
      codec::force_simd_level(static_cast<codec::SimdLevel>(level));
      auto encoding = encode_all(base, target);
      std::string name = std::string("weightfs ") + codec::to_string(static_cast<codec::SimdLevel>(level));
      auto times = measure(base, target, encoding, name);
      row(name, encoding.frame_bytes + blocks_.size() * options_.overhead, encoding.changed, times);
      if (level == static_cast<int>(best)) with_digests(base, encoding, times);
    }
    codec::force_simd_level(best);
  }

  // As a reader does it: SHA-256 of the frame before, XXH3-128 of the plain bytes after.
  void with_digests(const Bytes& base, const Encoding& encoding, Times times) {
    BestTimes decode(blocks_.size());
    for (int r = 0; r < options_.repetitions; ++r) {
      decode.pass([&](std::size_t b) {
        digests_ += static_cast<unsigned>(Sha256::of(frame(encoding, b)).bytes[0]);
        decode_one(encoding, base, b);
        digests_ +=
            static_cast<unsigned>(Xxh128::of(ByteSpan(out_).subspan(blocks_[b].offset, blocks_[b].length)).bytes[0]);
      });
    }
    times.decode = decode.total();
    row("  the same with digests checked", encoding.frame_bytes + blocks_.size() * options_.overhead, encoding.changed,
        times);
  }

  void replay() {
    std::vector<Encoding> deltas;
    for (std::size_t v = 1; v < versions_.size(); ++v) {
      deltas.push_back(encode_all(versions_[v - 1].bytes, versions_[v].bytes));
    }
    std::vector<BestTimes> best(deltas.size(), BestTimes(blocks_.size()));
    for (int r = 0; r < options_.repetitions; ++r) {
      for (std::size_t depth = 1; depth <= deltas.size(); ++depth) {
        best[depth - 1].pass([&](std::size_t b) { replay_one(deltas, depth, b); });
        if (r == 0) check_equal(versions_[depth].bytes, "replay");
      }
    }
    for (std::size_t depth = 1; depth <= deltas.size(); ++depth) {
      std::printf("replay of %zu: %.2f GB/s, %.2f x the time of one\n", depth,
                  static_cast<double>(out_.size()) / best[depth - 1].total() * 1e-9,
                  best[depth - 1].total() / best[0].total());
    }
  }
  void replay_one(const std::vector<Encoding>& deltas, std::size_t depth, std::size_t b) {
    auto block = MutableByteSpan(out_).subspan(blocks_[b].offset, blocks_[b].length);
    decode_one(deltas[0], versions_[0].bytes, b);
    for (std::size_t d = 1; d < depth; ++d) {
      check(codec::apply_frame(scratch_, deltas[d].blocks[b].head.codec, blocks_[b].type, frame(deltas[d], b), block));
    }
  }

  // Blocks shared out among threads, each with its own scratch: whole passes, of which the fastest counts.
  void with_threads(const Encoding& encoding, int threads) {
    const auto& base = versions_[0].bytes;
    const auto& target = versions_[1].bytes;
    std::vector<codec::Scratch> scratches(static_cast<std::size_t>(threads));
    std::vector<Bytes> frames(scratches.size(), Bytes(codec::kMaxFrame));
    auto fastest = [&](auto&& work) {
      Speed best;
      for (int r = 0; r < options_.repetitions; ++r) best.take(shared_out(scratches.size(), work));
      return best;
    };
    auto copied = fastest([&](std::size_t, std::size_t b) { copy_one(base, b); });
    auto decoded = fastest([&](std::size_t t, std::size_t b) {
      const auto& span = blocks_[b];
      check(codec::decode_block(scratches[t], encoding.blocks[b].head.codec, span.type, frame(encoding, b),
                                of(base, span), MutableByteSpan(out_).subspan(span.offset, span.length)));
    });
    check_equal(target, "with threads");
    auto encoded = fastest([&](std::size_t t, std::size_t b) {
      codec::encode_block(scratches[t], blocks_[b].type, of(base, blocks_[b]), of(target, blocks_[b]), frames[t]);
    });
    for (auto [name, speed] : {std::pair("encode", encoded), {"decode", decoded}, {"memcpy", copied}}) {
      std::printf("%d threads: %s %.2f GB/s, %.2f GB/s by the threads' processor time\n", threads, name, speed.wall,
                  speed.processor);
    }
    std::fflush(stdout);
  }
  // GB/s. By processor time it is the sum over the threads: on a machine that does other things too, what they would
  // reach with a core each.
  struct Speed {
    double wall = 0, processor = 0;
    void take(const Speed& other) {
      wall = std::max(wall, other.wall);
      processor = std::max(processor, other.processor);
    }
  };
  // The speed of work(thread, block) over all blocks, from the first thread's start to the last one's end.
  Speed shared_out(std::size_t threads, const std::function<void(std::size_t, std::size_t)>& work) {
    using Clock = std::chrono::steady_clock;
    std::barrier start(static_cast<std::ptrdiff_t>(threads));
    std::vector<Clock::time_point> began(threads), ended(threads);
    std::vector<double> speeds(threads);
    std::vector<std::thread> running;
    for (std::size_t t = 0; t < threads; ++t) {
      running.emplace_back([&, t] {
        start.arrive_and_wait();
        began[t] = Clock::now();
        auto processor = processor_seconds();
        std::size_t bytes = 0;
        for (std::size_t b = t; b < blocks_.size(); b += threads) {
          work(t, b);
          bytes += blocks_[b].length;
        }
        speeds[t] = static_cast<double>(bytes) / (processor_seconds() - processor) * 1e-9;
        ended[t] = Clock::now();
      });
    }
    for (auto& thread : running) thread.join();
    auto first = *std::min_element(began.begin(), began.end()), last = *std::max_element(ended.begin(), ended.end());
    auto wall = std::chrono::duration<double>(last - first).count();
    return {static_cast<double>(out_.size()) / wall * 1e-9, std::accumulate(speeds.begin(), speeds.end(), 0.0)};
  }
  static double processor_seconds() {
    timespec now{};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
  }

  void row_unchanged(const Bytes& base) {
    Bytes twin = base;
    auto encoding = encode_all(base, twin);
    row("weightfs, unchanged blocks", encoding.frame_bytes, 0, measure(base, twin, encoding, "unchanged"));
  }
  void row_full(const Bytes& target) {
    auto encoding = encode_all({}, target);
    row("weightfs, full blocks", encoding.frame_bytes, 0, measure({}, target, encoding, "full"));
  }
  void row_rival(Rival& rival) {
    const auto& base = versions_[0];
    const auto& target = versions_[1];
    Times times;
    std::size_t bytes = 0;
    for (int r = 0; r < rival.repetitions(); ++r) {
      times.encode = std::min(times.encode, seconds([&] { bytes = rival.encode(base, target); }));
      times.memcpy_encode = std::min(times.memcpy_encode, copy(target.bytes));
    }
    for (int r = 0; r < rival.repetitions(); ++r) {
      std::fill(out_.begin(), out_.end(), std::byte{0});
      times.decode = std::min(times.decode, seconds([&] { rival.decode(base, out_); }));
      if (r == 0) check_equal(target.bytes, rival.name());
      times.memcpy_decode = std::min(times.memcpy_decode, copy(target.bytes));
    }
    row(rival.name(), bytes, changed_, times);
  }
  void print_modes(const Encoding& encoding) const {
    static constexpr const char* kNames[] = {"same",           "raw",        "zstd", "planes", "sparse", "dense-xor",
                                             "dense-distance", "zstd-patch", "zero"};
    std::size_t counts[9] = {}, bytes[9] = {};
    for (const auto& block : encoding.blocks) {
      ++counts[static_cast<int>(block.head.codec)];
      bytes[static_cast<int>(block.head.codec)] += block.head.frame_length;
    }
    std::printf("# blocks by codec:");
    for (int c = 0; c < 9; ++c) {
      if (counts[c]) std::printf(" %s %zu (%zu bytes)", kNames[c], counts[c], bytes[c]);
    }
    std::printf("\n");
  }

  Options options_;
  std::vector<Checkpoint> versions_;
  std::vector<Span> blocks_;
  Bytes out_;
  codec::Scratch scratch_;
  unsigned digests_ = 0;  // used, so that digests are made
  std::uint64_t changed_ = 0;
};

Options parse(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; ++i) {
    std::string_view argument = argv[i];
    bool more = i + 1 < argc;
    if (argument == "--block" && more) {
      options.block = std::min(codec::kMaxBlock, std::strtoul(argv[++i], nullptr, 10) * 1024);
    } else if (argument == "--reps" && more) {
      options.repetitions = std::max(1, std::atoi(argv[++i]));
    } else if (argument == "--rivals" && more) {
      options.rivals_dir = argv[++i];
    } else if (argument == "--threads" && more) {
      options.threads = std::clamp(std::atoi(argv[++i]), 1, 256);
    } else if (argument == "--overhead" && more) {
      options.overhead = std::strtoul(argv[++i], nullptr, 10);
    } else {
      options.dirs.emplace_back(argument);
    }
  }
  if (options.dirs.size() < 2 || options.block == 0) {
    std::fprintf(stderr,
                 "usage: %s [--block KIB] [--reps N] [--rivals DIR] [--overhead N] [--threads N] OLD NEW [NEWER...]\n",
                 argv[0]);
    std::exit(2);
  }
  return options;
}

}  // namespace
}  // namespace weightfs::bench

int main(int argc, char** argv) {
  weightfs::bench::Bench(weightfs::bench::parse(argc, argv)).run();
  return 0;
}
