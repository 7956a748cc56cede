"""Eight processes want one run, again and again: prints how many rounds had exactly one winner.

A program of its own, as a small process forks faster than a large one. usage: python -m tests.crash.racers DIRECTORY ROUNDS
"""

from __future__ import annotations

import os
import sys

from rerail.errors import RunBusy
from rerail.stores.directory import DirectoryStore
from rerail.testing import header, resumed, started

RACERS = 8
AT_ONE_RUN = 20  # rounds; then another one, as each life of a run is one more file to read


def race(store: DirectoryStore, tried: int, leave: int) -> int:
    """Try to own the run; the winner keeps it until everybody has tried."""
    try:
        owned = store.own("r1")
    except RunBusy:
        os.write(tried, b"-")
        return 0
    os.write(tried, b"+")
    os.read(leave, 1)
    owned.append([resumed()])
    owned.close()
    return 0


def winners(store: DirectoryStore) -> int:
    """One round."""
    go, tried, leave = os.pipe(), os.pipe(), os.pipe()
    children = []
    for _ in range(RACERS):
        child = os.fork()
        if child == 0:
            os.close(go[1])
            os.read(go[0], 1)
            os.close(leave[1])
            os._exit(race(store, tried[1], leave[0]))
        children.append(child)
    os.close(go[1])  # end of file for all of them: go
    said = b""
    while len(said) < RACERS:
        said += os.read(tried[0], RACERS)
    os.close(leave[1])
    for child in children:
        os.waitpid(child, 0)
    for fd in (go[0], *tried, leave[0]):
        os.close(fd)
    return said.count(b"+")


def main() -> None:
    good = 0
    for number in range(int(sys.argv[2])):
        if number % AT_ONE_RUN == 0:
            store = DirectoryStore(f"{sys.argv[1]}-{number}")
            log = store.create(header(), b"")
            log.append([started()])
            log.close()
        good += winners(store) == 1
        if number % AT_ONE_RUN == AT_ONE_RUN - 1:
            assert len(list(store.history("r1"))) == AT_ONE_RUN + 1
    print(good)


if __name__ == "__main__":
    main()
