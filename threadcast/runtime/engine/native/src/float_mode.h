// How a thread rounds, and whether numbers so small that they are denormal count as zero (`torch.set_flush_denormal`).
// PyTorch sets that for one thread; OpenMP's workers have it from the thread that has made them.
#pragma once

#include <cstdint>

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace threadcast {

// The mode of the thread that makes this, for others.
class FloatMode {
 public:
  FloatMode() : mode_(read()) {}

  // Gives the calling thread this mode.
  void set() const {
    const uint64_t now = read();
    if ((now & kMode) != (mode_ & kMode)) write((now & ~kMode) | (mode_ & kMode));
  }

 private:
#if defined(__x86_64__)
  static constexpr uint64_t kMode = 0xffc0;  // MXCSR without the flags of what has happened
  static uint64_t read() { return _mm_getcsr(); }
  static void write(uint64_t mode) { _mm_setcsr(static_cast<unsigned>(mode)); }
#elif defined(__aarch64__)
  static constexpr uint64_t kMode = ~uint64_t{0};  // FPCR has no flags
  static uint64_t read() {
    uint64_t mode;
    asm volatile("mrs %0, fpcr" : "=r"(mode));
    return mode;
  }
  static void write(uint64_t mode) { asm volatile("msr fpcr, %0" : : "r"(mode)); }
#else
  static constexpr uint64_t kMode = 0;
  static uint64_t read() { return 0; }
  static void write(uint64_t) {}
#endif

  uint64_t mode_;
};

}  // namespace threadcast
