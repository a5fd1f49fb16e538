#include "copy.h"

#include <emmintrin.h>

#include <algorithm>
#include <cstdint>
#include <cstring>

namespace mirage {
namespace {

constexpr size_t kLineBytes = 64;
constexpr size_t kPrefetchAheadBytes = 1024;

}  // namespace

void copy_to_device(void* device, const void* host, size_t size_bytes) {
  auto* to = static_cast<char*>(device);
  const auto* from = static_cast<const char*>(host);
  const size_t to_line = (0 - reinterpret_cast<uintptr_t>(to)) % kLineBytes;
  const size_t head = std::min(size_bytes, to_line);
  std::memcpy(to, from, head);
  size_t at = head;
  for (; at + kLineBytes <= size_bytes; at += kLineBytes) {
    _mm_prefetch(from + at + kPrefetchAheadBytes, _MM_HINT_NTA);
    const auto* source = reinterpret_cast<const __m128i*>(from + at);
    auto* line = reinterpret_cast<__m128i*>(to + at);
    const __m128i a = _mm_loadu_si128(source), b = _mm_loadu_si128(source + 1);
    const __m128i c = _mm_loadu_si128(source + 2), d = _mm_loadu_si128(source + 3);
    _mm_stream_si128(line, a);
    _mm_stream_si128(line + 1, b);
    _mm_stream_si128(line + 2, c);
    _mm_stream_si128(line + 3, d);
  }
  std::memcpy(to + at, from + at, size_bytes - at);
  _mm_sfence();
}

}  // namespace mirage
