#!/usr/bin/env bash
# Builds .venv: every locked package by its hash, then this project on top, editable. `make setup` calls it.
#
# Safe to call at any time. The stamp holds the very inputs that the environment was made from, so a second call is one
# comparison of files (no dates: a clone or a checkout renews those), and a moved folder, a new lock or a changed
# pyproject.toml is noticed. A run cut short leaves its marker behind, and the next run starts from an empty folder: a
# package that is half there is worse than none.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

stamp=.venv/setup.stamp
unfinished=.venv/setup.unfinished

inputs() {
    pwd -P
    cat pyproject.toml requirements.lock tools/setup.sh
}

is_done() {
    [ -x .venv/bin/python ] && [ ! -e "$unfinished" ] && inputs | cmp -s - "$stamp"
}

fail() {
    printf 'setup: %s\n' "$@" >&2
    exit 1
}

# Prints the first Python that can do it; says what was found where none can. An interpreter that exists but cannot
# start (a pyenv shim without its version, say) is passed over like one that is too old.
find_python() {
    local name found="" missing_venv=""
    for name in ${PYTHON:-python3 python3.13 python3.12 python3.11 python3.14}; do
        command -v "$name" >/dev/null 2>&1 || continue
        if ! "$name" -I -c 'import sys; raise SystemExit(sys.version_info < (3, 11))' >/dev/null 2>&1; then
            found="$found $name ($("$name" --version 2>&1 | head -n 1))"
        elif ! "$name" -I -c 'import ensurepip, venv' >/dev/null 2>&1; then
            missing_venv="$missing_venv $name"
        else
            command -v "$name"
            return
        fi
    done
    if [ -n "$missing_venv" ]; then
        fail "no venv module in:$missing_venv" "On Debian and Ubuntu: apt-get install python3-venv"
    fi
    fail "Python 3.11 or newer is needed; found:${found:- none}" \
        "Install one, or name it: PYTHON=/path/to/python3.12 make setup"
}

is_done && exit 0

# One setup of a folder at a time. The lock is the folder itself, so nothing is left lying about.
if command -v flock >/dev/null 2>&1; then
    exec 9<.
    if ! flock --nonblock 9; then
        echo "setup: another setup of this folder is at work; waiting for it" >&2
        flock --timeout 900 9 || fail "the other setup did not end within 15 minutes"
        is_done && exit 0
    fi
fi

if [ -e .venv ] || [ -L .venv ]; then
    if [ -e "$unfinished" ]; then
        echo "setup: an earlier setup was cut short; starting over" >&2
        rm -rf .venv
    elif ! .venv/bin/python -I -c 'import pip, sys; raise SystemExit(sys.version_info < (3, 11))' >/dev/null 2>&1; then
        echo "setup: .venv holds no Python 3.11 or newer that starts; starting over" >&2
        rm -rf .venv
    fi
fi

fresh=
if [ ! -e .venv ]; then
    python=$(find_python)
    fresh=yes
    mkdir .venv
fi
: >"$unfinished"
if [ -n "$fresh" ]; then
    echo "setup: making .venv with $("$python" --version) ($python); under a minute on most machines" >&2
    "$python" -I -m venv .venv
fi

# -I and the unset names: what the caller's shell says about Python must not leak into the environment.
# Wheels alone: building a source archive would fetch build tools that no hash in the lock covers.
unset PIP_USER PIP_TARGET PIP_PREFIX PIP_ROOT
pip=(.venv/bin/python -I -m pip --disable-pip-version-check --no-input)
"${pip[@]}" install --quiet --require-hashes --only-binary :all: --requirement requirements.lock 9<&- ||
    fail "the packages of requirements.lock could not be installed; pip's own words stand above"
"${pip[@]}" install --quiet --no-deps --no-index --no-build-isolation --editable . 9<&- ||
    fail "the project itself could not be installed; pip's own words stand above"

inputs >"$stamp"
rm "$unfinished"
echo "setup: .venv is ready after $SECONDS s" >&2
