// Replays a plan: every lane runs its operators in order and meets the others only where it must.
#pragma once

#include <atomic>
#include <deque>
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

// What a lane does next: run an operator (rank 0) or be a member of the crew that runs it.
struct Turn {
  int op;
  int rank;
};

// The plan, by operator number; see runtime/replay.py and runtime/lifetimes.py.
struct Script {
  std::vector<Seat> seats;              // by lane; the calling thread takes the first
  std::vector<std::vector<Turn>> lanes;
  std::vector<std::vector<int>> crews;  // lanes of each operator, the leader first
  std::vector<int> waits;               // operators of other lanes that each waits for
  std::vector<std::vector<int>> tells;  // operators that wait for each
  std::vector<std::vector<int>> last;   // values that nobody needs after it
  std::vector<std::vector<int>> counted;
  std::vector<int> users;               // of each value: operators that count themselves off, or 0
};

// Start and finish of an operator, in seconds of the steady clock.
using Times = std::vector<std::pair<double, double>>;

class Engine {
 public:
  Engine(std::shared_ptr<const Program> program, std::shared_ptr<Lanes> lanes, Script script,
         std::chrono::nanoseconds spin);

  // One step: takes the values that stand in for the program's inputs and returns those asked for. Rethrows what an
  // operator threw, once all lanes have stopped. The calling thread must not hold Python's lock.
  Values run(Values inputs, const std::vector<size_t>& wanted, Times* times);

 private:
  void play(size_t lane);
  void run_op(int op, std::vector<c10::IValue>& stack);
  void report(int op, size_t lane);
  void fail(std::exception_ptr error);

  std::shared_ptr<const Program> program_;
  std::shared_ptr<Lanes> lanes_;
  Script script_;
  std::chrono::nanoseconds spin_;
  std::vector<Lane*> threads_;  // of the lanes after the first
  std::vector<Bell*> bells_;
  std::vector<std::function<void()>> jobs_;
  std::deque<Shares> shares_;               // by lane, for the crew that it leads
  std::vector<std::unique_ptr<Crew>> crews_;  // by operator; none for one thread
  std::vector<std::atomic<int>> awaited_, users_;
  Values values_;
  Times* times_ = nullptr;
  std::atomic<bool> failed_{false};
  std::mutex failing_;
  std::exception_ptr error_;
};

}  // namespace threadcast
