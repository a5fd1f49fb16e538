#include "checksum.h"

#include <bit>
#include <cstring>

namespace mirage {
namespace {

constexpr uint64_t kPrime1 = 0x9E3779B185EBCA87ull;
constexpr uint64_t kPrime2 = 0xC2B2AE3D27D4EB4Full;
constexpr uint64_t kPrime3 = 0x165667B19E3779F9ull;
constexpr uint64_t kPrime4 = 0x85EBCA77C2B2AE63ull;
constexpr uint64_t kPrime5 = 0x27D4EB2F165667C5ull;

template <typename T>
inline uint64_t read(const uint8_t* at) {
  T value;
  std::memcpy(&value, at, sizeof value);
  return value;
}

inline uint64_t round(uint64_t lane, uint64_t input) {
  return std::rotl(lane + input * kPrime2, 31) * kPrime1;
}

inline uint64_t merge(uint64_t sum, uint64_t lane) {
  return (sum ^ round(0, lane)) * kPrime1 + kPrime4;
}

}  // namespace

uint64_t checksum(const void* data, size_t size_bytes) {
  const auto* at = static_cast<const uint8_t*>(data);
  const uint8_t* const end = at + size_bytes;
  uint64_t sum = kPrime5;
  if (size_bytes >= 32) {
    uint64_t lane1 = kPrime1 + kPrime2, lane2 = kPrime2, lane3 = 0, lane4 = 0 - kPrime1;
    for (; end - at >= 32; at += 32) {
      lane1 = round(lane1, read<uint64_t>(at));
      lane2 = round(lane2, read<uint64_t>(at + 8));
      lane3 = round(lane3, read<uint64_t>(at + 16));
      lane4 = round(lane4, read<uint64_t>(at + 24));
    }
    sum = std::rotl(lane1, 1) + std::rotl(lane2, 7) + std::rotl(lane3, 12) + std::rotl(lane4, 18);
    sum = merge(merge(merge(merge(sum, lane1), lane2), lane3), lane4);
  }
  sum += size_bytes;
  for (; end - at >= 8; at += 8) {
    sum = std::rotl(sum ^ round(0, read<uint64_t>(at)), 27) * kPrime1 + kPrime4;
  }
  if (end - at >= 4) {
    sum = std::rotl(sum ^ (read<uint32_t>(at) * kPrime1), 23) * kPrime2 + kPrime3;
    at += 4;
  }
  for (; at < end; ++at) {
    sum = std::rotl(sum ^ (*at * kPrime5), 11) * kPrime1;
  }
  sum = (sum ^ (sum >> 33)) * kPrime2;
  sum = (sum ^ (sum >> 29)) * kPrime3;
  return sum ^ (sum >> 32);
}

}  // namespace mirage
