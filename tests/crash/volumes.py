"""Real file systems to cut the power of: blank images, mounted through a loop device, in memory.

The images are kept as the blocks that are not zero, so that no program that makes file systems is needed. To make them
anew: `python -m tests.crash.volumes` (needs mkfs.ext4, mkfs.xfs and mkfs.btrfs).
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import functools
import lzma
import os
import shutil
import struct
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Self

import msgspec

IMAGES = Path(__file__).parent / "images"
KINDS = {
    "ext4": ("ext4", "errors=remount-ro"),
    "ext4-noauto": ("ext4", "noauto_da_alloc,data=writeback"),
    "xfs": ("xfs", "nouuid"),
    "btrfs": ("btrfs", ""),
}
_BLOCK = 4096
_SHUTDOWN = 0x8004587D  # FS_IOC_SHUTDOWN
_NO_LOG_FLUSH = 2
_MAKERS = {
    "ext4": (16, ["mkfs.ext4", "-q", "-F"]),
    "xfs": (300, ["mkfs.xfs", "-q", "-f"]),
    "btrfs": (128, ["mkfs.btrfs", "-q", "-f"]),
}


class _Blank(msgspec.Struct):
    size: int
    blocks: dict[int, bytes]


@functools.cache
def why_not() -> str:
    """Why there can be no real file systems here, or ''."""
    if not os.path.exists("/dev/loop-control"):
        return "no loop devices"
    known = Path("/proc/filesystems").read_text(encoding="ascii").split()
    missing = {kind for kind, _ in KINDS.values()} - set(known)
    if missing:
        return f"the kernel has no {', '.join(sorted(missing))}"
    try:
        with Volume("ext4"):
            return ""
    except subprocess.CalledProcessError as error:
        return f"cannot mount: {error.stderr}"


class Volume:
    """A file system of its own, whose power can be cut."""

    def __init__(self, kind: str) -> None:
        self._type, self._options = KINDS[kind]
        shared = "/dev/shm"
        self._top = tempfile.mkdtemp(prefix="rerail-volume-", dir=shared if os.access(shared, os.W_OK) else None)
        self.image = os.path.join(self._top, "image")
        self.path = os.path.join(self._top, "mounted")
        os.mkdir(self.path)
        self._mounted = False
        _unpack(self._type, self.image)

    def __enter__(self) -> Self:
        self.mount()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self.unmount()
        shutil.rmtree(self._top, ignore_errors=True)

    def mount(self) -> None:
        options = ",".join(filter(None, ["loop", self._options]))
        _command("mount", "-t", self._type, "-o", options, self.image, self.path)
        self._mounted = True

    def unmount(self) -> None:
        """Whoever still has a file open here is given a moment to end: what died leaves others that are about to."""
        deadline = time.monotonic() + 60
        while self._mounted:
            try:
                _command("umount", self.path)
                self._mounted = False
            except subprocess.CalledProcessError:
                if time.monotonic() > deadline:
                    _command("umount", "--lazy", self.path)
                    raise
                time.sleep(0.005)

    def remount(self, options: str) -> None:
        _command("mount", "-o", f"remount,{options}", self.path)

    def break_down(self) -> None:
        """Make ext4 find an error in itself: it turns read-only, whoever writes."""
        mounts = [line.split() for line in Path("/proc/mounts").read_text(encoding="utf-8").splitlines()]
        device = next(os.path.basename(device) for device, path, *_ in mounts if path == self.path)
        Path(f"/sys/fs/ext4/{device}/trigger_fs_error").write_text("rerail", encoding="ascii")

    def freeze(self) -> None:
        """The disk does not answer any more."""
        _command("fsfreeze", "--freeze", self.path)

    def thaw(self) -> None:
        _command("fsfreeze", "--unfreeze", self.path)

    def sync(self) -> None:
        """Everything that is there now has been there for a while."""
        fd = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            assert ctypes.CDLL(None).syncfs(fd) == 0
        finally:
            os.close(fd)

    def shut_down(self) -> None:
        """Nothing reaches the disk any more."""
        fd = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.ioctl(fd, _SHUTDOWN, struct.pack("I", _NO_LOG_FLUSH))
        finally:
            os.close(fd)

    def cut_power(self) -> None:
        """Lose what never reached the disk, and come back. btrfs cannot be shut down: what the image holds now counts."""
        if self._type == "btrfs":
            copy = self.image + "-after"
            _command("cp", "--sparse=always", self.image, copy)
            self.unmount()
            os.replace(copy, self.image)
        else:
            self.unmount()
        self.mount()
        for _ in range(
            100
        ):  # the kernel may still have been busy with the one that was shut down, and hand that out again
            if self._answers():
                return
            self.unmount()
            time.sleep(0.05)
            self.mount()
        raise AssertionError("the file system did not come back")

    def _answers(self) -> bool:
        probe = os.path.join(self.path, ".probe")
        try:
            os.close(os.open(probe, os.O_WRONLY | os.O_CREAT))
            os.unlink(probe)
        except OSError as error:
            if error.errno != errno.EIO:
                raise
            return False
        return True


def _command(*arguments: str) -> None:
    subprocess.run(arguments, check=True, capture_output=True, text=True)


def _unpack(kind: str, path: str) -> None:
    blank = msgspec.msgpack.decode(lzma.decompress((IMAGES / f"{kind}.xz").read_bytes()), type=_Blank)
    with open(path, "wb") as file:
        file.truncate(blank.size)
        for number, block in blank.blocks.items():
            file.seek(number * _BLOCK)
            file.write(block)


def _pack(kind: str) -> None:
    megabytes, command = _MAKERS[kind]
    with tempfile.NamedTemporaryFile(suffix=kind) as file:
        file.truncate(megabytes << 20)
        _command(*command, file.name)
        data = Path(file.name).read_bytes()
    blocks = {
        number // _BLOCK: block
        for number in range(0, len(data), _BLOCK)
        if (block := data[number : number + _BLOCK]).strip(b"\0")
    }
    packed = msgspec.msgpack.encode(_Blank(size=len(data), blocks=blocks))
    (IMAGES / f"{kind}.xz").write_bytes(lzma.compress(packed, preset=9))


if __name__ == "__main__":
    for each in _MAKERS:
        _pack(each)
