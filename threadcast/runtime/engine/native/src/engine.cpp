#include "engine.h"

namespace threadcast {

Engine::Engine(std::shared_ptr<const Program> program, std::shared_ptr<Lanes> lanes,
               std::shared_ptr<const Script> script, const std::vector<Seat>& seats,
               std::vector<std::vector<int>> cores, std::chrono::nanoseconds spin)
    : Stepper(program, std::move(lanes), seats, std::move(cores), spin),
      script_(std::move(script)),
      shares_(script_->lanes.size()),
      teams_(program->calls.size()) {
  for (size_t op = 0; op < teams_.size(); ++op)
    teams_[op] = team_of(script_->teams[op], shares_[script_->teams[op][0]]);
}

void Engine::prepare() {
  for (const auto& team : teams_)
    if (team) team->reset();
  if (taken_over()) return count_rest();
  for (size_t op = 0; op < teams_.size(); ++op) awaited_[op].store(script_->waits[op], std::memory_order_relaxed);
  for (size_t value = 0; value < users_.size(); ++value)
    if (script_->users[value]) users_[value].store(script_->users[value], std::memory_order_relaxed);
}

void Engine::play(size_t lane) {
  std::vector<c10::IValue> stack;
  for (const Turn& turn : script_->lanes[lane]) {
    if (is_done(turn.op)) continue;
    if (turn.rank > 0) {
      teams_[turn.op]->serve(turn.rank);
      continue;
    }
    if (awaited_[turn.op].load() > 0)
      parkers_[lane]->park([this, &turn] { return awaited_[turn.op].load() == 0 || stopping(); }, spin_);
    if (run_op(turn.op, lane, stack)) report(turn.op, lane);
  }
}

bool Engine::run_op(int op, size_t lane, std::vector<c10::IValue>& stack) {
  std::optional<LeaderScope> scope;
  if (teams_[op]) scope.emplace(*teams_[op]);  // also when stopping: its members wait to be dismissed
  return call(op, lane, stack);
}

void Engine::report(int op, size_t lane) {
  if (taken_over()) {
    release(op);
  } else {
    for (int value : script_->last[op]) free_value(value);
    for (int value : script_->counted[op])
      if (users_[value].fetch_sub(1) == 1) free_value(value);
  }
  for (int other : taken_over() ? program_->successors[op] : script_->tells[op]) {
    if (awaited_[other].fetch_sub(1) != 1) continue;
    const size_t leader = script_->teams[other][0];
    if (leader != lane) parkers_[leader]->unpark();
  }
}

}  // namespace threadcast
