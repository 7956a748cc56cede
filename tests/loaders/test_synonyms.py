"""Keys of other tools: the one that is meant is proposed, and no wrong one."""

from __future__ import annotations

import pytest

from rerail.loaders.actions import KINDS, OPTIONS
from rerail.loaders.composites import LOOP_KEYS, MAP_KEYS
from rerail.loaders.synonyms import meant
from rerail.loaders.yaml import TOP

STEP = (*OPTIONS, *KINDS, "with", "steps")


@pytest.mark.sweep("all")
@pytest.mark.parametrize(
    ("keys", "names", "ours"),
    [
        ("if", STEP, "when"),
        ("depends_on depends depends-on deps Needs neds", STEP, "needs"),
        ("script shell command cmd runn", STEP, "run"),
        ("foreach for_each matrix", STEP, "map"),
        ("continue-on-error continue_on ignore_errors", STEP, "allow_failure"),
        ("working-directory working_dir workdir", STEP, "cwd"),
        ("capture", STEP, "outputs"),
        ("timeout_sec timeout-minutes", STEP, "timeout"),
        ("environment", STEP, "env"),
        ("retries", STEP, "retry"),
        ("max tries", ("attempts", "backoff", "delay", "jitter", "max_delay", "on"), "attempts"),
        ("max_parallel", MAP_KEYS, "parallel"),
        ("items in", MAP_KEYS, "over"),
        ("max_attempts", LOOP_KEYS, "max_iterations"),
        ("inputs parameters vars", TOP, "params"),
        ("jobs tasks", TOP, "steps"),
        ("setup wait zzz x", STEP, ""),
    ],
)
def test_a_key_of_another_tool_is_recognised(keys: str, names: tuple[str, ...], ours: str) -> None:
    assert {key: meant(key, names) for key in keys.split()} == dict.fromkeys(keys.split(), ours)
