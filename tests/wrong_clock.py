"""A wall clock that is wrong by as much as a test says, for a whole project: rerail and what it starts."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.conftest import Project

CLOCK = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

/* The wall clock is wrong by as many seconds as the file CLOCK_FILE says; every other clock is right. What was preloaded
   behind this, such as libfaketime, is asked for the time, so that the tests themselves can live at another. */
static long long wrong_by(void) {
    char text[32] = "";
    const char *name = getenv("CLOCK_FILE");
    int fd = name ? syscall(SYS_openat, AT_FDCWD, name, O_RDONLY) : -1;
    if (fd < 0) return 0;
    if (syscall(SYS_read, fd, text, sizeof text - 1) < 0) text[0] = 0;
    syscall(SYS_close, fd);
    return atoll(text);
}

int clock_gettime(clockid_t clock, struct timespec *at) {
    static int (*ask)(clockid_t, struct timespec *);
    if (!ask) ask = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
    int result = ask(clock, at);
    if (!result && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) at->tv_sec += wrong_by();
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
"""
SetClock = Callable[[int], None]


@pytest.fixture(scope="module")
def wrong_clock(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = shutil.which("cc") or shutil.which("gcc")
    assert compiler, "this test needs a C compiler (Debian: apt-get install gcc)"
    directory = tmp_path_factory.mktemp("clock")
    (directory / "clock.c").write_text(CLOCK)
    subprocess.run([compiler, "-shared", "-fPIC", "-O2", "-o", "clock.so", "clock.c", "-ldl"], cwd=directory, check=True)
    return directory / "clock.so"


@pytest.fixture
def set_clock(project: Project, wrong_clock: Path) -> SetClock:
    """Have the project live this many seconds beside the time."""
    file = project.root.parent / "clock"
    project.env["CLOCK_FILE"] = str(file)
    project.env["LD_PRELOAD"] = f"{wrong_clock} {os.environ.get('LD_PRELOAD', '')}".strip()

    def put(seconds: int) -> None:
        file.write_text(str(seconds))

    put(0)
    return put
