#!/usr/bin/env bash
# scripts/setup.sh EXTRA...: makes .venv and installs the locked packages of the extras named, then this project.
# Does nothing when that was done already; safe to run twice at once.
set -euo pipefail
cd "$(dirname "$0")/.."

fail() { echo "setup: $1" >&2; exit 1; }

python=${PYTHON:-python3.11}
command -v "$python" >/dev/null || python=python3
"$python" -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' 2>/dev/null ||
    fail "Python 3.11 is needed and not here. hint: apt-get install python3.11, or set PYTHON to one"
"$python" -c 'import venv, ensurepip' 2>/dev/null ||
    fail "this Python has no venv module. hint: apt-get install python3.11-venv"

# One at a time: a second make waits for the first one's environment instead of tearing at it.
exec 9>.venv.lock
flock 9

want=$(cat pyproject.toml locks/*.txt scripts/setup.sh | sha256sum | cut -d' ' -f1)
stamp=.venv/setup-stamp
mkdir -p .venv
if [ "$(head -n 1 "$stamp" 2>/dev/null)" != "$want" ] || ! .venv/bin/python -c '' 2>/dev/null; then
    echo "setup: making .venv"
    "$python" -m venv --clear .venv
    echo "$want" >"$stamp"
fi

pip() { .venv/bin/python -m pip --disable-pip-version-check --no-input "$@"; }

install() {
    local lock=locks/$1.txt without_torch
    [ -f "$lock" ] || fail "there is no extra called $1. hint: one of $(ls locks | sed 's/\.txt//' | tr '\n' ' ')"
    echo "setup: installing the packages of $lock"
    without_torch=$(mktemp)
    if grep -q '^torch==' "$lock"; then
        grep -A 1 '^torch==' "$lock" >"$without_torch"
        # The configured indexes first: a mirror may have it. Else PyTorch's own index, for this one package.
        pip install -qq --no-deps --require-hashes -r "$without_torch" ||
            pip install -qq --no-deps --require-hashes --index-url https://download.pytorch.org/whl/cpu -r "$without_torch" ||
            fail "torch's CPU build could not be fetched. hint: see the lines above; a proxy or a mirror may be needed"
        echo "setup: torch is installed"
    fi
    # Without `torch` and its hash line: pip would look for it on the indexes again.
    sed '/^torch==/,/--hash/d' "$lock" >"$without_torch"
    pip install -qq --no-deps --require-hashes -r "$without_torch" ||
        fail "the packages of $lock could not be installed. hint: see the lines above; run the same command again to go on"
    rm -f "$without_torch"
    echo "$1" >>"$stamp"
}

for extra in "$@"; do
    grep -qx "$extra" "$stamp" || install "$extra"
done
if ! grep -qx project "$stamp"; then
    # setuptools comes with the local extra; without it there is no entry point to install for vLLM either.
    if .venv/bin/python -c 'import setuptools' 2>/dev/null && grep -qx local "$stamp"; then
        pip install -qq --no-deps --no-build-isolation --editable .
        echo project >>"$stamp"
    fi
fi
