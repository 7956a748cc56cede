"""The table of fault scenarios and the tests agree."""

from __future__ import annotations

import re

from rerail.testing import SharedStoreContract
from tests.crash import figures
from tests.crash.scenarios import GROUPS, IN_THE_STORE_CONTRACT, ROOT, SCENARIOS, page, proofs

IN_EACH = {"A": 16, "B": 15, "C": 10, "D": 12, "E": 13, "F": 16, "G": 12, "H": 12, "V": 6, "J": 16, "K": 6, "L": 10, "M": 10,
           "N": 6, "O": 12}  # fmt: skip


def test_every_scenario_is_there_once() -> None:
    assert [scenario.id for scenario in SCENARIOS] == [
        f"{letter}{number}" for letter in GROUPS for number in range(1, IN_EACH[letter] + 1)
    ]
    assert len(SCENARIOS) == 172


def test_every_scenario_has_a_test_or_a_reason_and_not_both() -> None:
    proved = proofs()
    for scenario in SCENARIOS:
        assert bool(proved.get(scenario.id)) != bool(scenario.reason), scenario.id
    assert set(proved) <= {scenario.id for scenario in SCENARIOS}, "a test names a scenario that is not there"
    for name in IN_THE_STORE_CONTRACT.values():
        assert hasattr(SharedStoreContract, name)


def test_the_page_says_what_the_tests_say() -> None:
    text = (ROOT / "docs/reference/fault-scenarios.md").read_text(encoding="utf-8")

    assert text.endswith(page()), "run scripts/generate_docs.py"


def test_the_page_of_figures_has_a_row_for_each() -> None:
    """The values are those of the run that wrote the page."""
    text = (ROOT / "docs/reference/crash-laboratory.md").read_text(encoding="utf-8")

    assert re.findall(r"^\| (T\d+) \|", text, re.MULTILINE) == list(figures.TITLES)
