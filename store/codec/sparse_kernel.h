// No include guard: the decoder's loop for vectors of 64 elements that can expand bytes (AVX-512), included like
// sparse_group.h and after it.
//
// For each class the events are written as bytes in the order of the class's elements (0: unchanged, 1 to 126 and
// their negatives: by that many ULP, 127 and -128: up and down by a distance found elsewhere). Group by group these
// bytes are expanded to the places of the class's elements and added. So no position in the block is ever computed, and
// none can be out of bounds: an event lies in the window of its class, or it stays unread.

constexpr std::int8_t kSpecialUp = 127;
constexpr std::int8_t kSpecialDown = -128;
constexpr std::size_t kCheckEvery = 8;                  // groups between looks at whether a class needs more bytes
constexpr std::size_t kReserve = kGroup * kCheckEvery;  // that many bytes are at hand after a look
constexpr std::size_t kWindow = 4096;                   // bytes of a class at a time
constexpr std::size_t kBatch = 16;                      // groups whose special distances are filled in together

// One class while it is decoded.
struct RankedClass {
  alignas(64) std::int8_t bytes[kWindow];
  const std::int8_t* at;  // of the next element of the class
  std::uint64_t origin;   // rank of bytes[0]
  EventCursor events;
  // Distances that do not fit a byte, read ahead of their elements.
  std::vector<std::uint64_t>* queue;
  std::size_t queue_head;
};

// `distance` for the element of this rank in the window, as a byte or in the queue.
void put_distance(RankedClass& c, std::uint64_t rank, std::uint64_t distance, int sign) {
  if (distance < kSpecialUp) [[likely]] {
    c.bytes[rank] = static_cast<std::int8_t>((static_cast<int>(distance) ^ sign) - sign);
  } else {
    c.bytes[rank] = static_cast<std::int8_t>(kSpecialUp ^ sign);
    c.queue->push_back(distance);
  }
}

// Reads events while they are in the window, `most` at most. kMode: what their distance is; kExceptions: an exception.
template <ClassMode kMode>
std::uint32_t decode_events(RankedClass& c, ClassStreams& streams, std::uint32_t most, int bits) {
  const int k = streams.gap_bits;
  const auto field_bits = static_cast<std::uint64_t>(streams.field_bits);
  const auto mask = low_mask(k + 1);
  const auto value_mask = low_mask(streams.value_bits);
  const auto* fields = streams.fields.data();
  const std::uint64_t step = 1 - (std::uint64_t{1} << k);
  // Ranks count from `origin` here.
  auto word = c.events.word, word_rank = c.events.word_rank, sum = c.events.sum - c.origin, bit = c.events.field_bit;
  std::uint32_t done = 0;
  for (; done < most; ++done) {
    if (word == 0) {
      do {
        load_word(c.events, k);
      } while (c.events.word == 0);
      word = c.events.word;
      word_rank = c.events.word_rank;
    }
    auto all = load_le<std::uint64_t>(fields + (bit >> 3)) >> (bit & 7);
    auto field = all & mask;
    auto rank = word_rank + (static_cast<std::uint64_t>(std::countr_zero(word)) << k) + sum + (field >> 1);
    if (rank >= kWindow) break;
    auto sign = -static_cast<int>(field & 1);
    if constexpr (kMode == ClassMode::kUniform) {
      put_distance(c, rank, uniform_distance(c.events, streams, all >> (k + 1) & value_mask, bits), sign);
    } else if constexpr (kMode == ClassMode::kExceptions) {
      put_distance(c, rank, streams.values.get_rice(streams.value_bits, bits) + 2, sign);
    } else {
      c.bytes[rank] = static_cast<std::int8_t>(kMode == ClassMode::kKeyed ? kSpecialUp ^ sign : 1 | sign);
    }
    word &= word - 1;
    bit += field_bits;
    sum += (field >> 1) + step;
  }
  c.events.word = word;
  c.events.sum = sum + c.origin;
  c.events.field_bit = bit;
  c.events.left -= done;
  return done;
}

void decode_with_exceptions(RankedClass& c, ClassStreams& streams, int bits) {
  while (c.events.left > 0) {
    auto plain = static_cast<std::uint32_t>(std::min<std::uint64_t>(c.events.left, c.events.next_exception));
    auto done = decode_events<ClassMode::kUnit>(c, streams, plain, bits);
    c.events.next_exception -= done;
    if (done < plain || c.events.left == 0) return;
    if (decode_events<ClassMode::kExceptions>(c, streams, 1, bits) == 0) return;
    read_exception(c.events, streams);
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
      decode_events<ClassMode::kUnit>(c, streams, c.events.left, bits);
      break;
    case ClassMode::kExceptions:
      decode_with_exceptions(c, streams, bits);
      break;
    case ClassMode::kUniform:
      decode_events<ClassMode::kUniform>(c, streams, c.events.left, bits);
      break;
    case ClassMode::kKeyed:
      decode_events<ClassMode::kKeyed>(c, streams, c.events.left, bits);
      break;
  }
}

void start(RankedClass& c, ClassStreams& streams, int bits, std::vector<std::uint64_t>& queue) {
  c.at = c.bytes + kWindow;
  c.origin = std::uint64_t{0} - kWindow;
  start_events(c.events, streams);
  queue.clear();
  c.queue = &queue;
  c.queue_head = 0;
  refill(c, streams, bits);
}

// Elements whose distance is no byte, or read by their key, of kBatch groups. They are listed group by group and filled
// in together, since how many a group has cannot be predicted.
struct Specials {
  static constexpr std::size_t kRoom = kGroup * kBatch + kGroup;  // a list may be written up to a group past its end
  std::uint8_t group[kRoom];                                      // within the batch
  std::uint8_t place[kRoom];                                      // within the group
  alignas(64) std::int8_t deltas[kGroup * kBatch];
  std::size_t size = 0;
};

// How the distances of the classes are found, fixed for a frame.
struct Distances {
  alignas(64) std::uint8_t class_of[256] = {};
  alignas(64) std::uint8_t parameter[256] = {};  // of the Rice codes in a keyed class
  int keyed = -1;                                // the class that is keyed, when only one is
};

std::uint64_t special_distance(SparseFrame& frame, RankedClass* classes, const Distances& distances, int key,
                               int bits) {
  auto of = distances.class_of[key];
  auto& streams = frame.streams[of];
  if (streams.mode == ClassMode::kKeyed) return streams.values.get_rice(distances.parameter[key], bits) + 1;
  auto& c = classes[of];
  return (*c.queue)[c.queue_head++];
}

template <typename V>
void list_specials(Specials& specials, std::uint64_t special, std::size_t group) {
  V::fill(specials.group + specials.size, static_cast<std::uint8_t>(group));
  V::list(specials.place + specials.size, special);
  specials.size += static_cast<std::size_t>(std::popcount(special));
}

// `out`: the batch's elements, in which those listed still have their base's bits.
template <typename E>
void apply_specials(SparseFrame& frame, RankedClass* classes, const Distances& distances, Specials& specials,
                    std::byte* out) {
  using Raw = typename E::Raw;
  auto apply = [&](std::size_t j, auto&& distance_of) {
    auto i = kGroup * specials.group[j] + specials.place[j];
    auto raw = load_element<Raw>(out, i);
    auto distance = distance_of(E::key(raw));
    auto sign = static_cast<std::uint64_t>(static_cast<std::int64_t>(specials.deltas[i] >> 7));
    store_element<Raw>(out, i, static_cast<Raw>(raw + ((distance ^ sign) - sign)));
  };
  const auto size = specials.size;
  specials.size = 0;
  auto slow = [&](int key) { return special_distance(frame, classes, distances, key, E::kBits); };
  if (distances.keyed < 0) {
    for (std::size_t j = 0; j < size; ++j) apply(j, slow);
    return;
  }
  // The stream of the one keyed class, in registers.
  auto& values = frame.streams[distances.keyed].values;
  const auto* data = values.data();
  auto bit = values.position();
  const auto end = values.end();
  for (std::size_t j = 0; j < size; ++j) {
    apply(j, [&](int key) {
      auto word = load_le<std::uint64_t>(data + (bit >> 3)) >> (bit & 7);
      auto zeros = std::countr_zero(word | 1ULL << 40);
      auto k = distances.parameter[key];
      auto next = bit + static_cast<std::size_t>(zeros + 1 + k);
      if (distances.class_of[key] != distances.keyed || zeros >= kRiceLimit || k > 32 || next > end) [[unlikely]] {
        values.set_position(bit);
        auto distance = slow(key);
        bit = values.position();
        return distance;
      }
      bit = next;
      return (static_cast<std::uint64_t>(zeros) << k | (word >> (zeros + 1) & low_mask(k))) + 1;
    });
  }
  values.set_position(bit);
}

template <typename V, int kClasses>
Status decode_groups(SparseFrame& frame, DecodeWorkspace& workspace, const std::byte* base, std::byte* out,
                     std::size_t elements) {
  using E = typename V::E;
  constexpr std::size_t kGroupBytes = kGroup * E::kWidth;
  RankedClass classes[kClasses];
  Distances distances;
  Specials specials;
  bool any_special = false;
  const bool in_place = base == out;  // replayed: the block is near already
  int keyed = 0;
  typename V::Threshold thresholds[kClasses];
  bool plain[kClasses];  // all changes by one
  std::uint64_t exists[kClasses];
  for (int c = 0; c < kClasses; ++c) {
    start(classes[c], frame.streams[c], E::kBits, workspace.queues[c]);
    plain[c] = frame.streams[c].mode <= ClassMode::kUnit;
    thresholds[c] = V::threshold(frame.first_key[c]);
    exists[c] = c < frame.classes ? ~0ULL : 0;
    if (!exists[c]) continue;
    std::memset(distances.class_of + frame.first_key[c], c, 256U - frame.first_key[c]);
    any_special |= frame.streams[c].mode >= ClassMode::kExceptions;
    if (frame.streams[c].mode != ClassMode::kKeyed) continue;
    distances.keyed = keyed++ == 0 ? c : -1;
    for (int key = frame.first_key[c]; key < 256; ++key) {
      distances.parameter[key] = static_cast<std::uint8_t>(value_parameter(frame.streams[c].value_key, key, E::kBits));
    }
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
    if (!in_place && rest_bytes > kGroupBytes + kAhead) prefetch<kGroupBytes>(from + kAhead, to + kAhead);
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
    auto special = V::specials(deltas);
    V::store(to, group, deltas, special);
    if (to == rest) std::memcpy(out + g * kGroupBytes, rest, rest_bytes);
    if (any_special) {
      V::spill(specials.deltas + g % kBatch * kGroup, deltas);
      list_specials<V>(specials, special, g % kBatch);
      if (g % kBatch == kBatch - 1 || g + 1 == groups) {
        apply_specials<E>(frame, classes, distances, specials, out + g / kBatch * kBatch * kGroupBytes);
      }
    }
  }
  for (int c = 0; c < kClasses; ++c) {
    auto population = classes[c].origin + static_cast<std::uint64_t>(at[c] - classes[c].bytes);
    if (!ends_well(classes[c].events, frame.streams[c], population)) {
      return {Code::kCorrupt, "sparse frame: a class or stream does not end well"};
    }
  }
  return Status::ok();
}

template <typename V>
Status decode_by_ranks(SparseFrame& frame, DecodeWorkspace& workspace, const std::byte* base, std::byte* out,
                       std::size_t elements) {
  return visit_classes<V>(
      frame.classes, [&]<int kClasses>() { return decode_groups<V, kClasses>(frame, workspace, base, out, elements); });
}
