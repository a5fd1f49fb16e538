#include "copy.h"

#include <cstring>

namespace mirage {

void copy_to_device(void* device, const void* host, size_t size_bytes) {
  std::memcpy(device, host, size_bytes);
}

}  // namespace mirage
