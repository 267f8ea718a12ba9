#!/usr/bin/env bash
# scripts/setup.sh EXTRA...: makes .venv, installs the locked packages of the extras named, then this project.
# Does nothing when that was done already. Safe to run twice at once; what was left half made is made again.
set -euo pipefail
cd "$(dirname "$0")/.."

say() { echo "setup: $1"; }
fail() { echo "setup: $1" >&2; exit 1; }

stamp=.venv/setup-stamp
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

is_311() { "$1" -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' 2>/dev/null; }

find_python() {
    python=${PYTHON:-python3.11}
    is_311 "$python" ||
        fail "$python is not a Python 3.11. hint: apt-get install python3.11-venv, or set PYTHON to one"
    "$python" -c 'import ensurepip' 2>/dev/null ||
        fail "$python has no venv module. hint: apt-get install python3.11-venv"
}

digest() { sha256sum | cut -c1-16; }
# A moved checkout needs a new environment: the project is installed by its path.
base() { echo "base $({ echo "$PWD"; cat locks/setup.txt; } | digest)"; }
of_extra() { echo "$1 $(digest <"locks/$1.txt")"; }
of_project() { echo "project $(digest <pyproject.toml)"; }
# What is begun and not finished stays in the stamp as `begun`, which no check accepts.
begin() { echo begun >>"$stamp"; }
finish() { sed -i "/^begun$/d; /^${1%% *} /d" "$stamp" && echo "$1" >>"$stamp"; }
is_done() { grep -qxF "$1" "$stamp" 2>/dev/null; }

is_sound() {
    is_done "$(base)" && ! is_done begun && is_311 .venv/bin/python || return 1
    local extra
    for extra in setup router node local cloud dev cuda neuron; do
        ! grep -q "^$extra " "$stamp" || is_done "$(of_extra "$extra")" || return 1
    done
}

pip() { .venv/bin/python -m pip --disable-pip-version-check --no-input "$@"; }
pip_install() { pip install --no-deps --require-hashes --progress-bar off "$@"; }
pip_setting() { pip config list | sed -n "s/^[^=]*\.$1='\(.*\)'$/\1/p" | head -n 1; }

# uv reads no pip settings, and a machine may reach its packages only through them.
uv() {
    local index cert
    index=$(pip_setting index-url) cert=$(pip_setting cert)
    [ -z "$index" ] || export UV_DEFAULT_INDEX=$index
    [ -z "$cert" ] || export SSL_CERT_FILE=$cert
    .venv/bin/uv "$@"
}

make_venv() {
    find_python
    say "making .venv"
    "$python" -m venv --clear .venv
    begin
    pip_install -q -r locks/setup.txt || fail "uv could not be fetched. hint: see the lines above; is pip able to install?"
    finish "$(of_extra setup)"
    finish "$(base)"
}

# Prints the part of a lock that is about torch, or with `!`, the rest.
torch_of() { awk -v rest="${2:-}" '/^torch==/ { t = 1 } (t != 0) != (rest == "!"); !/\\$/ { t = 0 }' "$1"; }

# torch's CPU build is not on PyPI. A configured index or folder may have it; else PyTorch's own index, for this one package.
install_torch() {
    say "torch (190 MB)"
    pip_install -r "$1" >"$scratch/log" 2>&1 ||
        pip_install --index-url https://download.pytorch.org/whl/cpu -r "$1" ||
        { cat "$scratch/log" >&2; fail "torch's CPU build could not be fetched. hint: see the lines above"; }
}

install_rest() {
    # pip takes minutes where uv takes seconds, but works wherever pip itself does.
    uv pip install --python .venv/bin/python --no-deps --require-hashes -r "$1" 2>&1 | sed -u '/^ [-+~] /d; /^ Downloaded /d' && return
    say "uv could not; now pip, which takes some minutes"
    pip_install -r "$1" | sed -un '/Downloading\|Installing/p' ||
        fail "the packages could not be installed. hint: see the lines above; the same command starts again"
}

install_extra() {
    say "packages of locks/$1.txt"
    [ "$1" != local ] || .venv/bin/python -c 'import ctypes; ctypes.CDLL("libnuma.so.1")' 2>/dev/null ||
        fail "vLLM's CPU kernels need libnuma.so.1, which is not here. hint: apt-get install libnuma1"
    begin
    torch_of "locks/$1.txt" >"$scratch/torch.txt"
    torch_of "locks/$1.txt" ! >"$scratch/rest.txt"
    [ ! -s "$scratch/torch.txt" ] || install_torch "$scratch/torch.txt"
    install_rest "$scratch/rest.txt"
    [ "$1" != local ] || load_vllm
    finish "$(of_extra "$1")"
}

# Proves that the parts fit, and leaves bytecode of what an engine loads: without it each start takes 20 s longer.
# The last line raises when the kernels did not load, of which vLLM only warns.
load_vllm() {
    say "loading vLLM once (half a minute)"
    env -u PYTHONDONTWRITEBYTECODE VLLM_PLUGINS= VLLM_NO_USAGE_STATS=1 HF_HUB_OFFLINE=1 .venv/bin/python -c '
import vllm.entrypoints.openai.api_server
import vllm.v1.engine.core
import vllm.v1.worker.cpu_worker
import nixl._api
import torch
from vllm.platforms import current_platform
current_platform.import_kernels()
torch.ops._C.silu_and_mul
' >"$scratch/log" 2>&1 || { cat "$scratch/log" >&2; fail "vLLM does not load here; its own words are above"; }
}

install_project() {
    begin
    uv pip install -q --offline --python .venv/bin/python --no-deps --no-build-isolation --editable .
    finish "$(of_project)"
}

for extra in "$@"; do
    [ -f "locks/$extra.txt" ] || fail "there is no extra called $extra. hint: one of $(cd locks && echo *.txt | sed 's/\.txt//g')"
    [[ ! "$extra" =~ ^(local|cuda)$ ]] || [ "$(uname -sm)" = "Linux x86_64" ] || fail "the engines are locked for Linux x86_64, this is $(uname -sm)"
done
# One at a time: a second make waits for the first one's environment instead of tearing at it.
exec 9>.venv.lock
flock 9
is_sound || make_venv
for extra in "$@"; do
    is_done "$(of_extra "$extra")" || install_extra "$extra"
done
is_done "$(of_project)" || install_project
