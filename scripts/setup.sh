# Sourced by ./demo and ./test: makes .venv with rerail and what was asked for, once per change of pyproject.toml.
# usage: set_up "" | set_up "[dev]"
set_up() {
    wanted="$1 $(cksum < pyproject.toml) $(pwd)"
    if [ "$(cat .venv/installed 2>/dev/null)" = "$wanted" ]; then return 0; fi
    if [ "$1" = "" ] && [ "$(cat .venv/installed 2>/dev/null)" = "[dev] $(cksum < pyproject.toml) $(pwd)" ]; then return 0; fi
    echo "setting up .venv (once) …" >&2
    python3 -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "rerail needs Python 3.11 or newer as python3" >&2; return 1; }
    rm -rf .venv
    python3 -m venv .venv || { echo "python3 needs its venv module (Debian: apt-get install python3-venv)" >&2; return 1; }
    .venv/bin/python -m pip install --quiet --disable-pip-version-check --editable ".$1" || return 1
    .venv/bin/python -m compileall -q src || return 1  # also where the environment forbids doing it on the way
    echo "$wanted" > .venv/installed
}
