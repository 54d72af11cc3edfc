#include "lent.h"

#include <sched.h>

#include <chrono>
#include <functional>
#include <system_error>

#include "float_mode.h"
#include "team.h"

namespace threadcast {
namespace {

using Clock = std::chrono::steady_clock;

// Since the thread's last step. Who runs steps now and then, but mostly other work, has libgomp for that.
constexpr std::chrono::milliseconds kLentFor{100};

// What the calling thread may use. Its regions run one after the other.
struct Lent {
  std::weak_ptr<Lanes> lanes;
  std::vector<int> cpus;
  Clock::time_point until;
  int forks_seen = 0;
  size_t homes_seen = 0;

  bool lasts() const { return forks_seen == forks() && homes_seen == homes() && Clock::now() <= until; }

  int cpu = -1;                // on which the calling thread was when the members were chosen
  std::vector<Lane*> members;  // on the other CPUs; none where one of them cannot be had
  std::shared_ptr<Caller> caller;
  FloatMode mode;
  std::vector<std::function<void()>> jobs;  // by member
  Shares shares;
  Region region;

  void choose(Lanes& from, int here) {
    if (cpu == here) return;
    cpu = here;
    members.clear();
    try {
      for (int other : cpus)
        if (other != here) members.push_back(&from.at({other, 0}));
    } catch (const std::system_error&) {
      members.clear();
    }
    while (jobs.size() < members.size()) {
      const int rank = static_cast<int>(jobs.size()) + 1;
      jobs.emplace_back([this, rank] {
        const std::shared_ptr<Caller> mine = caller;
        mode.set();
        run_as(region, rank);
        mine->finished_one();  // from here on this object may be gone
      });
    }
  }
};

std::unique_ptr<Lent>& lent() {
  static thread_local std::unique_ptr<Lent> own;
  return own;
}

}  // namespace

void lend(const std::shared_ptr<Lanes>& lanes, const std::vector<int>& cpus) {
  std::unique_ptr<Lent>& own = lent();
  if (own == nullptr) {
    own = std::make_unique<Lent>();
    own->caller = std::make_shared<Caller>(lanes->spin());
    own->region.shares = &own->shares;
  }
  const bool same = own->lanes.lock() == lanes;
  if (same && own->lasts() && own->cpus.size() > cpus.size()) return;  // of a wider step
  if (!same || own->cpus != cpus || own->forks_seen != forks()) {
    own->lanes = lanes;
    own->cpus = cpus;
    own->cpu = -1;
  }
  own->forks_seen = forks();
  own->homes_seen = homes();
  own->until = Clock::now() + kLentFor;
}

bool run_on_lent(void (*body)(void*), void* data, int size) {
  Lent* own = lent().get();
  if (own == nullptr || static_cast<int>(own->cpus.size()) != size || !own->lasts()) return false;
  const std::shared_ptr<Lanes> lanes = own->lanes.lock();
  if (lanes == nullptr) return false;
  const TriedTurn turn(lanes->turns(), own->cpus);
  if (!turn) return false;
  own->choose(*lanes, sched_getcpu());
  const int members = size - 1;
  if (static_cast<int>(own->members.size()) < members) return false;
  own->mode = FloatMode();
  own->region.start(body, data, size);
  own->caller->expect(members);
  for (int i = 0; i < members; ++i) own->members[i]->give(&own->jobs[i], false);
  OmpThread& thread = omp_thread();
  const OmpThread before = thread;
  thread = OmpThread();
  thread.ours = true;
  run_as(own->region, 0);
  thread = before;
  own->caller->wait_for_all();
  return true;
}

}  // namespace threadcast
