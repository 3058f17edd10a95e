/* A disk that fails on command: preloaded into a process, it stands in front of every call that changes a file.
 *
 * The process arms it for the paths below a prefix. Every changing call there gets the next number, in one order over
 * all threads, and at number `at`
 *   kill    the process dies instead of making the call
 *   ENOSPC, EIO   that one call fails
 *   full    that call and every later one that needs space fail, as on a full disk; renames and deletions work
 * With a journal, every call that succeeded is written there with all that is needed to make it again, so that
 * journal.py can tell what a power loss would have left. Armed without a mode it only counts.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* guards everything here, and the order of the calls */
static char prefix[PATH_MAX];
static enum { OFF, COUNT, KILL, FAIL, FULL } mode = OFF;
static int failure;
static long count, at;
static int journal = -1;

void faultfs_arm(const char *path, const char *kind, long number, const char *journal_path) {
  pthread_mutex_lock(&lock);
  snprintf(prefix, sizeof prefix, "%s", path);
  count = 0;
  at = number;
  failure = strcmp(kind, "EIO") == 0 ? EIO : ENOSPC;
  mode = !strcmp(kind, "kill") ? KILL : !strcmp(kind, "full") ? FULL : *kind ? FAIL : COUNT;
  journal = *journal_path ? syscall(SYS_openat, AT_FDCWD, journal_path, O_WRONLY | O_CREAT | O_APPEND, 0600) : -1;
  pthread_mutex_unlock(&lock);
}

/* Returns how many calls there were. */
long faultfs_disarm(void) {
  pthread_mutex_lock(&lock);
  mode = OFF;
  if (journal >= 0) syscall(SYS_close, journal);
  journal = -1;
  long calls = count;
  pthread_mutex_unlock(&lock);
  return calls;
}

static void put(const char *text, size_t length) {
  while (length > 0) {
    ssize_t done = syscall(SYS_write, journal, text, length);
    if (done <= 0) abort();
    text += done;
    length -= done;
  }
}

__attribute__((format(printf, 1, 2))) static void note(const char *format, ...) {
  if (journal < 0) return;
  char line[3 * PATH_MAX];
  va_list rest;
  va_start(rest, format);
  int length = vsnprintf(line, sizeof line, format, rest);
  va_end(rest);
  put(line, length);
}

/* Puts a line into the journal that is no call: what the process has promised by now. */
void faultfs_mark(const char *text) {
  pthread_mutex_lock(&lock);
  note("mark\t%s\n", text);
  pthread_mutex_unlock(&lock);
}

static void note_data(unsigned long inode, long offset, const char *data, long size) {
  if (journal < 0) return;
  static const char digits[] = "0123456789abcdef";
  note("write\t%lu\t%ld\t", inode, offset);
  char *text = malloc(2 * size + 1);
  for (long i = 0; i < size; i++) {
    text[2 * i] = digits[(data[i] >> 4) & 15];
    text[2 * i + 1] = digits[data[i] & 15];
  }
  text[2 * size] = '\n';
  put(text, 2 * size + 1);
  free(text);
}

static int below(const char *path) {
  size_t length = strlen(prefix);
  return mode != OFF && !strncmp(path, prefix, length) && (path[length] == '/' || path[length] == 0);
}

/* The absolute path of an open file. */
static const char *path_of(int fd, char *out) {
  char link[64];
  snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  ssize_t length = readlink(link, out, PATH_MAX - 1);
  out[length < 0 ? 0 : length] = 0;
  return out;
}

static const char *absolute(int folder, const char *path, char *out) {
  if (path[0] == '/') {
    snprintf(out, PATH_MAX, "%s", path);
  } else {
    if (folder == AT_FDCWD) { if (!getcwd(out, PATH_MAX)) out[0] = 0; }
    else path_of(folder, out);
    size_t length = strlen(out);
    snprintf(out + length, PATH_MAX - length, "/%s", path);
  }
  return out;
}

static unsigned long inode_at(const char *path) {
  struct stat found;
  return lstat(path, &found) ? 0 : found.st_ino;
}

static unsigned long inode_of(int fd, long *size) {
  struct stat found;
  if (fstat(fd, &found)) return 0;
  if (size) *size = found.st_size;
  return found.st_ino;
}

/* Counts a call; returns whether it has to fail, with errno set. */
static int refused(int needs_space) {
  count++;
  if (mode == KILL && count == at) {
    kill(getpid(), SIGKILL);
    for (;;) pause();
  }
  if ((mode == FAIL && count == at) || (mode == FULL && count >= at && needs_space)) {
    errno = failure;
    return 1;
  }
  return 0;
}

#define REAL(type, name, ...) \
  static type (*real)(__VA_ARGS__); \
  if (!real) real = (type(*)(__VA_ARGS__))dlsym(RTLD_NEXT, #name)
/* Runs `call` as one of the counted calls where `ours`, `then` if it succeeded; else passes it on. */
#define GUARDED(type, ours, needs_space, call, then) \
  do { \
    if (mode == OFF) return call; \
    pthread_mutex_lock(&lock); \
    if (!(ours)) { pthread_mutex_unlock(&lock); return call; } \
    type result = refused(needs_space) ? -1 : call; \
    int error = errno; \
    if (result >= 0) { then; } \
    errno = error; \
    pthread_mutex_unlock(&lock); \
    return result; \
  } while (0)

ssize_t write(int fd, const void *data, size_t size) {
  REAL(ssize_t, write, int, const void *, size_t);
  char path[PATH_MAX];
  long end = 0;
  GUARDED(ssize_t, fd > 2 && below(path_of(fd, path)), 1, real(fd, data, size),
          long next = lseek(fd, 0, SEEK_CUR);
          unsigned long inode = inode_of(fd, &end);
          note_data(inode, next - result, data, result));
}

ssize_t writev(int fd, const struct iovec *parts, int num_parts) {
  REAL(ssize_t, writev, int, const struct iovec *, int);
  char path[PATH_MAX];
  GUARDED(ssize_t, fd > 2 && below(path_of(fd, path)), 1, real(fd, parts, num_parts),
          long offset = lseek(fd, 0, SEEK_CUR) - result;
          unsigned long inode = inode_of(fd, 0);
          long left = result;
          for (int i = 0; i < num_parts && left > 0; i++) {
            long size = (long)parts[i].iov_len < left ? (long)parts[i].iov_len : left;
            note_data(inode, offset, parts[i].iov_base, size);
            offset += size;
            left -= size;
          });
}

ssize_t pwrite64(int fd, const void *data, size_t size, off64_t offset) {
  REAL(ssize_t, pwrite64, int, const void *, size_t, off64_t);
  char path[PATH_MAX];
  GUARDED(ssize_t, below(path_of(fd, path)), 1, real(fd, data, size, offset),
          note_data(inode_of(fd, 0), offset, data, result));
}
ssize_t pwrite(int fd, const void *data, size_t size, off_t offset) { return pwrite64(fd, data, size, offset); }

static int synced(int fd, int (*real)(int)) {
  char path[PATH_MAX];
  GUARDED(int, below(path_of(fd, path)), 0, real(fd), note("fsync\t%lu\n", inode_of(fd, 0)));
}
int fsync(int fd) { REAL(int, fsync, int); return synced(fd, real); }
int fdatasync(int fd) { REAL(int, fdatasync, int); return synced(fd, real); }

int ftruncate64(int fd, off64_t size) {
  REAL(int, ftruncate64, int, off64_t);
  char path[PATH_MAX];
  GUARDED(int, below(path_of(fd, path)), 1, real(fd, size),
          note("truncate\t%lu\t%ld\n", inode_of(fd, 0), (long)size));
}
int ftruncate(int fd, off_t size) { return ftruncate64(fd, size); }

static int renamed(int from_folder, const char *from, int to_folder, const char *to, unsigned flags) {
  char source[PATH_MAX], target[PATH_MAX];
  absolute(from_folder, from, source);
  absolute(to_folder, to, target);
  GUARDED(int, below(source), 0, (int)syscall(SYS_renameat2, from_folder, from, to_folder, to, flags),
          note("rename\t%s\t%s\n", source, target));
}
int rename(const char *from, const char *to) { return renamed(AT_FDCWD, from, AT_FDCWD, to, 0); }
int renameat(int a, const char *from, int b, const char *to) { return renamed(a, from, b, to, 0); }
int renameat2(int a, const char *from, int b, const char *to, unsigned flags) { return renamed(a, from, b, to, flags); }

int mkdirat(int folder, const char *path, mode_t bits) {
  char target[PATH_MAX];
  absolute(folder, path, target);
  GUARDED(int, below(target), 1, (int)syscall(SYS_mkdirat, folder, path, bits),
          note("mkdir\t%s\t%lu\n", target, inode_at(target)));
}
int mkdir(const char *path, mode_t bits) { return mkdirat(AT_FDCWD, path, bits); }

int unlinkat(int folder, const char *path, int flags) {
  char target[PATH_MAX];
  absolute(folder, path, target);
  GUARDED(int, below(target), 0, (int)syscall(SYS_unlinkat, folder, path, flags), note("remove\t%s\n", target));
}
int unlink(const char *path) { return unlinkat(AT_FDCWD, path, 0); }
int rmdir(const char *path) { return unlinkat(AT_FDCWD, path, AT_REMOVEDIR); }

static int opened(int folder, const char *path, int flags, mode_t bits) {
  char target[PATH_MAX];
  absolute(folder, path, target);
  GUARDED(int, (flags & (O_CREAT | O_TRUNC)) && below(target), 1, (int)syscall(SYS_openat, folder, path, flags, bits),
          note("open\t%s\t%lu\t%d\n", target, inode_of(result, 0), (flags & O_TRUNC) != 0));
}
#define BITS(flags) \
  mode_t bits = 0; \
  if ((flags) & O_CREAT) { va_list rest; va_start(rest, flags); bits = va_arg(rest, int); va_end(rest); }
int open(const char *path, int flags, ...) { BITS(flags); return opened(AT_FDCWD, path, flags, bits); }
int open64(const char *path, int flags, ...) { BITS(flags); return opened(AT_FDCWD, path, flags | O_LARGEFILE, bits); }
int openat(int folder, const char *path, int flags, ...) { BITS(flags); return opened(folder, path, flags, bits); }
int openat64(int folder, const char *path, int flags, ...) { BITS(flags); return opened(folder, path, flags, bits); }
