/* Tells a process that it has CPUS CPUs, whatever there are; loaded before other libraries. Thread i of a mask runs on
 * real CPU i % REAL. What a process sets for another one is set for real, and not known to that one. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/sysinfo.h>
#include <unistd.h>

#define THREADS (1 << 22)
static const char kMask[] = "AS_IF_MASK"; /* of the process, for what it executes */
static __thread unsigned long own;
static unsigned long *masks; /* by thread, of this process's threads that had theirs set or inherited it */

static unsigned long all(void) { return CPUS == 64 ? ~0ul : (1ul << CPUS) - 1; }

static pid_t self(void) { return (pid_t)syscall(SYS_gettid); }

static unsigned long mine(void) {
  if (!own) {
    const char *inherited = getenv(kMask);
    own = inherited ? strtoul(inherited, NULL, 16) & all() : all();
  }
  return own;
}

__attribute__((constructor)) static void begin(void) { masks = calloc(THREADS, sizeof *masks); }

int sched_getaffinity(pid_t thread, size_t bytes, cpu_set_t *set) {
  if (bytes < sizeof(unsigned long)) return errno = EINVAL, -1;
  unsigned long mask = mine();
  if (thread && thread != self()) mask = thread < THREADS && masks[thread] ? masks[thread] : all();
  memset(set, 0, bytes);
  memcpy(set, &mask, sizeof mask);
  return 0;
}

int sched_setaffinity(pid_t thread, size_t bytes, const cpu_set_t *set) {
  unsigned long mask = 0, real[16] = {0};
  memcpy(&mask, set, bytes < sizeof mask ? bytes : sizeof mask);
  mask &= all();
  if (!mask) return errno = EINVAL, -1;
  for (int cpu = 0; cpu < CPUS; cpu++)
    if (mask >> cpu & 1) real[0] |= 1ul << cpu % REAL;
  const pid_t whose = thread ? thread : self();
  if (syscall(SYS_sched_setaffinity, whose, sizeof real, real) < 0) return -1;
  if (whose < THREADS) masks[whose] = mask;
  if (whose == self()) own = mask;
  if (whose == getpid()) {
    char text[20];
    snprintf(text, sizeof text, "%lx", mask);
    setenv(kMask, text, 1);
  }
  return 0;
}

int pthread_getaffinity_np(pthread_t thread, size_t bytes, cpu_set_t *set) {
  if (pthread_equal(thread, pthread_self())) return sched_getaffinity(0, bytes, set) ? errno : 0;
  const unsigned long mask = all();
  memset(set, 0, bytes);
  memcpy(set, &mask, sizeof mask);
  return 0;
}

int pthread_setaffinity_np(pthread_t thread, size_t bytes, const cpu_set_t *set) {
  return pthread_equal(thread, pthread_self()) && sched_setaffinity(0, bytes, set) ? errno : 0;
}

int sched_getcpu(void) {
  const unsigned long mask = mine();
  unsigned real = 0;
  syscall(SYS_getcpu, &real, NULL, NULL);
  for (int cpu = (int)real; cpu < CPUS; cpu += REAL)
    if (mask >> cpu & 1) return cpu;
  return __builtin_ctzl(mask);
}

long sysconf(int name) {
  static long (*next)(int);
  if (!next) next = (long (*)(int))dlsym(RTLD_NEXT, "sysconf");
  return name == _SC_NPROCESSORS_ONLN || name == _SC_NPROCESSORS_CONF ? CPUS : next(name);
}

int get_nprocs(void) { return CPUS; }

int get_nprocs_conf(void) { return CPUS; }

struct start {
  void *(*run)(void *);
  void *argument;
  unsigned long mask;
};

static void *run(void *given) {
  const struct start start = *(struct start *)given;
  free(given);
  own = start.mask;
  if (self() < THREADS) masks[self()] = own;
  return start.run(start.argument);
}

int pthread_create(pthread_t *thread, const pthread_attr_t *how, void *(*what)(void *), void *argument) {
  static int (*next)(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *);
  if (!next) next = (int (*)(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *))dlsym(RTLD_NEXT, "pthread_create");
  struct start *start = malloc(sizeof *start);
  if (!start) return EAGAIN;
  *start = (struct start){what, argument, mine()};
  const int status = next(thread, how, run, start);
  if (status) free(start);
  return status;
}
