#include "waiting.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace threadcast {

static_assert(sizeof(std::atomic<uint32_t>) == sizeof(uint32_t), "the kernel reads it as a plain word");

void Bell::sleep(uint32_t rung) {
  syscall(SYS_futex, &rings_, FUTEX_WAIT_PRIVATE, rung, nullptr, nullptr, 0);
}

void Bell::wake() { syscall(SYS_futex, &rings_, FUTEX_WAKE_PRIVATE, 1, nullptr, nullptr, 0); }

}  // namespace threadcast
