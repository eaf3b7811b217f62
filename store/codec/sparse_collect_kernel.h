// No include guard: the encoder's loop over groups of 64 elements, included like sparse_group.h and after it.

constexpr std::size_t kRun = 4096;  // elements between looks at whether the lists have room

// Where the encoder is in one class.
struct ClassCount {
  std::uint32_t rank = 0;   // of the class's next element
  std::uint32_t after = 0;  // rank behind the last event
};

// Appends the group's events; `changed` has its changed elements, member[c] those of class c.
template <typename E>
void append_events(const std::byte* from, const std::byte* to, std::uint64_t changed, const std::uint64_t* member,
                   const std::uint8_t* class_of, const bool* valued, ClassCount* counts, SparseEncoder& encoder) {
  using Raw = typename E::Raw;
  for (; changed != 0; changed &= changed - 1) {
    auto bit = changed & (0 - changed);
    auto i = static_cast<std::size_t>(std::countr_zero(changed));
    auto base = load_element<Raw>(from, i);
    auto key = E::key(base);
    auto c = class_of[key];
    auto rank = counts[c].rank + static_cast<std::uint32_t>(std::popcount(member[c] & (bit - 1)));
    auto distance = static_cast<Raw>(load_element<Raw>(to, i) - base);
    auto down = static_cast<Raw>(distance >> (E::kBits - 1));
    auto magnitude = static_cast<Raw>((distance ^ static_cast<Raw>(0 - down)) + down - 1);
    auto& list = encoder.events[c];
    list.extra_event[list.extras] = static_cast<std::uint32_t>(list.size);
    list.extra_magnitude[list.extras] = magnitude;
    list.extra_key[list.extras] = key;
    list.extras += valued[c] || magnitude > 0 ? 1 : 0;
    list.gap_sign[list.size++] = (rank - counts[c].after) << 1 | static_cast<std::uint32_t>(down);
    counts[c].after = rank + 1;
  }
}

template <typename V, int kClasses>
void collect_groups(const SparsePlan& plan, const std::byte* base, const std::byte* target, std::size_t elements,
                    SparseEncoder& encoder) {
  using E = typename V::E;
  constexpr std::size_t kGroupBytes = kGroup * E::kWidth;
  typename V::Threshold thresholds[kClasses];
  for (int c = 0; c < kClasses; ++c) thresholds[c] = V::threshold(plan.first_key[c]);
  ClassCount counts[kClasses];
  alignas(64) std::uint8_t class_of[256] = {};
  for (int c = 0; c < std::min(kClasses, plan.classes); ++c) {
    std::memset(class_of + plan.first_key[c], c, 256U - plan.first_key[c]);
  }
  for (std::size_t first = 0; first < elements; first += kGroup) {
    if (first % kRun == 0) {
      // One more than there are elements: an extra is written before it is known to be one.
      for (int c = 0; c < kClasses; ++c) encoder.events[c].reserve(kRun + 1);
    }
    const auto* from = base + first * E::kWidth;
    const auto* to = target + first * E::kWidth;
    std::uint64_t present = ~0ULL;
    alignas(64) std::byte from_rest[kGroupBytes], to_rest[kGroupBytes];
    if (elements - first < kGroup) [[unlikely]] {
      auto rest = (elements - first) * E::kWidth;
      std::memset(from_rest, 0, kGroupBytes);
      std::memset(to_rest, 0, kGroupBytes);
      from = static_cast<std::byte*>(std::memcpy(from_rest, from, rest));
      to = static_cast<std::byte*>(std::memcpy(to_rest, to, rest));
      present = low_mask(static_cast<int>(elements - first));
    }
    auto group = V::load(from);
    auto keys = V::keys(group);
    std::uint64_t at_least[kClasses], member[kClasses];
    at_least[0] = present;
    for (int c = 1; c < kClasses; ++c) {
      at_least[c] = kExact<V> || c < plan.classes ? V::at_least(keys, thresholds[c]) & present : 0;
    }
    for (int c = 0; c < kClasses; ++c) member[c] = at_least[c] & ~(c + 1 < kClasses ? at_least[c + 1] : 0);
    append_events<E>(from, to, V::differ(group, V::load(to)) & present, member, class_of, plan.valued.data(), counts,
                     encoder);
    for (int c = 0; c < kClasses; ++c) counts[c].rank += static_cast<std::uint32_t>(std::popcount(member[c]));
  }
  for (int c = 0; c < kClasses; ++c) {
    encoder.population[c] = counts[c].rank;
    encoder.trailing[c] = counts[c].rank - counts[c].after;
  }
}

template <typename V>
void collect_with(const SparsePlan& plan, ByteSpan base, ByteSpan target, SparseEncoder& encoder) {
  for (auto& list : encoder.events) list.clear();
  auto elements = base.size() / V::E::kWidth;
  auto run = [&]<int kClasses>() { collect_groups<V, kClasses>(plan, base.data(), target.data(), elements, encoder); };
  visit_classes<V>(plan.classes, run);
}
