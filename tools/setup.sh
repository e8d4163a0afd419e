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

# One setup of a folder at a time. The lock is the folder itself, so nothing is left lying about; an installer inherits
# it, so that one which outlives a killed setup still keeps the next one waiting.
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
    echo "setup: making .venv with $("$python" --version) ($python)" >&2
    "$python" -I -m venv .venv
fi

# -I and the unset names: what the caller's shell says about Python must not leak into the environment.
unset PIP_USER PIP_TARGET PIP_PREFIX PIP_ROOT
pip=(.venv/bin/python -I -m pip -qq --disable-pip-version-check --no-input)

# Wheels alone: building a source archive would fetch build tools that no hash in the lock covers.
checked=(--require-hashes --only-binary :all: --requirement)

# uv installs the lock about ten times faster than pip, so pip fetches uv first, by its hash in the same lock. uv does
# not read pip's settings: where those name another index, and wherever uv fails, pip does it all, only slower.
install_with_uv() {
    local certificates=
    case "$(.venv/bin/python -I -m pip config list 2>/dev/null)" in
        *.index-url=* | *.no-index=*) return 1 ;;
    esac
    awk '/^uv==/ { on = 1 } on { print; if (!/\\$/) exit }' requirements.lock >.venv/uv.lock
    # A machine that keeps certificates of its own may need them (a proxy that inspects); a bare container has none.
    if [ -s /etc/ssl/certs/ca-certificates.crt ]; then certificates=--system-certs; fi
    "${pip[@]}" install "${checked[@]}" .venv/uv.lock &&
        .venv/bin/uv pip install --quiet --no-config $certificates --link-mode copy --python .venv/bin/python \
            "${checked[@]}" requirements.lock && return
    echo "setup: uv could not do it (its words stand above); now with pip, which is slower" >&2
    return 1
}

install_with_uv || "${pip[@]}" install "${checked[@]}" requirements.lock ||
    fail "the packages of requirements.lock could not be installed; the installer's own words stand above"
"${pip[@]}" install --no-deps --no-index --no-build-isolation --editable . ||
    fail "the project itself could not be installed; pip's own words stand above"

# uv leaves byte code for the first start to make, and where PYTHONDONTWRITEBYTECODE is set every start would make it
# again: 40 ms for `rc run`, seconds for a controller. Made here, of what a start reads and of nothing else: -I looks at
# no such variable. Whoever edits a file later is served by Python's own comparison of dates.
.venv/bin/python -I -m compileall -q src/tenure >/dev/null &&
    .venv/bin/python -I -c 'import tenure.controller.app, tenure.agent.shell, websockets.asyncio.client, uvloop' ||
    echo "setup: byte code could not be made beforehand; the first start makes it" >&2

inputs >"$stamp"
rm "$unfinished"
echo "setup: .venv is ready after $SECONDS s" >&2
