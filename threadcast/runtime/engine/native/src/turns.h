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
  void take(const std::vector<int>& cpus) {
    std::unique_lock<std::mutex> lock(lock_);
    const auto mine = waiting_.insert(waiting_.end(), &cpus);
    given_back_.wait(lock, [&] {
      return none_taken(cpus) &&
             std::none_of(waiting_.begin(), mine, [&](const std::vector<int>* before) { return meet(*before, cpus); });
    });
    waiting_.erase(mine);
    mark(cpus, true);
  }

  // As `take` where that need not wait, else returns false.
  bool try_to_take(const std::vector<int>& cpus) {
    std::lock_guard<std::mutex> lock(lock_);
    if (!none_taken(cpus) ||
        std::any_of(waiting_.begin(), waiting_.end(), [&](const auto* before) { return meet(*before, cpus); }))
      return false;
    mark(cpus, true);
    return true;
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

// A step's turn on its CPUs until the end of the block.
class StepTurn {
 public:
  StepTurn(Turns& turns, const std::vector<int>& cpus) : turns_(turns), cpus_(cpus) { turns_.take(cpus_); }
  ~StepTurn() { turns_.give_back(cpus_); }
  StepTurn(const StepTurn&) = delete;

 private:
  Turns& turns_;
  const std::vector<int>& cpus_;
};

// A turn on CPUs until the end of the block, where they were free at its beginning.
class TriedTurn {
 public:
  TriedTurn(Turns& turns, const std::vector<int>& cpus) : turns_(turns), cpus_(cpus), taken_(turns.try_to_take(cpus)) {}
  ~TriedTurn() { if (taken_) turns_.give_back(cpus_); }
  TriedTurn(const TriedTurn&) = delete;

  explicit operator bool() const { return taken_; }

 private:
  Turns& turns_;
  const std::vector<int>& cpus_;
  const bool taken_;
};

}  // namespace threadcast
