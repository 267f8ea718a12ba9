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

# As the services do: without root's rights, with the unit's limit.
as_service() {
    prlimit --memlock=unlimited setpriv --reuid=kvr --regid=kvr --init-groups env HOME=/var/lib/kv-roundtrip "$@"
}

passes "units are valid" systemd-analyze verify /etc/systemd/system/kv-roundtrip-*.service
passes "the user is there" id kvr
passes "the clock follows Amazon's time service" grep -q 169.254.169.123 /etc/chrony/conf.d/amazon.conf
passes "boto3 is there" as_service "$python" -c 'import boto3'
if [ "$kind" = router ]; then
    passes "the router loads" as_service "$python" -m router --help
else
    passes "the connector loads, on a known vLLM" as_service "$python" -c 'import connector.connector'
    passes "both plugins are found" "$python" -c '
from importlib.metadata import entry_points
from runtime.fleet import PLUGINS, PLUGIN_GROUP
assert PLUGINS <= {plugin.name for plugin in entry_points(group=PLUGIN_GROUP)}'
fi
case $kind in
    cuda)
        passes "the driver is there" nvidia-smi
        passes "NIXL loads LIBFABRIC" as_service "$python" -m runtime.nixl_probe LIBFABRIC --torch
        ;;
    neuron)
        passes "the driver is there" /opt/aws/neuron/bin/neuron-ls
        passes "NIXL loads LIBFABRIC" as_service "$python" -m runtime.nixl_probe LIBFABRIC --torch
        ;;
    cpu) passes "NIXL loads UCX" as_service "$python" -m runtime.nixl_probe UCX ;;
esac
echo "image test: passed"
