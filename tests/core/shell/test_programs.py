"""Files that a script starts: only where it is certain that they must be there before."""

from __future__ import annotations

import pytest

from rerail.core.shell.programs import started_files


@pytest.mark.parametrize(
    ("script", "paths"),
    [
        ("./x.sh", ["./x.sh"]),
        ("./x.sh a && ./y.sh | ../z; ./w", ["./x.sh", "./y.sh", "../z", "./w"]),
        ("A=1 B=2 ./x.sh", ["./x.sh"]),
        ("if true; then ./x.sh; fi", ["./x.sh"]),
        ("set -e\n\n./x.sh\n./x.sh", ["./x.sh"]),
        ("cat ./x.sh", []),
        ("cc -o x x.c && ./x", []),
        ("[ -x ./x.sh ] && ./x.sh", []),
        ("cd sub && ./x.sh", []),
        ("cd sub\n./x.sh", []),
        ("# ./x.sh", []),
        ("cat <<END\n./x.sh\nEND", []),
        ("./$x.sh", []),
        ("./${{ params.x }}", []),
        ("./a b", ["./a"]),
    ],
)
def test_files_that_must_be_there(script: str, paths: list[str]) -> None:
    assert list(started_files(script)) == paths
