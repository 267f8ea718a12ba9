"""From pages of engine and router to the figures of a minute."""

from importlib.util import find_spec
from pathlib import Path

from runtime.publish import Figure, Growth, Transfers, efa_figures, engine_figures, router_figures
from tests.aws import node
from tests.node.site import engine_page, ttft


def pair(good: float, everything: float) -> list[Figure]:
    return [Figure("FirstTokensGood", good), Figure("FirstTokensAll", everything)]


def test_first_tokens_are_what_was_added_and_a_restart_is_no_drop() -> None:
    growth = Growth()
    assert router_figures(ttft(5, 5, 5), growth, 2.5) == pair(0, 0)
    assert router_figures(ttft(7, 6, 9), growth, 2.5) == pair(3, 7)
    assert router_figures(ttft(7, 6, 9), growth, 2.5) == pair(0, 0)
    assert router_figures(None, growth, 2.5) == []
    assert router_figures(ttft(1, 0, 1), growth, 2.5) == pair(2, 3)
    # A new target finds its own growth, and one between two bounds is the lower.
    assert router_figures(ttft(2, 5, 1), growth, 1.0) == pair(1, 6)
    assert router_figures(ttft(3, 6, 1), growth, 2.4) == pair(1, 2)
    assert router_figures(ttft(4, 6, 1), growth, 0.1) == pair(0, 1)


def test_the_names_are_those_of_the_installed_vllm() -> None:
    spec = find_spec("vllm")
    assert spec and spec.origin
    package = Path(spec.origin).parent
    nixl = (package / "distributed/kv_transfer/kv_connector/v1/nixl/stats.py").read_text()
    for name in ("nixl_num_kv_expired_reqs", "nixl_bytes_transferred", "nixl_xfer_time_seconds"):
        assert f'name="vllm:{name}"' in nixl
    loggers = (package / "v1/metrics/loggers.py").read_text()
    assert all(f'name="vllm:num_requests_{state}"' in loggers for state in ("running", "waiting"))


def test_expired_leases_of_an_engine_up_or_down() -> None:
    growth = Growth()
    assert engine_figures(engine_page(expired=4), growth) == [Figure("EngineUp", 1), Figure("ExpiredLeases", 0)]
    assert engine_figures(None, growth) == [Figure("EngineUp", 0)]
    assert engine_figures(engine_page(expired=6), growth)[1] == Figure("ExpiredLeases", 2)


def device(folder: Path, name: str, state: str, read: int = 0) -> None:
    port = folder / name / "ports" / "1"
    (port / "hw_counters").mkdir(parents=True, exist_ok=True)
    (port / "state").write_text(f"{state}\n")
    (port / "hw_counters" / "rdma_read_bytes").write_text(f"{read}\n")


def test_efa_interfaces_that_are_up(tmp_path: Path) -> None:
    device(tmp_path, "rdmap16s27", "4: ACTIVE")
    device(tmp_path, "rdmap32s27", "1: DOWN")
    assert efa_figures(4, tmp_path) == [Figure("EfaInterfacesUp", 1), Figure("EfaInterfacesMissing", 3)]
    assert efa_figures(0, tmp_path / "none") == [Figure("EfaInterfacesUp", 0), Figure("EfaInterfacesMissing", 0)]


def test_tcp_in_place_of_efa_is_seen(tmp_path: Path) -> None:
    device(tmp_path, "rdmap16s27", "4: ACTIVE")
    watched, growth = Transfers(node("", "", efa_interfaces=1), tmp_path), Growth()
    plain = Transfers(node("", ""), tmp_path)
    assert watched.fallback(engine_page(), growth, 1000) is None
    device(tmp_path, "rdmap16s27", "4: ACTIVE", read=10**9)
    assert watched.fallback(engine_page(moved=1e9, seconds=0.1), growth, 1000) is None
    device(tmp_path, "rdmap16s27", "4: ACTIVE", read=2 * 10**9)
    assert "below transfer_floor" in str(watched.fallback(engine_page(moved=2e9, seconds=4), growth, 1000))
    assert "no EFA counter grew" in str(watched.fallback(engine_page(moved=3e9, seconds=4.1), growth, 1000))
    assert watched.fallback(engine_page(moved=3e9, seconds=4.1), growth, 1000) is None
    assert plain.fallback(engine_page(moved=9e9, seconds=900), growth, 1000) is None
