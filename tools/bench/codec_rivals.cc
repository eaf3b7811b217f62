#include "tools/bench/codec_rivals.h"

#include <zstd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "store/codec/element.h"

namespace weightfs::bench {
namespace {

void append(Bytes& out, const void* from, std::size_t size) {
  auto* bytes = static_cast<const std::byte*>(from);
  out.insert(out.end(), bytes, bytes + size);
}

// Changed elements of each tensor as (index or gap, new value).
class Indexed : public Rival {
 public:
  explicit Indexed(bool gaps) : gaps_(gaps) {}
  std::string name() const override { return gaps_ ? "TRL gap_delta (uint16 gap + value)" : "TRL v1 (int32 + value)"; }

  std::size_t encode(const Checkpoint& base, const Checkpoint& target) override {
    places_.clear();
    values_.clear();
    counts_.clear();
    for (const auto& tensor : target.tensors) {
      codec::visit_element(tensor.type, [&](auto element) { encode_tensor<decltype(element)>(tensor, base, target); });
    }
    return places_.size() + values_.size();
  }

  void decode(const Checkpoint& base, MutableByteSpan out) override {
    std::memcpy(out.data(), base.bytes.data(), out.size());
    const auto* place = places_.data();
    const auto* value = values_.data();
    for (std::size_t t = 0; t < base.tensors.size(); ++t) {
      auto width = codec::width(base.tensors[t].type);
      std::size_t at = 0;
      for (std::size_t i = 0; i < counts_[t]; ++i) {
        if (gaps_) {
          at += load_le<std::uint16_t>(place);
        } else {
          at = load_le<std::uint32_t>(place);
        }
        std::memcpy(out.data() + base.tensors[t].offset + at * width, value, width);
        at += gaps_ ? 1 : 0;
        place += gaps_ ? 2 : 4;
        value += width;
      }
    }
  }

 private:
  template <typename E>
  void encode_tensor(const Span& tensor, const Checkpoint& base, const Checkpoint& target) {
    using Raw = typename E::Raw;
    const auto* from = base.bytes.data() + tensor.offset;
    const auto* to = target.bytes.data() + tensor.offset;
    std::size_t count = 0, after = 0;
    for (std::size_t i = 0; i < tensor.length / sizeof(Raw); ++i) {
      auto value = codec::load_element<Raw>(to, i);
      // A gap that 16 bits do not hold: an unchanged element serves as a stepping stone.
      if (codec::load_element<Raw>(from, i) == value && !(gaps_ && i - after == 0xFFFF)) continue;
      if (gaps_) {
        auto gap = static_cast<std::uint16_t>(i - after);
        append(places_, &gap, 2);
      } else {
        auto index = static_cast<std::uint32_t>(i);
        append(places_, &index, 4);
      }
      append(values_, &value, sizeof value);
      after = i + 1;
      ++count;
    }
    counts_.push_back(count);
  }

  bool gaps_;
  Bytes places_, values_;
  std::vector<std::size_t> counts_;
};

class XorZstd : public Rival {
 public:
  ~XorZstd() override {
    ZSTD_freeCCtx(compressor_);
    ZSTD_freeDCtx(decompressor_);
  }
  std::string name() const override { return "XOR + zstd -1, by tensor"; }
  std::size_t encode(const Checkpoint& base, const Checkpoint& target) override {
    frames_.resize(target.tensors.size());
    std::size_t total = 0;
    for (std::size_t t = 0; t < frames_.size(); ++t) {
      const auto& tensor = target.tensors[t];
      combine(base.bytes.data() + tensor.offset, target.bytes.data() + tensor.offset, tensor.length);
      frames_[t].resize(ZSTD_compressBound(tensor.length));
      frames_[t].resize(
          ZSTD_compressCCtx(compressor_, frames_[t].data(), frames_[t].size(), xor_.data(), tensor.length, 1));
      total += frames_[t].size();
    }
    return total;
  }
  void decode(const Checkpoint& base, MutableByteSpan out) override {
    for (std::size_t t = 0; t < frames_.size(); ++t) {
      const auto& tensor = base.tensors[t];
      xor_.resize(tensor.length);
      ZSTD_decompressDCtx(decompressor_, xor_.data(), tensor.length, frames_[t].data(), frames_[t].size());
      for (std::size_t i = 0; i < tensor.length; ++i) {
        out[tensor.offset + i] = base.bytes[tensor.offset + i] ^ xor_[i];
      }
    }
  }

 private:
  void combine(const std::byte* a, const std::byte* b, std::size_t length) {
    xor_.resize(length);
    for (std::size_t i = 0; i < length; ++i) xor_[i] = a[i] ^ b[i];
  }
  Bytes xor_;
  std::vector<Bytes> frames_;
  ZSTD_CCtx* compressor_ = ZSTD_createCCtx();
  ZSTD_DCtx* decompressor_ = ZSTD_createDCtx();
};

// The whole file by zstd -3, with or without the base as what --patch-from gives.
class ZstdFile : public Rival {
 public:
  explicit ZstdFile(bool patch) : patch_(patch) {}
  ~ZstdFile() override {
    ZSTD_freeCCtx(compressor_);
    ZSTD_freeDCtx(decompressor_);
  }
  std::string name() const override { return patch_ ? "zstd -3 --patch-from" : "zstd -3 of the file"; }
  int repetitions() const override { return 1; }
  std::size_t encode(const Checkpoint& base, const Checkpoint& target) override {
    ZSTD_CCtx_setParameter(compressor_, ZSTD_c_compressionLevel, 3);
    if (patch_) {
      int log = 20;
      while ((std::size_t{1} << log) < target.bytes.size() + 1024 && log < 30) ++log;
      ZSTD_CCtx_setParameter(compressor_, ZSTD_c_windowLog, log);
      ZSTD_CCtx_setParameter(compressor_, ZSTD_c_enableLongDistanceMatching, 1);
      ZSTD_CCtx_refPrefix(compressor_, base.bytes.data(), base.bytes.size());
    }
    frame_.resize(ZSTD_compressBound(target.bytes.size()));
    frame_.resize(ZSTD_compress2(compressor_, frame_.data(), frame_.size(), target.bytes.data(), target.bytes.size()));
    return frame_.size();
  }
  void decode(const Checkpoint& base, MutableByteSpan out) override {
    ZSTD_DCtx_setParameter(decompressor_, ZSTD_d_windowLogMax, 31);
    if (patch_) ZSTD_DCtx_refPrefix(decompressor_, base.bytes.data(), base.bytes.size());
    ZSTD_decompressDCtx(decompressor_, out.data(), out.size(), frame_.data(), frame_.size());
  }

 private:
  bool patch_;
  Bytes frame_;
  ZSTD_CCtx* compressor_ = ZSTD_createCCtx();
  ZSTD_DCtx* decompressor_ = ZSTD_createDCtx();
};

// The program, on files: its times include reading and writing them.
class Xdelta : public Rival {
 public:
  explicit Xdelta(const std::string& dir) : old_(dir + "/old"), new_(dir + "/new"), delta_(dir + "/delta") {}
  ~Xdelta() override {
    std::error_code ignored;
    for (const auto& path : {old_, new_, delta_, new_ + ".out"}) std::filesystem::remove(path, ignored);
  }
  std::string name() const override { return "xdelta3 (program, with file I/O)"; }
  int repetitions() const override { return 1; }
  std::size_t encode(const Checkpoint& base, const Checkpoint& target) override {
    write(old_, base.bytes);
    write(new_, target.bytes);
    if (std::system(("xdelta3 -e -f -s " + old_ + " " + new_ + " " + delta_).c_str()) != 0) return 0;
    return std::filesystem::file_size(delta_);
  }
  void decode(const Checkpoint&, MutableByteSpan out) override {
    if (std::system(("xdelta3 -d -f -s " + old_ + " " + delta_ + " " + new_ + ".out").c_str()) != 0) return;
    std::ifstream(new_ + ".out", std::ios::binary)
        .read(reinterpret_cast<char*>(out.data()), static_cast<std::streamsize>(out.size()));
  }

 private:
  static void write(const std::string& path, const Bytes& bytes) {
    std::ofstream(path, std::ios::binary)
        .write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
  }
  std::string old_, new_, delta_;
};

}  // namespace

std::vector<std::unique_ptr<Rival>> rivals(const std::string& temp_dir) {
  std::vector<std::unique_ptr<Rival>> all;
  all.push_back(std::make_unique<Indexed>(false));
  all.push_back(std::make_unique<Indexed>(true));
  all.push_back(std::make_unique<XorZstd>());
  all.push_back(std::make_unique<ZstdFile>(true));
  all.push_back(std::make_unique<Xdelta>(temp_dir));
  all.push_back(std::make_unique<ZstdFile>(false));
  return all;
}

}  // namespace weightfs::bench
