/* Makes the n-th call of one kind on the files below a folder fail. Loaded before libc with LD_PRELOAD.

   arm() chooses the call; until then everything passes. Every call that counts is written to the log, a line each:
   its kind, its number, its path, and the error it got or 0. Calls that libc makes inside itself (fread, fwrite) go past
   this; Python, Rust and the C++ libraries that the package uses call read and write by these names. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

enum kind { OPEN, READ, WRITE, FSYNC, RENAME, MMAP, MKDIR, CLOSE, KINDS };
static const char *const names[KINDS] = {"open", "read", "write", "fsync", "rename", "mmap", "mkdir", "close"};

enum { SHORT = -1, FULL = -2 }; /* instead of an errno: half of the bytes; no room from here on */

static char folder[PATH_MAX];
static size_t folder_length; /* 0: not armed */
static int chosen_kind, chosen_error, log_file = -1;
static long chosen_number;
static atomic_long counts[KINDS];
static atomic_int is_full;

void arm(const char *below, const char *kind, long number, int error, const char *log) {
  for (int k = 0; k < KINDS; k++) {
    counts[k] = 0;
    if (strcmp(kind, names[k]) == 0) chosen_kind = k;
  }
  chosen_number = number;
  chosen_error = error;
  is_full = 0;
  if (log_file >= 0) syscall(SYS_close, log_file);
  log_file = syscall(SYS_openat, AT_FDCWD, log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  strncpy(folder, below, sizeof folder - 1);
  folder_length = strlen(folder);
}

void disarm(void) { folder_length = 0; }

static int is_below(const char *path) { return folder_length && strncmp(path, folder, folder_length) == 0; }

/* Returns the path of an open file in `path`, or "". */
static const char *path_of(int fd, char *path) {
  char link[40];
  snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  ssize_t length = syscall(SYS_readlinkat, AT_FDCWD, link, path, PATH_MAX - 1);
  path[length > 0 ? length : 0] = 0;
  return path;
}

/* Returns the error that this call gets: an errno, SHORT, or 0. */
static int fault(enum kind kind, const char *path) {
  int before = errno;
  long number = ++counts[kind];
  int error = (int)kind == chosen_kind && number == chosen_number ? chosen_error : 0;
  if (error == FULL) {
    is_full = 1;
    error = SHORT;
  } else if (is_full && (kind == WRITE || kind == MKDIR)) {
    error = ENOSPC;
  }
  char line[PATH_MAX + 64];
  int length = snprintf(line, sizeof line, "%s %ld %d %s\n", names[kind], number, error, path);
  syscall(SYS_write, log_file, line, (size_t)length);
  errno = before;
  return error;
}

static int fault_of_file(enum kind kind, int fd) {
  char path[PATH_MAX];
  if (!folder_length || fd < 0 || fd == log_file) return 0;
  int before = errno;
  path_of(fd, path);
  errno = before;
  return is_below(path) ? fault(kind, path) : 0;
}

static int fault_of_path(enum kind kind, const char *path) {
  char absolute[2 * PATH_MAX];
  if (!folder_length || !path) return 0;
  if (path[0] != '/') {
    char here[PATH_MAX];
    if (syscall(SYS_getcwd, here, sizeof here) < 0) return 0;
    snprintf(absolute, sizeof absolute, "%s/%s", here, path);
    path = absolute;
  }
  return is_below(path) ? fault(kind, path) : 0;
}

#define REAL(name) \
  static typeof(name) *real; \
  if (!real) real = (typeof(name) *)dlsym(RTLD_NEXT, #name)

#define FAILED(error, value) \
  do { \
    errno = (error); \
    return (value); \
  } while (0)

/* --- by path */

#define OPENS(name) \
  int name(const char *path, int flags, ...) { \
    REAL(name); \
    va_list rest; \
    va_start(rest, flags); \
    mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(rest, mode_t) : 0; \
    va_end(rest); \
    int error = flags & O_DIRECTORY ? 0 : fault_of_path(OPEN, path); \
    if (error > 0) FAILED(error, -1); \
    return real(path, flags, mode); \
  }
OPENS(open)
OPENS(open64)

#define OPENS_AT(name) \
  int name(int at, const char *path, int flags, ...) { \
    REAL(name); \
    va_list rest; \
    va_start(rest, flags); \
    mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(rest, mode_t) : 0; \
    va_end(rest); \
    char folder_path[PATH_MAX], whole[2 * PATH_MAX]; \
    if (at != AT_FDCWD && path[0] != '/') snprintf(whole, sizeof whole, "%s/%s", path_of(at, folder_path), path); \
    else snprintf(whole, sizeof whole, "%s", path); \
    int error = flags & O_DIRECTORY ? 0 : fault_of_path(OPEN, whole); \
    if (error > 0) FAILED(error, -1); \
    return real(at, path, flags, mode); \
  }
OPENS_AT(openat)
OPENS_AT(openat64)

int rename(const char *from, const char *to) {
  REAL(rename);
  int error = fault_of_path(RENAME, to);
  if (error > 0) FAILED(error, -1);
  return real(from, to);
}

int renameat(int from_at, const char *from, int to_at, const char *to) {
  REAL(renameat);
  int error = fault_of_path(RENAME, to);
  if (error > 0) FAILED(error, -1);
  return real(from_at, from, to_at, to);
}

int renameat2(int from_at, const char *from, int to_at, const char *to, unsigned flags) {
  REAL(renameat2);
  int error = fault_of_path(RENAME, to);
  if (error > 0) FAILED(error, -1);
  return real(from_at, from, to_at, to, flags);
}

int mkdir(const char *path, mode_t mode) {
  REAL(mkdir);
  int error = fault_of_path(MKDIR, path);
  if (error > 0) FAILED(error, -1);
  return real(path, mode);
}

/* --- by open file */

#define HALF(error, count) ((error) == SHORT && (count) > 1 ? (count) / 2 : (count))

#define TRANSFERS(name, kind, buffer) \
  ssize_t name(int fd, buffer bytes, size_t count) { \
    REAL(name); \
    int error = fault_of_file(kind, fd); \
    if (error > 0) FAILED(error, -1); \
    return real(fd, bytes, HALF(error, count)); \
  }
TRANSFERS(read, READ, void *)
TRANSFERS(write, WRITE, const void *)

#define TRANSFERS_AT(name, kind, buffer, offset) \
  ssize_t name(int fd, buffer bytes, size_t count, offset place) { \
    REAL(name); \
    int error = fault_of_file(kind, fd); \
    if (error > 0) FAILED(error, -1); \
    return real(fd, bytes, HALF(error, count), place); \
  }
TRANSFERS_AT(pread, READ, void *, off_t)
TRANSFERS_AT(pread64, READ, void *, off64_t)
TRANSFERS_AT(pwrite, WRITE, const void *, off_t)
TRANSFERS_AT(pwrite64, WRITE, const void *, off64_t)

/* A short transfer of several buffers is that of the first. */
#define TRANSFERS_MANY(name, kind) \
  ssize_t name(int fd, const struct iovec *parts, int count) { \
    REAL(name); \
    int error = fault_of_file(kind, fd); \
    if (error > 0) FAILED(error, -1); \
    return real(fd, parts, HALF(error, count)); \
  }
TRANSFERS_MANY(readv, READ)
TRANSFERS_MANY(writev, WRITE)

#define TRANSFERS_MANY_AT(name, kind, offset) \
  ssize_t name(int fd, const struct iovec *parts, int count, offset place) { \
    REAL(name); \
    int error = fault_of_file(kind, fd); \
    if (error > 0) FAILED(error, -1); \
    struct iovec half = {parts->iov_base, HALF(error, parts->iov_len)}; \
    return error == SHORT ? real(fd, &half, 1, place) : real(fd, parts, count, place); \
  }
TRANSFERS_MANY_AT(preadv, READ, off_t)
TRANSFERS_MANY_AT(preadv64, READ, off64_t)
TRANSFERS_MANY_AT(pwritev, WRITE, off_t)
TRANSFERS_MANY_AT(pwritev64, WRITE, off64_t)

#define SYNCS(name) \
  int name(int fd) { \
    REAL(name); \
    int error = fault_of_file(FSYNC, fd); \
    if (error > 0) FAILED(error, -1); \
    return real(fd); \
  }
SYNCS(fsync)
SYNCS(fdatasync)

/* A close that fails closes all the same. Only files that may have been written to count. */
int close(int fd) {
  REAL(close);
  int flags = folder_length ? (int)syscall(SYS_fcntl, fd, F_GETFL) : -1;
  int error = flags >= 0 && (flags & O_ACCMODE) != O_RDONLY ? fault_of_file(CLOSE, fd) : 0;
  int result = real(fd);
  if (error > 0) FAILED(error, -1);
  return result;
}

#define MAPS(name, offset) \
  void *name(void *address, size_t length, int protection, int flags, int fd, offset place) { \
    REAL(name); \
    int error = flags & MAP_ANONYMOUS ? 0 : fault_of_file(MMAP, fd); \
    if (error > 0) FAILED(error, MAP_FAILED); \
    return real(address, length, protection, flags, fd, place); \
  }
MAPS(mmap, off_t)
MAPS(mmap64, off64_t)
