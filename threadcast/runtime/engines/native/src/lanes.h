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

namespace threadcast {

// A cpu, and which of the threads there: several share one only where a plan has more threads than cpus.
using Seat = std::pair<int, int>;

// One pinned thread. It does jobs, and sleeps when there are none for a while.
class Lane {
 public:
  Lane(Seat seat, std::chrono::nanoseconds spin);
  ~Lane();  // ends the thread once its job is done

  Parker& parker() { return parker_; }
  void give(const std::function<void()>* job);  // which must not throw, and must outlive what it does

 private:
  void work();

  const int cpu_;
  std::chrono::nanoseconds spin_;
  Parker parker_;
  std::atomic<const std::function<void()>*> job_{nullptr};
  std::atomic<bool> ended_{false};
  std::thread thread_;
};

// The lanes that engines have asked for. They end with the last engine.
class Lanes {
 public:
  explicit Lanes(std::chrono::nanoseconds spin) : spin_(spin) {}

  Lane& at(Seat seat);  // throws std::system_error where no thread can be made or pinned
  std::mutex& turn() { return turn_; }  // held during a step: two that had half of the lanes each would wait for ever

  Parker& caller() { return caller_; }  // of the thread that has the turn
  void expect(int jobs) { busy_.store(jobs); }
  void finished_one() {
    if (busy_.fetch_sub(1) == 1) caller_.unpark();
  }
  void wait_for_all() { caller_.park([this] { return busy_.load() == 0; }, spin_); }

 private:
  Parker caller_;
  std::atomic<int> busy_{0};
  std::chrono::nanoseconds spin_;
  std::mutex turn_;
  std::mutex making_;
  std::map<Seat, std::unique_ptr<Lane>> lanes_;
};

// Lets the calling thread run on one cpu, where it may, until the end of the block; then where it ran before, or at home
// if it was sent there meanwhile.
class Pinned {
 public:
  explicit Pinned(int cpu);
  ~Pinned();

 private:
  std::vector<char> before_;
};

// The cpus of the process, for threads that are sent home.
void set_home(const std::vector<int>& cpus);
// Whether the thread with this id of the kernel's is pinned for as long as a block takes; it goes home then.
bool send_home(int thread);
// Whether it is, and how many blocks there have been in all.
std::pair<bool, size_t> is_pinned(int thread);

}  // namespace threadcast
