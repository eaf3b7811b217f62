#include "store/codec/planes.h"

#include <algorithm>
#include <cstring>

#include "store/codec/element.h"

namespace weightfs::codec {
namespace {

enum class PlaneMode : std::uint8_t { kRaw = 0, kConstant = 1, kZstd = 2 };

// A zstd plane is preceded by its length.
constexpr std::size_t kLengthBytes = 3;

template <typename E, PlaneKind kKind>
typename E::Raw forward(typename E::Raw base, typename E::Raw target) {
  using Raw = typename E::Raw;
  if constexpr (kKind == PlaneKind::kXor) return base ^ target;
  if constexpr (kKind == PlaneKind::kDistance) {
    auto d = static_cast<Raw>(target - base);
    auto sign = static_cast<Raw>(0 - (d >> (E::kBits - 1)));
    return static_cast<Raw>((d << 1) ^ sign);
  }
  return E::kHasExponent ? static_cast<Raw>(target << 1 | target >> (E::kBits - 1)) : target;
}

template <typename E, PlaneKind kKind>
typename E::Raw backward(typename E::Raw base, typename E::Raw coded) {
  using Raw = typename E::Raw;
  if constexpr (kKind == PlaneKind::kXor) return base ^ coded;
  if constexpr (kKind == PlaneKind::kDistance) {
    return static_cast<Raw>(base + static_cast<Raw>((coded >> 1) ^ static_cast<Raw>(0 - (coded & 1))));
  }
  return E::kHasExponent ? static_cast<Raw>(coded >> 1 | coded << (E::kBits - 1)) : coded;
}

template <typename E, PlaneKind kKind>
void split(const std::byte* base, const std::byte* target, std::size_t elements, std::byte* planes) {
  using Raw = typename E::Raw;
  for (std::size_t i = 0; i < elements; ++i) {
    auto raw =
        forward<E, kKind>(kKind == PlaneKind::kFull ? Raw{} : load_element<Raw>(base, i), load_element<Raw>(target, i));
    for (std::size_t p = 0; p < sizeof(Raw); ++p) planes[p * elements + i] = static_cast<std::byte>(raw >> (8 * p));
  }
}

template <typename E, PlaneKind kKind>
void join(const std::byte* base, const std::byte* planes, std::size_t elements, std::byte* out) {
  using Raw = typename E::Raw;
  for (std::size_t i = 0; i < elements; ++i) {
    Raw coded = 0;
    for (std::size_t p = 0; p < sizeof(Raw); ++p) {
      coded = static_cast<Raw>(coded | static_cast<Raw>(planes[p * elements + i]) << (8 * p));
    }
    store_element<Raw>(out, i,
                       backward<E, kKind>(kKind == PlaneKind::kFull ? Raw{} : load_element<Raw>(base, i), coded));
  }
}

// Calls f.template operator()<E, kKind>().
template <typename F>
void visit_kind(PlaneKind kind, ElementType type, F&& f) {
  visit_element(type, [&](auto element) {
    using E = decltype(element);
    switch (kind) {
      case PlaneKind::kFull:
        return f.template operator()<E, PlaneKind::kFull>();
      case PlaneKind::kXor:
        return f.template operator()<E, PlaneKind::kXor>();
      case PlaneKind::kDistance:
        return f.template operator()<E, PlaneKind::kDistance>();
    }
  });
}

std::optional<std::size_t> write_plane(ByteSpan plane, int level, ZstdCodec& zstd, MutableByteSpan out) {
  if (out.empty()) return std::nullopt;
  if (std::all_of(plane.begin(), plane.end(), [&](std::byte b) { return b == plane[0]; })) {
    if (out.size() < 2) return std::nullopt;
    out[0] = static_cast<std::byte>(PlaneMode::kConstant);
    out[1] = plane[0];
    return 2;
  }
  auto space = std::min(out.size(), plane.size());  // longer than raw is of no use
  if (space > 1 + kLengthBytes) {
    auto size = zstd.compress(plane, {}, level, out.subspan(1 + kLengthBytes, space - 1 - kLengthBytes));
    if (size) {
      out[0] = static_cast<std::byte>(PlaneMode::kZstd);
      for (std::size_t i = 0; i < kLengthBytes; ++i) out[1 + i] = static_cast<std::byte>(*size >> (8 * i));
      return 1 + kLengthBytes + *size;
    }
  }
  if (out.size() < 1 + plane.size()) return std::nullopt;
  out[0] = static_cast<std::byte>(PlaneMode::kRaw);
  std::copy(plane.begin(), plane.end(), out.begin() + 1);
  return 1 + plane.size();
}

bool read_plane(ByteReader& in, ZstdCodec& zstd, MutableByteSpan plane) {
  auto mode = in.u8();
  if (in.failed() || mode > 2) return false;
  switch (static_cast<PlaneMode>(mode)) {
    case PlaneMode::kRaw: {
      auto bytes = in.bytes(plane.size());
      std::copy(bytes.begin(), bytes.end(), plane.begin());
      break;
    }
    case PlaneMode::kConstant:
      std::fill(plane.begin(), plane.end(), std::byte{in.u8()});
      break;
    case PlaneMode::kZstd: {
      std::uint64_t length = in.le<std::uint16_t>();
      length |= std::uint64_t{in.u8()} << 16;
      auto bytes = in.bytes(length);
      return !in.failed() && zstd.decompress(bytes, {}, plane);
    }
  }
  return !in.failed();
}

}  // namespace

void split_planes(PlaneKind kind, ElementType type, ByteSpan base, ByteSpan target, MutableByteSpan planes) {
  auto elements = target.size() / width(type);
  visit_kind(kind, type, [&]<typename E, PlaneKind kKind>() {
    split<E, kKind>(base.data(), target.data(), elements, planes.data());
  });
  for (auto i = elements * width(type); i < target.size(); ++i) {
    planes[i] = kind == PlaneKind::kFull ? target[i] : target[i] ^ base[i];
  }
}

void join_planes(PlaneKind kind, ElementType type, ByteSpan base, ByteSpan planes, MutableByteSpan out) {
  auto elements = out.size() / width(type);
  visit_kind(kind, type,
             [&]<typename E, PlaneKind kKind>() { join<E, kKind>(base.data(), planes.data(), elements, out.data()); });
  for (auto i = elements * width(type); i < out.size(); ++i) {
    out[i] = kind == PlaneKind::kFull ? planes[i] : planes[i] ^ base[i];
  }
}

std::optional<std::size_t> write_planes(ElementType type, ByteSpan planes, int level, ZstdCodec& zstd,
                                        MutableByteSpan frame) {
  auto elements = planes.size() / width(type);
  std::size_t at = 0;
  for (std::size_t p = 0; elements > 0 && p < width(type); ++p) {
    auto size = write_plane(planes.subspan(p * elements, elements), level, zstd, frame.subspan(at));
    if (!size) return std::nullopt;
    at += *size;
  }
  auto tail = planes.subspan(elements * width(type));
  if (frame.size() - at < tail.size()) return std::nullopt;
  std::copy(tail.begin(), tail.end(), frame.begin() + static_cast<std::ptrdiff_t>(at));
  return at + tail.size();
}

Status read_planes(ElementType type, ByteSpan frame, ZstdCodec& zstd, MutableByteSpan planes) {
  auto elements = planes.size() / width(type);
  ByteReader in(frame);
  for (std::size_t p = 0; elements > 0 && p < width(type); ++p) {
    if (!read_plane(in, zstd, planes.subspan(p * elements, elements))) return {Code::kCorrupt, "byte planes: a plane"};
  }
  auto tail = in.bytes(planes.size() % width(type));
  std::copy(tail.begin(), tail.end(), planes.begin() + static_cast<std::ptrdiff_t>(elements * width(type)));
  if (!in.done()) return {Code::kCorrupt, "byte planes: length"};
  return Status::ok();
}

}  // namespace weightfs::codec
