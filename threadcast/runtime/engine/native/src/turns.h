// Which steps may run at the same time: those whose CPUs are disjoint.
#pragma once

#include <algorithm>
#include <condition_variable>
#include <list>
#include <mutex>
#include <vector>

namespace threadcast {

// Steps on the same CPUs run one after the other, in the order in which they ask; each takes all of its CPUs at once, as
// two that had half of each other's would wait for ever.
class Turns {
 public:
  // Returns whether the CPUs are taken: once they are free, or, where that is not waited for, if they are free now.
  bool take(const std::vector<int>& cpus, bool waits) {
    std::unique_lock<std::mutex> lock(lock_);
    const auto mine = waiting_.insert(waiting_.end(), &cpus);
    const auto may = [&] {
      return none_taken(cpus) &&
             std::none_of(waiting_.begin(), mine, [&](const std::vector<int>* before) { return meet(*before, cpus); });
    };
    if (waits) given_back_.wait(lock, may);
    const bool taken = may();
    waiting_.erase(mine);
    if (taken) mark(cpus, true);
    return taken;
  }

  void give_back(const std::vector<int>& cpus) {
    {
      std::lock_guard<std::mutex> lock(lock_);
      mark(cpus, false);
      if (waiting_.empty()) return;
    }
    given_back_.notify_all();
  }

 private:
  bool none_taken(const std::vector<int>& cpus) const {
    return std::none_of(cpus.begin(), cpus.end(), [&](size_t cpu) { return cpu < taken_.size() && taken_[cpu]; });
  }

  void mark(const std::vector<int>& cpus, bool taken) {
    for (size_t cpu : cpus) {
      if (cpu >= taken_.size()) taken_.resize(cpu + 1);
      taken_[cpu] = taken;
    }
  }

  static bool meet(const std::vector<int>& some, const std::vector<int>& others) {
    return std::any_of(some.begin(), some.end(),
                       [&](int cpu) { return std::find(others.begin(), others.end(), cpu) != others.end(); });
  }

  std::mutex lock_;
  std::condition_variable given_back_;
  std::vector<bool> taken_;  // by CPU
  std::list<const std::vector<int>*> waiting_;  // the CPUs of steps that wait, in the order in which they asked
};

// A turn on CPUs until the end of the block: waited for, or only where they were free at its beginning.
class Turn {
 public:
  Turn(Turns& turns, const std::vector<int>& cpus, bool waits)
      : turns_(turns), cpus_(cpus), taken_(turns.take(cpus_, waits)) {}
  ~Turn() { if (taken_) turns_.give_back(cpus_); }
  Turn(const Turn&) = delete;

  explicit operator bool() const { return taken_; }

 private:
  Turns& turns_;
  const std::vector<int>& cpus_;
  const bool taken_;
};

}  // namespace threadcast
