"""`rerail init`: a pipeline to start from."""

from __future__ import annotations

import contextlib
import os

import click

from rerail import durable
from rerail.cli.render.streams import say
from rerail.errors import UsageError
from rerail.kinds.builtin import USER_FILE_MODE

SCHEMA = "pipeline.schema.json"  # beside the pipeline: editors of all who have the project find it
STARTER = """\
# yaml-language-server: $schema={schema}
# A pipeline for rerail. Run it:     rerail run {name}
# Kill it whenever you like, then:   rerail resume
# All options:                       rerail docs pipeline

name: {stem}

params:
  who: {{default: world, description: Whom to greet}}

defaults:
  timeout: 30m
  retry: {{attempts: 2, delay: 2s}}

steps:
  - id: prepare
    run: |
      mkdir -p out
      echo "parts=3" >> "$RERAIL_OUTPUT"          # a value for later steps

  - id: work
    run: |
      # A value arrives as one word, whatever is in it: rerail quotes it for you.
      for part in $(seq ${{{{ steps.prepare.outputs.parts }}}}); do
        echo "part $part for "${{{{ params.who }}}}
        echo '{{"done": '$part', "total": 3}}' >> "$RERAIL_PROGRESS"
        sleep 1
      done > out/parts.txt
    checks:
      - test -s out/parts.txt                      # the step fails if this does

  - id: lint
    needs: [prepare]                               # beside `work`; without `needs`, after the step above
    run: test -d out

  - id: publish
    needs: [work, lint]
    run: cp out/parts.txt out/published.txt
    # idempotent: false                            # must never run twice: rerail asks before it repeats it
    # on_failure: [{{run: rm -f out/published.txt}}]

finally:
  - run: echo run ${{{{ run.id }}}} has ${{{{ run.status }}}}
"""


@click.command(epilog="Example: rerail init && rerail run pipeline.yaml")
@click.argument("path", default="pipeline.yaml", type=click.Path())
def init(path: str) -> int:
    """Write a commented pipeline to start from, and its schema for editors. Never overwrites anything."""
    stem = os.path.basename(path).rsplit(".", 1)[0] or "pipeline"
    try:
        durable.write_new(path, STARTER.format(name=path, stem=stem, schema=SCHEMA).encode(), USER_FILE_MODE)
        with contextlib.suppress(FileExistsError):
            durable.write_new(os.path.join(os.path.dirname(path), SCHEMA), _schema(), USER_FILE_MODE)
    except FileExistsError:
        raise UsageError(f"{path} exists already; nothing written", hint=f"rerail check {path}") from None
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror}", hint="rerail init PATH") from None
    say(f"rerail: wrote {path}, and {SCHEMA} for your editor\n  next: rerail run {path}")
    return 0


def _schema() -> bytes:
    import json

    from rerail.loaders.schema import schema  # only for this command

    return json.dumps(schema(), indent=2).encode() + b"\n"
