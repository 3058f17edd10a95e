/* A wall clock that jumps on command: preloaded into a process and its children, it shifts CLOCK_REALTIME alone.
 *
 * The shift, in nanoseconds, is the int64 in the file that WALLCLOCK_SHIFT names; whoever writes there makes the clock of
 * all of them jump at once. Waits until a time by that clock see the jump too, as they would in the kernel: they are cut
 * into slices, and wake up for nothing in between, which every caller has to bear.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#define SECOND 1000000000LL
#define SLICE (SECOND / 20)
#define EPOCHAL (1000000000LL * SECOND) /* no monotonic clock shows as much: 31 years */

static int (*real_clock)(clockid_t, struct timespec *);
static long (*real_syscall)(long, ...);
static int (*real_cond)(pthread_cond_t *, pthread_mutex_t *, const struct timespec *);
static int (*real_sem)(sem_t *, const struct timespec *);
static const volatile int64_t *shift;

__attribute__((constructor)) static void open_up(void) {
  if (real_sem) return;
  real_clock = dlsym(RTLD_NEXT, "clock_gettime");
  real_syscall = dlsym(RTLD_NEXT, "syscall");
  real_cond = dlvsym(RTLD_NEXT, "pthread_cond_timedwait", "GLIBC_2.3.2"); /* the older one has other condition variables */
  if (!real_cond) real_cond = dlsym(RTLD_NEXT, "pthread_cond_timedwait");
  real_sem = dlsym(RTLD_NEXT, "sem_timedwait");
  const char *path = getenv("WALLCLOCK_SHIFT");
  int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
  if (file < 0) return;
  void *mapped = mmap(NULL, sizeof *shift, PROT_READ, MAP_SHARED, file, 0);
  close(file);
  if (mapped != MAP_FAILED) shift = mapped;
}

static int64_t shifted(void) { return shift ? *shift : 0; }

static int64_t in_ns(const struct timespec *at) { return at->tv_sec * SECOND + at->tv_nsec; }

static struct timespec in_spec(int64_t ns) { return (struct timespec){ns / SECOND, ns % SECOND}; }

static int64_t kernels_now(void) {
  struct timespec now;
  real_clock(CLOCK_REALTIME, &now);
  return in_ns(&now);
}

/* Returns until when to wait by the kernel's clock for a time by ours: it, or the end of a slice, then `cut` is set. */
static struct timespec sliced(const struct timespec *until, int *cut) {
  int64_t end = in_ns(until) - shifted(), slice = kernels_now() + SLICE;
  *cut = end > slice;
  return in_spec(*cut ? slice : end < 0 ? 0 : end);
}

int clock_gettime(clockid_t clock, struct timespec *now) {
  open_up();
  int result = real_clock(clock, now);
  if (!result && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) *now = in_spec(in_ns(now) + shifted());
  return result;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
  (void)zone;
  struct timespec precise;
  clock_gettime(CLOCK_REALTIME, &precise);
  *now = (struct timeval){precise.tv_sec, precise.tv_nsec / 1000};
  return 0;
}

time_t time(time_t *now) {
  struct timespec precise;
  clock_gettime(CLOCK_REALTIME, &precise);
  if (now) *now = precise.tv_sec;
  return precise.tv_sec;
}

int pthread_cond_timedwait(pthread_cond_t *condition, pthread_mutex_t *mutex, const struct timespec *until) {
  open_up();
  if (in_ns(until) < EPOCHAL) return real_cond(condition, mutex, until); /* it goes by the monotonic clock */
  int cut;
  struct timespec end = sliced(until, &cut);
  int result = real_cond(condition, mutex, &end);
  return result == ETIMEDOUT && cut ? 0 : result;
}

int sem_timedwait(sem_t *semaphore, const struct timespec *until) {
  open_up();
  int cut;
  struct timespec end = sliced(until, &cut);
  int result = real_sem(semaphore, &end);
  if (result && errno == ETIMEDOUT && cut) errno = EINTR;
  return result;
}

/* Some libraries wait on futexes themselves. */
long syscall(long number, ...) {
  open_up();
  long given[6];
  va_list rest;
  va_start(rest, number);
  for (int i = 0; i < 6; i++) given[i] = va_arg(rest, long);
  va_end(rest);
  const struct timespec *until = (const struct timespec *)given[3];
  int by_wall = number == SYS_futex && (given[1] & FUTEX_CMD_MASK) == FUTEX_WAIT_BITSET &&
                (given[1] & FUTEX_CLOCK_REALTIME) && until;
  int cut = 0;
  struct timespec end;
  if (by_wall) {
    end = sliced(until, &cut);
    given[3] = (long)&end;
  }
  long result = real_syscall(number, given[0], given[1], given[2], given[3], given[4], given[5]);
  if (by_wall && result == -1 && errno == ETIMEDOUT && cut) errno = EINTR;
  return result;
}
