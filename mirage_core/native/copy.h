// Copies a unit to the host device, past the caches.
#pragma once

#include <cstddef>

namespace mirage {

// Like memcpy, with streaming stores: a plain store reads the line that it is about to overwrite,
// and drives the computing core's working set out of the shared cache.  About a third faster than
// memcpy on a Zen 3; visible to other threads on return.
void copy_to_device(void* device, const void* host, size_t size_bytes);

}  // namespace mirage
