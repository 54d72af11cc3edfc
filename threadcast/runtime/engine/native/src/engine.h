// Replays a plan on pinned lanes: every lane runs its operators in order, and waits for other lanes only where the plan
// needs it. In a step that another plan has begun, every operator waits for all operators that it depends on, because the
// plan's own order does not guarantee there that they have finished.
#pragma once

#include <atomic>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "calls.h"
#include "float_mode.h"
#include "lanes.h"
#include "team.h"

namespace threadcast {

// A lane's next task: to lead operator `op` (rank 0), or to be a member of the team that runs it.
struct Task {
  int op;
  int rank;
};

// The plan, by operator number; see runtime/engine/replay.py and runtime/engine/lifetimes.py.
struct Script {
  std::vector<std::vector<Task>> lanes;
  std::vector<std::vector<int>> teams;  // lanes of each operator, the leader first
  std::vector<int> waits;               // operators of other lanes that each waits for
  std::vector<std::vector<int>> tells;  // operators that wait for each
  std::vector<std::vector<int>> last;   // values that can be freed after each operator
  std::vector<std::vector<int>> counted;
  std::vector<int> users;               // of each value: operators that count themselves off, or 0
};

// When an operator ran, in seconds of the steady clock, and by which engine's `number`.
struct Ran {
  double start_s = 0.0, finish_s = 0.0;
  int engine = 0;
};

// Runs steps of a program: `begin` takes the inputs, `go` runs operators until the step has ended, `end` returns the
// results. After `halt`, which any thread may call, no operator begins until `allow`; `go` then returns false, and
// another engine of the same program can take the step over. All other methods are for one thread at a time, which must
// not hold Python's lock.
class Engine {
 public:
  // `seats` are those of the script's lanes; the calling thread takes the first. `cores` are those of the machine, each
  // given by its CPUs.
  Engine(std::shared_ptr<const Program> program, std::shared_ptr<Lanes> lanes, std::shared_ptr<const Script> script,
         const std::vector<Seat>& seats, std::vector<std::vector<int>> cores, std::chrono::nanoseconds spin);

  void begin(Values inputs);       // values of the program's inputs
  void take_over(Engine& halted);  // continues the step that `halted` has begun
  // Returns whether the step has ended; if not, it was halted. Rethrows an operator's exception once all lanes have
  // stopped.
  bool go(std::vector<Ran>* ran);
  Values end(const std::vector<size_t>& wanted);  // returns the wanted values, frees all others

  void halt();
  void allow() { halting_.store(false); }

  int number = 0;  // tells engines apart in `Ran`

 private:
  void count();            // all that operators wait for, and the users of values, before `go`
  void count_rest();       // the same in a step that another plan has begun, of what is left
  void play(size_t lane);  // a lane's part of the step; must not throw
  // Calls the operator, unless the step is stopping. Returns whether the operator has run without an exception.
  bool run(int op, size_t lane, std::vector<c10::IValue>& stack);
  void report(int op, size_t lane);  // frees values after their last use, and tells operators that wait
  void free_value(int value) { values_[value] = c10::IValue(); }
  void count_off(int value) {
    if (users_[value].fetch_sub(1) == 1) free_value(value);
  }
  void stop();
  void fail(std::exception_ptr error);

  const std::shared_ptr<const Program> program_;
  const std::shared_ptr<Lanes> lanes_;
  const std::shared_ptr<const Script> script_;
  const std::chrono::nanoseconds spin_;
  const std::shared_ptr<Caller> caller_;  // lanes may need it for a moment longer than this object exists
  FloatMode mode_;                        // the calling thread's, for the lanes of a step
  const int first_cpu_;
  std::vector<int> cpus_;
  const std::vector<std::vector<int>> cores_;
  std::vector<Parker*> parkers_;  // by lane
  std::vector<Lane*> threads_;    // of the lanes after the first
  std::vector<std::function<void()>> jobs_;
  std::deque<Shares> shares_;                 // by lane, for the team that it leads
  std::vector<std::unique_ptr<Team>> teams_;  // by operator; none for one thread
  Values values_;
  std::vector<std::atomic<int>> awaited_;  // by operator
  std::vector<std::atomic<int>> users_;    // by value
  struct alignas(64) Done {  // apart from other lanes': a line that two cores write to is slow
    std::vector<int> ops;
  };
  std::vector<Done> done_by_;          // lanes, in this `go`
  std::vector<char> done_, was_done_;  // by operator, after and before it
  bool taken_over_ = false;
  std::vector<Ran>* ran_ = nullptr;
  std::atomic<bool> halting_{false}, stopping_{false}, failed_{false};
  std::mutex failing_;
  std::exception_ptr error_;
};

// Runs steps by the current engine. One that is exchanged while it runs a step hands it over at the next operator
// boundary.
class Relay {
 public:
  explicit Relay(std::shared_ptr<Engine> first) : current_(std::move(first)) {}

  void change(std::shared_ptr<Engine> next);  // from any thread, to an engine of the same program
  // Runs one step; calls `begun` once it has taken the inputs, before any operator runs. For one thread at a time, any,
  // which must not hold Python's lock.
  Values run(Values inputs, const std::vector<size_t>& wanted, std::vector<Ran>* ran,
             const std::function<void()>& begun = {});

 private:
  std::shared_ptr<Engine> current();

  std::mutex changing_;
  std::shared_ptr<Engine> current_;
};

}  // namespace threadcast
