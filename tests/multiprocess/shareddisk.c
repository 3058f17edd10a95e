/* A disk of several hosts that grants everybody a lock: preloaded into a process and its children.
 *
 * SHARED_DISK names a workdir: every flock of its file `lock` succeeds. SHARED_RENAMES names a file that gets a line,
 * "pid<tab>target", before each rename whose target lies below the workdir.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

static int (*real_flock)(int, int);
static int (*real_rename)(const char *, const char *);
static int (*real_renameat)(int, const char *, int, const char *);

__attribute__((constructor)) static void open_up(void) {
  if (real_renameat) return;
  real_flock = dlsym(RTLD_NEXT, "flock");
  real_rename = dlsym(RTLD_NEXT, "rename");
  real_renameat = dlsym(RTLD_NEXT, "renameat");
}

static int is_below(const char *path) {
  const char *disk = getenv("SHARED_DISK");
  size_t size = disk ? strlen(disk) : 0;
  return size && !strncmp(path, disk, size) && path[size] == '/';
}

static void note(const char *target) {
  const char *path = getenv("SHARED_RENAMES");
  if (!path || !is_below(target)) return;
  char line[8192];
  int size = snprintf(line, sizeof line, "%d\t%s\n", getpid(), target);
  int log = open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
  if (log < 0 || write(log, line, size) != size) abort(); /* a rename that nobody hears of would prove nothing */
  close(log);
}

int flock(int descriptor, int operation) {
  char link[64], path[4096];
  open_up();
  snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
  ssize_t size = readlink(link, path, sizeof path - 1);
  path[size > 0 ? size : 0] = 0;
  const char *disk = getenv("SHARED_DISK");
  if (is_below(path) && !strcmp(path + strlen(disk), "/lock")) return 0;
  return real_flock(descriptor, operation);
}

int rename(const char *from, const char *to) {
  open_up();
  note(to);
  return real_rename(from, to);
}

int renameat(int from_folder, const char *from, int to_folder, const char *to) {
  open_up();
  note(to);
  return real_renameat(from_folder, from, to_folder, to);
}
