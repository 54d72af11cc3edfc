#include "engine.h"

namespace threadcast {

Engine::Engine(std::shared_ptr<const Program> program, std::shared_ptr<Lanes> lanes,
               std::shared_ptr<const Script> script, const std::vector<Seat>& seats, std::chrono::nanoseconds spin)
    : Stepper(program, std::move(lanes), seats, spin),
      script_(std::move(script)),
      shares_(script_->lanes.size()),
      crews_(program->calls.size()) {
  for (size_t op = 0; op < crews_.size(); ++op)
    crews_[op] = crew_of(script_->crews[op], shares_[script_->crews[op][0]]);
}

void Engine::prepare() {
  for (const auto& crew : crews_)
    if (crew) crew->reset();
  if (taken_over()) return count_rest();
  for (size_t op = 0; op < crews_.size(); ++op) awaited_[op].store(script_->waits[op], std::memory_order_relaxed);
  for (size_t value = 0; value < users_.size(); ++value)
    if (script_->users[value]) users_[value].store(script_->users[value], std::memory_order_relaxed);
}

void Engine::play(size_t lane) {
  std::vector<c10::IValue> stack;
  for (const Turn& turn : script_->lanes[lane]) {
    if (is_done(turn.op)) continue;
    if (turn.rank > 0) {
      crews_[turn.op]->serve(turn.rank);
      continue;
    }
    if (awaited_[turn.op].load() > 0)
      bells_[lane]->wait([this, &turn] { return awaited_[turn.op].load() == 0 || stopping(); }, spin_);
    if (run_op(turn.op, lane, stack)) report(turn.op, lane);
  }
}

bool Engine::run_op(int op, size_t lane, std::vector<c10::IValue>& stack) {
  std::optional<Leading> leading;
  if (crews_[op]) leading.emplace(*crews_[op]);  // also when stopping: its members wait to be dismissed
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
    const size_t leader = script_->crews[other][0];
    if (leader != lane) bells_[leader]->ring();
  }
}

}  // namespace threadcast
