// No include guard: the decoder's loop for vectors of 64 elements without an expansion of bytes, included like
// sparse_group.h and after it.
//
// A stretch of elements is copied, and for each class noted in which group each of its ranks lies, and in each group
// which elements are its. Then the events of each class are read, their ranks turned into places, and the distances
// added there. A rank beyond the class's elements in the stretch ends the loop, so no place is out of bounds.

// Reads events while their ranks are below `count`, `most` at most, into events[] and (kUniform) distances[].
// Ranks count from `origin`.
template <ClassMode kMode>
std::size_t read_events(EventCursor& c, ClassStreams& streams, std::uint64_t origin, std::size_t count,
                        std::uint16_t* events, std::uint64_t* distances, int bits) {
  const int k = streams.gap_bits;
  const auto field_bits = static_cast<std::uint64_t>(streams.field_bits);
  const auto mask = low_mask(k + 1);
  const auto value_mask = low_mask(streams.value_bits);
  const auto* fields = streams.fields.data();
  const std::uint64_t step = 1 - (std::uint64_t{1} << k);
  auto word = c.word, word_rank = c.word_rank, sum = c.sum - origin, bit = c.field_bit;
  std::size_t done = 0;
  const std::size_t most = c.left;
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
    if (rank >= count) break;
    events[done] = static_cast<std::uint16_t>(rank << 1 | (field & 1));
    if constexpr (kMode == ClassMode::kUniform) {
      distances[done] = uniform_distance(c, streams, all >> (k + 1) & value_mask, bits);
    }
    word &= word - 1;
    bit += field_bits;
    sum += (field >> 1) + step;
  }
  c.word = word;
  c.sum = sum + origin;
  c.field_bit = bit;
  c.left -= static_cast<std::uint32_t>(done);
  return done;
}

// One frame's decoding.
template <typename V, int kClasses>
class PlaceDecoder {
  using E = typename V::E;
  using Raw = typename E::Raw;
  static constexpr std::size_t kStretchBytes = kStretch * E::kWidth;

 public:
  PlaceDecoder(SparseFrame& frame, StretchMaps& maps) : frame_(frame), maps_(maps) {
    for (int c = 0; c < kClasses; ++c) {
      start_events(cursors_[c], frame.streams[c]);
      origins_[c] = 0;
      thresholds_[c] = V::threshold(frame.first_key[c]);
    }
  }

  Status run(const std::byte* base, std::byte* out, std::size_t elements) {
    for (std::size_t first = 0; first < elements; first += kStretch) {
      auto count = std::min(kStretch, elements - first);
      stretch(base + first * E::kWidth, out + first * E::kWidth, count, elements - first >= 2 * kStretch);
    }
    for (int c = 0; c < kClasses; ++c) {
      if (!ends_well(cursors_[c], frame_.streams[c], origins_[c])) {
        return {Code::kCorrupt, "sparse frame: a class or stream does not end well"};
      }
    }
    return Status::ok();
  }

 private:
  void stretch(const std::byte* base, std::byte* out, std::size_t elements, bool more) {
    std::uint32_t counts[kClasses] = {};
    const auto groups = elements / kGroup;
    for (std::size_t g = 0; g < groups; ++g) {
      const auto at = g * kGroup * E::kWidth;
      if (more) prefetch<kGroup * E::kWidth>(base + at + kStretchBytes, out + at + kStretchBytes);
      auto group = V::load(base + at);
      V::store(out + at, group);
      note(group, g, ~0ULL, counts);
    }
    if (auto rest = elements - groups * kGroup; rest > 0) {
      const auto at = groups * kGroup * E::kWidth;
      alignas(64) std::byte padded[kGroup * E::kWidth] = {};
      std::memcpy(padded, base + at, rest * E::kWidth);
      if (out != base) std::memcpy(out + at, padded, rest * E::kWidth);
      note(V::load(padded), groups, low_mask(static_cast<int>(rest)), counts);
    }
    for (int c = 0; c < kClasses; ++c) {
      if (cursors_[c].left > 0) apply(c, counts[c], out);
      origins_[c] += counts[c];
    }
  }

  // Which of the group's elements are in which class.
  void note(const typename V::Group& group, std::size_t g, std::uint64_t present, std::uint32_t* counts) {
    auto keys = V::keys(group);
    auto at_least = present;
    for (int c = 0; c < kClasses; ++c) {
      std::uint64_t above = 0;
      if (c + 1 < kClasses && (kExact<V> || c + 1 < frame_.classes)) {
        above = V::at_least(keys, thresholds_[c + 1]) & present;
      }
      auto members = at_least & ~above;
      at_least = above;
      V::fill(maps_.group_of[c] + counts[c], static_cast<std::uint8_t>(g));
      maps_.entries[g][c] = {members, V::before(members, counts[c])};
      counts[c] += static_cast<std::uint32_t>(std::popcount(members));
    }
  }

  // Where the class's element of this rank is.
  std::size_t place(int c, std::size_t rank) const {
    auto g = std::size_t{maps_.group_of[c][rank]};
    const auto& entry = maps_.entries[g][c];
    return g * kGroup + V::place(entry.members, entry.before, rank);
  }

  static void add(std::byte* out, std::size_t place, std::uint64_t distance, unsigned event) {
    auto sign = std::uint64_t{0} - (event & 1);
    store_element<Raw>(out, place, static_cast<Raw>(load_element<Raw>(out, place) + ((distance ^ sign) - sign)));
  }

  void apply(int c, std::size_t count, std::byte* out) {
    auto& streams = frame_.streams[c];
    auto& cursor = cursors_[c];
    auto* events = maps_.events;
    auto read = [&]<ClassMode kMode>() {
      return read_events<kMode>(cursor, streams, origins_[c], count, events, maps_.distances, E::kBits);
    };
    if (streams.mode == ClassMode::kUniform) {
      auto size = read.template operator()<ClassMode::kUniform>();
      for (std::size_t j = 0; j < size; ++j) add(out, place(c, events[j] >> 1), maps_.distances[j], events[j]);
      return;
    }
    auto size = read.template operator()<ClassMode::kUnit>();
    if (streams.mode == ClassMode::kUnit) {
      for (std::size_t j = 0; j < size; ++j) add(out, place(c, events[j] >> 1), 1, events[j]);
    } else if (streams.mode == ClassMode::kKeyed) {
      for (std::size_t j = 0; j < size; ++j) maps_.places[j] = static_cast<std::uint16_t>(place(c, events[j] >> 1));
      add_keyed(streams, size, out);
    } else {
      add_with_exceptions(c, size, out);
    }
  }

  void add_keyed(ClassStreams& streams, std::size_t size, std::byte* out) {
    // In registers what is read from the stream.
    auto values = streams.values;
    for (std::size_t j = 0; j < size; ++j) {
      auto key = E::key(load_element<Raw>(out, maps_.places[j]));
      auto k = value_parameter(streams.value_key, key, E::kBits);
      add(out, maps_.places[j], values.get_rice(k, E::kBits) + 1, maps_.events[j]);
    }
    streams.values = values;
  }

  // The exceptions among them get the rest of their distance in a second step.
  void add_with_exceptions(int c, std::size_t size, std::byte* out) {
    auto& streams = frame_.streams[c];
    auto& cursor = cursors_[c];
    for (std::size_t j = 0; j < size; ++j) {
      maps_.places[j] = static_cast<std::uint16_t>(place(c, maps_.events[j] >> 1));
      add(out, maps_.places[j], 1, maps_.events[j]);
    }
    std::size_t j = 0;
    while (cursor.next_exception < size - j) {
      j += cursor.next_exception;
      auto more = streams.values.get_rice(streams.value_bits, E::kBits) + 1;
      add(out, maps_.places[j], more, maps_.events[j]);
      read_exception(cursor, streams);
      ++j;
    }
    cursor.next_exception -= size - j;
  }

  SparseFrame& frame_;
  EventCursor cursors_[kClasses];
  std::uint64_t origins_[kClasses];  // ranks before the stretch
  typename V::Threshold thresholds_[kClasses];
  StretchMaps& maps_;
};

template <typename V>
Status decode_by_places(SparseFrame& frame, DecodeWorkspace& workspace, const std::byte* base, std::byte* out,
                        std::size_t elements) {
  return visit_classes<V>(frame.classes, [&]<int kClasses>() {
    return PlaceDecoder<V, kClasses>(frame, workspace.maps).run(base, out, elements);
  });
}
