"""`artifacts:` and `inputs:` of a step: paths, or mappings with checks of the content."""

from __future__ import annotations

import importlib.util
import os
import re
from typing import Any

from rerail.core.model import Artifact
from rerail.loaders.document import Node
from rerail.loaders.fields import Fields, Problems, describe

KEYS = tuple("path min_size max_size contains not_contains format schema optional temporary keep external".split())
ONLY_MADE = ("temporary", "keep")  # options without a meaning for an input
FORMATS = ("json", "yaml", "toml", "csv")
MAX_ARTIFACTS = 1_000
MAX_PATH = 4_000
_SIZE = re.compile(r"([0-9]{1,12}(?:\.[0-9]{1,6})?) ?(B|kB|KB|MB|GB|TB|KiB|MiB|GiB|TiB)?")
_UNITS = {"B": 1, "kB": 10**3, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
_UNITS |= {"KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}


def read_artifacts(fields: Fields, key: str, problems: Problems) -> tuple[Artifact, ...]:
    """Read the artifacts or inputs of a step."""
    node = fields.get(key)
    if node is None:
        return ()
    children = node.value if isinstance(node.value, list) else [node]
    if len(children) > MAX_ARTIFACTS:
        problems.add(
            node, f"{len(children)} `{key}` of {fields.what}; {MAX_ARTIFACTS} at most (use a pattern for many files)"
        )
        return ()
    artifacts: dict[str, Artifact] = {}
    for child in children:
        artifact = _artifact(child, key, fields.what, problems)
        if artifact is None:
            continue
        path = os.path.normpath(artifact.path)
        if path in artifacts:
            problems.add(child, f"{artifact.path!r} is listed twice in `{key}` of {fields.what}")
        artifacts[path] = artifact
    return tuple(artifacts.values())


def _artifact(node: Node, key: str, what: str, problems: Problems) -> Artifact | None:
    if isinstance(node.value, str):
        return Artifact(path=_normal(node.value)) if _is_path(node.value, node, key, problems) else None
    if not isinstance(node.value, dict):
        problems.add(node, f"`{key}` of {what} lists paths and mappings, not {describe(node)}")
        return None
    fields = Fields(node, problems, f"`{key}` of {what}")
    fields.only(KEYS if key == "artifacts" else tuple(name for name in KEYS if name not in ONLY_MADE))
    path = fields.text("path")
    if not fields.has("path"):
        problems.add(node, f"an entry in `{key}` of {what} has no `path`")
        return None
    external = fields.flag("external", default=False)
    if not _is_path(path, fields.get("path") or node, key, problems, external=external):
        return None
    minimum, maximum = _size(fields, "min_size"), _size(fields, "max_size")
    if minimum is not None and maximum is not None and minimum > maximum:
        problems.add(node, f"`min_size` {minimum} is more than `max_size` {maximum}")
    form: Any = fields.choice("format", FORMATS, "")
    return Artifact(
        path=_normal(path),
        min_size=minimum,
        max_size=maximum,
        contains=_texts(fields, "contains", problems),
        not_contains=_texts(fields, "not_contains", problems),
        format=form,
        schema=_schema(fields, problems),
        optional=fields.flag("optional", default=False),
        temporary=fields.flag("temporary", default=False),
        keep=_keep(fields),
        external=external,
    )


def _is_path(path: str, node: Node, key: str, problems: Problems, *, external: bool = False) -> bool:
    if not path.strip() or "\0" in path or len(path) > MAX_PATH:
        problems.add(node, f"`{key}`: {path[:60]!r} is no path")
        return False
    if os.path.isabs(path) and not external:
        problems.add(node, f"`{key}`: {path[:100]!r} is outside the project; `external: true` would allow that")
        return False
    if os.path.normpath(path) == ".":
        problems.add(node, f"`{key}`: the pipeline's own directory cannot be an artifact")
        return False
    return True


def _normal(path: str) -> str:
    """Normalise a path, so that the paths of two steps can be compared."""
    return path if "${{" in path else os.path.normpath(path)


def _size(fields: Fields, key: str) -> int | None:
    node = fields.get(key)
    if node is None:
        return None
    size = parse_size(node.value)
    if size is None:
        fields.problems.add(node, f"`{key}` must be bytes or a size such as 10kB or 5MB, not {describe(node)}")
    return size


def parse_size(value: Any) -> int | None:
    """Return the bytes of a size such as 10kB; None if it is not one."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value if value >= 0 else None
    match = _SIZE.fullmatch(value.strip()) if isinstance(value, str) else None
    return int(float(match[1]) * _UNITS[match[2] or "B"]) if match else None


def _keep(fields: Fields) -> bool | int | None:
    node = fields.get("keep")
    if node is None:
        return None
    return node.value if isinstance(node.value, bool) else _size(fields, "keep")


def _texts(fields: Fields, key: str, problems: Problems) -> tuple[str, ...]:
    named = fields.names(key) or ()
    for text, node in named:
        if not text:
            problems.add(node, f"`{key}` of {fields.what} lists an empty text")
    return tuple(text for text, _ in named[:100])


def _schema(fields: Fields, problems: Problems) -> str:
    path = fields.text("schema")
    if path and importlib.util.find_spec("jsonschema") is None:
        node = fields.get("schema") or fields.node
        problems.add(node, "`schema` needs the package jsonschema: pip install jsonschema")
    return path
