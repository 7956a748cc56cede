r"""checkpoint.json: its bytes, its hash, and the part of the journal it covers.

The file is indented JSON for people. Its last member is `integrity_hash`, the SHA-256 of the file with that member
taken out: everything up to the comma before it, then `\n}`. The hash is over the bytes as they stand, so nothing
has to be encoded again to check it.
"""

import hashlib
import re
from functools import cache

import msgspec

from rerail.core.checkpoint import Checkpoint
from rerail.core.formats import CHECKPOINT, check_version, upgraded
from rerail.stores.segments import Coverage

FILE_NAME = "checkpoint.json"

_HASH = re.compile(rb',\n  "integrity_hash": "([0-9a-f]{64})"\n\}\n')
_VERSION = re.compile(rb'\{\s*"version": (\d{1,9}),')
_encode = msgspec.json.Encoder().encode


class _Saved(Checkpoint, kw_only=True):
    journal: Coverage


class _CheckpointVersion(msgspec.Struct, kw_only=True):
    version: int


def encode(checkpoint: Checkpoint, covered: Coverage) -> bytes:
    """Return the bytes of checkpoint.json."""
    compact = b'%b,"journal":%b}' % (_encode(checkpoint)[:-1], _encode(covered))
    content = msgspec.json.format(compact, indent=2)
    digest = hashlib.sha256(content).hexdigest()
    return b'%b,\n  "integrity_hash": "%b"\n}\n' % (content[:-2], digest.encode())


def decode(data: bytes) -> tuple[Checkpoint, Coverage]:
    """Decode checkpoint.json. Raises ValueError with the reason if it cannot be trusted."""
    match = _HASH.search(data, max(len(data) - 200, 0))
    if match is None or match.end() != len(data):
        raise ValueError("it is empty" if not data.strip() else "it does not end with its integrity hash")
    content = data[: match.start()] + b"\n}"
    if hashlib.sha256(content).hexdigest() != match[1].decode():
        raise ValueError("its integrity hash does not match")
    version = _version(content)
    check_version(CHECKPOINT, version, where=FILE_NAME)
    try:
        saved = _decoder().decode(upgraded(CHECKPOINT, version, content))
    except msgspec.ValidationError as error:
        raise ValueError(f"its content makes no sense: {error}") from error
    return saved, saved.journal


@cache
def _decoder() -> msgspec.json.Decoder[_Saved]:
    return msgspec.json.Decoder(_Saved)


def _version(content: bytes) -> int:
    """Return the version of a checkpoint; from its beginning where it stands there, as in every one we write."""
    match = _VERSION.match(content)
    return int(match[1]) if match else msgspec.json.decode(content, type=_CheckpointVersion).version
