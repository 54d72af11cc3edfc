// OpenMP for operators that an engine runs.
//
// libtorch calls libgomp, which keeps a pool of workers for every thread that ever led a parallel region. Its idle
// workers spin on cores that other operators want, or must be woken for every region; a pool is rebuilt when its size
// changes. Here libtorch's calls of libgomp's interface (GCC 12, libgomp.h and the OpenMP 4.5 functions) are led to
// functions that serve an engine's threads, and for a while those that have done a step (lent.h), by the engine's own
// threads, and pass all others on. So are those of libraries that Inductor has compiled.
#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <string>

namespace threadcast {

// Redirects the calls of the loaded library whose file name is `library`: of libtorch first, then of others that are
// bound to the same libgomp. Returns what stands in the way, and then nothing was redirected, or nothing when done;
// doing it again does nothing. What is redirected is the library's own memory, and goes with it when it is unloaded.
std::string take_over_openmp(const std::string& library);

// A parallel region as libtorch's own are, for operators made here: on the team of an engine's thread, else on
// what a region of libtorch's would get. After `take_over_openmp` only.
void omp_parallel(void (*body)(void*), void* data, unsigned threads);
int omp_most_threads();
// Sets it for the calling thread, which is no engine's; returns how many they were.
int omp_set_threads(int threads);
// How many threads libgomp itself gives regions that the calling thread leads in other libraries than libtorch, such as
// extensions; returns how many they were. An engine's thread has one: more of them would share its cpu, and be more
// than libtorch tells the extension.
int omp_set_others_threads(int threads);
int omp_rank();
int omp_team();

// Calls run(part) for each part, on as many threads at most. The first exception of a part is thrown here, and the
// others of its thread are left out.
template <typename Run>
void omp_in_parts(int64_t parts, int64_t threads, const Run& run) {
  if (parts <= 1 || threads <= 1) {
    for (int64_t part = 0; part < parts; ++part) run(part);
    return;
  }
  struct Work {
    const Run& run;
    int64_t parts;
    std::atomic<bool> failed{false};
    std::exception_ptr error;
  } work{run, parts};
  const auto body = [](void* data) {
    auto& work = *static_cast<Work*>(data);
    // A team may be smaller than it was asked to be.
    for (int64_t part = omp_rank(); part < work.parts; part += omp_team()) {
      try {
        work.run(part);
      } catch (...) {
        if (!work.failed.exchange(true)) work.error = std::current_exception();
        return;
      }
    }
  };
  omp_parallel(body, &work, static_cast<unsigned>(threads));
  if (work.failed.load()) std::rethrow_exception(work.error);
}

}  // namespace threadcast
