#include "openmp.h"

#include <dlfcn.h>
#include <elf.h>
#include <link.h>
#include <sched.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "lent.h"
#include "team.h"

namespace threadcast {
namespace {

using Body = void (*)(void*);

// libgomp's own, for threads that are not an engine's.
struct Original {
  void (*GOMP_parallel)(Body, void*, unsigned, unsigned);
  void (*GOMP_barrier)();
  bool (*GOMP_single_start)();
  bool (*GOMP_loop_dynamic_start)(long, long, long, long, long*, long*);
  bool (*GOMP_loop_dynamic_next)(long*, long*);
  bool (*GOMP_loop_ordered_dynamic_start)(long, long, long, long, long*, long*);
  bool (*GOMP_loop_ordered_dynamic_next)(long*, long*);
  void (*GOMP_loop_end)();
  void (*GOMP_loop_end_nowait)();
  void (*GOMP_ordered_start)();
  void (*GOMP_ordered_end)();
  unsigned (*GOMP_sections_start)(unsigned);
  unsigned (*GOMP_sections_next)();
  void (*GOMP_sections_end_nowait)();
  int (*omp_get_max_threads)();
  int (*omp_get_num_threads)();
  int (*omp_get_thread_num)();
  int (*omp_in_parallel)();
  void (*omp_set_num_threads)(int);
} original;

void run_alone(Body body, void* data) {
  OmpThread& thread = omp_thread();
  const OmpThread before = thread;
  Region region;
  Shares shares;
  for (uint64_t i = 0; i < shares.size(); ++i) shares[i].free_for.store(i, std::memory_order_relaxed);
  region.shares = &shares;
  thread.team = nullptr;
  thread.region = &region;
  thread.rank = 0;
  thread.size = 1;
  thread.construct = 0;
  body(data);
  thread = before;
}

void parallel(Body body, void* data, unsigned threads, unsigned flags) {
  OmpThread& thread = omp_thread();
  if (!thread.ours) {
    const int wanted = threads == 0 ? original.omp_get_max_threads() : static_cast<int>(threads);
    if (wanted > 1 && !original.omp_in_parallel() && run_on_lent(body, data, wanted)) return;
    return original.GOMP_parallel(body, data, threads, flags);
  }
  const int most = thread.region == nullptr && thread.team != nullptr ? thread.team->size() : 1;
  const int size = threads == 0 ? most : std::min<int>(threads, most);
  if (size == 1) return run_alone(body, data);
  thread.team->lead(body, data, size);
}

void wait_here(Region& region, int size) {
  const uint32_t passed = region.barriers.load();
  if (region.at_barrier.fetch_add(1) + 1 == size) {
    region.at_barrier.store(0);
    region.barriers.fetch_add(1);
    return;
  }
  constexpr int kRoundsBeforeYielding = 4096;  // the others may have to share this thread's core
  for (int round = 0; region.barriers.load() == passed; round = std::min(round + 1, kRoundsBeforeYielding)) {
    relax();
    if (round == kRoundsBeforeYielding) sched_yield();
  }
}

void barrier() {
  OmpThread& thread = omp_thread();
  if (!thread.ours) return original.GOMP_barrier();
  if (thread.region != nullptr && thread.size > 1) wait_here(*thread.region, thread.size);
}

// The calling thread's next worksharing construct, set up by whoever comes first; `first` tells whether it was this one.
Share& next_share(OmpThread& thread, long start, long end, long step, long chunk, bool& first) {
  const uint64_t number = thread.construct++;
  Share& share = (*thread.region->shares)[number % std::tuple_size_v<Shares>];
  while (share.free_for.load() != number) relax();
  first = false;
  if (share.made_for.load() == number + 1) return share;
  while (share.taken.exchange(true)) relax();
  if (share.made_for.load() != number + 1) {
    share.next.store(start);
    share.ordered_turn.store(0);
    share.left.store(thread.size);
    share.end = end;
    share.step = step;
    share.chunk = chunk;
    share.made_for.store(number + 1);
    first = true;
  }
  share.taken.store(false);
  return share;
}

Share& this_share(const OmpThread& thread) {
  return (*thread.region->shares)[(thread.construct - 1) % std::tuple_size_v<Shares>];
}

void leave(const OmpThread& thread) {
  Share& share = this_share(thread);
  if (share.left.fetch_sub(1) == 1) share.free_for.store(thread.construct - 1 + std::tuple_size_v<Shares>);
}

bool in_region() { return omp_thread().ours && omp_thread().region != nullptr; }

bool single_start() {
  if (!in_region()) return omp_thread().ours || original.GOMP_single_start();
  OmpThread& thread = omp_thread();
  bool first;
  next_share(thread, 0, 0, 1, 1, first);
  leave(thread);
  return first;
}

bool take(Share& share, long& number, long* from, long* to) {
  const long span = share.chunk * share.step;
  const long start = share.next.fetch_add(span);
  const bool up = share.step > 0;
  if (up ? start >= share.end : start <= share.end) return false;
  *from = start;
  *to = up ? std::min(start + span, share.end) : std::max(start + span, share.end);
  number = start;
  return true;
}

bool loop_start(long start, long end, long step, long chunk, long* from, long* to) {
  if (!in_region()) {
    if (!omp_thread().ours) return original.GOMP_loop_dynamic_start(start, end, step, chunk, from, to);
    *from = start;
    *to = end;
    return step > 0 ? start < end : start > end;
  }
  bool first;
  long number;
  return take(next_share(omp_thread(), start, end, step, chunk, first), number, from, to);
}

bool loop_next(long* from, long* to) {
  if (!in_region()) return omp_thread().ours ? false : original.GOMP_loop_dynamic_next(from, to);
  long number;
  return take(this_share(omp_thread()), number, from, to);
}

void loop_end_nowait() {
  if (in_region()) return leave(omp_thread());
  if (!omp_thread().ours) original.GOMP_loop_end_nowait();
}

void loop_end() {
  if (!omp_thread().ours) return original.GOMP_loop_end();
  loop_end_nowait();
  barrier();
}

// An ordered loop's chunks are numbered by where they start; the ordered parts of earlier ones come first.
bool take_ordered(OmpThread& thread, Share& share, long first, long* from, long* to) {
  long start;
  if (!take(share, start, from, to)) return false;
  thread.ordered_chunk = (start - first) / (share.chunk * share.step);
  return true;
}

void ordered_start() {
  if (!in_region()) {
    if (!omp_thread().ours) original.GOMP_ordered_start();
    return;
  }
  const OmpThread& thread = omp_thread();
  while (this_share(thread).ordered_turn.load() != thread.ordered_chunk) relax();
}

void ordered_end() {
  if (!omp_thread().ours) original.GOMP_ordered_end();
}

static thread_local long ordered_first;  // where the calling thread's ordered loop starts

bool ordered_loop_start(long start, long end, long step, long chunk, long* from, long* to) {
  if (!in_region()) {
    if (!omp_thread().ours) return original.GOMP_loop_ordered_dynamic_start(start, end, step, chunk, from, to);
    return loop_start(start, end, step, chunk, from, to);
  }
  OmpThread& thread = omp_thread();
  bool first;
  ordered_first = start;
  return take_ordered(thread, next_share(thread, start, end, step, chunk, first), start, from, to);
}

bool ordered_loop_next(long* from, long* to) {
  if (!in_region()) return omp_thread().ours ? false : original.GOMP_loop_ordered_dynamic_next(from, to);
  OmpThread& thread = omp_thread();
  ordered_start();  // also where the chunk had no ordered part, its turn must pass
  this_share(thread).ordered_turn.fetch_add(1);
  return take_ordered(thread, this_share(thread), ordered_first, from, to);
}

static thread_local unsigned next_alone = 0, last_alone = 0;  // the sections outside of a region, one after the other

unsigned sections_next() {
  if (!omp_thread().ours) return original.GOMP_sections_next();
  if (!in_region()) return next_alone <= last_alone ? next_alone++ : 0;
  Share& share = this_share(omp_thread());
  const long section = share.next.fetch_add(1);
  return section <= share.end ? static_cast<unsigned>(section) : 0;
}

unsigned sections_start(unsigned count) {
  if (!omp_thread().ours) return original.GOMP_sections_start(count);
  if (!in_region()) {
    next_alone = 1;
    last_alone = count;
    return sections_next();
  }
  bool first;
  next_share(omp_thread(), 1, count, 1, 1, first);
  return sections_next();
}

void sections_end_nowait() {
  if (in_region()) return leave(omp_thread());
  if (!omp_thread().ours) original.GOMP_sections_end_nowait();
}

int max_threads() {
  const OmpThread& thread = omp_thread();
  if (!thread.ours) return original.omp_get_max_threads();
  return thread.team != nullptr ? thread.team->size() : 1;
}

int num_threads() { return omp_thread().ours ? omp_thread().size : original.omp_get_num_threads(); }

int thread_num() { return omp_thread().ours ? omp_thread().rank : original.omp_get_thread_num(); }

int in_parallel() { return omp_thread().ours ? omp_thread().size > 1 : original.omp_in_parallel(); }

void set_num_threads(int threads) {
  if (omp_thread().ours) return;  // an operator's count is its team's
  original.omp_set_num_threads(threads);
  rest_lent(threads);
}

struct Taken {
  void* ours;
  void* original;  // address of the pointer to libgomp's
};

#define TAKEN(name, function) {#name, {reinterpret_cast<void*>(function), &original.name}}
const std::map<std::string, Taken> kTaken = {
    TAKEN(GOMP_parallel, parallel),
    TAKEN(GOMP_barrier, barrier),
    TAKEN(GOMP_single_start, single_start),
    TAKEN(GOMP_loop_dynamic_start, loop_start),
    TAKEN(GOMP_loop_dynamic_next, loop_next),
    TAKEN(GOMP_loop_ordered_dynamic_start, ordered_loop_start),
    TAKEN(GOMP_loop_ordered_dynamic_next, ordered_loop_next),
    TAKEN(GOMP_loop_end, loop_end),
    TAKEN(GOMP_loop_end_nowait, loop_end_nowait),
    TAKEN(GOMP_ordered_start, ordered_start),
    TAKEN(GOMP_ordered_end, ordered_end),
    TAKEN(GOMP_sections_start, sections_start),
    TAKEN(GOMP_sections_next, sections_next),
    TAKEN(GOMP_sections_end_nowait, sections_end_nowait),
    TAKEN(omp_get_max_threads, max_threads),
    TAKEN(omp_get_num_threads, num_threads),
    TAKEN(omp_get_thread_num, thread_num),
    TAKEN(omp_in_parallel, in_parallel),
    TAKEN(omp_set_num_threads, set_num_threads),
};
#undef TAKEN

// Locks that hold for all threads of the process, and facts of the machine: right as they are.
const char* const kLeft[] = {"GOMP_atomic_start", "GOMP_atomic_end", "GOMP_critical_start", "GOMP_critical_end",
                             "GOMP_critical_name_start", "GOMP_critical_name_end", "omp_get_num_procs"};

bool is_openmp(const std::string& name) {
  for (const char* prefix : {"GOMP_", "omp_", "__kmpc_"})
    if (name.rfind(prefix, 0) == 0) return true;
  return false;
}

struct Entry {
  std::string name;
  void** place;
};

// The places in which a loaded library keeps the addresses of OpenMP functions (System V ABI, dynamic section).
std::vector<Entry> openmp_entries(const link_map& library) {
  const char* names = nullptr;
  const ElfW(Sym)* symbols = nullptr;
  struct Table { const ElfW(Rela)* start = nullptr; size_t bytes = 0; } tables[2];
  for (const ElfW(Dyn)* entry = library.l_ld; entry->d_tag != DT_NULL; ++entry) {
    switch (entry->d_tag) {
      case DT_STRTAB: names = reinterpret_cast<const char*>(entry->d_un.d_ptr); break;
      case DT_SYMTAB: symbols = reinterpret_cast<const ElfW(Sym)*>(entry->d_un.d_ptr); break;
      case DT_JMPREL: tables[0].start = reinterpret_cast<const ElfW(Rela)*>(entry->d_un.d_ptr); break;
      case DT_PLTRELSZ: tables[0].bytes = entry->d_un.d_val; break;
      case DT_RELA: tables[1].start = reinterpret_cast<const ElfW(Rela)*>(entry->d_un.d_ptr); break;
      case DT_RELASZ: tables[1].bytes = entry->d_un.d_val; break;
    }
  }
  std::vector<Entry> found;
  for (const Table& table : tables) {
    for (size_t i = 0; i < table.bytes / sizeof(ElfW(Rela)); ++i) {
      const ElfW(Rela)& relocation = table.start[i];
      const auto symbol = ELF64_R_SYM(relocation.r_info);
      if (symbol == 0) continue;
      const std::string name = names + symbols[symbol].st_name;
      if (is_openmp(name) && symbols[symbol].st_shndx == SHN_UNDEF)
        found.push_back({name, reinterpret_cast<void**>(library.l_addr + relocation.r_offset)});
    }
  }
  return found;
}

bool write_pointer(void** place, void* value) {
  const auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  const auto first = reinterpret_cast<uintptr_t>(place) & ~(page - 1);
  // Left writable: the loader binds other names in the same page when they are first called.
  if (mprotect(reinterpret_cast<void*>(first), page, PROT_READ | PROT_WRITE) != 0) return false;
  __atomic_store_n(place, value, __ATOMIC_SEQ_CST);
  return true;
}

}  // namespace

void omp_parallel(void (*body)(void*), void* data, unsigned threads) { parallel(body, data, threads, 0); }

int omp_most_threads() { return max_threads(); }

int omp_set_threads(int threads) {
  const int before = max_threads();
  set_num_threads(threads);
  return before;
}

int omp_set_others_threads(int threads) {
  if (original.omp_set_num_threads == nullptr) return threads;  // nothing was taken over
  const int before = original.omp_get_max_threads();
  original.omp_set_num_threads(threads);
  return before;
}

int omp_rank() { return thread_num(); }

int omp_team() { return num_threads(); }

std::string take_over_openmp(const std::string& library) {
  const std::unique_ptr<void, int (*)(void*)> handle(dlopen(library.c_str(), RTLD_LAZY | RTLD_NOLOAD), dlclose);
  if (handle == nullptr) return "it is not loaded";
  link_map* map = nullptr;
  dlinfo(handle.get(), RTLD_DI_LINKMAP, &map);
  const std::vector<Entry> entries = openmp_entries(*map);
  if (entries.empty()) return "it does not use OpenMP";
  std::vector<std::pair<void**, const Taken*>> taken;
  for (const Entry& entry : entries) {
    const auto found = kTaken.find(entry.name);
    bool known = found != kTaken.end();
    if (known) taken.emplace_back(entry.place, &found->second);
    for (const char* name : kLeft) known = known || entry.name == name;
    if (!known) return "it uses " + entry.name + ", which is not known here";
  }
  static bool is_first = true;
  if (is_first) {
    for (const auto& [name, of] : kTaken) {
      void* function = dlsym(handle.get(), name.c_str());
      if (function == nullptr) return "its OpenMP library lacks " + name;
      std::memcpy(of.original, &function, sizeof function);
    }
  }
  for (const auto& [place, of] : taken)
    if (!is_first && *place != of->ours && *place != *static_cast<void**>(of->original))
      return "it uses another OpenMP library than torch";
  for (const auto& [place, of] : taken)
    if (*place != of->ours && !write_pointer(place, of->ours)) return "its table of functions cannot be written";
  is_first = false;
  return "";
}

}  // namespace threadcast
