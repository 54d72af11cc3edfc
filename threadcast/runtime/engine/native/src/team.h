// The threads that run one operator together, in place of OpenMP's own pool.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <vector>

#include "parker.h"

namespace threadcast {

// One worksharing construct (loop, sections, single) of a parallel region. Threads may be several constructs apart.
struct alignas(64) Share {
  std::atomic<uint64_t> free_for{0};  // the construct that may take this share next
  std::atomic<uint64_t> made_for{0};  // 1 + the construct that its first thread has set it up for
  std::atomic<bool> taken{false};
  std::atomic<long> next{0};
  std::atomic<long> ordered_turn{0};  // chunks whose ordered part is over
  std::atomic<int> left{0};           // threads that have not finished the construct
  long end = 0, step = 1, chunk = 1;
};

using Shares = std::array<Share, 16>;

// A parallel region under way: the threads with ranks below `size` run its body.
struct Region {
  void (*body)(void*) = nullptr;
  void* data = nullptr;
  int size = 1;
  std::atomic<int> at_barrier{0};
  std::atomic<uint32_t> barriers{0};
  Shares* shares = nullptr;

  void start(void (*body)(void*), void* data, int size);
};

// The leader runs the operator; each parallel region of it is run by the leader and the members, which serve until
// the leader dismisses them. Leader and members meet once a step.
class Team {
 public:
  Team(Parker* leader, std::vector<Parker*> members, Shares* shares, std::chrono::nanoseconds spin)
      : leader_(leader), members_(std::move(members)), spin_(spin) { region_.shares = shares; }

  void reset() { turn_.store(0, std::memory_order_relaxed); dismissed_.store(false, std::memory_order_relaxed); }
  int size() const { return 1 + static_cast<int>(members_.size()); }

  void lead(void (*body)(void*), void* data, int size);  // the leader's: one region, on `size` of the threads
  void dismiss();                                         // the leader's: the operator is done
  void serve(int rank);                                   // a member's, of rank 1 and above

 private:
  void unpark_members() { for (Parker* parker : members_) parker->unpark(); }

  Parker* leader_;
  std::vector<Parker*> members_;
  std::chrono::nanoseconds spin_;
  Region region_;
  alignas(64) std::atomic<uint32_t> turn_{0};  // regions begun, and the dismissal
  std::atomic<bool> dismissed_{false};
  alignas(64) std::atomic<int> busy_{0};  // members that have not finished the region
};

// What OpenMP's functions need to know of the calling thread.
struct OmpThread {
  Team* team = nullptr;      // of the operator that this thread leads
  Region* region = nullptr;  // that it is in; null outside
  bool ours = false;         // whether it runs operators of an engine, alone or with a team
  int rank = 0;
  int size = 1;
  uint64_t construct = 0;  // worksharing constructs of the region that it has begun
  long ordered_chunk = 0;  // number of the chunk that it has of an ordered loop
};

OmpThread& omp_thread();

// Runs the region's body as the calling thread's part of it.
void run_as(Region& region, int rank);

}  // namespace threadcast
