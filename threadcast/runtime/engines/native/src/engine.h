// Replays a plan: every lane runs its operators in order and meets the others only where it must. Of a step that was
// begun by another plan, every operator waits for those that it depends on: what the plan's order promised of them
// does not hold then.
#pragma once

#include <deque>

#include "step.h"

namespace threadcast {

// What a lane does next: run an operator (rank 0) or be a member of the team that runs it.
struct Turn {
  int op;
  int rank;
};

// The plan, by operator number; see runtime/replay.py and runtime/lifetimes.py.
struct Script {
  std::vector<std::vector<Turn>> lanes;
  std::vector<std::vector<int>> teams;  // lanes of each operator, the leader first
  std::vector<int> waits;               // operators of other lanes that each waits for
  std::vector<std::vector<int>> tells;  // operators that wait for each
  std::vector<std::vector<int>> last;   // values that nobody needs after it
  std::vector<std::vector<int>> counted;
  std::vector<int> users;               // of each value: operators that count themselves off, or 0
};

class Engine : public Stepper {
 public:
  // `seats` are those of the script's lanes; the calling thread takes the first.
  Engine(std::shared_ptr<const Program> program, std::shared_ptr<Lanes> lanes, std::shared_ptr<const Script> script,
         const std::vector<Seat>& seats, std::chrono::nanoseconds spin);

 private:
  void prepare() override;
  void play(size_t lane) override;
  bool run_op(int op, size_t lane, std::vector<c10::IValue>& stack);
  void report(int op, size_t lane);

  const std::shared_ptr<const Script> script_;
  std::deque<Shares> shares_;                 // by lane, for the team that it leads
  std::vector<std::unique_ptr<Team>> teams_;  // by operator; none for one thread
};

}  // namespace threadcast
