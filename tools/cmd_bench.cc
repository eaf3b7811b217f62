// weightfs bench OLD NEW
#include <fmt/format.h>

#include "tools/bench.h"
#include "tools/interrupt.h"
#include "tools/output.h"
#include "tools/progress.h"
#include "tools/session.h"
#include "tools/units.h"

namespace weightfs::tools {
namespace {

struct Options {
  std::string old_path, new_path;
  std::size_t threads = 1;
  bool json = false;
};

Json facts_of(const BenchResult& result) {
  return {{"parent", nullptr},  // as publish has it; there is no version here
          {"plain_bytes", result.plain_bytes},
          {"sent_bytes", result.sent_bytes},
          {"changed_elements", result.changed_elements},
          {"total_elements", result.total_elements},
          {"seconds", result.seconds},
          {"encode_bytes_per_second", static_cast<std::uint64_t>(result.encode)},
          {"decode_bytes_per_second", static_cast<std::uint64_t>(result.decode)},
          {"memcpy_bytes_per_second", static_cast<std::uint64_t>(result.memcpy)},
          {"zstd_bytes", result.zstd_bytes},
          {"zstd_encode_bytes_per_second", static_cast<std::uint64_t>(result.zstd_encode)},
          {"zstd_decode_bytes_per_second", static_cast<std::uint64_t>(result.zstd_decode)}};
}

void print_text(const BenchResult& result) {
  auto plain = static_cast<double>(result.plain_bytes), sent = static_cast<double>(result.sent_bytes);
  auto changed = static_cast<double>(result.changed_elements), total = static_cast<double>(result.total_elements);
  fmt::print("{} of {} elements changed ({})\n", format_count(result.changed_elements),
             format_count(result.total_elements), format_percent(changed / total));
  std::string per_element = changed > 0 ? fmt::format(", {:.2f} bytes per changed element", sent / changed) : "";
  fmt::print("{} become {} ({}){}\n", format_size(result.plain_bytes), format_size(result.sent_bytes),
             format_ratio(plain / sent), per_element);
  fmt::print("zstd alone: {} ({})\n\n", format_size(result.zstd_bytes),
             format_ratio(plain / static_cast<double>(result.zstd_bytes)));
  auto row = [&](const char* what, double speed) -> std::vector<std::string> {
    return {what, format_size(static_cast<std::uint64_t>(speed)) + "/s", fmt::format("{:.3f}", speed / result.memcpy)};
  };
  print_table({{"A THREAD", ">SPEED", ">OF MEMCPY"},
               row("encode", result.encode),
               row("decode", result.decode),
               row("memcpy", result.memcpy),
               row("zstd -3", result.zstd_encode),
               row("zstd -d", result.zstd_decode)});
}

Result<int> run(const Options& options) {
  ProgressBar bar("bench");
  auto measured = bench_delta(options.old_path, options.new_path, options.threads, bar.callback(), long_call());
  bar.finish();
  BenchResult result = WFS_TRY(std::move(measured));
  if (options.json) {
    print_json(facts_of(result));
  } else {
    print_text(result);
  }
  return kDone;
}

}  // namespace

Run add_bench(CLI::App& app) {
  auto options = std::make_shared<Options>();
  app.add_option("OLD", options->old_path, "The base: a safetensors file or a directory")
      ->required()
      ->check(CLI::ExistingPath);
  app.add_option("NEW", options->new_path, "What changed: a safetensors file or a directory")
      ->required()
      ->check(CLI::ExistingPath);
  app.add_option("--threads", options->threads, "Threads that encode and decode (default: 1)")
      ->check(CLI::Range(1, 1024))
      ->type_name("N");
  add_json(app, &options->json);
  set_examples(app, {{"weightfs bench out/checkpoint-100 out/checkpoint-101",
                      "what publishing the second after the first would send, and how fast deltas are made and undone; "
                      "every byte is verified"}});
  return [options] { return run(*options); };
}

}  // namespace weightfs::tools
