/* A program that knows nothing of threadcast: it starts three threads and does what it is told, a letter a line. */
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static void *wait_for_ever(void *nothing) {
  for (;;) pause();
  return nothing;
}

static void begin(void) {
  pthread_t thread;
  pthread_create(&thread, NULL, wait_for_ever, NULL);
}

static void *work(void *nothing) {
  for (volatile long i = 0;;) i++;
  return nothing;
}

int main(void) {
  for (int i = 0; i < 3; i++) begin();
  const char *count = getenv("OMP_NUM_THREADS");
  printf("%s\n", count ? count : "-");
  fflush(stdout);
  char told[100];
  while (fgets(told, sizeof told, stdin)) {
    int said = getpid();
    pthread_t thread;
    cpu_set_t own;
    switch (told[0]) {
      case 't': /* a thread more */
        begin();
        break;
      case 'w': /* a thread that computes */
        pthread_create(&thread, NULL, work, NULL);
        break;
      case 'c': /* a child */
        said = fork();
        if (!said) wait_for_ever(NULL);
        break;
      case 'd': { /* a daemon: another session's, and init's child */
        int ends[2];
        if (pipe(ends)) return 1;
        if (!fork()) {
          setsid();
          const int daemon = fork();
          if (!daemon) wait_for_ever(NULL);
          _exit(write(ends[1], &daemon, sizeof daemon) < 0);
        }
        if (read(ends[0], &said, sizeof said) < 0) return 1;
        break;
      }
      case 'p': /* it pins itself */
        CPU_ZERO(&own);
        CPU_SET(atoi(told + 1), &own);
        sched_setaffinity(0, sizeof own, &own);
        break;
      case 'e':
        return atoi(told + 1);
    }
    printf("%d\n", said);
    fflush(stdout);
  }
  return 0;
}
