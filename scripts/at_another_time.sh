#!/bin/sh
# Runs the tests at another time and place: the wall clock and the times of files are shifted, every other clock is right.
# Needs cc. libfaketime is of no use: it also steps in where Python waits for a lock, and lets it fail, or hang after a fork.
# usage: scripts/at_another_time.sh "2026-11-30 23:30" UTC [ARGUMENT OF PYTEST…]
set -eu
cd "$(dirname "$0")/.."
. scripts/setup.sh
set_up "[dev]"
wall=$1 zone=$2
shift 2
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
cat > "$scratch/shift.c" << 'C'
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <time.h>

#define NEXT(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

static long long shift(void) {
    const char *seconds = getenv("SHIFT_SECONDS");
    return seconds ? atoll(seconds) : 0;
}

int clock_gettime(clockid_t clock, struct timespec *at) {
    static __typeof__(&clock_gettime) next;
    if (!next) next = NEXT(clock_gettime);
    int result = next(clock, at);
    if (!result && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) at->tv_sec += shift();
    return result;
}

int gettimeofday(struct timeval *restrict at, void *restrict zone) {
    struct timespec now;
    (void)zone;
    clock_gettime(CLOCK_REALTIME, &now);
    at->tv_sec = now.tv_sec;
    at->tv_usec = now.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *at) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (at) *at = now.tv_sec;
    return now.tv_sec;
}

static int shown(int result, void *found) {
    struct stat *about = found;
    if (!result) about->st_atime += shift(), about->st_mtime += shift(), about->st_ctime += shift();
    return result;
}

/* Each under both of its names: large files are what all programs are built for. */
#define SHOWN(stat, lstat, fstat, fstatat)                                                                              \
    int stat(const char *path, struct stat *about) { return shown(NEXT(stat)(path, about), about); }                    \
    int lstat(const char *path, struct stat *about) { return shown(NEXT(lstat)(path, about), about); }                  \
    int fstat(int fd, struct stat *about) { return shown(NEXT(fstat)(fd, about), about); }                              \
    int fstatat(int fd, const char *path, struct stat *about, int flags) {                                              \
        return shown(NEXT(fstatat)(fd, path, about, flags), about);                                                     \
    }
SHOWN(stat, lstat, fstat, fstatat)
SHOWN(stat64, lstat64, fstat64, fstatat64)

static const struct timespec *kept(const struct timespec given[2], struct timespec own[2]) {
    for (int which = 0; given && which < 2; which++) {
        own[which] = given[which];
        if (given[which].tv_nsec != UTIME_NOW && given[which].tv_nsec != UTIME_OMIT) own[which].tv_sec -= shift();
    }
    return given ? own : NULL;
}

int utimensat(int fd, const char *path, const struct timespec times[2], int flags) {
    struct timespec own[2];
    return NEXT(utimensat)(fd, path, kept(times, own), flags);
}

int futimens(int fd, const struct timespec times[2]) {
    struct timespec own[2];
    return NEXT(futimens)(fd, kept(times, own));
}
C
cc -shared -fPIC -O2 -o "$scratch/shift.so" "$scratch/shift.c" -ldl
SHIFT_SECONDS=$(($(TZ=$zone date -d "$wall" +%s) - $(date +%s))) TZ=$zone LD_PRELOAD="$scratch/shift.so" \
    .venv/bin/python -m pytest -n 4 --dist worksteal "$@"
