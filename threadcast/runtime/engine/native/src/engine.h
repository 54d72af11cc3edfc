// Replays a plan: every lane runs its operators in order, and waits for other lanes only where the plan needs it. In a
// step that another plan has begun, every operator waits for all operators that it depends on, because the plan's own
// order does not guarantee there that they have finished.
#pragma once

#include <deque>

#include "step.h"

namespace threadcast {

// A lane's next task: to lead operator `op` (rank 0), or to be a member of the team that runs it.
struct Turn {
  int op;
  int rank;
};

// The plan, by operator number; see runtime/engine/replay.py and runtime/engine/lifetimes.py.
struct Script {
  std::vector<std::vector<Turn>> lanes;
  std::vector<std::vector<int>> teams;  // lanes of each operator, the leader first
  std::vector<int> waits;               // operators of other lanes that each waits for
  std::vector<std::vector<int>> tells;  // operators that wait for each
  std::vector<std::vector<int>> last;   // values that can be freed after each operator
  std::vector<std::vector<int>> counted;
  std::vector<int> users;               // of each value: operators that count themselves off, or 0
};

class Engine : public Stepper {
 public:
  // `seats` are those of the script's lanes.
  Engine(std::shared_ptr<const Program> program, std::shared_ptr<Lanes> lanes, std::shared_ptr<const Script> script,
         const std::vector<Seat>& seats, std::vector<std::vector<int>> cores, std::chrono::nanoseconds spin);

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
