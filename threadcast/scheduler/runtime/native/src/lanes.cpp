#include "lanes.h"

#include <ATen/Parallel.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <pthread.h>
#include <sched.h>
#include <unistd.h>

#include <set>
#include <system_error>

#include "crew.h"

namespace threadcast {
namespace {

constexpr int kMostCpus = 8192;  // the kernel's largest CONFIG_NR_CPUS

struct Pinning {
  std::mutex lock;
  std::vector<char> home;
  std::set<int> threads;
};

Pinning& the_pinning() {
  static Pinning* const made = new Pinning();  // never destroyed: threads may outlive the statics
  return *made;
}

size_t mask_bytes() { return CPU_ALLOC_SIZE(kMostCpus); }

void pin_calling_thread(int cpu) {
  std::vector<char> mask(mask_bytes(), 0);
  auto* set = reinterpret_cast<cpu_set_t*>(mask.data());
  CPU_SET_S(cpu, mask.size(), set);
  if (sched_setaffinity(0, mask.size(), set) != 0)
    throw std::system_error(errno, std::generic_category(), "cannot pin a thread to cpu " + std::to_string(cpu));
}

}  // namespace

Lane::Lane(Seat seat, std::chrono::nanoseconds spin) : spin_(spin) {
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
  ended_.store(true);
  bell_.ring();
  if (thread_.joinable()) thread_.join();
}

void Lane::give(const std::function<void()>* job) {
  job_.store(job);
  bell_.ring();
}

void Lane::work() {
  omp_thread().ours = true;
  at::AutoDispatchBelowAutograd below_autograd;
  for (;;) {
    bell_.wait([this] { return job_.load() != nullptr || ended_.load(); }, spin_);
    const std::function<void()>* job = job_.exchange(nullptr);
    if (job == nullptr) return;
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
  pin_calling_thread(cpu);
  the_pinning().threads.insert(gettid());
}

Pinned::~Pinned() {
  std::lock_guard<std::mutex> lock(the_pinning().lock);
  the_pinning().threads.erase(gettid());
  const std::vector<char>& mask = the_pinning().home.empty() ? before_ : the_pinning().home;
  if (!mask.empty()) sched_setaffinity(0, mask.size(), reinterpret_cast<const cpu_set_t*>(mask.data()));
}

void set_home(const std::vector<int>& cpus) {
  std::vector<char> mask(mask_bytes(), 0);
  for (int cpu : cpus) CPU_SET_S(cpu, mask.size(), reinterpret_cast<cpu_set_t*>(mask.data()));
  std::lock_guard<std::mutex> lock(the_pinning().lock);
  the_pinning().home = std::move(mask);
}

std::vector<int> pinned_threads() {
  std::lock_guard<std::mutex> lock(the_pinning().lock);
  return {the_pinning().threads.begin(), the_pinning().threads.end()};
}

}  // namespace threadcast
