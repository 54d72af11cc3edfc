// How a thread waits: it spins for a bounded time, then sleeps until somebody rings its bell.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>

namespace threadcast {

inline void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// One sleeper, any number of ringers. Whoever makes the awaited thing true does so with a sequentially consistent
// write and rings afterwards; the sleeper says that it sleeps before it looks for the last time (Dekker's pattern), so
// no ring is lost.
class alignas(64) Bell {
 public:
  // Returns once `done()` is true.
  template <typename Done>
  void wait(Done&& done, std::chrono::nanoseconds spin) {
    constexpr int kRoundsBetweenLooksAtTheClock = 64;
    if (done()) return;
    const auto start = std::chrono::steady_clock::now();
    do {
      for (int round = 0; round < kRoundsBetweenLooksAtTheClock; ++round) {
        if (done()) return;
        relax();
      }
    } while (std::chrono::steady_clock::now() - start < spin);
    for (;;) {
      const uint32_t rung = rings_.load();
      asleep_.store(true);
      if (done()) break;
      sleep(rung);
    }
    asleep_.store(false);
  }

  void ring() {
    if (!asleep_.load()) return;
    rings_.fetch_add(1);
    wake();
  }

 private:
  void sleep(uint32_t rung);
  void wake();

  std::atomic<uint32_t> rings_{0};
  std::atomic<bool> asleep_{false};
};

}  // namespace threadcast
