// Once a thread has run a step, lanes run its own parallel regions, too. libgomp's workers would spin for some
// milliseconds on the cores of the next step, or have to be ended before it and made again after it; and as they are
// pinned nowhere, and a step moves the thread to another core, they may be made or woken on the thread's own core, where
// the kernel leaves both for 0.1 s at a time.
#pragma once

#include <memory>
#include <vector>

#include "lanes.h"

namespace threadcast {

// Lends lanes of these cores, each given by its CPUs, to the calling thread, which has just done a step: until the lanes
// end, or the process's home CPUs change.
void lend(const std::shared_ptr<Lanes>& lanes, const std::vector<std::vector<int>>& cores);

// Runs a parallel region of the calling thread on it and on lanes that are lent to it, `size` threads in all, each on a
// core of its own. Returns false, and runs nothing, where there are fewer cores, or a step uses some of them.
bool run_on_lent(void (*body)(void*), void* data, int size);

// Lets lanes that are lent to the calling thread sleep until they are needed: all but those that a region of `size` has.
void rest_lent(int size);

}  // namespace threadcast
