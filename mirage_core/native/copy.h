// Copies a unit to the host device.
#pragma once

#include <cstddef>

namespace mirage {

void copy_to_device(void* device, const void* host, size_t size_bytes);

}  // namespace mirage
