#include "tools/bench/codec_data.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

namespace weightfs::bench {
namespace {

[[noreturn]] void die(const std::string& what) {
  std::fprintf(stderr, "%s\n", what.c_str());
  std::exit(1);
}

codec::ElementType element_type(const std::string& dtype) {
  static const std::map<std::string, codec::ElementType> kTypes = {
      {"BF16", codec::ElementType::kBf16},      {"F16", codec::ElementType::kF16},
      {"F32", codec::ElementType::kF32},        {"F64", codec::ElementType::kF64},
      {"F8_E4M3", codec::ElementType::kF8E4M3}, {"F8_E5M2", codec::ElementType::kF8E5M2},
      {"I16", codec::ElementType::kInt16},      {"I32", codec::ElementType::kInt32},
      {"I64", codec::ElementType::kInt64}};
  auto found = kTypes.find(dtype);
  return found == kTypes.end() ? codec::ElementType::kBytes : found->second;
}

void append_file(const std::filesystem::path& path, Checkpoint& out) {
  std::ifstream in(path, std::ios::binary);
  std::uint64_t head_length = 0;
  in.read(reinterpret_cast<char*>(&head_length), 8);
  auto size = std::filesystem::file_size(path);
  if (!in || size < 8 || head_length > size - 8) die(path.string() + ": not a safetensors file");
  std::string head(head_length, '\0');
  in.read(head.data(), static_cast<std::streamsize>(head_length));
  auto start = out.bytes.size();
  auto data = size - 8 - head_length;
  out.bytes.resize(start + data);
  in.read(reinterpret_cast<char*>(out.bytes.data() + start), static_cast<std::streamsize>(data));
  auto json = nlohmann::json::parse(head, nullptr, false);
  if (!in || json.is_discarded()) die(path.string() + ": cannot read it");
  for (const auto& [name, tensor] : json.items()) {
    if (name == "__metadata__") continue;
    auto from = tensor["data_offsets"][0].get<std::size_t>(), to = tensor["data_offsets"][1].get<std::size_t>();
    if (from > to || to > data) die(path.string() + ": a tensor outside of the file");
    if (from < to) out.tensors.push_back({element_type(tensor["dtype"]), start + from, to - from});
  }
}

}  // namespace

Checkpoint load(const std::string& dir) {
  std::vector<std::filesystem::path> files;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(dir, error)) {
    if (entry.path().extension() == ".safetensors") files.push_back(entry.path());
  }
  if (error || files.empty()) die(dir + ": no safetensors files");
  std::sort(files.begin(), files.end());
  Checkpoint out;
  for (const auto& file : files) append_file(file, out);
  std::sort(out.tensors.begin(), out.tensors.end(), [](auto& a, auto& b) { return a.offset < b.offset; });
  return out;
}

std::vector<Span> cut_blocks(const Checkpoint& checkpoint, std::size_t largest) {
  std::vector<Span> blocks;
  bool open = false;  // the last block takes small tensors
  for (const auto& tensor : checkpoint.tensors) {
    bool small = tensor.length < largest / 8;
    if (small && open && blocks.back().type == tensor.type && blocks.back().length + tensor.length <= largest &&
        blocks.back().offset + blocks.back().length == tensor.offset) {
      blocks.back().length += tensor.length;
      continue;
    }
    for (std::size_t at = 0; at < tensor.length; at += largest) {
      blocks.push_back({tensor.type, tensor.offset + at, std::min(largest, tensor.length - at)});
    }
    open = small;
  }
  return blocks;
}

}  // namespace weightfs::bench
