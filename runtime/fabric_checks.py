"""Verdicts on the network that carries KV blocks: EFA interfaces, libfabric's provider, NIXL. Pure: outputs in, results out."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass

from runtime.launch import EFA_LIBRARIES, Backend
from runtime.probes import Output
from runtime.verdict import Result, failed, passed, warned

# Newer devices are not in every pci.ids: lspci then prints "Device [1d0f:efa3]".
_EFA_LINE = re.compile(r"\[1d0f:efa[0-9a-f]\]")

# The oldest libfabric that a NIXL runs with, newest NIXL first: 1.5.1 needs 2.7 (EFA installer 1.51.0), those before it were
# built for installer 1.50.0.
_LIBFABRIC_OF_NIXL = (((1, 5, 1), (2, 7), "1.51.0"), ((0,), (2, 6), "1.50.0"))

_LAUNCH_TEMPLATE = (
    "compare the launch template's NetworkInterfaces with the type's row in stacks/machines.py, then replace the node"
)
_INSTALLER = "build the image again with EFA installer {installer} or newer, and deploy both roles with it"


def efa(expected: int, lspci: Output, devices: Sequence[str], uverbs: Sequence[str]) -> Result:
    """`devices`: names in /sys/class/infiniband; `uverbs`: /dev/infiniband/uverbs*."""
    on_bus = len(_EFA_LINE.findall(lspci.stdout)) if lspci.ok else None
    bus = f"{on_bus} on the PCI bus" if on_bus is not None else f"PCI bus not read ({lspci.said})"
    seen = f"{bus}, {len(devices)} in /sys/class/infiniband, {len(uverbs)} uverbs; expected {expected}"
    counts = {len(devices), len(uverbs)} | ({on_bus} if on_bus is not None else set())
    if counts == {expected}:
        return passed(
            "efa", f"{expected} EFA interfaces (PCI bus, /sys/class/infiniband, uverbs)" if lspci.ok else seen
        )
    if on_bus is not None and on_bus != expected:
        return failed("efa", seen, f"the instance was launched with other interfaces: {_LAUNCH_TEMPLATE}")
    if len(devices) != expected:
        return failed(
            "efa",
            seen,
            "the efa driver has not taken them: `modprobe efa`, `dmesg | grep efa`; if it persists, replace the node",
        )
    return failed("efa", seen, "`modprobe ib_uverbs`; programs reach the devices through /dev/infiniband/uverbs*")


def required_libfabric(nixl_version: str) -> tuple[tuple[int, ...], str]:
    """Oldest libfabric and the EFA installer that has it, for a NIXL version ("" when unknown)."""
    have = _numbers(nixl_version) or (0,)
    return next((libfabric, installer) for nixl, libfabric, installer in _LIBFABRIC_OF_NIXL if have >= nixl)


@dataclass(frozen=True, slots=True)
class Libfabric:
    """The answers of `fi_info -p efa`, `fi_info` and `fi_info --version`."""

    efa: Output
    all: Output
    version: Output


def provider(expected: int, said: Libfabric, nixl_version: str) -> Result:
    needed, installer = required_libfabric(nixl_version)
    wanted = ".".join(map(str, needed))
    install = _INSTALLER.format(installer=installer)
    rails = efa_rails(said.efa.stdout) if said.efa.ok else []
    if said.efa.fault:
        return failed("provider", said.efa.said, install)
    have = libfabric_version(said)
    text = ".".join(map(str, have))
    if have and have[: len(needed)] < needed:
        seen = f"libfabric {text}, provider efa on {len(rails)} of {expected} rails; NIXL {nixl_version or 'here'} needs {wanted}"
        return failed(
            "provider", seen, f"wrong libfabric: {install}; a second libfabric beside {EFA_LIBRARIES} must go"
        )
    if not rails:
        others = sorted(set(re.findall(r"^provider: (\S+)", said.all.stdout, re.MULTILINE)))
        if any(name.startswith(("tcp", "sockets", "net")) for name in others):
            seen = f"no provider efa ({said.efa.said}), TCP only: {', '.join(others)}"
            fix = "KV would go over TCP: see the check `efa`; load the modules efa and ib_uverbs, or replace the node"
            return failed("provider", seen, fix)
        return failed("provider", f"no provider efa: {said.efa.said}", install)
    seen = f"provider efa on {len(rails)} of {expected} rails, libfabric {text or 'of unknown version'}"
    if len(rails) != expected:
        return failed(
            "provider",
            seen,
            "see the check `efa`; if all its counts are right, `dmesg | grep efa` and replace the node",
        )
    if not have:
        return warned("provider", seen, f"NIXL needs libfabric {wanted}; see `/opt/amazon/efa/bin/fi_info --version`")
    return passed("provider", seen)


def efa_rails(fi_info: str) -> list[str]:
    """Devices with a reliable endpoint of provider efa; each is listed once for every fabric, efa and efa-direct."""
    rails = set()
    for block in re.split(r"^(?=provider:)", fi_info, flags=re.MULTILINE):
        fields = dict(re.findall(r"^\s*(\w+): (\S+)", block, re.MULTILINE))
        if fields.get("provider") == "efa" and fields.get("type") == "FI_EP_RDM" and "domain" in fields:
            rails.add(fields["domain"].removesuffix("-rdm"))
    return sorted(rails)


def libfabric_version(said: Libfabric) -> tuple[int, ...]:
    """() when neither answer has it. The EFA provider's own version is libfabric's: 206.0 is 2.6.0, 118.10 is 1.18.1."""
    match = re.search(r"^libfabric: (\d+)\.(\d+)\.(\d+)", said.version.stdout, re.MULTILINE)
    if match:
        return tuple(map(int, match.groups()))
    match = re.search(r"^\s*version: (\d+)\.(\d+)", said.efa.stdout, re.MULTILINE)
    if match and int(match[1]) >= 100:
        return (int(match[1]) // 100, int(match[1]) % 100, int(match[2]) // 10)
    return ()


def nixl(backend: str, expected_rails: int, probe: Output) -> Result:
    """On what `runtime.nixl_probe` printed, NIXL's own log lines on stderr included."""
    name = "nixl"
    if probe.fault or (probe.code or 0) < 0:
        said = probe.fault or f"the probe was ended by signal {-(probe.code or 0)}"
        return failed(name, f"{backend}: {said}", "run `python -m runtime.nixl_probe " + backend + "` on the node")
    found = _last_object(probe.stdout)
    if found is None:
        return failed(
            name, f"{backend}: the probe broke: {probe.said}", "the image lacks this project or NIXL; build it again"
        )
    if found.get("made") is not True:
        return _not_made(backend, found, probe.stderr)
    version = f"NIXL {found.get('version', '')}"
    if backend == Backend.UCX:
        return passed(name, f"{version} made UCX")
    return _rails(version, expected_rails, probe.stderr)


def _not_made(backend: str, found: dict[str, object], log: str) -> Result:
    plugins = found.get("plugins")
    if isinstance(plugins, list) and plugins and backend not in plugins:
        return failed(
            "nixl", f"NIXL has no backend {backend} (it has {', '.join(map(str, plugins))})", "build the image again"
        )
    missing = found.get("missing")
    lacks = [str(item) for item in missing] if isinstance(missing, list) else []
    if not lacks:
        lacks = re.findall(r"Failed to load plugin from \S+: (.+)", log)
    if lacks:
        return failed(
            "nixl",
            f"unsupported backend {backend}: {'; '.join(lacks)}",
            "a library of the system is missing: install it in the image",
        )
    reasons = re.findall(r"^E\d{4} [^\]]*\] (.+)", log, re.MULTILINE)
    seen = f"{backend} was not made: {reasons[-1] if reasons else found.get('error') or 'no reason given'}"
    return failed(
        "nixl",
        seen,
        "see the checks before this one; `NIXL_LOG_LEVEL=DEBUG python -m runtime.nixl_probe " + backend + "`",
    )


def _rails(version: str, expected: int, log: str) -> Result:
    tcp = re.search(r"Discovered \d+ (\w+) devices \(TCP fallback\)|Using simplified topology for (\w+)", log)
    if tcp:
        way = tcp[1] or tcp[2]
        return failed(
            "nixl",
            f"{version} made LIBFABRIC over {way}, not EFA",
            "start it with FI_PROVIDER=efa; see the check `provider`",
        )
    match = re.search(r"Discovered (\d+) EFA devices", log)
    if not match:
        return warned("nixl", f"{version} made LIBFABRIC and did not say over what", "compare with `fi_info -p efa`")
    seen = f"{version} made LIBFABRIC on {match[1]} of {expected} EFA rails"
    # A device counts once for each fabric it offers, as in fi_info.
    if int(match[1]) < expected:
        return failed("nixl", seen, "see the checks `efa` and `provider`")
    return passed("nixl", f"{version} made LIBFABRIC, {match[1]} EFA devices for {expected} rails")


def _last_object(text: str) -> dict[str, object] | None:
    for line in reversed(text.splitlines()):
        try:
            found = json.loads(line)
        except ValueError:
            continue
        if isinstance(found, dict):
            return found
    return None


def _numbers(version: str) -> tuple[int, ...]:
    match = re.match(r"\d+(?:\.\d+)*", version)
    return tuple(map(int, match[0].split("."))) if match else ()
