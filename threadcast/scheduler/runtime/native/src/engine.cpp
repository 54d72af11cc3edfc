#include "engine.h"

#include <ATen/core/LegacyTypeDispatch.h>

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
  Enlisted() : before_(omp_thread()), mkl_(tell_mkl(1)) {
    omp_thread() = OmpThread();
    omp_thread().ours = true;
  }
  ~Enlisted() {
    omp_thread() = before_;
    tell_mkl(mkl_);
  }

 private:
  OmpThread before_;
  int mkl_;
  at::AutoDispatchBelowAutograd below_autograd_;
};

// Gives the calling thread a crew until the end of the block.
class Leading {
 public:
  explicit Leading(Crew& crew) : crew_(crew) {
    omp_thread().crew = &crew;
    tell_mkl(crew.size());
  }
  ~Leading() {
    crew_.dismiss();
    omp_thread().crew = nullptr;
    tell_mkl(1);
  }

 private:
  Crew& crew_;
};

}  // namespace

Engine::Engine(std::shared_ptr<const Program> program, std::shared_ptr<Lanes> lanes, Script script,
               std::chrono::nanoseconds spin)
    : program_(std::move(program)),
      lanes_(std::move(lanes)),
      script_(std::move(script)),
      spin_(spin),
      shares_(script_.lanes.size()),
      crews_(program_->calls.size()),
      awaited_(program_->calls.size()),
      users_(program_->values),
      values_(program_->values) {
  bells_.push_back(&lanes_->caller());
  jobs_.reserve(script_.seats.size());
  for (size_t lane = 1; lane < script_.seats.size(); ++lane) {
    threads_.push_back(&lanes_->at(script_.seats[lane]));
    bells_.push_back(&threads_.back()->bell());
    jobs_.emplace_back([this, lane, lanes = lanes_.get()] {
      play(lane);
      lanes->finished_one();  // from here on this engine may be gone
    });
  }
  for (size_t op = 0; op < crews_.size(); ++op) {
    const std::vector<int>& crew = script_.crews[op];
    if (crew.size() < 2) continue;
    std::vector<Bell*> members;
    for (size_t rank = 1; rank < crew.size(); ++rank) members.push_back(bells_[crew[rank]]);
    crews_[op] = std::make_unique<Crew>(bells_[crew[0]], std::move(members), &shares_[crew[0]], spin_);
  }
}

Values Engine::run(Values inputs, const std::vector<size_t>& wanted, Times* times) {
  std::lock_guard<std::mutex> turn(lanes_->turn());
  std::move(inputs.begin(), inputs.end(), values_.begin());
  for (size_t op = 0; op < crews_.size(); ++op) {
    awaited_[op].store(script_.waits[op], std::memory_order_relaxed);
    if (crews_[op]) crews_[op]->reset();
  }
  for (size_t value = 0; value < users_.size(); ++value)
    if (script_.users[value]) users_[value].store(script_.users[value], std::memory_order_relaxed);
  times_ = times;
  failed_.store(false);
  lanes_->expect(static_cast<int>(jobs_.size()));
  for (size_t i = 0; i < jobs_.size(); ++i) threads_[i]->give(&jobs_[i]);
  {
    Pinned pinned(script_.seats[0].first);
    Enlisted enlisted;
    play(0);
    lanes_->wait_for_all();
  }
  Values results;
  const std::exception_ptr error = std::exchange(error_, nullptr);
  if (error == nullptr)
    for (size_t value : wanted) results.push_back(values_[value]);
  for (c10::IValue& value : values_) value = c10::IValue();
  if (error != nullptr) std::rethrow_exception(error);
  return results;
}

void Engine::play(size_t lane) {
  std::vector<c10::IValue> stack;
  for (const Turn& turn : script_.lanes[lane]) {
    if (turn.rank > 0) {
      crews_[turn.op]->serve(turn.rank);
      continue;
    }
    if (awaited_[turn.op].load() > 0)
      bells_[lane]->wait([this, &turn] { return awaited_[turn.op].load() == 0 || failed_.load(); }, spin_);
    run_op(turn.op, stack);
    if (!failed_.load()) report(turn.op, lane);
  }
}

void Engine::run_op(int op, std::vector<c10::IValue>& stack) {
  std::optional<Leading> leading;
  if (crews_[op]) leading.emplace(*crews_[op]);  // also after a failure: its members wait to be dismissed
  if (failed_.load()) return;
  try {
    if (times_ != nullptr) (*times_)[op].first = now_s();
    program_->calls[op].run(values_, stack);
    if (times_ != nullptr) (*times_)[op].second = now_s();
  } catch (...) {
    fail(std::current_exception());
  }
}

void Engine::report(int op, size_t lane) {
  for (int value : script_.last[op]) values_[value] = c10::IValue();
  for (int value : script_.counted[op])
    if (users_[value].fetch_sub(1) == 1) values_[value] = c10::IValue();
  for (int other : script_.tells[op]) {
    if (awaited_[other].fetch_sub(1) != 1) continue;
    const size_t leader = script_.crews[other][0];
    if (leader != lane) bells_[leader]->ring();
  }
}

void Engine::fail(std::exception_ptr error) {
  {
    std::lock_guard<std::mutex> lock(failing_);
    if (error_ == nullptr) error_ = std::move(error);
  }
  failed_.store(true);
  for (Bell* bell : bells_) bell->ring();
}

}  // namespace threadcast
