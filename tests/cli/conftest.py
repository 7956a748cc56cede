"""A pipeline to draw."""

from __future__ import annotations

import pytest

from tests.conftest import Project

PIPELINE = """
name: build-loop
steps:
  - {id: scout, run: 'echo "{\\"cost_usd\\": 0.42}" >> $RERAIL_METRICS'}
  - id: tests
    needs: [scout]
    retry: {attempts: 3, delay: 0.05}
    run: test $RERAIL_ATTEMPT = 2
  - id: build
    needs: [scout]
    run: |
      echo '{"done": 5, "total": 8}' >> $RERAIL_PROGRESS
      echo compiling module 5 of 8
      printf '\\033[2J\\033]0;owned\\007'
      echo build >> $LEDGER
      while ! test -e go; do sleep 0.02; done
  - {id: review, needs: [tests, build], run: 'echo no such thing >&2; test -e fixed'}
  - {id: ship, run: 'true'}
"""


@pytest.fixture
def loop(project: Project) -> Project:
    project.pipeline(PIPELINE)
    return project
