"""Runs a rerail command in this process and, at its n-th call on the state directory, another program beside it.

    python interleave.py N REPORT PROGRAM -- RERAIL-ARGUMENTS

The other program is waited for until it has ended, or waits for a lock that this command holds; then this one goes on.
REPORT gets the number of calls there were. With N beyond it the other program never starts.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from typing import Any

CALLS = frozenset(
    "open os.listdir os.scandir os.remove os.rename os.rmdir os.mkdir os.link fcntl.flock shutil.rmtree".split()
)


def descendants(pid: int) -> set[int]:
    found, left = {pid}, [pid]
    while left:
        parent = left.pop()
        for task in os.listdir(f"/proc/{parent}/task") if os.path.isdir(f"/proc/{parent}/task") else ():
            try:
                with open(f"/proc/{parent}/task/{task}/children", encoding="ascii") as file:
                    left += [child for child in map(int, file.read().split()) if child not in found]
            except OSError:
                continue
        found.update(left)
    return found


def waits_for_a_lock(pid: int) -> bool:
    family = descendants(pid)
    with open("/proc/locks", encoding="ascii") as file:
        return any(words[1] == "->" and int(words[5]) in family for words in map(str.split, file) if len(words) > 5)


def main() -> None:
    at, report, program = int(sys.argv[1]), sys.argv[2], sys.argv[3]
    count = 0
    busy = True  # nothing counts before the command begins, nor while the other program is waited for
    beside: list[subprocess.Popen[bytes]] = []

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        nonlocal count, busy
        if busy or event not in CALLS:
            return
        if event != "fcntl.flock" and ".rerail" not in str(arguments[0]):
            return
        count += 1
        if count == at:
            busy = True
            beside.append(subprocess.Popen(["sh", "-c", program], stdin=subprocess.DEVNULL))
            while beside[0].poll() is None and not waits_for_a_lock(beside[0].pid):
                time.sleep(0.002)
            busy = False

    from rerail.cli.main import main as rerail

    sys.addaudithook(hook)
    sys.argv = ["rerail", *sys.argv[5:]]
    busy = False
    code: object = 0
    try:
        rerail()
    except SystemExit as left:
        code = left.code
    busy = True
    with open(report, "w", encoding="ascii") as file:
        file.write(str(count))
    if beside:
        beside[0].wait(timeout=240)
    os._exit(code if isinstance(code, int) else 0)


if __name__ == "__main__":
    main()
