"""Text that is not YAML: every message is about the text in the file, whichever parser stopped where."""

from __future__ import annotations

import pytest
import yaml

from rerail.loaders import document

# text, line, column, message, help
TABLE = {
    "a tab": ("steps:\n\t- run: x\n", 2, 1, "tabs cannot indent YAML", "use spaces"),
    "a tab after spaces": ("steps:\n  - id: a\n  \trun: x\n", 3, 3, "tabs cannot indent YAML", "use spaces"),
    "a colon": (
        "steps:\n  - id: a\n    run: echo hello: world\n", 3, 20,
        "`: ` inside a plain value", "quote it: `run: 'echo hello: world'`, or write it below `run: |`",
    ),
    "a colon between quotes": ("steps:\n  - run: jq '{a: 1}'\n", 2, 16, "`: ` inside a plain value", "`run: \"jq '{a: 1}'\"`"),
    "a list item too far left": (
        "steps:\n    - id: a\n      run: x\n   - id: b\n     run: y\n", 4, 4, "indented by 3, which fits no line above", "by 4",
    ),
    "a key too far left": ("steps:\n  - id: a\n    run: x\n   when: y\n", 4, 4, "indented by 3, which fits no", "indent it by 4"),
    "a key too far right": ("steps:\n  - id: a\n     run: x\n", 3, 6, "indented by 5, line 2 above by 4", "indent it by 4"),
    "a text of several lines": ("run: echo\n  foo: bar\n", 2, 3, "indented by 2, line 1 above by 0", "write `run: |`"),
    "an item without its dash": (
        "steps:\n  - id: a\n    run: x\n  id: b\n", 4, 3, "an entry of this list begins with `- `", "begin it with `- `",
    ),
    "an indented first line": ("  name: x\nsteps:\n", 2, 1, "indented by 0, which fits no line above (2)", "indent it by 2"),
    "an expression in braces": (
        "steps:\n  - {id: a, run: echo ${{ params.x }}}\n", 2, 23,
        "`${{ … }}` inside `{…}` must be quoted", "write 'echo ${{ params.x }}'",
    ),
    "an expression alone in braces": ("steps: [{run: ${{ x }}}]\n", 1, 15, "must be quoted", "write '${{ x }}'"),
    "a bracket": ("needs: [a, b\nsteps: []\n", 1, 8, "`[` is never closed", "close it with `]`"),
    "the other bracket": ("steps: [{id: a, run: x]\n", 1, 23, "`{` is closed by `]`", "close it with `}`"),
    "a colon in braces": ("a: {b: c: d}\n", 1, 9, "`: ` inside a plain value in `{…}`", "quote the value"),
    "a quote": ("run: 'abc\nb: 1\n", 1, 6, "the quote ' is never closed", "close it with '"),
    "text after a quote": ("run: 'it's me'\nb: 2\n", 1, 10, "text after the closing '", "inside '…' a quote is written ''"),
    "an escape": ('run: "a\\d"\n', 1, 8, "unknown escape in double quotes", "use single quotes"),
    "a star": ("run: *.sh\n", 1, 6, "a value cannot begin with `*`", "`run: '*.sh'`"),
    "an at": ("run: @x\n", 1, 6, "a value cannot begin with `@`", "`run: '@x'`"),
    "a backtick": ("run: `date`\n", 1, 6, "a value cannot begin with a backtick", "`run: '`date`'`"),
    "a percent": ("run: %x\n", 1, 6, "a value cannot begin with `%`", "quote it"),
    "an ampersand": ("run: && x\n", 1, 6, "a value cannot begin with `&`", "quote it"),
    "a condition of the shell": (
        "run: [ -f x ] && echo y\n", 1, 16, "text after `]`: a value that begins with `[` is a list", "`run: '[ -f x ] && echo y'`",
    ),
    "text after braces": ("run: {a} b\n", 1, 10, "text after `}`: a value that begins with `{` is a mapping", "quote it"),
    "text after a bar": ("run: | grep x\n", 1, 8, "text after `|`, which begins a block", "lines below `|`"),
    "a dash": ("run: - x\n", 1, 6, "a value cannot begin with `- `", "put a list on the lines below"),
    "a key without a colon": ("steps\n  - run: x\n", 1, 1, "`steps` has no `:`", "write `steps:`"),
    "a value without a colon": ("steps:\n  - id: a\n    run x\n    when: y\n", 3, 5, "`run x` has no `:`", "write `run: x`"),
    "a comma": ("needs: , a\n", 1, 8, "a value cannot begin with `,`", "quote it"),
    "a negation": ("when: !x && y\n", 1, 7, "a value cannot begin with `!`", "`when: '!x && y'`"),
    "a tag": ("when: !steps.a\n", 1, 7, "the tag `!steps.a` is not supported", "in an expression write `not`"),
    "the end of a document": ("steps: []\n...\nx: 1\n", 2, 1, "a second document", "remove this line"),
    "a control character": ("run: a\x07b\n", 1, 7, "the control character U+0007", "escape"),
}  # fmt: skip


@pytest.fixture(params=["C", "Python"])
def _loader(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "C" and not hasattr(yaml, "CSafeLoader"):
        pytest.skip("PyYAML was built without libyaml")
    monkeypatch.setattr(document, "_Loader", yaml.CSafeLoader if request.param == "C" else yaml.SafeLoader)


@pytest.mark.sweep("all")
@pytest.mark.usefixtures("_loader")
@pytest.mark.parametrize("name", TABLE)
def test_a_syntax_error_is_told_in_words_for_people(name: str) -> None:
    text, line, column, message, fix = TABLE[name]
    with pytest.raises(document.Malformed) as caught:
        document.parse(text)
    found = caught.value

    assert message in found.message
    assert fix in found.fix
    assert (found.line, found.column) == (line, column) or (name == "an escape" and found.line == line)
