// Which steps may run at the same time: those whose CPUs are disjoint.
#pragma once

#include <algorithm>
#include <condition_variable>
#include <list>
#include <mutex>
#include <set>
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
      const auto free = [&](int cpu) { return taken_.count(cpu) == 0; };
      return std::all_of(cpus.begin(), cpus.end(), free) &&
             std::none_of(waiting_.begin(), mine, [&](const std::vector<int>* before) { return meet(*before, cpus); });
    });
    waiting_.erase(mine);
    taken_.insert(cpus.begin(), cpus.end());
  }

  void give_back(const std::vector<int>& cpus) {
    {
      std::lock_guard<std::mutex> lock(lock_);
      for (int cpu : cpus) taken_.erase(cpu);
      if (waiting_.empty()) return;
    }
    given_back_.notify_all();
  }

 private:
  static bool meet(const std::vector<int>& some, const std::vector<int>& others) {
    return std::any_of(some.begin(), some.end(),
                       [&](int cpu) { return std::find(others.begin(), others.end(), cpu) != others.end(); });
  }

  std::mutex lock_;
  std::condition_variable given_back_;
  std::set<int> taken_;
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

}  // namespace threadcast
