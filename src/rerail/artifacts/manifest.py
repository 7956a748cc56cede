"""The manifest of a tree: its entries, kept in the content store like a file of its own."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable

import msgspec

from rerail.core.audit import AuditEntry
from rerail.durable import copies, create_file
from rerail.ports import ContentStore

_encode = msgspec.json.Encoder().encode


def manifest_bytes(entries: Iterable[AuditEntry]) -> bytes:
    """Encode the entries of a tree in the order of their paths, a line each."""
    lines = [_encode(entry) for entry in sorted(entries, key=lambda entry: entry.path)]
    return b"[\n" + b",\n".join(lines) + b"\n]\n"


def write_manifest(entries: Iterable[AuditEntry], content: ContentStore, staged: str) -> str:
    """Keep the manifest of a tree, by way of a staged file; return its digest. Durable on return."""
    data = manifest_bytes(entries)
    sha256 = hashlib.sha256(data).hexdigest()
    if content.defect(sha256):
        fd = create_file(staged)
        try:
            copies.write_on(fd, data)
        finally:
            os.close(fd)
        content.publish([(staged, sha256)])
    return sha256


def read_manifest(content: ContentStore, sha256: str) -> list[AuditEntry] | None:
    """Return the entries of a tree; None if its manifest is missing or damaged."""
    data = content.read(sha256)
    return None if data is None else msgspec.json.decode(data, type=list[AuditEntry])
