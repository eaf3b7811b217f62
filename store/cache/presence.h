// Which blocks of a flat file are here, two bits each: absent, unverified, verified. Lock-free; any thread.
#pragma once

#include <atomic>
#include <memory>

#include "store/cache/cache.h"

namespace weightfs {

class Presence {
 public:
  explicit Presence(std::size_t blocks)
      : blocks_(blocks), words_(std::make_unique<std::atomic<std::uint64_t>[]>((blocks + kPerWord - 1) / kPerWord)) {}

  std::size_t blocks() const { return blocks_; }
  FlatFile::Presence at(std::size_t block) const {
    auto word = words_[block / kPerWord].load(std::memory_order_acquire);
    return static_cast<FlatFile::Presence>(word >> shift(block) & 3);
  }
  // Returns what it was. What the caller wrote to the file before is seen by who reads kVerified.
  FlatFile::Presence set(std::size_t block, FlatFile::Presence to) {
    auto& word = words_[block / kPerWord];
    auto old = word.load(std::memory_order_relaxed);
    std::uint64_t next;
    do {
      next = (old & ~(std::uint64_t{3} << shift(block))) | static_cast<std::uint64_t>(to) << shift(block);
    } while (!word.compare_exchange_weak(old, next, std::memory_order_acq_rel));
    auto was = static_cast<FlatFile::Presence>(old >> shift(block) & 3);
    if (was != FlatFile::Presence::kVerified && to == FlatFile::Presence::kVerified) verified_++;
    if (was == FlatFile::Presence::kVerified && to != FlatFile::Presence::kVerified) verified_--;
    return was;
  }
  bool complete() const { return verified_.load(std::memory_order_acquire) == static_cast<std::int64_t>(blocks_); }
  // A bit for each block that is not absent, lowest first.
  Bytes bitmap() const {
    Bytes out((blocks_ + 7) / 8);
    for (std::size_t block = 0; block < blocks_; block++) {
      if (at(block) != FlatFile::Presence::kAbsent) out[block / 8] |= std::byte{1} << (block % 8);
    }
    return out;
  }

 private:
  static constexpr std::size_t kPerWord = 32;
  static unsigned shift(std::size_t block) { return static_cast<unsigned>(block % kPerWord) * 2; }
  const std::size_t blocks_;
  const std::unique_ptr<std::atomic<std::uint64_t>[]> words_;
  std::atomic<std::int64_t> verified_ = 0;  // may be below zero for a moment between two threads' steps
};

}  // namespace weightfs
