"""Generated run ids: never mistaken for another, safe as file names, quick to type."""

from __future__ import annotations

import random
import re

from hypothesis import given
from hypothesis import strategies as st

from rerail.core.run_ids import CODE_LENGTH, DIGITS, LETTERS, NAME_LENGTH, collides, generate, slug
from rerail.stores.directory import RESERVED_IDS, RUN_ID, check_run_id

names = st.text(max_size=60)
ids = st.from_regex(RUN_ID, fullmatch=True)


@given(names, st.sets(ids, max_size=8), st.integers())
def test_a_new_id_is_valid_and_begins_like_no_other(name: str, taken: set[str], seed: int) -> None:
    run_id = check_run_id(generate(name, taken, random.Random(seed).choice))
    code, _, rest = run_id.partition("-")
    assert len(code) == CODE_LENGTH
    assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", rest)
    assert len(rest) <= NAME_LENGTH
    for other in (*taken, *RESERVED_IDS):
        assert not other.lower().startswith(code)
        assert not run_id.startswith(other.lower())


@given(st.lists(st.text(max_size=8), min_size=1, max_size=20), st.integers())
def test_ids_that_follow_each_other_are_named_by_their_codes(pipelines: list[str], seed: int) -> None:
    """From few characters, so that codes run out and become longer; the judge compares all with all."""
    taken: list[str] = []
    dice = random.Random(seed)
    for name in pipelines:
        taken.append(generate(name, taken, lambda text: dice.choice([c for c in text if c in "k7"] or [text[0]])))
    for run_id in taken:
        code = run_id.partition("-")[0]
        assert [other for other in taken if other.startswith(code)] == [run_id]


def test_no_character_can_be_misread() -> None:
    assert not set(LETTERS + DIGITS) & set("0o1liIO")
    assert not set(LETTERS) & set("aeiou")  # no words
    codes = {generate("x", (), random.Random(seed).choice).partition("-")[0] for seed in range(200)}
    assert all(code[0] in LETTERS and not code.isalpha() for code in codes)


@given(names)
def test_the_name_of_a_pipeline_becomes_a_safe_part_of_an_id(name: str) -> None:
    made = slug(name)
    assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", made)
    assert len(made) <= NAME_LENGTH
    assert slug(made) == made


def test_names_that_people_give() -> None:
    assert slug("Größe & Zahl / v2") == "groe-zahl-v2"
    assert slug("../../etc/passwd") == "etc-passwd"
    assert slug("日本語") == slug("") == slug("---") == "run"
    assert slug("a-pipeline-with-a-rather-long-name") == "a-pipeline-with-a-ra"


def test_an_id_that_differs_only_in_case_is_another_persons() -> None:
    assert collides("k7f3-content", ["K7F3-other"])
    assert collides("k7f3-content", ["k7f"])
    assert not collides("k7f3-content", ["k7f4-content", "last"])
