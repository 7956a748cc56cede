/* LD_PRELOAD shim: counts every call that changes files under one directory and does something at the N-th.
 *
 * Armed from inside the process by shim_arm(); children that are exec'd are never armed. One global counter over all
 * kinds of calls, so that "every point" means every point. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <unistd.h>

enum { OFF = 0, KILL = 1, TORN = 2, SHORT = 3, ERRNO_ONCE = 4, ERRNO_FOREVER = 5, SIGNAL = 6, CUT = 7, HANG = 8 };

static char dir[PATH_MAX];
static size_t dir_length;
static int mode, at, error_number, log_fd = -1, counter, only_writes;
static char tracked[65536];

void shim_arm(const char *directory, int new_mode, int new_at, int number, int new_log_fd) {
    strncpy(dir, directory, sizeof dir - 1);
    dir_length = strlen(dir);
    mode = new_mode; at = new_at; error_number = number; log_fd = new_log_fd; counter = 0;
    only_writes = mode == TORN || mode == SHORT;  /* these are about writes: the others have no half */
    memset(tracked, 0, sizeof tracked);
}

int shim_count(void) { return counter; }

static int inside(const char *path) {
    char absolute[PATH_MAX];
    if (!dir_length || !path) return 0;
    if (path[0] != '/') {
        char here[PATH_MAX];
        if (!getcwd(here, sizeof here)) return 0;
        snprintf(absolute, sizeof absolute, "%.2000s/%.2000s", here, path);
        path = absolute;
    }
    return strncmp(path, dir, dir_length) == 0 && (path[dir_length] == '/' || path[dir_length] == 0);
}

static int inside_fd(int fd) { return fd >= 0 && fd < (int)sizeof tracked && tracked[fd]; }

/* What a power cut does to a file system: from now on nothing reaches the disk, not even what was on its way. */
static void cut_power(void) {
    unsigned int no_log_flush = 2;
    int fd = syscall(SYS_openat, AT_FDCWD, dir, O_RDONLY | O_DIRECTORY);
    if (fd < 0 || ioctl(fd, 0x8004587d /* FS_IOC_SHUTDOWN */, &no_log_flush)) abort();
}

/* Count a call; returns what it should do instead of itself: 0 nothing, else an errno or -1 for "half of it". */
static int hit(const char *what, const char *path) {
    int number;
    if (only_writes && !strstr(what, "write")) return 0;
    if (error_number == EINTR && (strstr(what, "link") || strstr(what, "rename") || strstr(what, "dir")))
        return 0;  /* nothing is known to interrupt these */
    number = ++counter;
    if (log_fd >= 0) {
        char line[PATH_MAX + 64];
        int length = snprintf(line, sizeof line, "%d %s %.3000s\n", number, what, path ? path : "");
        syscall(SYS_write, log_fd, line, length);
    }
    if (mode == ERRNO_FOREVER && number >= at) return error_number;
    if (number != at) return 0;
    switch (mode) {
    case CUT: cut_power(); /* falls through */
    case KILL: syscall(SYS_kill, getpid(), SIGKILL); for (;;) pause();
    case HANG: for (;;) pause();  /* a disk that does not answer: handlers of signals run, the call does not return */
    case SIGNAL: raise(error_number); return 0;
    case ERRNO_ONCE: return error_number;
    case TORN: case SHORT: return -1;
    }
    return 0;
}

static void die(void) { syscall(SYS_kill, getpid(), SIGKILL); for (;;) pause(); }

#define REAL(name) static __typeof__(&name) real; if (!real) real = (__typeof__(&name))dlsym(RTLD_NEXT, #name)
#define FAIL(code) do { int c = (code); if (c == -1) { if (mode == TORN) die(); } else if (c) { errno = c; return -1; } } while (0)

static int opened(int fd, int ours, int flags) {
    if (fd >= 0 && fd < (int)sizeof tracked)
        tracked[fd] = ours && ((flags & (O_WRONLY | O_RDWR)) || (flags & O_DIRECTORY));
    return fd;
}

/* Removing a tree, and restoring artifacts, names files relative to directories that are open. */
static int inside_at(int at_fd, const char *path) {
    char link[64], whole[PATH_MAX * 2];
    ssize_t length;
    if (path[0] == '/' || at_fd == AT_FDCWD) return inside(path);
    snprintf(link, sizeof link, "/proc/self/fd/%d", at_fd);
    length = readlink(link, whole, PATH_MAX - 1);
    if (length < 0) return 0;
    snprintf(whole + length, sizeof whole - length, "/%.2000s", path);
    return inside(whole);
}

#define OPEN_BODY(name, at, call) \
    mode_t m = 0; if (flags & (O_CREAT | O_TMPFILE)) { va_list a; va_start(a, flags); m = va_arg(a, mode_t); va_end(a); } \
    REAL(name); \
    int ours = inside_at(at, path); \
    if (ours && (flags & (O_WRONLY | O_RDWR | O_CREAT))) FAIL(hit("open", path)); \
    return opened(call, ours, flags);

int open(const char *path, int flags, ...) { OPEN_BODY(open, AT_FDCWD, real(path, flags, m)) }
int open64(const char *path, int flags, ...) { OPEN_BODY(open64, AT_FDCWD, real(path, flags, m)) }
int openat(int at_fd, const char *path, int flags, ...) { OPEN_BODY(openat, at_fd, real(at_fd, path, flags, m)) }
int openat64(int at_fd, const char *path, int flags, ...) { OPEN_BODY(openat64, at_fd, real(at_fd, path, flags, m)) }

int close(int fd) { REAL(close); if (fd >= 0 && fd < (int)sizeof tracked) tracked[fd] = 0; return real(fd); }

#define WRITE_BODY(what, half, whole) \
    if (inside_fd(fd)) { \
        int c = hit(what, ""); \
        if (c == -1) { ssize_t done = half; if (mode == TORN) die(); return done; } \
        if (c) { errno = c; return -1; } \
    } \
    return whole;

ssize_t write(int fd, const void *data, size_t n) {
    REAL(write); WRITE_BODY("write", real(fd, data, n > 1 ? n / 2 : n), real(fd, data, n)) }
ssize_t pwrite(int fd, const void *data, size_t n, off_t o) {
    REAL(pwrite); WRITE_BODY("pwrite", real(fd, data, n > 1 ? n / 2 : n, o), real(fd, data, n, o)) }
ssize_t pwrite64(int fd, const void *data, size_t n, off64_t o) {
    REAL(pwrite64); WRITE_BODY("pwrite", real(fd, data, n > 1 ? n / 2 : n, o), real(fd, data, n, o)) }

int fsync(int fd) { REAL(fsync); if (inside_fd(fd)) FAIL(hit("fsync", "")); return real(fd); }
int fdatasync(int fd) { REAL(fdatasync); if (inside_fd(fd)) FAIL(hit("fdatasync", "")); return real(fd); }
int ftruncate(int fd, off_t n) { REAL(ftruncate); if (inside_fd(fd)) FAIL(hit("ftruncate", "")); return real(fd, n); }
int ftruncate64(int fd, off64_t n) { REAL(ftruncate64); if (inside_fd(fd)) FAIL(hit("ftruncate", "")); return real(fd, n); }
int rename(const char *a, const char *b) { REAL(rename); if (inside(b)) FAIL(hit("rename", b)); return real(a, b); }
int renameat(int x, const char *a, int y, const char *b) {
    REAL(renameat); if (inside_at(y, b)) FAIL(hit("rename", b)); return real(x, a, y, b); }
int link(const char *a, const char *b) { REAL(link); if (inside(b)) FAIL(hit("link", b)); return real(a, b); }
int linkat(int x, const char *a, int y, const char *b, int f) {
    REAL(linkat); if (inside(b)) FAIL(hit("link", b)); return real(x, a, y, b, f); }
int unlink(const char *a) { REAL(unlink); if (inside(a)) FAIL(hit("unlink", a)); return real(a); }
int unlinkat(int fd, const char *a, int f) {
    REAL(unlinkat); if (inside_at(fd, a)) FAIL(hit("unlinkat", a)); return real(fd, a, f); }
int rmdir(const char *a) { REAL(rmdir); if (inside(a)) FAIL(hit("rmdir", a)); return real(a); }
int mkdir(const char *a, mode_t m) { REAL(mkdir); if (inside(a)) FAIL(hit("mkdir", a)); return real(a, m); }
int mkdirat(int fd, const char *a, mode_t m) {
    REAL(mkdirat); if (inside_at(fd, a)) FAIL(hit("mkdir", a)); return real(fd, a, m); }
int posix_fallocate(int fd, off_t o, off_t n) {
    REAL(posix_fallocate); if (inside_fd(fd)) { int c = hit("fallocate", ""); if (c > 0) return c; if (c == -1 && mode == TORN) die(); }
    return real(fd, o, n); }
int posix_fallocate64(int fd, off64_t o, off64_t n) {
    REAL(posix_fallocate64); if (inside_fd(fd)) { int c = hit("fallocate", ""); if (c > 0) return c; if (c == -1 && mode == TORN) die(); }
    return real(fd, o, n); }
