// weightfs mount BUCKET DIR
#include <fmt/format.h>
#include <malloc.h>
#include <spdlog/spdlog.h>

#include <array>

#include "fs/daemon.h"
#include "fs/mount.h"
#include "store/base/posix.h"
#include "tools/beside.h"
#include "tools/log_setup.h"
#include "tools/output.h"
#include "tools/session.h"

namespace weightfs::tools {
namespace {

// A daemon goes on for a moment after umount(8) has returned.
constexpr auto kLastDaemonEnds = std::chrono::seconds(30);

struct Options {
  BucketArgs bucket;
  std::string dir;
  StoreOptions store;
  MountOptions mount;
  bool foreground = false;
  std::vector<Scope> warm;
  std::vector<std::string> fstab;  // -o
};

// What fstab(5) lines carry for mount(8) and systemd, not for us.
bool is_for_mount8(const std::string& word) {
  static constexpr std::array kWords = {
      "defaults", "rw",    "auto",     "noauto",     "nofail",   "_netdev",    "user",   "nouser", "users",  "owner",
      "group",    "async", "relatime", "norelatime", "lazytime", "nolazytime", "silent", "loud",   "remount"};
  return word.starts_with("x-") || word.starts_with("X-") || word.starts_with("comment=") ||
         std::find(kWords.begin(), kWords.end(), word) != kWords.end();
}

bool is_for_kernel(const std::string& word) {
  static constexpr std::array kWords = {"nodev", "dev",     "nosuid", "suid", "noexec",
                                        "exec",  "noatime", "atime",  "sync", "dirsync"};
  return std::find(kWords.begin(), kWords.end(), word) != kWords.end();
}

// "-o name=value,…": each word is the option of that name, with fstab's spelling.
void apply_fstab_options(CLI::App& app, Options& options) {
  for (const std::string& list : options.fstab) {
    for (const std::string& word : CLI::detail::split(list, ',')) {
      if (word.empty() || is_for_mount8(word)) continue;
      if (is_for_kernel(word)) {
        options.mount.fuse.push_back(word);
        continue;
      }
      auto equals = word.find('=');
      std::string name = word.substr(0, equals);
      std::replace(name.begin(), name.end(), '_', '-');  // allow_other, as other filesystems write it
      CLI::Option* option = app.get_option_no_throw("--" + name);
      if (option == nullptr || name == "help") throw CLI::ValidationError("-o", "no mount option '" + name + "'");
      bool is_flag = option->get_items_expected_max() == 0;
      if (is_flag != (equals == std::string::npos)) {
        throw CLI::ValidationError("-o", fmt::format("'{}' {}", name, is_flag ? "takes no value" : "needs a value"));
      }
      option->clear();
      option->add_result(is_flag ? "true" : word.substr(equals + 1));
      option->run_callback();
    }
  }
}

Status prepare(Options& options) {
  StoreOptions& store = options.store;
  options.bucket.create = !options.mount.read_only;
  StoreOptions from_args = store_options(options.bucket);
  store.bucket_url = from_args.bucket_url;
  store.bucket = from_args.bucket;
  // The daemon leaves this directory.
  if (!store.bucket_url.empty() && store.bucket_url.find("://") == std::string::npos) {
    store.bucket_url = posix::absolute(store.bucket_url);
  }
  store.cache_dir = cache_dir_of(options.bucket);
  store.read_only = options.mount.read_only;
  store.follow = true;
  store.compact = !store.read_only;
  for (const Scope& wanted : options.warm) {
    if (wanted.version == "latest") {
      store.warm_latest.push_back(*wanted.model);
    } else {
      store.warm.push_back({ *wanted.model, WFS_TRY(VersionName::parse(wanted.version)) });
    }
  }
  options.mount.mountpoint = posix::absolute(options.dir);
  options.mount.fsname = store.bucket_url;
  return {};
}

// With little memory, large buffers go back to the system as soon as they are free, and few heaps hold small ones. With
// more, the allocator may keep some: a page that is used again costs less than a new one.
void limit_heap(std::uint64_t memory) {
  if (memory >= (std::uint64_t{256} << 20)) return;
  ::mallopt(M_ARENA_MAX, 2);
  ::mallopt(M_MMAP_THRESHOLD, 128 << 10);
  ::mallopt(M_TRIM_THRESHOLD, 1 << 20);
}

// The child of the fork, or with --foreground the only process. Errors before the mount answers go to the starter.
Result<int> serve(Options& options, Daemon& daemon) {
  auto fail = [&](const Status& status) {
    daemon.failed(kFailed, error_line("mount", status));
    return kFailed;
  };
  std::string cache_dir = options.store.cache_dir;
  limit_heap(options.store.memory);
  Status place = Mount::check(options.mount.mountpoint);
  if (!place) return fail(place);
  Status free = wait_for_free_cache(cache_dir, kLastDaemonEnds);
  if (!free) return fail(free);
  auto store = Store::open(std::move(options.store));
  if (!store) return fail(store.status());
  if (!options.foreground) log_to_file(cache_dir + "/weightfs.log");
  auto mount = Mount::start(std::move(options.mount), **store);
  if (!mount) {
    store->reset();  // who is told may mount again at once: the cache must be free by then
    return fail(mount.status());
  }
  daemon.guard((*mount)->mountpoint());
  daemon.ready();
  UnmountReport report = (*mount)->run();
  for (const std::string& name : report.published) spdlog::info("published {}", name);
  for (const std::string& name : report.kept) spdlog::warn("kept for the next mount: {}", name);
  return kDone;
}

Result<int> run(CLI::App& app, Options& options) {
  apply_fstab_options(app, options);
  WFS_TRY(prepare(options));
  Daemon daemon = WFS_TRY(Daemon::start(options.foreground));
  return serve(options, daemon);
}

void add_options(CLI::App& app, Options& options) {
  StoreOptions& store = options.store;
  MountOptions& mount = options.mount;
  app.add_flag("--foreground", options.foreground, "Do not go to the background; log to standard error");
  app.add_flag("--ro", mount.read_only, "Read only: no drafts");
  app.add_flag(
      "--allow-other", mount.allow_other,
      "Let other users in; the kernel checks modes (who is not root needs user_allow_other in /etc/fuse.conf)");
  add_size(app, "--cache-size", &store.cache_size, "Bytes that the cache may use (default: as many as the disk has)");
  add_size(app, "--memory", &store.memory, "Bound of the daemon's resident memory (default: 512M, at least 64M)");
  add_duration(app, "--settle", &store.settle,
               "How long a complete draft rests before it is published when its writer has ended (default: 1s)");
  add_duration(app, "--settle-live", &store.settle_live,
               "The same while its writer lives, or cannot be told (default: 30s)");
  app.add_option_function<std::string>(
         "--close", [&store](const std::string& text) { store.close_waits = text == "wait"; },
         "Whether close() of a file in a draft waits until the bucket has it, and reports what failed (default: wait); "
         "with background, only the commit does")
      ->type_name("wait|background")
      ->check(CLI::IsMember(std::vector<std::string>{"wait", "background"}));
  add_duration(app, "--poll", &store.poll, "How often to ask the bucket for new versions (default: 5s)");
  app.add_option_function<std::vector<std::string>>(
         "--warm",
         [&options](const std::vector<std::string>& texts) {
           for (const std::string& text : texts) options.warm.push_back(parse_version_scope("--warm", text));
         },
         "Fetch this version at once; MODEL/latest follows the newest. May be repeated")
      ->type_name("MODEL/VERSION")
      ->expected(1)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  add_duration(app, "--fault-patience", &store.fault_patience,
               "How long a page fault waits for a bucket that is out of reach before its process gets SIGBUS "
               "(default: 10m)");
  app.add_flag("--allow-remove", mount.allow_remove, "Let `rm -r` of a version's directory remove the version for all");
  app.add_option("-o", options.fstab, "The options above as in fstab(5), without dashes: -o allow-other,poll=1s")
      ->type_name("NAME[=VALUE],...")
      ->expected(1)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
}

}  // namespace

Run add_mount(CLI::App& app) {
  auto options = std::make_shared<Options>();
  add_bucket_args(app, &options->bucket, true);
  app.add_option("DIR", options->dir, "Where it appears: an existing directory")->required();
  add_options(app, *options);
  set_examples(app, {{"weightfs mount s3://weights/prod /mnt/models",
                      "goes to the background once the mount answers; its log is weightfs.log in the cache directory"},
                     {"weightfs mount /data/bucket /mnt/models --foreground --warm qwen3/latest",
                      "stays in the foreground, and has each new version ready before it is asked for"},
                     {"s3://weights/prod /mnt/models weightfs allow-other,cache-size=200G,_netdev 0 0",
                      "the same as a line of /etc/fstab"}});
  return [&app, options] { return run(app, *options); };
}

}  // namespace weightfs::tools
