#!/usr/bin/env bash
# Writes locks/*.txt from pyproject.toml: every version and hash, one resolution for all extras, so that any of them fit in one
# environment. Needs uv on PATH or in $UV.
set -euo pipefail
cd "$(dirname "$0")/.."
uv=${UV:-uv}
compile() {
    "$uv" pip compile --quiet --generate-hashes --no-header --no-emit-index-url --no-emit-find-links --no-annotate --upgrade \
        --python-version 3.11 --python-platform x86_64-manylinux_2_28 "$@" pyproject.toml
}
# torch's CPU build is on no index that PyPI serves: a folder that holds the wheel, or PyTorch's own index.
export UV_FIND_LINKS=${UV_FIND_LINKS:-https://download.pytorch.org/whl/cpu/torch/}
all=$(mktemp)
trap 'rm -f "$all"' EXIT
compile --extra router --extra local --extra cloud --extra dev >"$all"
for extra in router local cloud dev; do
    compile --constraint "$all" --extra "$extra" | grep -v '^kv-roundtrip' >"locks/$extra.txt"
done
