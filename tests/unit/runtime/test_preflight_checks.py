"""Verdicts, one by one: what the recorded machines do not show."""

from __future__ import annotations

import json
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runtime import fabric_checks, node_checks
from runtime.fabric_checks import Libfabric, efa_rails, libfabric_version, required_libfabric
from runtime.launch import Backend
from runtime.node_checks import Peer, peers_of
from runtime.probes import Output, Reach, Space
from runtime.verdict import Result, Verdict
from tests.recorded.load import recording

MISSING = Output(fault="tool is not installed")


def test_efa_counts_that_disagree() -> None:
    lspci, names = recording("p5en/lspci"), [f"rdmap{i}s0" for i in range(16)]
    assert fabric_checks.efa(16, lspci, names, names).verdict is Verdict.PASS
    assert "ib_uverbs" in fabric_checks.efa(16, lspci, names, []).fix
    assert "modprobe efa" in fabric_checks.efa(16, lspci, names[:15], names).fix
    assert "launch template" in fabric_checks.efa(32, lspci, names, names).fix
    assert "launch template" in fabric_checks.efa(8, lspci, names[:8], names[:8]).fix


def test_efa_without_lspci_is_judged_on_the_rest() -> None:
    names = ["a", "b"]
    assert fabric_checks.efa(2, MISSING, names, names).ok
    result = fabric_checks.efa(2, MISSING, [], [])
    assert not result.ok and "PCI bus not read (tool is not installed)" in result.seen


def test_a_rail_counts_once_whatever_fabrics_it_has() -> None:
    text = recording("p5en/fi_info_efa").stdout
    assert text.count("provider: efa") == 48 and len(efa_rails(text)) == 16
    assert efa_rails(recording("tcp_only/fi_info_all").stdout) == []


@pytest.mark.parametrize(
    ("version", "oldest"),
    [("1.5.1", (2, 7)), ("1.6.0", (2, 7)), ("1.5.0", (2, 6)), ("1.4.1", (2, 6)), ("", (2, 6)), ("garbage", (2, 6))],
)
def test_the_libfabric_that_a_nixl_needs(version: str, oldest: tuple[int, ...]) -> None:
    assert required_libfabric(version)[0] == oldest


def test_a_nixl_newer_than_the_installers_libfabric_is_told() -> None:
    """NIXL 1.5.1 on EFA installer 1.50.0: all rails are there, and NIXL does not load."""
    said = Libfabric(recording("p5en/fi_info_efa"), MISSING, Output(0, "libfabric: 2.6.0amzn2.0\n"))
    assert fabric_checks.provider(16, said, "1.5.0").ok
    result = fabric_checks.provider(16, said, "1.5.1")
    assert not result.ok and "1.51.0" in result.fix and "needs 2.7" in result.seen


def test_the_distributions_own_libfabric_is_too_old() -> None:
    said = Libfabric(
        recording("tcp_only/fi_info_efa"),
        recording("tcp_only/fi_info_all"),
        recording("wrong_libfabric/distribution_version"),
    )
    result = fabric_checks.provider(16, said, "1.5.0")
    assert result.seen == "libfabric 1.17.0, provider efa on 0 of 16 rails; NIXL 1.5.0 needs 2.6"
    assert "a second libfabric beside /opt/amazon/efa/lib must go" in result.fix


def test_libfabric_version_from_the_provider_where_there_is_no_other() -> None:
    efa = recording("p5en/fi_info_efa")
    assert libfabric_version(Libfabric(efa, MISSING, MISSING)) == (2, 6, 0)
    assert libfabric_version(Libfabric(recording("wrong_libfabric/fi_info_efa"), MISSING, MISSING)) == (1, 22, 0)
    assert libfabric_version(Libfabric(Output(0, "version: 118.10"), MISSING, MISSING)) == (1, 18, 1)
    assert libfabric_version(Libfabric(MISSING, MISSING, MISSING)) == ()


def test_nixl_that_says_nothing_of_rails_is_a_warning() -> None:
    made = Output(0, json.dumps({"made": True, "version": "1.5.0"}))
    assert fabric_checks.nixl(Backend.LIBFABRIC, 16, made).verdict is Verdict.WARN
    lost = Output(
        1,
        json.dumps({"made": False, "plugins": ["LIBFABRIC"]}),
        "E1201 11:53:41.6 8872 x.cpp:1] No network devices found\n",
    )
    assert fabric_checks.nixl(Backend.LIBFABRIC, 16, lost).seen == "LIBFABRIC was not made: No network devices found"


def test_gpus_that_are_gone() -> None:
    smi = Output(0, "".join(f"{i}, NVIDIA H200, 595.91\n" for i in range(7)))
    assert node_checks.nvidia(8, smi).seen == "7 of 8 GPUs"
    assert node_checks.nvidia(8, Output(0, "No devices were found\n")).seen == "0 of 8 GPUs: No devices were found"


@pytest.mark.parametrize(
    ("gpu", "number", "state", "verdict"),
    [
        ("NVIDIA H200", 8, "active", Verdict.PASS),
        ("NVIDIA H200", 8, "inactive", Verdict.FAIL),
        ("NVIDIA H100 80GB HBM3", 8, "failed", Verdict.FAIL),
        ("NVIDIA A100-SXM4-40GB", 8, "failed", Verdict.FAIL),
        ("NVIDIA H200", 1, "inactive", Verdict.PASS),
        ("NVIDIA L40S", 4, "inactive", Verdict.PASS),
    ],
)
def test_fabric_manager_where_nvswitch_is(gpu: str, number: int, state: str, verdict: Verdict) -> None:
    smi = Output(0, "".join(f"{i}, {gpu}, 595.91\n" for i in range(number)))
    result = node_checks.fabric_manager(smi, Output(0 if state == "active" else 3, state + "\n"))
    assert result.verdict is verdict
    assert verdict is Verdict.PASS or "595.91" in result.fix


def test_neuron_devices_in_both_formats() -> None:
    old = recording("trn2/neuron_ls")
    new = Output(0, json.dumps({"instance_type": "trn2.48xlarge", "neuron_devices": json.loads(old.stdout)}))
    assert node_checks.neuron(16, old).ok and node_checks.neuron(16, new).ok
    assert node_checks.neuron(16, Output(0, "[]")).seen == "0 of 16 Neuron devices"
    assert "no JSON" in node_checks.neuron(16, Output(0, "+----+\n| 0 |")).seen


def test_huge_pages() -> None:
    assert node_checks.huge_pages(recording("p5en/meminfo").stdout).seen == (
        "10752 huge pages of 2048 kB reserved (21.0 GiB), 10240 free"
    )
    assert "EFA installer" in node_checks.huge_pages(recording("cpu/meminfo").stdout).fix
    used_up = "HugePages_Total: 5\nHugePages_Free: 0\nHugepagesize: 2048 kB\n"
    assert node_checks.huge_pages(used_up).verdict is node_checks.huge_pages("").verdict is Verdict.WARN


def tracking(offset: str, leap: str = "Normal") -> Output:
    return Output(0, f"System time     : {offset} of NTP time\nLeap status     : {leap}\n")


@pytest.mark.parametrize(
    ("chronyc", "timedatectl", "verdict"),
    [
        (tracking("0.000000014 seconds fast"), MISSING, Verdict.PASS),
        (tracking("0.999 seconds slow"), MISSING, Verdict.PASS),
        (tracking("1.000000000 seconds slow"), MISSING, Verdict.FAIL),
        (tracking("7200.1 seconds fast"), MISSING, Verdict.FAIL),
        (tracking("0.000000000 seconds fast", "Not synchronised"), MISSING, Verdict.WARN),
        (MISSING, Output(0, "NTP=yes\nNTPSynchronized=yes\n"), Verdict.PASS),
        (MISSING, Output(0, "NTP=no\nNTPSynchronized=no\n"), Verdict.WARN),
        (MISSING, MISSING, Verdict.WARN),
        (Output(0, "garbage"), Output(0, "garbage"), Verdict.WARN),
    ],
)
def test_clock(chronyc: Output, timedatectl: Output, verdict: Verdict) -> None:
    result = node_checks.clock(chronyc, timedatectl)
    assert result.verdict is verdict and (verdict is Verdict.PASS) == (result.fix == "")


def test_disk() -> None:
    assert (
        node_checks.disk("/w", True, Space(free=10 * 10**9, used=65 * 10**9)).seen
        == "weights of 65.00 GB in /w, 10.0 GB free"
    )
    assert (
        node_checks.disk("/w", False, Space(free=10 * 10**9, used=0)).line
        == "pass  disk           no weights yet in /w, 10.0 GB free"
    )
    assert not node_checks.disk("/w", True, Space(free=10**9, used=1)).ok
    assert not node_checks.disk("/w", True, None).ok


def test_peers_are_the_other_engines() -> None:
    text = json.dumps(
        {"prefill": [{"url": "http://10.0.0.5:8000", "build": "a"}], "decode": [{"url": "http://10.0.0.6:8000/"}]}
    )
    assert peers_of(text, "10.0.0.5", 5600) == [Peer("decode", "10.0.0.6", 5600), Peer("decode", "10.0.0.6", 8000)]
    assert peers_of("{}", "10.0.0.5", 5600) == []


def test_one_peer_that_left_does_not_keep_a_node_out() -> None:
    gone, here = Peer("decode", "10.0.0.6", 8000), Peer("decode", "10.0.0.7", 8000)
    assert node_checks.peers([(gone, Reach.NO_ROUTE)]).verdict is Verdict.FAIL
    assert node_checks.peers([(gone, Reach.NO_ROUTE), (here, Reach.REFUSED)]).verdict is Verdict.WARN
    assert node_checks.peers([(here, Reach.OPEN)]).verdict is node_checks.peers([]).verdict is Verdict.PASS


OUTPUTS = st.builds(
    Output, st.one_of(st.none(), st.integers(-15, 255)), st.text(), st.text(), st.sampled_from(["", "hung"])
)


@settings(max_examples=200, deadline=None)
@given(OUTPUTS, OUTPUTS, OUTPUTS, st.text())
def test_whatever_a_tool_prints_there_is_a_verdict_in_words(one: Output, two: Output, three: Output, text: str) -> None:
    results: list[Result] = [
        fabric_checks.efa(16, one, [], []),
        fabric_checks.provider(16, Libfabric(one, two, three), text),
        *(fabric_checks.nixl(backend, rails, one) for backend, rails in product(Backend, (0, 16))),
        node_checks.nvidia(8, one),
        node_checks.neuron(16, one),
        node_checks.fabric_manager(one, two),
        node_checks.huge_pages(text),
        node_checks.memlock(text, required=True),
        node_checks.clock(one, two),
    ]
    for result in results:
        assert result.seen and (result.verdict is Verdict.PASS or result.fix)
