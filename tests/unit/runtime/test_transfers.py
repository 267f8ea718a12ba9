from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from runtime.parameters import BY_NAME
from runtime.transfers import expected_rails, judge, judge_rails, rails_read, read_counters
from tests.recorded.load import node

FLOOR = float(BY_NAME["transfer_floor"].default)


def test_rep_15_46_mb_in_150_ms_is_below_the_floor() -> None:
    said = judge(46_000_000, 0.150, FLOOR)
    assert (
        said
        and "307 MB/s" in said
        and "46.0 MB in 150 ms" in said
        and "transfer_floor 1,000 MB/s" in said
        and "TCP" in said
    )


@pytest.mark.parametrize(
    ("moved", "seconds", "floor"),
    [
        (46_000_000, 0.046, FLOOR),
        (46_000_000, 0.010, FLOOR),
        (0, 1.0, FLOOR),
        (1, 0.0, FLOOR),
        (46_000_000, 150.0, 0.0),
    ],
)
def test_nothing_to_say(moved: int, seconds: float, floor: float) -> None:
    assert judge(moved, seconds, floor) is None


def rails(number: int, **counters: int) -> dict[str, dict[str, int]]:
    return {f"rdmap{i}s0": dict(counters) for i in range(number)}


def test_growth_on_every_rail_proves_every_rail() -> None:
    before, after = rails(16, rdma_read_bytes=5), rails(16, rdma_read_bytes=9)
    assert judge_rails(before, after, 64, 16) is None and rails_read(before, after) == 16


def test_no_growth_while_something_moved_is_tcp() -> None:
    same = rails(16, rdma_read_bytes=5, rx_bytes=7, tx_bytes=8)
    assert "went over TCP" in (judge_rails(same, same, 46_000_000, 16) or "")
    assert "went over TCP" in (judge_rails({}, {}, 46_000_000, 16) or "")
    assert judge_rails(same, same, 0, 16) is None and judge_rails(same, same, 46_000_000, 0) is None


def test_packets_count_where_the_hardware_does_not_count_reads() -> None:
    before, after = rails(1, rdma_read_bytes=0, rx_bytes=7), rails(1, rdma_read_bytes=0, rx_bytes=9_000)
    assert judge_rails(before, after, 8_000, 1) is None and rails_read(before, after) == 0


def test_a_rail_that_carries_nothing_is_named() -> None:
    before, after = rails(16, rdma_read_bytes=5), rails(16, rdma_read_bytes=5) | rails(1, rdma_read_bytes=9)
    assert "1 of 16 EFA rails" in (judge_rails(before, after, 46_000_000, 16) or "")
    assert judge_rails(before, after, 64_000, 16) is None, "one short prompt needs one rail"


def test_counters_that_started_anew() -> None:
    assert judge_rails(rails(1, rdma_read_bytes=9_000), rails(1, rdma_read_bytes=5), 5, 1) is None
    assert judge_rails(rails(1, rdma_read_bytes=9_000), rails(1, rdma_read_bytes=0), 5, 1) is not None
    assert judge_rails({}, rails(1, rdma_read_bytes=5), 5, 1) is None


def test_rails_of_an_engine() -> None:
    assert expected_rails(node("cuda")) == 16
    assert expected_rails(node("cuda", tensor_parallel=2)) == 4
    assert expected_rails(node("cuda", efa_interfaces=1, tensor_parallel=1)) == 1
    assert expected_rails(node("neuron")) == 16
    assert expected_rails(node("cpu")) == 0


def test_counters_are_read_as_the_kernel_lays_them_out(tmp_path: Path) -> None:
    for device in ("rdmap85s0", "rdmap86s0"):
        folder = tmp_path / device / "ports" / "1" / "hw_counters"
        folder.mkdir(parents=True)
        (folder / "rdma_read_bytes").write_text("83829566349996\n")
        (folder / "lifespan").write_text("12\n")
        (folder / "broken").write_text("n/a\n")
    assert read_counters(tmp_path) == rails(0) | {
        name: {"rdma_read_bytes": 83829566349996, "lifespan": 12} for name in ("rdmap85s0", "rdmap86s0")
    }
    shutil.rmtree(tmp_path / "rdmap85s0")
    assert list(read_counters(tmp_path)) == ["rdmap86s0"]
    assert read_counters(tmp_path / "none") == {}
