// The sparse encoder: collects the events of each class, then writes the streams with the parameters that fit them.
#include <algorithm>
#include <cmath>

#include "store/codec/dispatch.h"
#include "store/codec/element.h"
#include "store/codec/sparse.h"

namespace weightfs::codec {
namespace {

template <typename E>
void collect(const SparsePlan& plan, ByteSpan base, ByteSpan target, SparseEncoder& encoder) {
  using Raw = typename E::Raw;
  constexpr std::size_t kRun = 4096;
  std::array<std::uint8_t, 256> class_of{};
  for (int c = 0; c < plan.classes; ++c) {
    for (int key = plan.first_key[c]; key < 256; ++key) class_of[key] = static_cast<std::uint8_t>(c);
  }
  std::array<std::uint32_t, kMaxClasses> rank{};   // of the next element
  std::array<std::uint32_t, kMaxClasses> after{};  // rank behind the last event
  auto elements = base.size() / sizeof(Raw);
  for (std::size_t run = 0; run < elements; run += kRun) {
    for (int c = 0; c < plan.classes; ++c) encoder.events[c].reserve(kRun);
    for (std::size_t i = run; i < std::min(elements, run + kRun); ++i) {
      auto from = load_element<Raw>(base.data(), i), to = load_element<Raw>(target.data(), i);
      auto key = E::key(from);
      auto c = class_of[key];
      auto at = rank[c]++;
      if (from == to) continue;
      auto distance = static_cast<Raw>(to - from);
      bool down = distance >> (E::kBits - 1) != 0;
      auto magnitude = static_cast<Raw>((down ? static_cast<Raw>(-distance) : distance) - 1);
      auto& list = encoder.events[c];
      if (plan.valued[c] || magnitude > 0) {
        list.extra_event[list.extras] = static_cast<std::uint32_t>(list.size);
        list.extra_magnitude[list.extras] = magnitude;
        list.extra_key[list.extras++] = key;
      }
      list.gap_sign[list.size++] = (at - after[c]) << 1 | (down ? 1U : 0U);
      after[c] = at + 1;
    }
  }
  for (int c = 0; c < plan.classes; ++c) {
    encoder.population[c] = rank[c];
    encoder.trailing[c] = rank[c] - after[c];
  }
}

// The Rice parameter that codes these gaps shortest, and the bits in the unary stream.
int best_gap_bits(const EventList& list, std::uint32_t population, std::uint32_t trailing, std::uint64_t& unary_bits) {
  auto events = list.size + 1;
  double mean = static_cast<double>(population - list.size) / static_cast<double>(events);
  int guess = mean < 1 ? 0 : static_cast<int>(std::log2(mean * 0.69) + 0.5);
  const int lowest = std::clamp(guess - 1, 0, kMaxGapBits);
  const auto* gaps = list.gap_sign.get();
  // A class has at most 2^20 elements, so sums of gaps fit 32 bits.
  std::uint32_t sums[3] = {};
  for (std::size_t i = 0; i < list.size; ++i) {
    auto quotient = gaps[i] >> (lowest + 1);
    sums[0] += quotient;
    sums[1] += quotient >> 1;
    sums[2] += quotient >> 2;
  }
  int best = 0;
  std::uint64_t fewest = ~0ULL;
  for (int k = lowest; k <= std::min(kMaxGapBits, guess + 1); ++k) {
    auto quotients = std::uint64_t{sums[k - lowest]} + (trailing >> k);
    if (quotients + events * static_cast<unsigned>(k + 1) >= fewest) continue;
    fewest = quotients + events * static_cast<unsigned>(k + 1);
    unary_bits = quotients + events;
    best = k;
  }
  return best;
}

int best_rice_bits(double mean, int largest) {
  return mean < 1 ? 0 : std::min(largest, static_cast<int>(std::log2(mean * 0.69) + 0.5));
}

// To choose parameters, about so many of a class's magnitudes are looked at.
constexpr std::size_t kMagnitudesSampled = 4096;

// Magnitudes of a class by key.
struct Magnitudes {
  std::array<std::uint32_t, 256> count{};
  std::array<double, 256> sum{};
  std::size_t stride, sampled = 0;
  explicit Magnitudes(const EventList& list) : stride(1 + list.extras / kMagnitudesSampled) {
    for (std::size_t i = 0; i < list.extras; i += stride, ++sampled) {
      ++count[list.extra_key[i]];
      sum[list.extra_key[i]] += static_cast<double>(list.extra_magnitude[i]);
    }
  }
};

// The value_key under which the magnitudes are about shortest.
int best_value_key(const Magnitudes& magnitudes, int bits) {
  const auto& count = magnitudes.count;
  const auto& sum = magnitudes.sum;
  int lowest = 255, highest = 0;
  for (int key = 0; key < 256; ++key) {
    if (count[key] == 0) continue;
    int wanted = std::min(255, key + best_rice_bits(sum[key] / count[key], bits - 1));
    lowest = std::min(lowest, wanted);
    highest = std::max(highest, wanted);
  }
  int best = lowest;
  double fewest = 1e300;
  for (int candidate = lowest; candidate <= highest; ++candidate) {
    double total = 0;
    for (int key = 0; key < 256; ++key) {
      if (count[key] == 0) continue;
      int k = value_parameter(candidate, key, bits);
      total += count[key] * std::min<double>(k + 1.5 + sum[key] / count[key] * std::exp2(-k), kRiceLimit + 1 + bits);
    }
    if (total >= fewest) continue;
    fewest = total;
    best = candidate;
  }
  return best;
}

// One class, ready to be written.
struct ClassPlan {
  ClassMode mode = ClassMode::kSilent;
  int gap_bits = 0, value_key = 0, value_bits = 0, exception_gap_bits = 0;
  std::uint64_t unary_bits = 0, field_bits = 0, quotients = 0, values = 0;  // bits of the streams

  std::uint64_t unary_bytes() const { return (unary_bits + 7) / 8; }
  std::uint64_t quotient_bytes() const { return (quotients + 7) / 8; }
  std::uint64_t value_bytes() const { return (values + 7) / 8; }
  std::uint64_t stream_bytes() const { return unary_bytes() + (field_bits + 7) / 8 + quotient_bytes() + value_bytes(); }
};

std::uint64_t keyed_bits(const EventList& list, int value_key, int bits, std::size_t stride) {
  std::array<std::uint8_t, 256> parameters;
  for (int key = 0; key < 256; ++key) {
    parameters[key] = static_cast<std::uint8_t>(value_parameter(value_key, key, bits));
  }
  std::uint64_t total = 0;
  for (std::size_t i = 0; i < list.extras; i += stride) {
    total += rice_bits(list.extra_magnitude[i], parameters[list.extra_key[i]], bits);
  }
  return total;
}

struct UniformBits {
  std::uint64_t quotients = 0, escapes = 0;
};
UniformBits uniform_bits(const EventList& list, int k, std::size_t stride) {
  UniformBits out;
  for (std::size_t i = 0; i < list.extras; i += stride) {
    auto quotient = std::min<std::uint64_t>(list.extra_magnitude[i] >> k, kRiceLimit);
    out.quotients += quotient + 1;
    out.escapes += quotient == kRiceLimit;
  }
  return out;
}

// Sets value_bits for the shortest kUniform; returns the bits of those sampled.
std::uint64_t fit_uniform(const EventList& list, const Magnitudes& magnitudes, int bits, ClassPlan& out) {
  double sum = 0;
  for (auto of_key : magnitudes.sum) sum += of_key;
  int largest = std::min(kMaxUniformBits, bits - 1);
  // Magnitudes of many keys have a long tail, which moves the mean but not the best parameter.
  int guess = best_rice_bits(sum / static_cast<double>(magnitudes.sampled), largest);
  std::uint64_t fewest = ~0ULL;
  for (int k = std::max(0, guess - 2); k <= std::min(largest, guess + 1); ++k) {
    auto [quotients, escapes] = uniform_bits(list, k, magnitudes.stride);
    auto total = quotients + escapes * static_cast<unsigned>(bits) + magnitudes.sampled * static_cast<unsigned>(k);
    if (total >= fewest) continue;
    fewest = total;
    out.value_bits = k;
  }
  return fewest;
}

void fit_values(const EventList& list, int bits, ClassPlan& out) {
  Magnitudes magnitudes(list);
  auto uniform = fit_uniform(list, magnitudes, bits, out);
  auto value_key = best_value_key(magnitudes, bits);
  // A decoder reads kUniform several times faster.
  if (static_cast<double>(keyed_bits(list, value_key, bits, magnitudes.stride)) > static_cast<double>(uniform) * 0.9) {
    auto [quotients, escapes] = uniform_bits(list, out.value_bits, 1);
    out.mode = ClassMode::kUniform;
    out.quotients = quotients;
    out.values = escapes * static_cast<unsigned>(bits);
    return;
  }
  out.mode = ClassMode::kKeyed;
  out.value_key = value_key;
  out.values = keyed_bits(list, value_key, bits, 1);
  out.value_bits = 0;
}

void fit_exceptions(const EventList& list, int bits, ClassPlan& out) {
  out.mode = ClassMode::kExceptions;
  auto count = static_cast<double>(list.extras);
  double sum = 0;
  for (std::size_t i = 0; i < list.extras; ++i) sum += static_cast<double>(list.extra_magnitude[i] - 1);
  out.exception_gap_bits = best_rice_bits(static_cast<double>(list.size) / count - 1, kMaxGapBits);
  out.value_bits = best_rice_bits(sum / count, bits - 1);
  std::uint32_t after = 0;
  for (std::size_t i = 0; i < list.extras; ++i) {
    out.values += rice_bits(list.extra_event[i] - after, out.exception_gap_bits, kGapEscapeBits);
    out.values += rice_bits(list.extra_magnitude[i] - 1, out.value_bits, bits);
    after = list.extra_event[i] + 1;
  }
}

ClassPlan fit(const EventList& list, bool valued, std::uint32_t population, std::uint32_t trailing, int bits) {
  ClassPlan out;
  if (list.size == 0) return out;
  out.mode = ClassMode::kUnit;
  bool all_one = std::all_of(list.extra_magnitude.get(), list.extra_magnitude.get() + list.extras,
                             [](std::uint64_t magnitude) { return magnitude == 0; });
  if (!all_one && valued) fit_values(list, bits, out);
  if (!all_one && !valued) fit_exceptions(list, bits, out);
  out.gap_bits = best_gap_bits(list, population, trailing, out.unary_bits);
  int field = out.gap_bits + 1 + (out.mode == ClassMode::kUniform ? out.value_bits : 0);
  out.field_bits = (list.size + 1) * static_cast<unsigned>(field);
  return out;
}

std::byte* put_varint(std::byte* at, std::uint64_t value) {
  for (; value >= 0x80; value >>= 7) *at++ = static_cast<std::byte>(value | 0x80);
  *at++ = static_cast<std::byte>(value);
  return at;
}

std::byte* put_head(const ClassPlan& plan, std::size_t extras, std::byte* at) {
  *at++ = static_cast<std::byte>(static_cast<int>(plan.mode) << 5 | plan.gap_bits);
  if (plan.mode == ClassMode::kSilent) return at;
  at = put_varint(at, plan.unary_bytes());
  if (plan.mode == ClassMode::kExceptions) {
    at = put_varint(at, extras);
    *at++ = static_cast<std::byte>(plan.exception_gap_bits);
    *at++ = static_cast<std::byte>(plan.value_bits);
    at = put_varint(at, plan.value_bytes());
  } else if (plan.mode == ClassMode::kUniform) {
    *at++ = static_cast<std::byte>(plan.value_bits);
    at = put_varint(at, plan.quotient_bytes());
    at = put_varint(at, plan.value_bytes());
  } else if (plan.mode == ClassMode::kKeyed) {
    *at++ = static_cast<std::byte>(plan.value_key);
    at = put_varint(at, plan.value_bytes());
  }
  return at;
}

// Zeros, then a one, time after time.
class UnaryWriter {
 public:
  explicit UnaryWriter(std::byte* at) : at_(at) {}
  void put(std::uint64_t zeros) {
    for (count_ += zeros; count_ >= 64; count_ -= 64) {
      store_le(at_, pending_);
      at_ += 8;
      pending_ = 0;
    }
    pending_ |= 1ULL << count_++;
  }
  std::byte* finish() {
    store_le(at_, pending_);
    return at_ + (count_ + 7) / 8;
  }

 private:
  std::byte* at_;
  std::uint64_t pending_ = 0;
  std::uint64_t count_ = 0;
};

// field(0) … field(count - 1), of `bits` bits each, several at a time.
template <typename F>
void put_fields(BitWriter& out, std::size_t count, int bits, F&& field) {
  std::size_t i = 0;
  if (bits <= 14) {
    for (; i + 4 <= count; i += 4) {
      auto low = field(i) | field(i + 1) << bits, high = field(i + 2) | field(i + 3) << bits;
      out.put(low | high << (2 * bits), 4 * bits);
    }
  }
  for (; i < count; ++i) out.put(field(i), bits);
}

std::byte* put_gaps(const EventList& list, std::uint32_t trailing, const ClassPlan& plan, std::byte* at) {
  const int k = plan.gap_bits;
  UnaryWriter unary(at);
  for (std::size_t i = 0; i < list.size; ++i) unary.put(list.gap_sign[i] >> (k + 1));
  unary.put(trailing >> k);
  BitWriter fields(unary.finish());
  auto mask = static_cast<std::uint32_t>(low_mask(k + 1));
  if (plan.mode == ClassMode::kUniform) {
    auto value_mask = low_mask(plan.value_bits);
    put_fields(fields, list.size, k + 1 + plan.value_bits, [&](std::size_t i) {
      return (list.gap_sign[i] & mask) | (list.extra_magnitude[i] & value_mask) << (k + 1);
    });
    fields.put((trailing << 1) & mask, k + 1 + plan.value_bits);
  } else {
    put_fields(fields, list.size, k + 1, [&](std::size_t i) { return std::uint64_t{list.gap_sign[i] & mask}; });
    fields.put((trailing << 1) & mask, k + 1);
  }
  return fields.finish();
}

std::byte* put_uniform(const EventList& list, const ClassPlan& plan, int bits, std::byte* at) {
  UnaryWriter quotients(at);
  for (std::size_t i = 0; i < list.extras; ++i) {
    quotients.put(std::min<std::uint64_t>(list.extra_magnitude[i] >> plan.value_bits, kRiceLimit));
  }
  BitWriter escapes(quotients.finish());
  for (std::size_t i = 0; i < list.extras; ++i) {
    if (list.extra_magnitude[i] >> plan.value_bits >= kRiceLimit) escapes.put_wide(list.extra_magnitude[i], bits);
  }
  return escapes.finish();
}

std::byte* put_values(const EventList& list, const ClassPlan& plan, int bits, std::byte* at) {
  if (plan.mode == ClassMode::kUniform) return put_uniform(list, plan, bits, at);
  BitWriter out(at);
  std::uint32_t after = 0;
  for (std::size_t i = 0; i < list.extras; ++i) {
    if (plan.mode == ClassMode::kKeyed) {
      out.put_rice(list.extra_magnitude[i], value_parameter(plan.value_key, list.extra_key[i], bits), bits);
    } else {
      out.put_rice(list.extra_event[i] - after, plan.exception_gap_bits, kGapEscapeBits);
      out.put_rice(list.extra_magnitude[i] - 1, plan.value_bits, bits);
      after = list.extra_event[i] + 1;
    }
  }
  return out.finish();
}

}  // namespace

void EventList::grow(std::size_t more) {
  auto wanted = std::max(size + more, 2 * capacity_);
  auto enlarge = [&]<typename T>(std::unique_ptr<T[]>& array, std::size_t used) {
    auto larger = std::make_unique_for_overwrite<T[]>(wanted);
    if (used > 0) std::copy_n(array.get(), used, larger.get());
    array = std::move(larger);
  };
  enlarge(gap_sign, size);
  enlarge(extra_event, extras);
  enlarge(extra_magnitude, extras);
  enlarge(extra_key, extras);
  capacity_ = wanted;
}

void collect_sparse_scalar(ElementType type, const SparsePlan& plan, ByteSpan base, ByteSpan target,
                           SparseEncoder& encoder) {
  for (auto& list : encoder.events) list.clear();
  visit_element(type, [&](auto element) { collect<decltype(element)>(plan, base, target, encoder); });
}

void collect_sparse(ElementType type, const SparsePlan& plan, ByteSpan base, ByteSpan target, SparseEncoder& encoder) {
#if defined(__x86_64__)
  if (simd_level() >= SimdLevel::kAvx2) return collect_sparse_avx2(type, plan, base, target, encoder);
#endif
  collect_sparse_scalar(type, plan, base, target, encoder);
}

std::optional<std::size_t> write_sparse(ElementType type, const SparsePlan& plan, ByteSpan tail, SparseEncoder& encoder,
                                        std::size_t limit, std::byte* frame) {
  auto bits = static_cast<int>(8 * width(type));
  std::array<ClassPlan, kMaxClasses> fitted;
  constexpr std::size_t kLongestHead = kMaxClasses * (1 + 1 + 3 * 4 + 2);
  std::uint64_t length = kLongestHead + tail.size();
  for (int c = 0; c < plan.classes; ++c) {
    fitted[c] = fit(encoder.events[c], plan.valued[c], encoder.population[c], encoder.trailing[c], bits);
    length += fitted[c].stream_bytes();
  }
  if (length > limit + kLongestHead) return std::nullopt;
  std::byte* at = frame;
  *at++ = static_cast<std::byte>(plan.classes);
  for (int c = 1; c < plan.classes; ++c) *at++ = std::byte{plan.first_key[c]};
  for (int c = 0; c < plan.classes; ++c) at = put_head(fitted[c], encoder.events[c].extras, at);
  if (static_cast<std::size_t>(at - frame) + length - kLongestHead > limit) return std::nullopt;
  for (int c = 0; c < plan.classes; ++c) {
    const auto& list = encoder.events[c];
    if (fitted[c].mode == ClassMode::kSilent) continue;
    at = put_gaps(list, encoder.trailing[c], fitted[c], at);
    if (fitted[c].mode != ClassMode::kUnit) at = put_values(list, fitted[c], bits, at);
  }
  at = std::copy(tail.begin(), tail.end(), at);
  return static_cast<std::size_t>(at - frame);
}

}  // namespace weightfs::codec
