#include "lanes.h"

#include <ATen/Parallel.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <pthread.h>
#include <sched.h>
#include <strings.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <system_error>

#include "openmp.h"
#include "team.h"

namespace threadcast {
namespace {

constexpr int kMostCpus = 8192;  // the kernel's largest CONFIG_NR_CPUS

struct Pinning {
  std::mutex lock;
  std::vector<char> home;
  std::map<int, bool> threads;  // by the kernel's id: whether it is to go home
  size_t blocks = 0;
};

std::atomic<size_t> home_changes{0};

Pinning& the_pinning() {
  static Pinning* const made = [] {
    // In a forked process are neither the thread that may hold the lock, nor those that are pinned.
    pthread_atfork([] { the_pinning().lock.lock(); }, [] { the_pinning().lock.unlock(); }, [] {
      the_pinning().threads.clear();
      the_pinning().lock.unlock();
    });
    return new Pinning();  // never destroyed: threads may outlive the statics
  }();
  return *made;
}

// How long libgomp's workers spin: 300,000 rounds are 3 to 14 ms, by processor. Zero where its user has asked for less.
std::chrono::nanoseconds openmps_spin() {
  static const bool less = [] {
    const char* const policy = getenv("OMP_WAIT_POLICY");
    return getenv("GOMP_SPINCOUNT") != nullptr || (policy != nullptr && strcasecmp(policy, "passive") == 0);
  }();
  return std::chrono::milliseconds(less ? 0 : 5);
}

size_t mask_bytes() { return CPU_ALLOC_SIZE(kMostCpus); }

bool try_to_pin(int cpu) {
  std::vector<char> mask(mask_bytes(), 0);
  auto* set = reinterpret_cast<cpu_set_t*>(mask.data());
  CPU_SET_S(cpu, mask.size(), set);
  return sched_setaffinity(0, mask.size(), set) == 0;
}

void pin_calling_thread(int cpu) {
  if (!try_to_pin(cpu))
    throw std::system_error(errno, std::generic_category(), "cannot pin a thread to cpu " + std::to_string(cpu));
}

}  // namespace

int forks() {
  static std::atomic<int>& count = [] -> std::atomic<int>& {
    static std::atomic<int> counted{0};
    pthread_atfork(nullptr, nullptr, [] { counted.fetch_add(1); });
    return counted;
  }();
  return count.load();
}

Lane::Lane(Seat seat, std::chrono::nanoseconds spin) : cpu_(seat.first), spin_(spin) {
  std::atomic<bool> ready{false};
  std::exception_ptr error;
  thread_ = std::thread([&, seat] {
    try {
      pin_calling_thread(seat.first);
      pthread_setname_np(pthread_self(), ("tc-cpu" + std::to_string(seat.first)).c_str());
    } catch (...) {
      error = std::current_exception();
    }
    const bool failed = error != nullptr;
    ready.store(true);
    ready.notify_one();
    if (!failed) work();
  });
  ready.wait(false);
  if (error != nullptr) {
    thread_.join();
    std::rethrow_exception(error);
  }
}

Lane::~Lane() {
  if (forks_ != forks()) {
    new std::thread(std::move(thread_));  // never destroyed: the memory it knows it by may be another thread's here
    return;
  }
  ended_.store(true);
  parker_.unpark();
  if (thread_.joinable()) thread_.join();
}

void Lane::give(const std::function<void()>* job, bool of_step) {
  of_step_ = of_step;
  job_.store(job);
  parker_.unpark();
}

void Lane::work() {
  omp_thread().ours = true;
  omp_set_others_threads(1);
  at::AutoDispatchBelowAutograd below_autograd;
  const std::chrono::nanoseconds long_spin = std::max(spin_, openmps_spin());
  bool served = false, serves = false;  // regions, before the last step and after it
  for (;;) {
    parker_.park([this] { return job_.load() != nullptr || ended_.load(); }, served || serves ? long_spin : spin_);
    const std::function<void()>* job = job_.exchange(nullptr);
    if (job == nullptr) return;
    if (of_step_) try_to_pin(cpu_);  // whoever took its cpu away put it elsewhere; who gives it jobs has the cpu back
    served = of_step_ ? serves : served;
    serves = !of_step_;
    (*job)();
  }
}

Lane& Lanes::at(Seat seat) {
  std::lock_guard<std::mutex> lock(making_);
  std::unique_ptr<Lane>& lane = lanes_[seat];
  // Threads that share a cpu must not spin in each other's way.
  if (!lane) lane = std::make_unique<Lane>(seat, seat.second == 0 ? spin_ : std::chrono::nanoseconds(0));
  return *lane;
}

Pinned::Pinned(int cpu) : before_(mask_bytes(), 0) {
  if (sched_getaffinity(0, before_.size(), reinterpret_cast<cpu_set_t*>(before_.data())) < 0) before_.clear();
  std::lock_guard<std::mutex> lock(the_pinning().lock);
  try_to_pin(cpu);  // a cpuset may just have lost the cpu: then the step is slower, not broken off in its middle
  the_pinning().threads[gettid()] = false;
  ++the_pinning().blocks;
}

Pinned::~Pinned() {
  std::lock_guard<std::mutex> lock(the_pinning().lock);
  const bool sent_home = the_pinning().threads[gettid()];
  the_pinning().threads.erase(gettid());
  const std::vector<char>& mask = sent_home ? the_pinning().home : before_;
  if (!mask.empty()) sched_setaffinity(0, mask.size(), reinterpret_cast<const cpu_set_t*>(mask.data()));
}

void set_home(const std::vector<int>& cpus) {
  std::vector<char> mask(mask_bytes(), 0);
  for (int cpu : cpus) CPU_SET_S(cpu, mask.size(), reinterpret_cast<cpu_set_t*>(mask.data()));
  std::lock_guard<std::mutex> lock(the_pinning().lock);
  the_pinning().home = std::move(mask);
  home_changes.fetch_add(1);
}

size_t homes() { return home_changes.load(); }

bool send_home(int thread) {
  std::lock_guard<std::mutex> lock(the_pinning().lock);
  const auto found = the_pinning().threads.find(thread);
  if (found == the_pinning().threads.end()) return false;
  found->second = true;
  return true;
}

std::pair<bool, size_t> is_pinned(int thread) {
  std::lock_guard<std::mutex> lock(the_pinning().lock);
  return {the_pinning().threads.count(thread) > 0, the_pinning().blocks};
}

}  // namespace threadcast
