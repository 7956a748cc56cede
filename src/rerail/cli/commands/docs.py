"""`rerail docs`: the documentation of this version, without a network."""

from __future__ import annotations

import difflib
import os
import sys

import click
from click.shell_completion import CompletionItem

from rerail.cli.render.terminal import out_look
from rerail.errors import UsageError

_PACKAGE = os.path.dirname(os.path.dirname(os.path.dirname(__file__)))
_PLACES = (
    os.path.join(_PACKAGE, "docs"),  # an installed package
    os.path.join(os.path.dirname(os.path.dirname(_PACKAGE)), "docs"),  # a checkout
)
_SECTIONS = (("", ""), ("how-to", "How to"), ("reference", "Reference"), ("explanation", "Explanation"))


def _pages() -> dict[str, str]:
    """Return the path of each page by its topic, in the order of the sections."""
    root = next((place for place in _PLACES if os.path.isfile(os.path.join(place, "tutorial.md"))), None)
    if root is None:
        raise UsageError("the documentation is not installed", hint="install rerail again")
    found = {}
    for section, _ in _SECTIONS:
        directory = os.path.join(root, section)
        for name in sorted(os.listdir(directory)):
            topic, ending = os.path.splitext(name)
            if ending == ".md" and topic != "index":
                found[topic] = os.path.join(directory, name)
    return found


def _text(path: str) -> str:
    """Return a page from its title on: a note to authors may stand before it."""
    with open(path, encoding="utf-8") as file:
        text = file.read()
    return text[text.find("# ") :]


def _title(path: str) -> str:
    return _text(path).partition("\n")[0].strip("# ")


def _complete(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:  # noqa: ARG001
    return [CompletionItem(topic) for topic in _pages() if topic.startswith(incomplete)]


def _contents(pages: dict[str, str]) -> str:
    """Return the list of topics with their titles."""
    lines = []
    width = max(map(len, pages)) + 2
    for section, heading in _SECTIONS:
        lines += ["", heading] if heading else []
        lines += [
            f"  {topic:<{width}}{_title(path)}"
            for topic, path in pages.items()
            if os.path.basename(os.path.dirname(path)) == (section or "docs")
        ]
    return "\n".join([*lines, "", "Print a page with: rerail docs TOPIC", ""])


@click.command(epilog="Example: rerail docs retry")
@click.argument("topic", required=False, shell_complete=_complete)
def docs(topic: str | None) -> int:
    """List the pages of the documentation, or print the page about TOPIC."""
    pages = _pages()
    if topic is None:
        sys.stdout.write(_contents(pages))
        return 0
    path = pages.get(topic.removesuffix(".md"))
    if path is None:
        close = difflib.get_close_matches(topic, pages, n=1)
        raise UsageError(f"no page about {topic!r}", hint=f"rerail docs {close[0]}" if close else "rerail docs")
    text = _text(path)
    terminal = out_look()
    if not terminal.live:
        sys.stdout.write(text)
        return 0
    from rich.console import Console
    from rich.markdown import Markdown

    Console(width=min(terminal.width, 100), no_color=not terminal.colour).print(Markdown(text))
    return 0
