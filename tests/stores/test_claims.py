"""Claims of runs as files: each is written, whoever else writes, ends or cleans up."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from rerail.core.claims import ClaimRecord
from rerail.stores.claims import DirectoryClaims


def test_a_claim_is_written_while_other_runs_clean_up(tmp_path: Path) -> None:
    """A run that ends writes without the lock, and removes what killed writers left."""
    claims = DirectoryClaims(str(tmp_path))

    def write(run: str) -> None:
        for number in range(200):
            claims.write(ClaimRecord(run_id=run, number=number, claims=[]))

    with ThreadPoolExecutor() as pool:
        list(pool.map(write, "abcd"))

    assert sorted((one.run_id, one.number) for one in claims.records()) == [(run, 199) for run in "abcd"]
