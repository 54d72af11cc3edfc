#include "dynamic.h"

namespace threadcast {

DynamicEngine::DynamicEngine(std::shared_ptr<const Program> program, std::shared_ptr<Lanes> lanes, Order order,
                             std::chrono::nanoseconds spin)
    : Stepper(program, std::move(lanes), order.seats, spin),
      order_(std::move(order)),
      place_(order_.seats.size()),
      shares_(order_.groups.size()) {
  for (size_t group = 0; group < order_.groups.size(); ++group) {
    const std::vector<int>& members = order_.groups[group];
    for (size_t rank = 0; rank < members.size(); ++rank) place_[members[rank]] = {group, static_cast<int>(rank)};
    crews_.push_back(crew_of(members, shares_[group]));
  }
}

void DynamicEngine::prepare() {
  ready_ = {};
  offered_.store(0);
  for (const auto& crew : crews_)
    if (crew) crew->reset();
  count_rest();
  int left = 0;
  for (size_t op = 0; op < awaited_.size(); ++op) {
    if (is_done(static_cast<int>(op))) continue;
    ++left;
    if (awaited_[op].load() == 0) offer(static_cast<int>(op));
  }
  left_.store(left);
}

void DynamicEngine::play(size_t lane) {
  const auto [group, rank] = place_[lane];
  if (rank > 0) return crews_[group]->serve(rank);
  std::optional<Leading> leading;
  if (crews_[group]) leading.emplace(*crews_[group]);
  lead(lane);
}

void DynamicEngine::lead(size_t lane) {
  std::vector<c10::IValue> stack;
  std::vector<int> mine;  // to be run next, before what others offer
  while (left_.load() > 0 && !stopping()) {
    int op = -1;
    if (!mine.empty()) {
      op = mine.back();
      mine.pop_back();
    } else if ((op = take()) < 0) {
      bells_[lane]->wait([this] { return offered_.load() > 0 || left_.load() == 0 || stopping(); }, spin_);
      continue;
    }
    if (call(op, lane, stack)) finish(op, mine);
  }
}

// Frees what nobody needs any more and sees to what has become ready: tiny operators and the most urgent one stay
// here, which costs no hand-over, the others are offered.
void DynamicEngine::finish(int op, std::vector<int>& mine) {
  release(op);
  int urgent = -1;
  for (int other : program_->successors[op]) {
    if (awaited_[other].fetch_sub(1) != 1) continue;
    if (order_.tiny[other]) {
      mine.push_back(other);
    } else if (urgent < 0 || order_.levels[other] > order_.levels[urgent]) {
      if (urgent >= 0) offer(urgent);
      urgent = other;
    } else {
      offer(other);
    }
  }
  if (urgent >= 0) {
    offer(urgent);
    if (mine.empty() && (urgent = take()) >= 0) mine.push_back(urgent);  // perhaps a more urgent one of others
  }
  if (left_.fetch_sub(1) == 1)
    for (const auto& group : order_.groups) bells_[group[0]]->ring();
}

int DynamicEngine::take() {
  if (offered_.load() == 0) return -1;
  std::lock_guard<std::mutex> lock(offering_);
  if (ready_.empty()) return -1;
  const int op = -ready_.top().second;
  ready_.pop();
  offered_.fetch_sub(1);
  return op;
}

void DynamicEngine::offer(int op) {
  {
    std::lock_guard<std::mutex> lock(offering_);
    ready_.push({order_.levels[op], -op});
    offered_.fetch_add(1);
  }
  for (const auto& group : order_.groups) bells_[group[0]]->ring();
}

}  // namespace threadcast
