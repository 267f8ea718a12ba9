from pathlib import Path
from typing import Any

from scripts.report import plot, table

RESULTS: dict[str, Any] = {
    "model": "Some-Model",
    "machine": "Some CPU, 2 cores",
    "commit": "abc123",
    "points": [
        {
            "prompt_tokens": 600, "ttft_ms": {"off": 4000.0, "on": 500.0, "local": 800.0}, "transfer_ms": 12.5,
            "prefill_ms": 300.0, "reused_tokens": 576, "identical": True, "answer": "Paris.\nAnd more.",
        },
        {
            "prompt_tokens": 2700, "ttft_ms": {"off": 33000.0, "on": 1000.0, "local": 900.0}, "transfer_ms": 50.0,
            "prefill_ms": 400.0, "reused_tokens": 2688, "identical": False, "answer": "Rome.",
        },
    ],
    "ratio_longest": 33.0,
}  # fmt: skip


def test_table() -> None:
    title, head, rule, short, long = table(RESULTS).split("\n")
    assert "Some-Model" in title and "Some CPU" in title and "abc123" in title
    assert len(head) == len(rule) == len(short) == len(long), "columns line up"
    assert short.split()[:7] == ["600", "4,000", "ms", "800", "ms", "500", "ms"]
    assert "8.0x" in short and "0.62" in short and "yes" in short and short.endswith(" Paris.")
    assert "33.0x" in long and "1.11" in long and "NO" in long and "2688 tokens" in long


def test_plot_is_a_picture_of_two_panels(tmp_path: Path) -> None:
    path = tmp_path / "ttft.png"
    plot(RESULTS, path)
    assert path.read_bytes().startswith(b"\x89PNG")


def test_a_plot_of_one_point(tmp_path: Path) -> None:
    plot({**RESULTS, "points": RESULTS["points"][:1]}, tmp_path / "ttft.png")
    assert (tmp_path / "ttft.png").stat().st_size > 10_000
