// The pinned threads of an engine's cores, shared by all engines of the process.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "parker.h"
#include "turns.h"

namespace threadcast {

// A CPU, and the number of a thread on it: several threads share a CPU only where a plan has more threads than CPUs.
using Seat = std::pair<int, int>;

// How many forks lie between this process and that which loaded the library: lanes stay in the process that has made them.
int forks();

// A pinned thread that runs jobs. It sleeps when there has been no job for a while: where there are parts of regions
// between steps, only when libgomp's workers would, so that operators of the calling thread need not wake it either.
class Lane {
 public:
  Lane(Seat seat, std::chrono::nanoseconds spin);
  ~Lane();  // ends the thread once its job is done; in a forked process there is none

  Parker& parker() { return parker_; }
  // The job must not throw, and must exist until it is done. Of a step: the thread is put on its CPU again before.
  void give(const std::function<void()>* job, bool of_step = true);
  void rest() { parker_.rest(); }

 private:
  void work();

  const int cpu_, forks_ = forks();
  std::chrono::nanoseconds spin_;
  Parker parker_;
  bool of_step_ = true;  // the job
  std::atomic<const std::function<void()>*> job_{nullptr};
  std::atomic<bool> ended_{false};
  std::thread thread_;
};

// The thread that has called for a step, and how many of the step's other lanes are still at work.
class Caller {
 public:
  explicit Caller(std::chrono::nanoseconds spin) : spin_(spin) {}

  Parker& parker() { return parker_; }
  void expect(int jobs) { busy_.store(jobs); }
  void finished_one() {
    if (busy_.fetch_sub(1) == 1) parker_.unpark();
  }
  void wait_for_all() { parker_.park([this] { return busy_.load() == 0; }, spin_); }

 private:
  Parker parker_;
  std::atomic<int> busy_{0};
  std::chrono::nanoseconds spin_;
};

// The lanes that engines have asked for. They end with the last engine.
class Lanes {
 public:
  explicit Lanes(std::chrono::nanoseconds spin) : spin_(spin) {}

  Lane& at(Seat seat);  // throws std::system_error where no thread can be made or pinned
  Turns& turns() { return turns_; }
  std::chrono::nanoseconds spin() const { return spin_; }

 private:
  std::chrono::nanoseconds spin_;
  Turns turns_;
  std::mutex making_;
  std::map<Seat, std::unique_ptr<Lane>> lanes_;
};

// Pins the calling thread to a CPU, if that is allowed, until the end of the block. Then the thread may run on the CPUs
// that it had before, or on the home CPUs if `send_home` was called for it meanwhile.
class Pinned {
 public:
  explicit Pinned(int cpu);
  ~Pinned();

 private:
  std::vector<char> before_;
};

// Sets the home CPUs: those of the process, for threads that are sent home.
void set_home(const std::vector<int>& cpus);
// How often they were set.
size_t homes();
// If a `Pinned` block pins the thread with this kernel id, lets it run on the home CPUs once the block ends, and returns
// true.
bool send_home(int thread);
// Returns whether a `Pinned` block pins the thread, and how many such blocks there have been in the process.
std::pair<bool, size_t> is_pinned(int thread);

}  // namespace threadcast
