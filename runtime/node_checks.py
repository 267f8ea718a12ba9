"""Verdicts on the machine: accelerators and their driver, memory, disk, clock, peers. Pure: outputs in, results out."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass

from runtime.probes import Output, Reach, Space
from runtime.verdict import Result, failed, passed, warned

# GPUs that NVSwitch connects when there are several of them: without a fabric manager CUDA does not start on those machines.
_NVSWITCHED = re.compile(r"\b(A100-SXM\d?|A100|H100|H200|H20|B200|B300)\b")

_SKEW_LIMIT = 1.0
"""Seconds. Signed requests are refused at minutes, but log lines of two nodes can't be ordered any more from here on."""

_SPARE = 2 * 1024**3
"""Bytes that logs and compile caches of an engine want besides its weights."""

_DRIVER = (
    "the image has no working driver for this kernel: build the image again on the pinned AMI, then replace the node"
)


def nvidia(expected: int, smi: Output) -> Result:
    """`smi`: `nvidia-smi --query-gpu=index,name,driver_version --format=csv,noheader`."""
    if not smi.ok:
        return failed("driver", f"no driver: {smi.said}", _DRIVER)
    gpus = _gpus(smi)
    if len(gpus) != expected:
        seen = f"{len(gpus)} of {expected} GPUs" + ("" if gpus else f": {smi.said}")
        return failed(
            "driver", seen, "one that is gone is a broken machine: `dmesg | grep -i xid`, then replace the node"
        )
    kinds = sorted({(name, driver) for name, driver in gpus})
    return passed("driver", f"{len(gpus)} x " + ", ".join(f"{name}, driver {driver}" for name, driver in kinds))


def fabric_manager(smi: Output, state: Output) -> Result:
    """`state`: `systemctl is-active nvidia-fabricmanager`."""
    gpus = _gpus(smi)
    if len(gpus) < 2 or not any(_NVSWITCHED.search(name) for name, _ in gpus):
        return passed("fabricmanager", "not needed: no NVSwitch" if gpus else "not judged: no GPU seen")
    active = state.stdout.strip() == "active"
    if active:
        return passed("fabricmanager", "active")
    driver = gpus[0][1]
    seen = f"nvidia-fabricmanager is {state.stdout.strip() or state.said}"
    return failed(
        "fabricmanager",
        seen,
        f"install version {driver}, the driver's own, in the image; `systemctl start nvidia-fabricmanager`",
    )


def _gpus(smi: Output) -> list[tuple[str, str]]:
    found = []
    for line in smi.stdout.splitlines() if smi.ok else ():
        fields = [field.strip() for field in line.split(",")]
        if len(fields) == 3 and fields[0].isdecimal():
            found.append((fields[1], fields[2]))
    return found


def neuron(expected: int, ls: Output) -> Result:
    """`ls`: what `neuron-ls` printed as JSON: a list of devices, from Neuron 2.34 an object that has one."""
    if not ls.ok:
        return failed("driver", f"no driver: {ls.said}", _DRIVER)
    try:
        given = json.loads(ls.stdout)
    except ValueError:
        return failed("driver", f"neuron-ls gave no JSON: {ls.said}", "run `neuron-ls` on the node")
    lists = [given] if isinstance(given, list) else list(given.values()) if isinstance(given, dict) else []
    devices = [item for found in lists if isinstance(found, list) for item in found if _is_device(item)]
    if len(devices) != expected:
        return failed(
            "driver", f"{len(devices)} of {expected} Neuron devices", "`dmesg | grep -i neuron`, then replace the node"
        )
    return passed("driver", f"{expected} Neuron devices")


def _is_device(item: object) -> bool:
    return isinstance(item, dict) and ("neuron_device" in item or "nc_count" in item)


def huge_pages(meminfo: str) -> Result:
    fields = {name: int(number) for name, number in re.findall(r"^(\w+):\s+(\d+)", meminfo, re.MULTILINE)}
    if "HugePages_Total" not in fields or "Hugepagesize" not in fields:
        return warned("hugepages", "/proc/meminfo does not tell", "the kernel has no huge pages; use the pinned AMI")
    total, free, size = fields["HugePages_Total"], fields.get("HugePages_Free", 0), fields["Hugepagesize"]
    seen = f"{total} huge pages of {size} kB reserved ({total * size / 1024**2:.1f} GiB), {free} free"
    if not total:
        fix = "the EFA installer reserves them at boot (efa_hugepages.sh); without them a device registers less memory"
        return warned("hugepages", seen, fix)
    if not free:
        return warned("hugepages", seen, "something else holds them: `grep -l huge /proc/*/smaps`")
    return passed("hugepages", seen)


def memlock(limits: str, required: bool) -> Result:
    """`limits`: /proc/self/limits. RDMA pins what it reads into; TCP does not."""
    match = re.search(r"^Max locked memory\s+(\S+)\s+(\S+)", limits, re.MULTILINE)
    soft = match[1] if match else ""
    if soft == "unlimited":
        return passed("memlock", "unlimited")
    seen = (
        f"at most {int(soft) / 1024**2:g} MiB can be locked" if soft.isdecimal() else "/proc/self/limits does not tell"
    )
    fix = "LimitMEMLOCK=infinity in the unit (engine and preflight)"
    return failed("memlock", seen, fix) if required else warned("memlock", seen, fix)


def clock(chronyc: Output, timedatectl: Output) -> Result:
    """`chronyc tracking`, else `timedatectl show`."""
    fix = "start chrony with Amazon's time service: `server 169.254.169.123 prefer iburst`"
    match = re.search(r"^System time\s*:\s*([\d.]+) seconds (slow|fast) of NTP time", chronyc.stdout, re.MULTILINE)
    leap = re.search(r"^Leap status\s*:\s*(.+?)\s*$", chronyc.stdout, re.MULTILINE)
    if chronyc.ok and match:
        seen = f"{float(match[1]) * 1000:.3f} ms {match[2]}"
        if leap and leap[1] == "Not synchronised":
            return warned("clock", "chrony is not synchronised", fix)
        if float(match[1]) >= _SKEW_LIMIT:
            return failed("clock", seen, "`chronyc makestep`; if it comes back, " + fix)
        return passed("clock", seen)
    if timedatectl.ok and "NTPSynchronized=yes" in timedatectl.stdout.splitlines():
        return passed("clock", "synchronised, says timedatectl; its offset is not known")
    if timedatectl.ok and "NTPSynchronized=no" in timedatectl.stdout.splitlines():
        return warned("clock", "not synchronised, says timedatectl", fix)
    return warned("clock", f"unknown: chronyc: {chronyc.said}; timedatectl: {timedatectl.said}", fix)


def disk(folder: str, weights: bool, space: Space | None) -> Result:
    """`weights`: they are there already. Whether they fit is for `runtime.weights`, which learns how large they are."""
    if space is None:
        return failed("disk", f"{folder} can't be read", "see `systemctl status kv-roundtrip-storage`")
    there = f"weights of {space.used / 1e9:.2f} GB" if weights else "no weights yet"
    seen = f"{there} in {folder}, {space.free / 1e9:.1f} GB free"
    if space.free < _SPARE:
        fix = "the weights do not fit or something fills the disk: use the instance store (kv-roundtrip-storage) or a larger volume"
        return failed("disk", seen, fix)
    return passed("disk", seen)


@dataclass(frozen=True, slots=True)
class Peer:
    role: str
    host: str
    port: int


def peers_of(engines: str, own: str, side_channel_port: int) -> list[Peer]:
    """From the text of engines.json: where other engines answer HTTP and handshakes. Raises ValueError for another format."""
    given = json.loads(engines)
    found = set()
    try:
        for role in ("prefill", "decode"):
            for engine in given.get(role, ()):
                match = re.fullmatch(r"http://([^/:]+):(\d+)/?", engine["url"])
                if not match:
                    raise ValueError(f"url {engine['url']!r} is not http://address:port")
                if match[1] != own:
                    found |= {(role, match[1], int(match[2])), (role, match[1], side_channel_port)}
    except (AttributeError, KeyError, TypeError) as error:
        raise ValueError(f"not a list of engines by role ({type(error).__name__}: {error})") from None
    return [Peer(*item) for item in sorted(found)]


def peers(reached: Sequence[tuple[Peer, Reach]]) -> Result:
    """Refused is as good as open: packets pass, the peer is not up yet.

    One that does not answer fails the check only when none does: it may have left since the list was written, but a wrong
    security group stops all of them.
    """
    if not reached:
        return passed("peers", "none known yet")
    good = {peer.host for peer, how in reached if how in (Reach.OPEN, Reach.REFUSED)}
    bad = [
        f"{peer.role} {peer.host}:{peer.port} {how}" for peer, how in reached if how not in (Reach.OPEN, Reach.REFUSED)
    ]
    hosts = {peer.host for peer, _ in reached}
    if not bad:
        return passed("peers", f"{len(hosts)} reachable on {len(reached)} ports")
    seen = f"{'; '.join(bad[:4])}" + (f" and {len(bad) - 4} more" if len(bad) > 4 else "")
    fix = "the engines' security group must allow all traffic from and to itself; check it, and that both are in one VPC and zone"
    if good:
        return warned("peers", f"{seen}; {len(good)} of {len(hosts)} peers reachable", f"if the peer still runs: {fix}")
    return failed("peers", seen, fix)
