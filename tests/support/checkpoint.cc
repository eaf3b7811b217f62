#include "tests/support/checkpoint.h"

#include <filesystem>
#include <fstream>
#include <random>
#include <sstream>
#include <vector>

namespace weightfs::testing {
namespace {

namespace stdfs = std::filesystem;

std::vector<std::uint16_t> weights(const CheckpointShape& shape, int tensor, int step) {
  std::vector<std::uint16_t> values(shape.elements);
  std::mt19937_64 random(shape.seed * 1000 + static_cast<std::uint64_t>(tensor));
  for (auto& value : values) {
    auto bits = random();
    auto exponent = 110 + __builtin_ctzll(bits | 1 << 14);
    value = static_cast<std::uint16_t>((bits >> 40 & 0x807f) | static_cast<std::uint64_t>(exponent) << 7);
  }
  for (int s = 1; s <= step; s++) {
    std::mt19937_64 changes(shape.seed * 7'000'003 + static_cast<std::uint64_t>(tensor) * 1009 +
                            static_cast<std::uint64_t>(s));
    auto count = static_cast<std::uint64_t>(static_cast<double>(shape.elements) * shape.changed);
    for (std::uint64_t i = 0; i < count; i++) {
      auto at = changes() % shape.elements;
      values[at] = static_cast<std::uint16_t>(values[at] + (changes() & 1 ? 1 : -1));
    }
  }
  return values;
}

void write(const std::string& path, const std::string& text) {
  std::ofstream out(path, std::ios::binary | std::ios::trunc);
  out << text;
}

}  // namespace

void write_checkpoint(const std::string& dir, const CheckpointShape& shape, int step) {
  stdfs::create_directories(dir + "/tokenizer");
  std::string map;
  for (int shard = 0; shard < shape.shards; shard++) {
    std::ostringstream name;
    name << "model-0000" << shard + 1 << "-of-0000" << shape.shards << ".safetensors";
    std::string header = "{", data;
    for (int t = 0; t < shape.tensors_per_shard; t++) {
      auto values = weights(shape, shard * shape.tensors_per_shard + t, step);
      auto tensor = "layer." + std::to_string(shard) + "." + std::to_string(t) + ".weight";
      auto begin = data.size();
      data.append(reinterpret_cast<const char*>(values.data()), values.size() * 2);
      if (t > 0) header += ",";
      header += "\"" + tensor + "\":{\"dtype\":\"BF16\",\"shape\":[" + std::to_string(shape.elements) +
                "],\"data_offsets\":[" + std::to_string(begin) + "," + std::to_string(data.size()) + "]}";
      map += (map.empty() ? "" : ",") + ("\"" + tensor + "\":\"" + name.str() + "\"");
    }
    header += "}";
    while (header.size() % 8 != 0) header += " ";
    std::uint64_t length = header.size();
    write(dir + "/" + name.str(), std::string(reinterpret_cast<const char*>(&length), 8) + header + data);
  }
  write(dir + "/model.safetensors.index.json", "{\"metadata\":{},\"weight_map\":{" + map + "}}");
  write(dir + "/config.json", "{\"step\":" + std::to_string(step) + "}\n");
  write(dir + "/empty", "");
  write(dir + "/tokenizer/.hidden", "nested, step " + std::to_string(step));
  if (!stdfs::is_symlink(dir + "/link")) stdfs::create_symlink("config.json", dir + "/link");
}

std::map<std::string, std::string> read_tree(const std::string& dir) {
  std::map<std::string, std::string> tree;
  for (const auto& entry : stdfs::recursive_directory_iterator(dir)) {
    auto path = entry.path().lexically_relative(dir).string();
    if (entry.is_symlink()) {
      tree[path] = "link:" + stdfs::read_symlink(entry.path()).string();
    } else if (entry.is_directory()) {
      tree[path] = "dir";
    } else {
      std::ifstream in(entry.path(), std::ios::binary);
      std::ostringstream text;
      text << in.rdbuf();
      tree[path] = "file:" + text.str();
    }
  }
  return tree;
}

}  // namespace weightfs::testing
