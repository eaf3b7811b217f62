// No include guard: what the loops over groups of 64 elements share, included by each *_simd.cc into its own anonymous
// namespace, inside its target region.

constexpr std::size_t kGroup = 64;

// What is read and what is written this many bytes later. The processor's own prefetching does not see that the lines
// written are needed, and gives up where a loop pauses.
constexpr std::size_t kAhead = 2048;
template <std::size_t kBytes>
void prefetch(const std::byte* from, const std::byte* to) {
  for (std::size_t line = 0; line < kBytes; line += 64) {
    __builtin_prefetch(from + line, 0);
    __builtin_prefetch(to + line, 1);
  }
}

// The loops are made for numbers of classes; a frame may have fewer unless kExact. Only bf16 gets a loop for each
// number, for they take long to compile.
template <typename V>
constexpr bool kExact = std::is_same_v<typename V::E, Element<ElementType::kBf16>>;

// Calls f.template operator()<kClasses>() with the number of classes that the loop for `classes` has.
template <typename V, typename F>
auto visit_classes(int classes, F&& f) {
  if constexpr (!V::E::kHasExponent) {
    return f.template operator()<1>();
  } else if constexpr (!kExact<V>) {
    return classes <= 4 ? f.template operator()<4>() : f.template operator()<8>();
  } else {
    switch (classes) {
      case 1:
        return f.template operator()<1>();
      case 2:
        return f.template operator()<2>();
      case 3:
        return f.template operator()<3>();
      case 4:
        return f.template operator()<4>();
      case 5:
        return f.template operator()<5>();
      case 6:
        return f.template operator()<6>();
      case 7:
        return f.template operator()<7>();
      default:
        return f.template operator()<8>();
    }
  }
}

// Where one class is in its streams of events: the unary word in work, and sums that make ranks of bit positions. The
// i-th event ends at bit b of the unary stream, so the quotients up to it sum to b - i, and its rank is
// ((b - i) << k) + remainders + i.
struct EventCursor {
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
  // kExceptions: events before the next.
  std::uint64_t next_exception;
  std::uint32_t exceptions_left;
};

// The next word of a stream of which a one is still to come.
std::uint64_t next_word(const std::byte*& at, const std::byte* end) {
  auto rest = static_cast<std::size_t>(end - at);
  auto word = load_le<std::uint64_t>(at);
  if (rest < 8) word &= low_mask(static_cast<int>(8 * rest));
  at += rest < 8 ? rest : 8;
  return word;
}

void load_word(EventCursor& c, int gap_bits) {
  c.word = next_word(c.unary, c.unary_end);
  c.word_rank += std::uint64_t{64} << gap_bits;
}

// kUniform: |d| of an event with these low bits.
std::uint64_t uniform_distance(EventCursor& c, ClassStreams& streams, std::uint64_t low, int bits) {
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

void read_exception(EventCursor& c, ClassStreams& streams) {
  if (c.exceptions_left == 0) {
    c.next_exception = kNever;
    return;
  }
  --c.exceptions_left;
  c.next_exception = streams.values.get_rice(streams.exception_gap_bits, kGapEscapeBits);
}

void start_events(EventCursor& c, ClassStreams& streams) {
  c.unary = streams.unary.data();
  c.unary_end = c.unary + streams.unary.size();
  c.word = 0;
  c.word_rank = std::uint64_t{0} - (std::uint64_t{64} << streams.gap_bits);
  c.sum = 0;
  c.field_bit = 0;
  c.left = streams.mode == ClassMode::kSilent ? 0 : streams.events - 1;
  c.quotients = streams.quotients.data();
  c.quotients_end = c.quotients + streams.quotients.size();
  c.quotient_word = 0;
  c.quotient_base = std::uint64_t{0} - 64;
  c.quotient_after = 0;
  c.exceptions_left = streams.exceptions;
  c.next_exception = kNever;
  if (streams.mode == ClassMode::kExceptions) read_exception(c, streams);
}

// All read, and the sentinel's rank is the class's population.
bool ends_well(EventCursor& c, const ClassStreams& streams, std::uint64_t population) {
  if (streams.mode == ClassMode::kSilent) return true;
  if (c.left != 0 || c.exceptions_left != 0 || c.next_exception < kLongAgo || !streams.values.done()) return false;
  while (c.word == 0) load_word(c, streams.gap_bits);
  BitReader fields(streams.fields);
  fields.set_position(c.field_bit);
  auto field = fields.get(streams.field_bits);
  auto gap_field = field & low_mask(streams.gap_bits + 1);
  auto rank = c.word_rank + (static_cast<std::uint64_t>(std::countr_zero(c.word)) << streams.gap_bits) + c.sum +
              (gap_field >> 1);
  return rank == population && field == gap_field && (field & 1) == 0 && fields.done();
}
