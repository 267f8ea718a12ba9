#!/usr/bin/env bash
# scripts/lock.sh [--upgrade]: writes locks/*.txt from pyproject.toml: every version and hash, one resolution for all extras, so
# that any of them fit in one environment. Keeps the locked versions that still fit, unless told to upgrade. Needs .venv's uv.
set -euo pipefail
cd "$(dirname "$0")/.."
# torch's CPU build is on no index that PyPI serves: a folder that holds the wheel, or PyTorch's own page.
export UV_FIND_LINKS=${UV_FIND_LINKS:-${PIP_FIND_LINKS:-https://download.pytorch.org/whl/cpu/torch/}}
extras=(setup router node local cloud dev)
# Images of nodes with an accelerator: another vLLM, and none of the overrides that local mode needs.
images=(cuda neuron)
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

compile() {
    .venv/bin/uv pip compile --quiet --generate-hashes --no-header --no-emit-index-url --no-emit-find-links --no-annotate \
        --python-version 3.11 --python-platform x86_64-manylinux_2_28 "$@" pyproject.toml
}

for extra in "${extras[@]}"; do
    cat "locks/$extra.txt" 2>/dev/null || true
done >"$scratch/all.txt"
compile "$@" "${extras[@]/#/--extra=}" --output-file "$scratch/all.txt" >/dev/null
for extra in "${extras[@]}"; do
    compile --constraint "$scratch/all.txt" --extra "$extra" | grep -v '^kv-roundtrip' >"$scratch/$extra.txt"
done
for extra in "${images[@]}"; do
    cp "locks/$extra.txt" "$scratch/$extra.txt" 2>/dev/null || true
    : >"$scratch/$extra.override"
done
# AWS's Neuron image has these, patched for its devices: ours must not replace them.
printf '%s ; sys_platform == "never"\n' torch numpy nixl-cu13 >"$scratch/neuron.override"
for extra in "${images[@]}"; do
    UV_FIND_LINKS='' compile --no-config "$@" --override "$scratch/$extra.override" --extra "$extra" \
        --output-file "$scratch/$extra.txt" >/dev/null
    sed -i '/^kv-roundtrip/d' "$scratch/$extra.txt"
done
for extra in "${extras[@]}" "${images[@]}"; do
    mv "$scratch/$extra.txt" "locks/$extra.txt"
done
