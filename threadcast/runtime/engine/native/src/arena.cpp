#include "arena.h"

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

#include <map>
#include <mutex>
#include <set>
#include <utility>

#include "parker.h"

namespace threadcast {
namespace {

// Bytes below which a tensor's memory comes from malloc.
constexpr size_t kLarge = 16 << 10;
// Alignment of blocks in bytes. A header of the same size precedes each block and holds the block's size; it also keeps
// blocks of a power of two from falling into the same cache sets.
constexpr size_t kUnit = 64;

// Mostly held for less than a microsecond, by threads that have a CPU each: whoever waits for it tries again and again, less
// and less often, as to sleep and to be woken takes many times as long. It sleeps where that does not help, as where the
// holder has lost its CPU.
class BriefLock {
 public:
  void lock() {
    for (int pauses = 1; pauses <= kMostPauses; pauses *= 2) {
      if (mutex_.try_lock()) return;
      for (int i = 0; i < pauses; ++i) relax();
    }
    mutex_.lock();
  }
  void unlock() { mutex_.unlock(); }

 private:
  static constexpr int kMostPauses = 512;  // 1,023 in all: on x86 10 to 50 us

  std::mutex mutex_;
};

// Best fit, free neighbours joined at once. glibc 2.36 rarely uses the hole of an aligned block for another of that
// size: it asks for up to 96 bytes more and small objects take what is left over.
class Arena : public c10::Allocator {
 public:
  Arena(c10::Allocator* small, char* begin, size_t bytes) : small_(small), begin_(begin), end_(begin + bytes) {
    add(begin, bytes);
  }

  c10::DataPtr allocate(size_t bytes) override {
    const bool here = bytes >= kLarge && bytes <= static_cast<size_t>(end_ - begin_);
    void* data = here ? take((bytes + kUnit - 1) / kUnit * kUnit + kUnit) : nullptr;
    if (data == nullptr) data = small_->raw_allocate(bytes);
    return {data, data, &Arena::release, c10::Device(c10::DeviceType::CPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &Arena::release; }
  void copy_data(void* to, const void* from, size_t bytes) const override { default_copy_data(to, from, bytes); }

  void trim() {
    const size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
    std::lock_guard<BriefLock> lock(mutex_);
    for (const auto& [start, bytes] : by_place_) {
      const size_t from = (reinterpret_cast<size_t>(start) + page - 1) / page * page;
      const size_t to = (reinterpret_cast<size_t>(start) + bytes) / page * page;
      if (from < to && start < touched_) madvise(reinterpret_cast<void*>(from), to - from, MADV_DONTNEED);
    }
  }
  BriefLock& mutex() { return mutex_; }

 private:
  static void release(void* data);

  void* take(size_t bytes) {
    std::lock_guard<BriefLock> lock(mutex_);
    const auto found = by_size_.lower_bound({bytes, nullptr});
    if (found == by_size_.end()) return nullptr;
    const auto [whole, start] = *found;
    by_size_.erase(found);
    by_place_.erase(start);
    if (whole > bytes) add(start + bytes, whole - bytes);
    if (start + bytes > touched_) touched_ = start + bytes;
    *reinterpret_cast<size_t*>(start) = bytes;
    return start + kUnit;
  }

  void give(char* start) {
    std::lock_guard<BriefLock> lock(mutex_);
    size_t bytes = *reinterpret_cast<size_t*>(start);
    auto next = by_place_.lower_bound(start);
    if (next != by_place_.end() && next->first == start + bytes) {
      bytes += next->second;
      by_size_.erase({next->second, next->first});
      next = by_place_.erase(next);
    }
    if (next != by_place_.begin()) {
      const auto before = std::prev(next);
      if (before->first + before->second == start) {
        start = before->first;
        bytes += before->second;
        by_size_.erase({before->second, before->first});
        by_place_.erase(before);
      }
    }
    add(start, bytes);
  }

  void add(char* start, size_t bytes) {
    by_place_.emplace(start, bytes);
    by_size_.emplace(bytes, start);
  }

  c10::Allocator* const small_;
  char* const begin_;
  char* const end_;
  char* touched_ = nullptr;
  BriefLock mutex_;
  std::map<char*, size_t> by_place_;
  std::set<std::pair<size_t, char*>> by_size_;
};

Arena* arena = nullptr;  // never deleted: tensors may outlive everything

void Arena::release(void* data) {
  char* const place = static_cast<char*>(data);
  if (place > arena->begin_ && place < arena->end_)
    arena->give(place - kUnit);
  else
    arena->small_->raw_deallocate(data);
}

}  // namespace

bool install_arena() {
  if (arena != nullptr) return true;
  const size_t bytes = static_cast<size_t>(sysconf(_SC_PHYS_PAGES)) * static_cast<size_t>(sysconf(_SC_PAGESIZE));
  void* region = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (region == MAP_FAILED) return false;
  arena = new Arena(c10::GetCPUAllocator(), static_cast<char*>(region), bytes);
  pthread_atfork([] { arena->mutex().lock(); }, [] { arena->mutex().unlock(); }, [] { arena->mutex().unlock(); });
  c10::SetCPUAllocator(arena, 1);
  return true;
}

void trim_arena() {
  if (arena != nullptr) arena->trim();
}

}  // namespace threadcast
