// No include guard: the decoder's loop for vectors of 64 elements, included by each *_simd.cc into its own anonymous
// namespace, inside its target region.
//
// For each class the events are written as bytes in the order of the class's elements (0: unchanged, 1 to 126 and
// their negatives: by that many ULP, 127 and -128: up and down by a distance found elsewhere). Group by group these
// bytes are expanded to the places of the class's elements and added. So no position in the block is ever computed, and
// none can be out of bounds: an event lies in the window of its class, or it stays unread.

constexpr std::int8_t kSpecialUp = 127;
constexpr std::int8_t kSpecialDown = -128;
constexpr std::size_t kGroup = 64;
constexpr std::size_t kCheckEvery = 8;                  // groups between looks at whether a class needs more bytes
constexpr std::size_t kReserve = kGroup * kCheckEvery;  // that many bytes are at hand after a look
constexpr std::size_t kWindow = 4096;                   // bytes of a class at a time

// One class while it is decoded.
struct RankedClass {
  alignas(64) std::int8_t bytes[kWindow];
  const std::int8_t* at;  // of the next element of the class
  std::uint64_t origin;   // rank of bytes[0]
  // Events: the unary word in work, and sums that make ranks of bit positions (see decode_events).
  const std::byte* unary;
  const std::byte* unary_end;
  std::uint64_t word;
  std::uint64_t word_rank;  // (bit index of the word's first bit) << gap_bits
  std::uint64_t sum;
  std::uint64_t field_bit;
  std::uint32_t left;  // events, without the sentinel
  // kUniform: the word of quotients in work, its first bit's index, the index behind the last one read.
  const std::byte* quotients;
  const std::byte* quotients_end;
  std::uint64_t quotient_word, quotient_base, quotient_after;
  std::uint64_t next_exception;
  std::uint32_t exceptions_left;
  // Distances that do not fit a byte, read ahead of their elements.
  std::vector<std::uint64_t>* queue;
  std::size_t queue_head;
};

// The next word of a stream of which a one is still to come.
std::uint64_t next_word(const std::byte*& at, const std::byte* end) {
  auto rest = static_cast<std::size_t>(end - at);
  auto word = load_le<std::uint64_t>(at);
  if (rest < 8) word &= low_mask(static_cast<int>(8 * rest));
  at += rest < 8 ? rest : 8;
  return word;
}

void load_word(RankedClass& c, int gap_bits) {
  c.word = next_word(c.unary, c.unary_end);
  c.word_rank += std::uint64_t{64} << gap_bits;
}

// kUniform: |d| of an event with these low bits.
std::uint64_t uniform_distance(RankedClass& c, ClassStreams& streams, std::uint64_t low, int bits) {
  while (c.quotient_word == 0) {
    c.quotient_word = next_word(c.quotients, c.quotients_end);
    c.quotient_base += 64;
  }
  auto at = c.quotient_base + static_cast<std::uint64_t>(std::countr_zero(c.quotient_word));
  auto quotient = at - c.quotient_after;
  c.quotient_word &= c.quotient_word - 1;
  c.quotient_after = at + 1;
  if (quotient >= kRiceLimit) [[unlikely]]
    return escaped(streams, quotient, bits) + 1;
  return (quotient << streams.value_bits | low) + 1;
}

// `distance` for the element of this rank in the window, as a byte or in the queue.
void put_distance(RankedClass& c, std::uint64_t rank, std::uint64_t distance, int sign) {
  if (distance < kSpecialUp) [[likely]] {
    c.bytes[rank] = static_cast<std::int8_t>((static_cast<int>(distance) ^ sign) - sign);
  } else {
    c.bytes[rank] = static_cast<std::int8_t>(kSpecialUp ^ sign);
    c.queue->push_back(distance);
  }
}

// Reads events while they are in the window, `most` at most. The i-th event ends at bit b of the unary stream, so the
// quotients up to it sum to b - i, and its rank is ((b - i) << k) + remainders + i. kMode: what its distance is;
// kExceptions: an exception.
template <ClassMode kMode>
std::uint32_t decode_events(RankedClass& c, ClassStreams& streams, std::uint32_t most, int bits) {
  const int k = streams.gap_bits;
  const auto field_bits = static_cast<std::uint64_t>(streams.field_bits);
  const auto mask = low_mask(k + 1);
  const auto value_mask = low_mask(streams.value_bits);
  const auto* fields = streams.fields.data();
  const std::uint64_t step = 1 - (std::uint64_t{1} << k);
  // Ranks count from `origin` here.
  auto word = c.word, word_rank = c.word_rank, sum = c.sum - c.origin, bit = c.field_bit;
  std::uint32_t done = 0;
  for (; done < most; ++done) {
    if (word == 0) {
      do {
        load_word(c, k);
      } while (c.word == 0);
      word = c.word;
      word_rank = c.word_rank;
    }
    auto all = load_le<std::uint64_t>(fields + (bit >> 3)) >> (bit & 7);
    auto field = all & mask;
    auto rank = word_rank + (static_cast<std::uint64_t>(std::countr_zero(word)) << k) + sum + (field >> 1);
    if (rank >= kWindow) break;
    auto sign = -static_cast<int>(field & 1);
    if constexpr (kMode == ClassMode::kUniform) {
      put_distance(c, rank, uniform_distance(c, streams, all >> (k + 1) & value_mask, bits), sign);
    } else if constexpr (kMode == ClassMode::kExceptions) {
      put_distance(c, rank, streams.values.get_rice(streams.value_bits, bits) + 2, sign);
    } else {
      c.bytes[rank] = static_cast<std::int8_t>(kMode == ClassMode::kKeyed ? kSpecialUp ^ sign : 1 | sign);
    }
    word &= word - 1;
    bit += field_bits;
    sum += (field >> 1) + step;
  }
  c.word = word;
  c.sum = sum + c.origin;
  c.field_bit = bit;
  c.left -= done;
  return done;
}

void read_exception(RankedClass& c, ClassStreams& streams) {
  if (c.exceptions_left == 0) {
    c.next_exception = kNever;
    return;
  }
  --c.exceptions_left;
  c.next_exception = streams.values.get_rice(streams.exception_gap_bits, kGapEscapeBits);
}

void decode_with_exceptions(RankedClass& c, ClassStreams& streams, int bits) {
  while (c.left > 0) {
    auto plain = static_cast<std::uint32_t>(std::min<std::uint64_t>(c.left, c.next_exception));
    auto done = decode_events<ClassMode::kUnit>(c, streams, plain, bits);
    c.next_exception -= done;
    if (done < plain || c.left == 0) return;
    if (decode_events<ClassMode::kExceptions>(c, streams, 1, bits) == 0) return;
    read_exception(c, streams);
  }
}

// Makes the next kWindow elements' bytes.
void refill(RankedClass& c, ClassStreams& streams, int bits) {
  auto used = static_cast<std::size_t>(c.at - c.bytes);
  auto kept = kWindow - used;
  std::memmove(c.bytes, c.at, kept);
  std::memset(c.bytes + kept, 0, used);
  c.origin += used;
  c.at = c.bytes;
  if (c.queue_head > 0) {
    c.queue->erase(c.queue->begin(), c.queue->begin() + static_cast<std::ptrdiff_t>(c.queue_head));
    c.queue_head = 0;
  }
  switch (streams.mode) {
    case ClassMode::kSilent:
      break;
    case ClassMode::kUnit:
      decode_events<ClassMode::kUnit>(c, streams, c.left, bits);
      break;
    case ClassMode::kExceptions:
      decode_with_exceptions(c, streams, bits);
      break;
    case ClassMode::kUniform:
      decode_events<ClassMode::kUniform>(c, streams, c.left, bits);
      break;
    case ClassMode::kKeyed:
      decode_events<ClassMode::kKeyed>(c, streams, c.left, bits);
      break;
  }
}

void start(RankedClass& c, ClassStreams& streams, int bits, std::vector<std::uint64_t>& queue) {
  c.at = c.bytes + kWindow;
  c.origin = std::uint64_t{0} - kWindow;
  c.unary = streams.unary.data();
  c.unary_end = c.unary + streams.unary.size();
  c.word = 0;
  c.word_rank = std::uint64_t{0} - (std::uint64_t{64} << streams.gap_bits);
  c.sum = 0;
  c.field_bit = 0;
  c.left = streams.events == 0 ? 0 : streams.events - 1;
  c.quotients = streams.quotients.data();
  c.quotients_end = c.quotients + streams.quotients.size();
  c.quotient_word = 0;
  c.quotient_base = std::uint64_t{0} - 64;
  c.quotient_after = 0;
  c.exceptions_left = streams.exceptions;
  c.next_exception = kNever;
  queue.clear();
  c.queue = &queue;
  c.queue_head = 0;
  if (streams.mode == ClassMode::kExceptions) read_exception(c, streams);
  refill(c, streams, bits);
}

// All read, and the sentinel's rank is the class's population.
bool ends_well(RankedClass& c, const ClassStreams& streams) {
  if (streams.mode == ClassMode::kSilent) return true;
  if (c.left != 0 || c.exceptions_left != 0 || c.next_exception < kLongAgo || !streams.values.done()) return false;
  while (c.word == 0) load_word(c, streams.gap_bits);
  BitReader fields(streams.fields);
  fields.set_position(c.field_bit);
  auto field = fields.get(streams.field_bits);
  auto gap_field = field & low_mask(streams.gap_bits + 1);
  auto rank = c.word_rank + (static_cast<std::uint64_t>(std::countr_zero(c.word)) << streams.gap_bits) + c.sum +
              (gap_field >> 1);
  auto population = c.origin + static_cast<std::uint64_t>(c.at - c.bytes);
  return rank == population && field == gap_field && (field & 1) == 0 && fields.done();
}

// Elements whose distance is no byte, or read by their key; they still have their base's bits in `out`.
template <typename E>
__attribute__((noinline)) void apply_specials(SparseFrame& frame, RankedClass* classes, const std::uint8_t* class_of,
                                              std::uint64_t specials, const std::int8_t* deltas, std::byte* out) {
  using Raw = typename E::Raw;
  for (; specials != 0; specials &= specials - 1) {
    auto i = static_cast<std::size_t>(std::countr_zero(specials));
    auto raw = load_element<Raw>(out, i);
    auto key = E::key(raw);
    auto& streams = frame.streams[class_of[key]];
    std::uint64_t distance;
    if (streams.mode == ClassMode::kKeyed) {
      distance = streams.values.get_rice(value_parameter(streams.value_key, key, E::kBits), E::kBits) + 1;
    } else {
      auto& c = classes[class_of[key]];
      distance = (*c.queue)[c.queue_head++];
    }
    store_element<Raw>(out, i, static_cast<Raw>(deltas[i] < 0 ? raw - distance : raw + distance));
  }
}

// kClasses: how many the loop has; the frame may have fewer unless kExact. Only bf16 gets a loop for each number, for
// they take long to compile.
template <typename V>
constexpr bool kExact = std::is_same_v<typename V::E, Element<ElementType::kBf16>>;

template <typename V, int kClasses>
Status decode_groups(SparseFrame& frame, DecodeWorkspace& workspace, const std::byte* base, std::byte* out,
                     std::size_t elements) {
  using E = typename V::E;
  constexpr std::size_t kGroupBytes = kGroup * E::kWidth;
  RankedClass classes[kClasses];
  alignas(64) std::uint8_t class_of[256] = {};
  typename V::Threshold thresholds[kClasses];
  bool plain[kClasses];  // all changes by one
  std::uint64_t exists[kClasses];
  for (int c = 0; c < kClasses; ++c) {
    start(classes[c], frame.streams[c], E::kBits, workspace.queues[c]);
    plain[c] = frame.streams[c].mode <= ClassMode::kUnit;
    thresholds[c] = V::threshold(frame.first_key[c]);
    exists[c] = c < frame.classes ? ~0ULL : 0;
    if (!exists[c]) continue;
    std::memset(class_of + frame.first_key[c], c, 256U - frame.first_key[c]);
  }
  const std::int8_t* at[kClasses];
  for (int c = 0; c < kClasses; ++c) at[c] = classes[c].at;
  auto groups = (elements + kGroup - 1) / kGroup;
  for (std::size_t g = 0; g < groups; ++g) {
    if (g % kCheckEvery == 0) {
      for (int c = 0; c < kClasses; ++c) {
        auto& ranked = classes[c];
        ranked.at = at[c];
        if (ranked.bytes + kWindow - ranked.at < static_cast<std::ptrdiff_t>(kReserve)) {
          refill(ranked, frame.streams[c], E::kBits);
          at[c] = ranked.at;
        }
      }
    }
    const auto* from = base + g * kGroupBytes;
    auto* to = out + g * kGroupBytes;
    std::uint64_t present = ~0ULL;
    alignas(64) std::byte rest[kGroupBytes];
    auto rest_bytes = (elements - g * kGroup) * E::kWidth;
    if (rest_bytes < kGroupBytes) [[unlikely]] {
      std::memset(rest, 0, kGroupBytes);
      std::memcpy(rest, from, rest_bytes);
      from = to = rest;
      present = low_mask(static_cast<int>(elements - g * kGroup));
    }
    auto group = V::load(from);
    auto keys = V::keys(group);
    auto deltas = V::no_deltas();
    std::uint64_t at_least = present;
    for (int c = 0; c < kClasses; ++c) {
      auto above = c + 1 < kClasses ? V::at_least(keys, thresholds[c + 1]) & present : 0;
      if (!kExact<V> && c + 1 < kClasses) above &= exists[c + 1];
      auto mask = at_least & ~above;
      at_least = above;
      V::expand(deltas, mask, at[c], plain[c]);
      at[c] += std::popcount(mask);
    }
    auto specials = V::specials(deltas);
    V::store(to, group, deltas, specials);
    if (specials != 0) {
      alignas(64) std::int8_t bytes[kGroup];
      V::spill(bytes, deltas);
      apply_specials<E>(frame, classes, class_of, specials, bytes, to);
    }
    if (to == rest) std::memcpy(out + g * kGroupBytes, rest, rest_bytes);
  }
  for (int c = 0; c < kClasses; ++c) {
    classes[c].at = at[c];
    if (!ends_well(classes[c], frame.streams[c])) {
      return {Code::kCorrupt, "sparse frame: a class or stream does not end well"};
    }
  }
  return Status::ok();
}

template <typename V>
Status decode_with(SparseFrame& frame, DecodeWorkspace& workspace, const std::byte* base, std::byte* out,
                   std::size_t elements) {
  if constexpr (!V::E::kHasExponent) {
    return decode_groups<V, 1>(frame, workspace, base, out, elements);
  } else if constexpr (!kExact<V>) {
    return frame.classes <= 4 ? decode_groups<V, 4>(frame, workspace, base, out, elements)
                              : decode_groups<V, 8>(frame, workspace, base, out, elements);
  } else {
    switch (frame.classes) {
      case 1:
        return decode_groups<V, 1>(frame, workspace, base, out, elements);
      case 2:
        return decode_groups<V, 2>(frame, workspace, base, out, elements);
      case 3:
        return decode_groups<V, 3>(frame, workspace, base, out, elements);
      case 4:
        return decode_groups<V, 4>(frame, workspace, base, out, elements);
      case 5:
        return decode_groups<V, 5>(frame, workspace, base, out, elements);
      case 6:
        return decode_groups<V, 6>(frame, workspace, base, out, elements);
      case 7:
        return decode_groups<V, 7>(frame, workspace, base, out, elements);
      default:
        return decode_groups<V, 8>(frame, workspace, base, out, elements);
    }
  }
}
