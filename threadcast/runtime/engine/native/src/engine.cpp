#include "engine.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <c10/core/GradMode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <algorithm>
#include <optional>
#include <stdexcept>
#include <utility>

#include "lent.h"
#include "openmp.h"

// MKL's C function; the names in small letters are Fortran's. Not there in a torch without MKL.
extern "C" int MKL_Set_Num_Threads_Local(int) __attribute__((weak));

namespace threadcast {
namespace {

double now_s() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// MKL asks OpenMP how many threads it may have, unless the calling thread was told a number of its own.
int tell_mkl(int threads) { return MKL_Set_Num_Threads_Local != nullptr ? MKL_Set_Num_Threads_Local(threads) : 0; }

// Makes the calling thread one of an engine's until the end of the block.
class Enlisted {
 public:
  Enlisted() : before_(omp_thread()), mkl_(tell_mkl(1)), others_(omp_set_others_threads(1)) {
    omp_thread() = OmpThread();
    omp_thread().ours = true;
  }
  ~Enlisted() {
    omp_thread() = before_;
    tell_mkl(mkl_);
    omp_set_others_threads(others_);
  }

 private:
  OmpThread before_;
  int mkl_, others_;
  at::AutoDispatchBelowAutograd below_autograd_;
  // The caller's autocast must not cast again what the graph has cast already.
  c10::impl::ExcludeDispatchKeyGuard no_autocast_{c10::autocast_dispatch_keyset};
};

// Makes the calling thread the leader of a team until the end of the block.
class Leading {
 public:
  explicit Leading(Team& team) : team_(team) {
    omp_thread().team = &team;
    tell_mkl(team.size());
  }
  ~Leading() {
    team_.dismiss();
    omp_thread().team = nullptr;
    tell_mkl(1);
  }

 private:
  Team& team_;
};

}  // namespace

Engine::Engine(std::shared_ptr<const Program> program, std::shared_ptr<Lanes> lanes,
               std::shared_ptr<const Script> script, const std::vector<Seat>& seats,
               std::vector<std::vector<int>> cores, std::chrono::nanoseconds spin)
    : program_(std::move(program)), lanes_(std::move(lanes)), script_(std::move(script)), spin_(spin),
      caller_(std::make_shared<Caller>(spin)), first_cpu_(seats[0].first), cores_(std::move(cores)),
      shares_(seats.size()), values_(program_->values), awaited_(program_->calls.size()), users_(program_->values),
      done_by_(seats.size()), done_(program_->calls.size()), was_done_(program_->calls.size()) {
  parkers_.push_back(&caller_->parker());
  for (const Seat& seat : seats)
    if (std::find(cpus_.begin(), cpus_.end(), seat.first) == cpus_.end()) cpus_.push_back(seat.first);
  for (size_t lane = 1; lane < seats.size(); ++lane) {
    threads_.push_back(&lanes_->at(seats[lane]));
    parkers_.push_back(&threads_.back()->parker());
    jobs_.emplace_back([this, lane] {
      const std::shared_ptr<Caller> caller = caller_;
      const c10::AutoGradMode grad(program_->grad);
      mode_.set();
      play(lane);
      caller->finished_one();  // from here on this object may be gone
    });
  }
  for (const std::vector<int>& members : script_->teams) {
    std::vector<Parker*> others;
    for (size_t rank = 1; rank < members.size(); ++rank) others.push_back(parkers_[members[rank]]);
    teams_.push_back(others.empty() ? nullptr
                                    : std::make_unique<Team>(parkers_[members[0]], std::move(others),
                                                             &shares_[members[0]], spin_));
  }
}

void Engine::begin(Values inputs) {
  // It would wait for cpus that the step around it gives back only after it.
  if (omp_thread().ours) throw std::runtime_error("an operator of a step runs a step of its own");
  std::move(inputs.begin(), inputs.end(), values_.begin());
  std::fill(was_done_.begin(), was_done_.end(), 0);
  std::fill(done_.begin(), done_.end(), 0);
  taken_over_ = false;
}

void Engine::take_over(Engine& halted) {
  was_done_ = halted.done_;
  if (this != &halted) {
    done_ = halted.done_;
    values_.swap(halted.values_);
  }
  taken_over_ = true;
}

void Engine::halt() {
  halting_.store(true);  // first: `go` looks at it after it has set the other
  stop();
}

void Engine::stop() {
  stopping_.store(true);
  for (Parker* parker : parkers_) parker->unpark();
}

void Engine::count() {
  for (const auto& team : teams_)
    if (team) team->reset();
  if (taken_over_) return count_rest();
  for (size_t op = 0; op < awaited_.size(); ++op) awaited_[op].store(script_->waits[op], std::memory_order_relaxed);
  for (size_t value = 0; value < users_.size(); ++value)
    if (script_->users[value]) users_[value].store(script_->users[value], std::memory_order_relaxed);
}

void Engine::count_rest() {
  for (auto& awaited : awaited_) awaited.store(0);
  for (auto& users : users_) users.store(0);
  for (size_t op = 0; op < awaited_.size(); ++op) {
    if (was_done_[op]) continue;
    for (int other : program_->successors[op]) awaited_[other].fetch_add(1);
    for (int value : program_->touches[op]) users_[value].fetch_add(1);
  }
  for (size_t op = 0; op < awaited_.size(); ++op)
    if (was_done_[op])
      for (int value : program_->touches[op])
        if (users_[value].load() == 0) free_value(value);  // its last user was the last thing that was done
}

bool Engine::go(std::vector<Ran>* ran) {
  const Turn turn(lanes_->turns(), cpus_, true);
  failed_.store(false);
  stopping_.store(false);
  if (halting_.load()) return false;
  count();
  for (Done& done : done_by_) done.ops.clear();
  ran_ = ran;
  {
    Pinned pinned(first_cpu_);  // may throw: before any lane has begun
    Enlisted enlisted;
    const c10::AutoGradMode grad(program_->grad);
    mode_ = FloatMode();
    caller_->expect(static_cast<int>(jobs_.size()));
    for (size_t i = 0; i < jobs_.size(); ++i) threads_[i]->give(&jobs_[i]);
    play(0);
    caller_->wait_for_all();
  }
  lend(lanes_, cores_);
  if (const std::exception_ptr error = std::exchange(error_, nullptr)) {
    for (c10::IValue& value : values_) value = c10::IValue();
    std::rethrow_exception(error);
  }
  if (!stopping_.load()) return true;
  for (const Done& done : done_by_)
    for (int op : done.ops) done_[op] = 1;
  return std::find(done_.begin(), done_.end(), 0) == done_.end();
}

Values Engine::end(const std::vector<size_t>& wanted) {
  Values results;
  for (size_t value : wanted) results.push_back(values_[value]);
  for (c10::IValue& value : values_) value = c10::IValue();
  return results;
}

void Engine::play(size_t lane) {
  std::vector<c10::IValue> stack;
  for (const auto& [op, rank] : script_->lanes[lane]) {
    if (was_done_[op]) continue;
    if (rank > 0) {
      teams_[op]->serve(rank);
      continue;
    }
    const std::atomic<int>& awaited = awaited_[op];
    if (awaited.load() > 0)
      parkers_[lane]->park([this, &awaited] { return awaited.load() == 0 || stopping_.load(); }, spin_);
    if (run(op, lane, stack)) report(op, lane);
  }
}

bool Engine::run(int op, size_t lane, std::vector<c10::IValue>& stack) {
  std::optional<Leading> leading;
  if (teams_[op]) leading.emplace(*teams_[op]);  // also when stopping: its members wait to be dismissed
  if (stopping_.load()) return false;
  try {
    const double start_s = ran_ == nullptr ? 0.0 : now_s();
    program_->calls[op].run(values_, stack);
    if (ran_ != nullptr) (*ran_)[op] = {start_s, now_s(), number};
    done_by_[lane].ops.push_back(op);
  } catch (...) {
    fail(std::current_exception());
  }
  return !failed_.load();
}

void Engine::report(int op, size_t lane) {
  if (taken_over_) {
    for (int value : program_->touches[op]) count_off(value);
  } else {
    for (int value : script_->last[op]) free_value(value);
    for (int value : script_->counted[op]) count_off(value);
  }
  for (int other : taken_over_ ? program_->successors[op] : script_->tells[op]) {
    if (awaited_[other].fetch_sub(1) != 1) continue;
    const size_t leader = script_->teams[other][0];
    if (leader != lane) parkers_[leader]->unpark();
  }
}

void Engine::fail(std::exception_ptr error) {
  {
    std::lock_guard<std::mutex> lock(failing_);
    if (error_ == nullptr) error_ = std::move(error);
  }
  failed_.store(true);
  stop();
}

void Relay::change(std::shared_ptr<Engine> next) {
  std::lock_guard<std::mutex> lock(changing_);
  if (next == current_) return;
  next->allow();
  current_.swap(next);
  next->halt();
}

Values Relay::run(Values inputs, const std::vector<size_t>& wanted, std::vector<Ran>* ran,
                  const std::function<void()>& begun) {
  std::shared_ptr<Engine> engine = current();
  engine->begin(std::move(inputs));
  if (begun) begun();
  while (!engine->go(ran)) {
    std::shared_ptr<Engine> next = current();
    next->take_over(*engine);
    engine = std::move(next);
  }
  return engine->end(wanted);
}

std::shared_ptr<Engine> Relay::current() {
  std::lock_guard<std::mutex> lock(changing_);
  return current_;
}

}  // namespace threadcast
