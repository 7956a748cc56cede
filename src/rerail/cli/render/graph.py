"""Graph of the steps of a pipeline as text: a drawing for the terminal, and Mermaid for pages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rerail.cli.render.terminal import STYLES, Terminal
from rerail.core.graph import topological
from rerail.core.model import Loop, Map, Step, Subpipeline
from rerail.core.unit_id import local_step
from rerail.text import one_line

_CLASSES = {
    "completed": "fill:#d3f9d8,stroke:#2b8a3e",
    "failed": "fill:#ffe3e3,stroke:#c92a2a",
    "running": "fill:#d0ebff,stroke:#1864ab",
    "interrupted": "fill:#fff3bf,stroke:#e67700",
    "skipped": "fill:#f1f3f5,stroke:#868e96,stroke-dasharray: 4",
    "pending": "fill:#ffffff,stroke:#868e96",
}


def mermaid(steps: Sequence[Step], statuses: Mapping[str, str]) -> list[str]:
    """Return the lines of a Mermaid flowchart; bodies of maps, loops and pipelines are subgraphs."""
    lines = ["flowchart TD"]
    names: dict[str, str] = {}
    _nodes(steps, statuses, lines, names, "  ")
    for step in _everything(steps):
        lines += [f"  {names[need]} --> {names[step.id]}" for need in step.needs if need in names]
    used = [status for status in _CLASSES if status in statuses.values()]
    lines += [f"  classDef {status} {_CLASSES[status]}" for status in used]
    return lines


def _everything(steps: Sequence[Step]) -> list[Step]:
    return [found for step in steps for found in (step, *_everything(step.body))]


def _nodes(
    steps: Sequence[Step], statuses: Mapping[str, str], lines: list[str], names: dict[str, str], indent: str
) -> None:
    for step in steps:
        if step.id in names:  # the only step of a map has the path of the map
            continue
        name = names[step.id] = f"s{len(names) + 1}"
        status = statuses.get(step.id, "")
        mark = f":::{status}" if status in _CLASSES else ""
        label = _escaped(f"{step.local}{_what(step)}")
        body = [inner for inner in step.body if inner.id != step.id]
        if not body:
            shape = ('{{"', '"}}') if step.action.__struct_config__.tag == "approve" else ('["', '"]')
            lines.append(f"{indent}{name}{shape[0]}{label}{shape[1]}{mark}")
            continue
        lines.append(f'{indent}subgraph {name}["{label}"]')
        _nodes(body, statuses, lines, names, indent + "  ")
        lines.append(f"{indent}end")
        if status in _CLASSES:
            lines.append(f"{indent}class {name} {status}")


def _escaped(text: str) -> str:
    return one_line(text, 200).replace("&", "&amp;").replace('"', "&quot;").replace("<", "&lt;").replace("`", "'")


def _what(step: Step) -> str:
    match step.action:
        case Map(over=over):
            return f" (map over {len(over.value)} items)" if over.kind == "list" else f" (map over {over.kind})"
        case Loop(max_iterations=most):
            return f" (loop, at most {most} times)"
        case Subpipeline(path=path):
            return f" (pipeline {path})"
        case _:
            return ""


def drawing(steps: Sequence[Step], statuses: Mapping[str, str], look: Terminal) -> list[str]:
    """Return the graph as a tree: each step under the last of its needs, with the others at the end of its line.

    The steps of a map, loop or pipeline stand below it, behind a dotted line.
    """
    by_id = {step.id: step for step in steps}
    order = topological({step.id: [need for need in step.needs if need in by_id] for step in steps})
    position = {step_id: at for at, step_id in enumerate(order)}
    under: dict[str, list[str]] = {}
    for step_id in order:
        needs = [need for need in by_id[step_id].needs if need in by_id]
        under.setdefault(max(needs, key=position.__getitem__) if needs else "", []).append(step_id)
    lines: list[str] = []
    for root in under.get("", []):
        lines += _tree(by_id, under, root, statuses, look)
    return lines


def _tree(
    by_id: Mapping[str, Step],
    under: Mapping[str, Sequence[str]],
    step_id: str,
    statuses: Mapping[str, str],
    look: Terminal,
) -> list[str]:
    """Return the lines of a step, of its body, and of the steps below it."""
    step, children = by_id[step_id], under.get(step_id, ())
    fork, last, line, dots = ("├─ ", "└─ ", "│  ", "┊ ") if look.unicode else ("|- ", "`- ", "|  ", ": ")
    parent = next((outer for outer, inner in under.items() if step_id in inner), "")
    others = [local_step(need) for need in step.needs if need in by_id and need != parent]
    also = look.paint(f"  (also needs {', '.join(others)})", "dim") if others else ""
    status = statuses.get(step_id, "")
    symbol = look.paint(look.symbol(status), STYLES.get(status, "")) + " " if status else ""
    lines = [f"{symbol}{one_line(step.local)}{look.paint(_what(step), 'dim')}{also}"]
    body = [inner for inner in step.body if inner.id != step_id]
    lines += [(line if children else "   ") + dots + inner for inner in drawing(body, statuses, look)]
    for at, child in enumerate(children):
        is_last = at == len(children) - 1
        first, *rest = _tree(by_id, under, child, statuses, look)
        lines += [(last if is_last else fork) + first, *((("   " if is_last else line) + other) for other in rest)]
    return lines
