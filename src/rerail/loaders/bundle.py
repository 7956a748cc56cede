"""Bundle: a pipeline file with the files it includes, as the one text that is frozen with a run."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping

import msgspec

_TRAILER = b"\n# rerail bundle "


def join(root: bytes, included: Mapping[str, bytes]) -> bytes:
    """Join the text of a pipeline with those of its included files, by their paths relative to its directory."""
    if not included:
        return root
    parts, sizes = [root], []
    for path, data in included.items():
        head = b"\n--- # " + msgspec.json.encode(path) + b"\n"
        parts += [head, data]
        sizes.append((path, len(head), len(data)))
    return b"".join([*parts, _TRAILER, msgspec.json.encode(sizes), b"\n"])


def split(data: bytes) -> tuple[bytes, dict[str, bytes]]:
    """Split a bundle into the text of the pipeline itself and those of its included files."""
    body, found, trailer = data.rpartition(_TRAILER)
    if not found or not trailer.endswith(b"]\n") or trailer.count(b"\n") != 1:
        return data, {}
    try:
        sizes = msgspec.json.decode(trailer, type=list[tuple[str, int, int]])
    except (msgspec.DecodeError, UnicodeDecodeError):
        return data, {}
    included: dict[str, bytes] = {}
    end = len(body)
    for path, head, size in reversed(sizes):
        included[path] = body[end - size : end]
        end -= size + head
    return (body[:end], dict(reversed(included.items()))) if end >= 0 else (data, {})


class Files:
    """Included files of a pipeline: from a bundle, or read from disk."""

    def __init__(self, root_path: str, given: Mapping[str, bytes], read: Callable[[str], bytes]) -> None:
        self._directory = os.path.dirname(root_path)
        self._given = given
        self._read = read
        self.used: dict[str, bytes] = {}

    def get(self, path: str) -> bytes:
        """Return the text of a file, by its path from the pipeline's directory; raise PipelineInvalid."""
        if path not in self.used:
            given = self._given.get(path)
            self.used[path] = self._read(os.path.join(self._directory, path)) if given is None else given
        return self.used[path]

    def full(self, path: str) -> str:
        return os.path.join(self._directory, path)
