#!/usr/bin/env bash
# test_image.sh cuda|neuron|cpu|router: on a machine of the new image, proves that what it holds loads. Image Builder runs it.
set -euo pipefail

kind=${1:-}
here=/opt/kv-roundtrip
python=$here/.venv/bin/python
cd "$here"

passes() {
    echo "image test: $1"
    shift
    "$@" || { echo "image test: failed: $*" >&2; exit 1; }
}

passes "units are valid" systemd-analyze verify /etc/systemd/system/kv-roundtrip-*.service
passes "the user is there" id kvr
if [ "$kind" = router ]; then
    passes "the router loads" "$python" -m router --help
else
    passes "the connector loads, on a known vLLM" "$python" -c 'import connector.connector'
    passes "both plugins are found" "$python" -c '
from importlib.metadata import entry_points
from runtime.fleet import PLUGINS, PLUGIN_GROUP
assert PLUGINS <= {plugin.name for plugin in entry_points(group=PLUGIN_GROUP)}'
fi
case $kind in
    cuda)
        passes "the driver is there" nvidia-smi
        passes "NIXL loads LIBFABRIC" "$python" -m runtime.nixl_probe LIBFABRIC --torch
        ;;
    neuron)
        passes "the driver is there" /opt/aws/neuron/bin/neuron-ls
        passes "NIXL loads LIBFABRIC" "$python" -m runtime.nixl_probe LIBFABRIC --torch
        ;;
    cpu) passes "NIXL loads UCX" "$python" -m runtime.nixl_probe UCX ;;
esac
echo "image test: passed"
