// OpenMP for operators that an engine runs.
//
// libtorch calls libgomp, which keeps a pool of workers for every thread that ever led a parallel region. Its idle
// workers spin on cores that other operators want, or must be woken for every region; a pool is rebuilt when its size
// changes. Here libtorch's calls of libgomp's interface (GCC 12, libgomp.h and the OpenMP 4.5 functions) are led to
// functions that serve an engine's threads by the engine's own threads, and pass all others on.
#pragma once

#include <string>

namespace threadcast {

// Redirects the calls of the loaded library whose file name is `library`. Returns what stands in the way, or nothing
// when done; doing it again does nothing.
std::string take_over_openmp(const std::string& library);

// A parallel region as libtorch's own are, for operators made here: on the team of an engine's thread, else on
// libgomp's. After `take_over_openmp` only.
void omp_parallel(void (*body)(void*), void* data, unsigned threads);
int omp_most_threads();
int omp_rank();
int omp_team();

}  // namespace threadcast
