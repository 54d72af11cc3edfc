// One step of a program on pinned lanes: what replaying a plan and deciding while it runs have in common.
#pragma once

#include <atomic>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "calls.h"
#include "crew.h"
#include "lanes.h"

namespace threadcast {

struct Program {
  std::vector<Call> calls;
  size_t values = 0;  // inputs first
};

// When an operator ran, in seconds of the steady clock, and which lane led it.
struct Ran {
  double start_s = 0.0, finish_s = 0.0;
  int lane = 0;
};

// Makes the calling thread lead a crew until the end of the block.
class Leading {
 public:
  explicit Leading(Crew& crew);
  ~Leading();

 private:
  Crew& crew_;
};

class Stepper {
 public:
  virtual ~Stepper() = default;

  // One step: takes the values that stand in for the program's inputs and returns those asked for. Rethrows what an
  // operator threw, once all lanes have stopped. The calling thread must not hold Python's lock.
  Values run(Values inputs, const std::vector<size_t>& wanted, std::vector<Ran>* ran);

 protected:
  // The calling thread takes the first seat.
  Stepper(std::shared_ptr<const Program> program, std::shared_ptr<Lanes> lanes, const std::vector<Seat>& seats,
          std::chrono::nanoseconds spin);

  virtual void prepare() = 0;             // all counters, before every step
  virtual void play(size_t lane) = 0;     // a lane's part of the step; must not throw

  // Calls the operator, unless the step has failed; whether it has given its results.
  bool call(int op, size_t lane, std::vector<c10::IValue>& stack);
  void free_value(int value) { values_[value] = c10::IValue(); }
  bool failed() const { return failed_.load(); }
  std::unique_ptr<Crew> crew_of(const std::vector<int>& lanes, Shares& shares);

  const std::shared_ptr<const Program> program_;
  const std::chrono::nanoseconds spin_;
  std::vector<Bell*> bells_;  // by lane

 private:
  void fail(std::exception_ptr error);

  const std::shared_ptr<Lanes> lanes_;
  const int first_cpu_;
  std::vector<Lane*> threads_;  // of the lanes after the first
  std::vector<std::function<void()>> jobs_;
  Values values_;
  std::vector<Ran>* ran_ = nullptr;
  std::atomic<bool> failed_{false};
  std::mutex failing_;
  std::exception_ptr error_;
};

}  // namespace threadcast
