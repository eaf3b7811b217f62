#include "store/drafts/completeness.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>

#include "store/base/posix.h"
#include "store/format/safetensors.h"

namespace weightfs {
namespace {

constexpr std::uint64_t kMaxIndex = std::uint64_t{256} << 20;
constexpr std::uint64_t kMaxShards = 1'000'000;  // a larger N is part of a name, not a count
constexpr int kMaxDepth = 64;

struct Found {
  mode_t mode = 0;
  std::uint64_t size = 0;
  std::string target;  // of a symlink
};
using Tree = std::map<std::string, Found>;  // by path below the root

bool is_digits(std::string_view text) {
  return !text.empty() && std::all_of(text.begin(), text.end(), [](unsigned char c) { return std::isdigit(c); });
}

std::string_view leaf_of(std::string_view path) { return path.substr(path.rfind('/') + 1); }
std::string_view dir_of(std::string_view path) {
  auto slash = path.rfind('/');
  return slash == path.npos ? std::string_view() : path.substr(0, slash);
}
std::string join(std::string_view dir, std::string_view leaf) {
  return dir.empty() ? std::string(leaf) : fmt::format("{}/{}", dir, leaf);
}

// Calls `visit(path, stat)` for everything below; never through a link, for the writer may be another user.
void walk(int dir, const std::string& prefix, int depth, std::vector<std::string>& errors,
          const std::function<void(const std::string&, int dir, const std::string& leaf, const struct stat&)>& visit) {
  auto names = posix::list_dir_at(dir);
  if (!names) {
    errors.push_back(fmt::format("directory '{}' cannot be read", prefix));
    return;
  }
  std::sort(names->begin(), names->end());
  for (auto& leaf : *names) {
    auto path = join(prefix, leaf);
    auto stat = posix::lstat_at(dir, leaf);
    if (!stat) continue;  // gone meanwhile
    visit(path, dir, leaf, *stat);
    if (!S_ISDIR(stat->st_mode) || leaf == ".git") continue;
    auto below = posix::open_at(dir, leaf, O_RDONLY | O_DIRECTORY | O_NOFOLLOW);
    if (!below || depth == kMaxDepth) {
      errors.push_back(fmt::format("directory '{}' cannot be read", path));
      continue;
    }
    walk(below->get(), path, depth + 1, errors, visit);
  }
}

// The regular file that `path` is, or leads to by links inside the tree; null: none.
const Found* resolve(const Tree& tree, std::string path) {
  for (int hops = 0; hops < 8; hops++) {
    auto found = tree.find(path);
    if (found == tree.end()) return nullptr;
    if (S_ISREG(found->second.mode)) return &found->second;
    if (!S_ISLNK(found->second.mode) || found->second.target.starts_with('/')) return nullptr;
    std::string dir(dir_of(path));
    std::string_view rest = found->second.target;
    while (!rest.empty()) {
      auto slash = rest.find('/');
      auto part = rest.substr(0, slash);
      rest = slash == rest.npos ? std::string_view() : rest.substr(slash + 1);
      if (part.empty() || part == ".") continue;
      if (part != "..") {
        dir = join(dir, part);
      } else if (dir.empty()) {
        return nullptr;  // leaves the draft
      } else {
        dir = std::string(dir_of(dir));
      }
    }
    path = std::move(dir);
  }
  return nullptr;
}

bool is_weight_name(std::string_view leaf) {
  static constexpr std::string_view kEndings[] = {
      ".safetensors", ".gguf", ".ggml", ".bin",   ".pt",   ".pth",     ".ckpt",     ".distcp", ".npz",
      ".npy",         ".h5",   ".hdf5", ".keras", ".onnx", ".msgpack", ".pdparams", ".tflite", ".mlmodel"};
  static constexpr std::string_view kNoWeights[] = {"training_args.", "optimizer", "scheduler", "rng_state",
                                                    "random_states",  "scaler",    "sampler"};
  if (leaf.ends_with(".safetensors")) return true;
  for (auto start : kNoWeights) {
    if (leaf.starts_with(start)) return false;
  }
  return std::any_of(std::begin(kEndings), std::end(kEndings),
                     [&](auto ending) { return leaf.size() > ending.size() && leaf.ends_with(ending); });
}

// The parts of `…-K-of-N.…`.
struct ShardName {
  std::string before, count, after;  // "model-", "00002", ".safetensors"
  std::uint64_t k = 0, n = 0;
  std::size_t width = 0;  // of K as written
};
std::optional<ShardName> parse_shard_name(std::string_view leaf) {
  for (auto of = leaf.rfind("-of-"); of != leaf.npos; of = of == 0 ? leaf.npos : leaf.rfind("-of-", of - 1)) {
    auto dash = of == 0 ? leaf.npos : leaf.rfind('-', of - 1);
    auto dot = leaf.find('.', of + 4);
    if (dash == leaf.npos || dot == leaf.npos) continue;
    auto k = leaf.substr(dash + 1, of - dash - 1), n = leaf.substr(of + 4, dot - of - 4);
    if (!is_digits(k) || !is_digits(n) || k.size() > 9 || n.size() > 9) continue;
    ShardName out{std::string(leaf.substr(0, dash + 1)), std::string(n), std::string(leaf.substr(dot)), 0, 0, k.size()};
    for (char c : k) out.k = out.k * 10 + static_cast<std::uint64_t>(c - '0');
    for (char c : n) out.n = out.n * 10 + static_cast<std::uint64_t>(c - '0');
    if (out.k <= out.n && out.n <= kMaxShards) return out;
  }
  return std::nullopt;
}

class Check {
 public:
  explicit Check(std::size_t limit) : limit_(limit) {}

  std::vector<std::string> run(const std::string& root) {
    auto dir = posix::open(root, O_RDONLY | O_DIRECTORY | O_NOFOLLOW);
    if (!dir) return {"the draft's directory cannot be read: " + dir.status().message()};
    walk(dir->get(), "", 0, missing_,
         [this](auto& path, int at, auto& leaf, auto& stat) { see(path, at, leaf, stat); });
    check_links();
    if (!has_weights_) say("no weight file yet");
    check_shard_names();
    check_indexes();
    for (auto& [path, found] : tree_) {
      if (leaf_of(path).ends_with(".distcp") && !resolve(tree_, join(dir_of(path), ".metadata"))) {
        say(fmt::format("'{}' is missing: the distributed checkpoint is not finished",
                        join(dir_of(path), ".metadata")));
      }
    }
    for (auto& text : unread_) say(text);
    std::vector<std::string> out;
    for (auto& text : missing_) {
      if (out.size() == limit_) break;
      if (std::find(out.begin(), out.end(), text) == out.end()) out.push_back(text);
    }
    return out;
  }

 private:
  void say(std::string text) {
    if (missing_.size() < 4 * limit_) missing_.push_back(std::move(text));
  }

  void see(const std::string& path, int dir, const std::string& leaf, const struct stat& stat) {
    Found found{stat.st_mode, static_cast<std::uint64_t>(stat.st_size), ""};
    if (S_ISLNK(stat.st_mode)) {
      found.target = posix::read_link(fmt::format("/proc/self/fd/{}/{}", dir, leaf)).value_or("/");
    }
    if (is_unfinished_name(leaf)) say(fmt::format("'{}' is a temporary file", path));
    if (S_ISREG(stat.st_mode) && !is_unfinished_name(leaf)) {
      has_weights_ = has_weights_ || is_weight_name(leaf);
      if (leaf.ends_with(".safetensors")) check_header(path, dir, leaf);
      if (leaf.ends_with(".index.json")) read_index(path, dir, leaf);
    }
    if (S_ISLNK(stat.st_mode) && is_weight_name(leaf)) weight_links_.push_back(path);
    tree_.emplace(path, std::move(found));
  }

  Result<Fd> open_regular(int dir, const std::string& leaf, std::uint64_t& size) {
    auto file = WFS_TRY(posix::open_at(dir, leaf, O_RDONLY | O_NOFOLLOW | O_NONBLOCK));
    auto stat = WFS_TRY(posix::fstat(file.get()));
    if (!S_ISREG(stat.st_mode)) return Status(Code::kInvalid, "not a regular file");
    size = static_cast<std::uint64_t>(stat.st_size);
    return file;
  }

  void check_header(const std::string& path, int dir, const std::string& leaf) {
    std::uint64_t size = 0;
    auto file = open_regular(dir, leaf, size);
    if (!file) return unread_.push_back(fmt::format("'{}' cannot be read: {}", path, file.status().message()));
    auto read = [&](std::uint64_t offset, MutableByteSpan out) { return posix::pread_exact(file->get(), offset, out); };
    auto header = safetensors::read_header(read, size);
    if (header) return;
    Bytes start(std::min<std::uint64_t>(size, 8));
    if (read(0, start).is_ok() && as_text(start) == "version ") {
      unread_.push_back(fmt::format("'{}' is a git-lfs pointer, not the weights", path));
    } else {
      unread_.push_back(fmt::format("'{}' is not a whole safetensors file: {}", path, header.status().message()));
    }
  }

  void read_index(const std::string& path, int dir, const std::string& leaf) {
    std::uint64_t size = 0;
    auto file = open_regular(dir, leaf, size);
    if (!file) return unread_.push_back(fmt::format("'{}' cannot be read: {}", path, file.status().message()));
    if (size > kMaxIndex) return;  // no index of shards is that large
    Bytes json(size);
    if (auto status = posix::pread_exact(file->get(), 0, json); !status) {
      return unread_.push_back(fmt::format("'{}' cannot be read: {}", path, status.message()));
    }
    auto shards = safetensors::shards_of_index(json);
    if (shards) {
      indexes_.emplace_back(path, std::move(*shards));
    } else if (!is_other_json(json)) {
      unread_.push_back(fmt::format("'{}' is not a whole index: {}", path, shards.status().message()));
    }
  }

  // Sound JSON without a "weight_map" at its top: somebody else's file that happens to end in .index.json.
  static bool is_other_json(ByteSpan json) {
    auto text = as_text(json);
    bool weight_map = false;
    auto top_only = [&](int depth, nlohmann::json::parse_event_t event, nlohmann::json& value) {
      if (depth == 1 && event == nlohmann::json::parse_event_t::key) weight_map = weight_map || value == "weight_map";
      return depth < 1;
    };
    return !nlohmann::json::parse(text.begin(), text.end(), top_only, false).is_discarded() && !weight_map;
  }

  void check_indexes() {
    for (auto& [path, shards] : indexes_) {
      for (auto& shard : shards) {
        if (!resolve(tree_, join(dir_of(path), shard))) {
          say(fmt::format("'{}' is missing ('{}' names it)", join(dir_of(path), shard), path));
        }
      }
    }
  }

  void check_links() {
    for (auto& path : weight_links_) {
      if (resolve(tree_, path)) {
        has_weights_ = true;
      } else {
        say(fmt::format("'{}' is a link to what is not in the draft", path));
      }
    }
  }

  void check_shard_names() {
    struct Group {
      std::set<std::uint64_t> seen;
      std::uint64_t n = 0;
      std::size_t width = 0;
    };
    std::map<std::tuple<std::string, std::string, std::string, std::string>, Group> groups;
    for (auto& [path, found] : tree_) {
      auto shard =
          S_ISDIR(found.mode) || is_unfinished_name(leaf_of(path)) ? std::nullopt : parse_shard_name(leaf_of(path));
      if (!shard) continue;
      auto& group = groups[{std::string(dir_of(path)), shard->before, shard->count, shard->after}];
      group.seen.insert(shard->k);
      group.n = shard->n;
      group.width = shard->width;
    }
    for (auto& [name, group] : groups) {
      auto& [dir, before, count, after] = name;
      std::uint64_t first = group.seen.contains(0) ? 0 : 1;
      for (auto k = first; k < first + group.n && missing_.size() < 4 * limit_; k++) {
        if (group.seen.contains(k)) continue;
        say(fmt::format("'{}' is missing",
                        join(dir, fmt::format("{}{:0{}}-of-{}{}", before, k, group.width, count, after))));
      }
    }
  }

  const std::size_t limit_;
  Tree tree_;
  bool has_weights_ = false;
  std::vector<std::pair<std::string, std::vector<std::string>>> indexes_;
  std::vector<std::string> weight_links_;
  std::vector<std::string> missing_, unread_;
};

}  // namespace

bool is_unfinished_name(std::string_view leaf) {
  for (std::string_view ending : {".tmp", ".partial", ".incomplete", ".part", ".aria2"}) {
    if (leaf.ends_with(ending)) return true;
  }
  if (leaf.starts_with("tmp-") || leaf.starts_with(".tmp") || leaf == ".~tmp~") return true;
  if (leaf.find(".tmp.") != leaf.npos) return true;
  auto all = [](std::string_view text, auto is) { return std::all_of(text.begin(), text.end(), is); };
  if (leaf.starts_with("tmp")) {
    auto stem = leaf.substr(3, leaf.find('.', 3) - 3);
    auto random = [](unsigned char c) { return std::islower(c) || std::isdigit(c) || c == '_'; };
    if (stem.size() == 8 && all(stem, random)) return true;
    auto uuid = [](unsigned char c) { return std::isxdigit(c) || c == '-'; };
    if (stem.starts_with('_') && stem.size() >= 33 && all(stem.substr(1), uuid)) return true;
  }
  if (leaf.size() > 8 && leaf[0] == '.' && leaf[leaf.size() - 7] == '.') {
    auto six = leaf.substr(leaf.size() - 6);
    return all(six, [](unsigned char c) { return std::isalnum(c); }) &&
           !all(six, [](unsigned char c) { return std::islower(c); });
  }
  return false;
}

std::vector<std::string> what_is_missing(const std::string& root, std::size_t limit) { return Check(limit).run(root); }

std::string path_of_inode(const std::string& root, std::uint64_t inode) {
  std::string out;
  std::vector<std::string> errors;
  auto dir = posix::open(root, O_RDONLY | O_DIRECTORY | O_NOFOLLOW);
  if (!dir) return out;
  walk(dir->get(), "", 0, errors, [&](auto& path, int, auto&, auto& stat) {
    if (stat.st_ino == inode && out.empty()) out = path;
  });
  return out;
}

}  // namespace weightfs
