"""The one address under which peers reach this node, and the interface that has it."""

from __future__ import annotations

import fcntl
import socket
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from runtime.metadata import Metadata, MetadataError

_ROUTES = Path("/proc/net/route")
_SIOCGIFADDR = 0x8915


class AddressError(RuntimeError):
    """This node has no address for its peers. The text says what was seen and has a hint."""


@dataclass(frozen=True, slots=True)
class Interface:
    name: str
    address: str


def find(metadata_url: str) -> Interface:
    """The address that EC2 knows this node by; without an instance metadata service, that of the interface with the default
    route. Raises `AddressError`."""
    try:
        known = Metadata(metadata_url).get("local-ipv4") or ""
    except MetadataError:
        known = ""
    try:
        routes = _ROUTES.read_text()
    except OSError:
        routes = ""
    return choose(known, interfaces(), default_interface(routes))


def choose(known: str, addresses: Mapping[str, str], default: str) -> Interface:
    """`known`: what EC2 calls this node, "" unknown; `addresses` by interface; `default`: the interface with the default route.

    Raises `AddressError`.
    """
    seen = ", ".join(f"{name} {address}" for name, address in addresses.items()) or "none"
    if known:
        for name, address in addresses.items():
            if address == known:
                return Interface(name, address)
        raise AddressError(
            f"instance metadata says this node is {known}, but no interface has that address (seen: {seen}). "
            "hint: the primary interface did not come up; see `ip address` and /var/log/cloud-init.log"
        )
    if default in addresses:
        return Interface(default, addresses[default])
    raise AddressError(
        f"this node's address is not known: no instance metadata, and no interface with a default route and an address "
        f"(seen: {seen}). hint: give the subnet a route, or enable the instance metadata service"
    )


def default_interface(routes: str) -> str:
    """From the text of /proc/net/route: the interface of the default route with the lowest metric; "" for none."""
    found = []
    for line in routes.splitlines()[1:]:
        fields = line.split()
        if len(fields) > 7 and fields[1] == fields[7] == "00000000" and fields[6].isdecimal():
            found.append((int(fields[6]), fields[0]))
    return min(found)[1] if found else ""


def interfaces() -> dict[str, str]:
    """The IPv4 address of each interface that has one."""
    found = {}
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            request = struct.pack("256s", name.encode()[:15])
            try:
                answer = fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, request)
            except OSError:  # an interface without an address, as every efa-only one is
                continue
            found[name] = socket.inet_ntoa(answer[20:24])
    return found
