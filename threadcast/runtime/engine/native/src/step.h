// One step of a program on pinned lanes, in whichever order its engine runs the operators.
#pragma once

#include <atomic>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "calls.h"
#include "float_mode.h"
#include "lanes.h"
#include "team.h"

namespace threadcast {

struct Program {
  std::vector<Call> calls;
  size_t values = 0;                         // inputs first
  std::vector<std::vector<int>> successors;  // of each call: those that may begin only once it is done
  std::vector<std::vector<int>> touches;     // values that each call uses, without those that are never freed
  std::vector<int> predecessors;             // how many calls each comes after
  bool grad = false;                         // whether gradients are enabled, which kernels of LSTMs look at

  void count_predecessors();
};

// When an operator ran, in seconds of the steady clock, which lane led it, and by which engine's `number`.
struct Ran {
  double start_s = 0.0, finish_s = 0.0;
  int lane = 0, engine = 0;
};

// Makes the calling thread the leader of a team until the end of the block.
class LeaderScope {
 public:
  explicit LeaderScope(Team& team);
  ~LeaderScope();

 private:
  Team& team_;
};

// Runs steps of a program: `begin` takes the inputs, `go` runs operators until the step has ended, `end` returns the
// results. After `halt`, which any thread may call, no operator begins until `allow`; `go` then returns false, and
// another engine of the same program can take the step over. All other methods are for one thread at a time, which must
// not hold Python's lock.
class Stepper {
 public:
  virtual ~Stepper() = default;

  void begin(Values inputs);        // values of the program's inputs
  void take_over(Stepper& halted);  // continues the step that `halted` has begun
  // Returns whether the step has ended; if not, it was halted. Rethrows an operator's exception once all lanes have
  // stopped.
  bool go(std::vector<Ran>* ran);
  Values end(const std::vector<size_t>& wanted);  // returns the wanted values, frees all others

  int number = 0;  // tells engines apart in `Ran`

  void halt();
  void allow() { halting_.store(false); }

 protected:
  // The calling thread takes the first seat. `cores` are those of the machine, each given by its CPUs.
  Stepper(std::shared_ptr<const Program> program, std::shared_ptr<Lanes> lanes, const std::vector<Seat>& seats,
          std::vector<std::vector<int>> cores, std::chrono::nanoseconds spin);

  virtual void prepare() = 0;             // all counters, before `go`
  virtual void play(size_t lane) = 0;     // a lane's part of the step; must not throw

  // Calls the operator, unless the step is stopping. Returns whether the operator has run without an exception.
  bool call(int op, size_t lane, std::vector<c10::IValue>& stack);
  void free_value(int value) { values_[value] = c10::IValue(); }
  bool stopping() const { return stopping_.load(); }
  std::unique_ptr<Team> team_of(const std::vector<int>& lanes, Shares& shares);

  // For a step that another plan has begun: counts for each operator that is not done the operators that it waits for,
  // and for each value the operators that still use it. `release` then frees values after their last use.
  void count_rest();
  void release(int op) {
    for (int value : program_->touches[op])
      if (users_[value].fetch_sub(1) == 1) free_value(value);
  }
  bool is_done(int op) const { return was_done_[op]; }  // before this `go`
  bool taken_over() const { return taken_over_; }

  const std::shared_ptr<const Program> program_;
  const std::chrono::nanoseconds spin_;
  const std::shared_ptr<Caller> caller_;  // lanes may need it for a moment longer than this object exists
  std::vector<Parker*> parkers_;          // by lane
  std::vector<std::atomic<int>> awaited_;  // by operator
  std::vector<std::atomic<int>> users_;    // by value

 private:
  void fail(std::exception_ptr error);

  const std::shared_ptr<Lanes> lanes_;
  FloatMode mode_;  // the calling thread's, for the lanes of a step
  const int first_cpu_;
  std::vector<int> cpus_;
  const std::vector<std::vector<int>> cores_;
  std::vector<Lane*> threads_;  // of the lanes after the first
  std::vector<std::function<void()>> jobs_;
  Values values_;
  struct alignas(64) Done {  // apart from other lanes': a line that two cores write to is slow
    std::vector<int> ops;
  };
  std::vector<Done> done_by_;  // lanes, in this `go`
  std::vector<char> done_, was_done_;  // by operator, after and before it
  bool taken_over_ = false;
  std::vector<Ran>* ran_ = nullptr;
  std::atomic<bool> halting_{false}, stopping_{false}, failed_{false};
  std::mutex failing_;
  std::exception_ptr error_;
};

}  // namespace threadcast
