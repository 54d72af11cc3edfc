#include "lent.h"

#include <sched.h>

#include <algorithm>
#include <functional>
#include <system_error>

#include "float_mode.h"
#include "team.h"

namespace threadcast {
namespace {

// What the calling thread may use. Its regions run one after the other.
struct Lent {
  std::weak_ptr<Lanes> lanes;
  std::vector<std::vector<int>> cores;
  int forks_seen = 0;
  size_t homes_seen = 0;

  bool lasts() const { return forks_seen == forks() && homes_seen == homes(); }

  int cpu = -1;                // on which the calling thread was when the members were chosen
  std::vector<int> cpus;       // the members' and that
  std::vector<Lane*> members;  // on the other cores; none where one of them cannot be had
  std::shared_ptr<Caller> caller;
  FloatMode mode;
  std::vector<std::function<void()>> jobs;  // by member
  Shares shares;
  Region region;

  void choose(Lanes& from, int here) {
    if (cpu == here) return;
    cpu = here;
    members.clear();
    cpus.clear();
    for (const std::vector<int>& core : cores)
      if (std::find(core.begin(), core.end(), here) == core.end()) cpus.push_back(core.front());
    try {
      for (int other : cpus) members.push_back(&from.at({other, 0}));
      cpus.push_back(here);
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

void lend(const std::shared_ptr<Lanes>& lanes, const std::vector<std::vector<int>>& cores) {
  std::unique_ptr<Lent>& own = lent();
  if (own == nullptr) {
    own = std::make_unique<Lent>();
    own->caller = std::make_shared<Caller>(lanes->spin());
    own->region.shares = &own->shares;
  }
  const bool same = own->lanes.lock() == lanes;
  if (same && own->lasts() && own->cores.size() > cores.size()) return;  // of a wider step
  if (!same || own->cores != cores || !own->lasts()) {
    own->lanes = lanes;
    own->cores = cores;
    own->cpu = -1;
    own->members.clear();  // they may have ended with their lanes
  }
  own->forks_seen = forks();
  own->homes_seen = homes();
}

bool run_on_lent(void (*body)(void*), void* data, int size) {
  Lent* own = lent().get();
  if (own == nullptr || !own->lasts()) return false;
  const std::shared_ptr<Lanes> lanes = own->lanes.lock();
  if (lanes == nullptr) return false;
  own->choose(*lanes, sched_getcpu());
  const int members = size - 1;
  if (static_cast<int>(own->members.size()) < members) return false;
  const Turn turn(lanes->turns(), own->cpus, false);
  if (!turn) return false;
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

void rest_lent(int size) {
  Lent* own = lent().get();
  if (own == nullptr || !own->lasts()) return;
  if (const std::shared_ptr<Lanes> lanes = own->lanes.lock())
    for (size_t i = std::max(0, size - 1); i < own->members.size(); ++i) own->members[i]->rest();
}

}  // namespace threadcast
