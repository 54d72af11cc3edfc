// An allocator for large tensors: they lie apart from small objects, and freed memory stays in the process.
#pragma once

namespace threadcast {

// Allocates tensors of the whole process in one region from now on. Returns false if the system gives no region.
// Calling again does nothing.
bool install_arena();

// Returns the region's free memory to the system; memory that is used again costs page faults.
void trim_arena();

}  // namespace threadcast
