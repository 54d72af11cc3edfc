#include "parker.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace threadcast {

static_assert(sizeof(std::atomic<uint32_t>) == sizeof(uint32_t), "the kernel reads it as a plain word");

void Parker::sleep(uint32_t token) {
  syscall(SYS_futex, &tokens_, FUTEX_WAIT_PRIVATE, token, nullptr, nullptr, 0);
}

void Parker::wake() { syscall(SYS_futex, &tokens_, FUTEX_WAKE_PRIVATE, 1, nullptr, nullptr, 0); }

}  // namespace threadcast
