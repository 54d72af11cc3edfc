// After a step its lanes run the calling thread's parallel regions for a while. libgomp's workers would spin for some
// milliseconds on the cores of the next step, or have to be ended before it and made again after it.
#pragma once

#include <memory>
#include <vector>

#include "lanes.h"

namespace threadcast {

// Lends the lanes of these CPUs to the calling thread, which has just done a step on them.
void lend(const std::shared_ptr<Lanes>& lanes, const std::vector<int>& cpus);

// Runs a parallel region of the calling thread on it and on lanes that are lent to it, `size` threads in all. Returns
// false, and runs nothing, where the step had another number of CPUs, or where a step uses them. Some of more CPUs could
// be hardware threads of one core.
bool run_on_lent(void (*body)(void*), void* data, int size);

}  // namespace threadcast
