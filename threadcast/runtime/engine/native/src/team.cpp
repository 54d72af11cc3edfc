#include "team.h"

namespace threadcast {

OmpThread& omp_thread() {
  static thread_local OmpThread thread;
  return thread;
}

void run_as(Region& region, int rank) {
  OmpThread& thread = omp_thread();
  const OmpThread before = thread;
  thread.region = &region;
  thread.rank = rank;
  thread.size = region.size;
  thread.construct = 0;
  region.body(region.data);
  thread = before;
}

void Region::start(void (*of)(void*), void* with, int threads) {
  body = of;
  data = with;
  size = threads;
  at_barrier.store(0, std::memory_order_relaxed);
  for (uint64_t i = 0; i < shares->size(); ++i) {
    (*shares)[i].free_for.store(i, std::memory_order_relaxed);
    (*shares)[i].made_for.store(0, std::memory_order_relaxed);
  }
}

void Team::lead(void (*body)(void*), void* data, int size) {
  region_.start(body, data, size);
  busy_.store(static_cast<int>(members_.size()), std::memory_order_relaxed);
  turn_.fetch_add(1);
  unpark_members();
  run_as(region_, 0);
  leader_->park([this] { return busy_.load() == 0; }, spin_);
}

void Team::dismiss() {
  dismissed_.store(true);
  turn_.fetch_add(1);
  unpark_members();
}

void Team::serve(int rank) {
  Parker* parker = members_[rank - 1];
  for (uint32_t seen = 0;; ++seen) {
    parker->park([this, seen] { return turn_.load() != seen; }, spin_);
    if (dismissed_.load()) return;  // all regions are over by then
    if (rank < region_.size) run_as(region_, rank);
    if (busy_.fetch_sub(1) == 1) leader_->unpark();
  }
}

}  // namespace threadcast
