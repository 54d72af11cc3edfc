// How a thread waits: it spins for a bounded time, then sleeps until another thread wakes it.
#pragma once

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

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

// One thread parks, any number unpark it. Whoever makes the awaited condition true does so with a sequentially consistent
// write and unparks afterwards; the parked thread says that it sleeps before it checks for the last time (Dekker's
// pattern), so no wake-up is lost.
class alignas(64) Parker {
 public:
  // Returns once `done()` is true. It does not yield the core: at HZ=250 whoever has it then keeps it for up to 4 ms,
  // where a thread that sleeps and is woken gets it back at once from threads of low priority.
  template <typename Done>
  void park(Done&& done, std::chrono::nanoseconds spin) {
    constexpr int kRoundsBetweenLooksAtTheClock = 64;
    if (done()) return;
    const auto start = std::chrono::steady_clock::now();
    do {
      for (int round = 0; round < kRoundsBetweenLooksAtTheClock; ++round) {
        if (done()) return;
        relax();
      }
    } while (!rests_.load(std::memory_order_relaxed) && std::chrono::steady_clock::now() - start < spin);
    rests_.store(false, std::memory_order_relaxed);
    for (;;) {
      const uint32_t token = tokens_.load();
      asleep_.store(true);
      if (done()) break;
      sleep(token);
    }
    asleep_.store(false);
  }

  // The thread that is parked, or is next, sleeps at once: others want the core.
  void rest() { rests_.store(true, std::memory_order_relaxed); }

  void unpark() {
    if (!asleep_.load()) return;
    tokens_.fetch_add(1);
    wake();
  }

 private:
  void sleep(uint32_t token) { syscall(SYS_futex, &tokens_, FUTEX_WAIT_PRIVATE, token, nullptr, nullptr, 0); }
  void wake() { syscall(SYS_futex, &tokens_, FUTEX_WAKE_PRIVATE, 1, nullptr, nullptr, 0); }

  std::atomic<uint32_t> tokens_{0};
  static_assert(sizeof(tokens_) == sizeof(uint32_t), "the kernel reads it as a plain word");
  std::atomic<bool> asleep_{false}, rests_{false};
};

}  // namespace threadcast
