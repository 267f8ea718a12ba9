from __future__ import annotations

import pytest

from runtime import address
from runtime.address import AddressError, Interface, choose, default_interface
from tests.fakes.metadata import serving, usual

# /proc/net/route of a p5en has one line for each ENA interface; a p5en built by the present rule has one such interface.
ROUTES = """Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT
ens6\t00000000\t010200C0\t0003\t0\t0\t200\t00000000\t0\t0\t0
ens5\t00000000\t010200C0\t0003\t0\t0\t100\t00000000\t0\t0\t0
ens5\t000200C0\t00000000\t0001\t0\t0\t100\t00FFFFFF\t0\t0\t0
"""
SEEN = {"lo": "127.0.0.1", "ens5": "10.0.0.5", "ens6": "10.0.0.6"}


def test_the_default_route_with_the_lowest_metric() -> None:
    assert default_interface(ROUTES) == "ens5"
    assert (
        default_interface("")
        == default_interface("garbage\nmore garbage\n")
        == default_interface("h\neth0 00000000\n")
        == ""
    )


def test_what_ec2_says_wins() -> None:
    assert choose("10.0.0.6", SEEN, "ens5") == Interface("ens6", "10.0.0.6")
    assert choose("", SEEN, "ens5") == Interface("ens5", "10.0.0.5")


@pytest.mark.parametrize(("known", "default"), [("10.9.9.9", "ens5"), ("", ""), ("", "ens7")])
def test_no_address_for_peers_is_an_error_with_what_was_seen(known: str, default: str) -> None:
    with pytest.raises(AddressError, match=r"ens5 10\.0\.0\.5.*hint: "):
        choose(known, SEEN, default)


def test_this_machine_and_a_metadata_service() -> None:
    assert address.interfaces()["lo"] == "127.0.0.1"
    with serving(usual("i-1", "127.0.0.1")) as service:
        assert address.find(service.url) == Interface("lo", "127.0.0.1")
    with (
        serving(usual("i-1", "203.0.113.9")) as service,
        pytest.raises(AddressError, match=r"says this node is 203\.0\.113\.9"),
    ):
        address.find(service.url)
