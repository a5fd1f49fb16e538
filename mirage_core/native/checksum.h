// XXH64 with seed 0 (Yann Collet's xxHash, https://xxhash.com, algorithm from its specification).
#pragma once

#include <cstddef>
#include <cstdint>

namespace mirage {

// Checksum of `size_bytes` bytes: about as fast as memory is read.
uint64_t checksum(const void* data, size_t size_bytes);

}  // namespace mirage
