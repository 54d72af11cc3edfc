// Memory of large tensors apart from that of small objects, kept in the process.
#pragma once

namespace threadcast {

// From now on tensors of the whole process come from one region; whether there is one. Calling again does nothing.
bool install_arena();

// Gives what is free in the region back to the system: what is used again is faulted in again.
void trim_arena();

}  // namespace threadcast
