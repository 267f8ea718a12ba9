"""The demo's results as a table and as a picture."""

from __future__ import annotations

from pathlib import Path
from typing import Any

_MODES = (("off", "round trip off"), ("local", "local: prefill never forgot"), ("on", "round trip on"))
_COLOURS = {"off": "#b3413b", "local": "#8a8f98", "on": "#1f6f8b"}


def table(results: dict[str, Any]) -> str:
    """One line a prompt length; times in milliseconds."""
    head = ("prompt tokens", "off", "local", "on", "off/on", "on/local", "reused", "transfer", "identical", "answer")
    rows = [head]
    for point in results["points"]:
        ttft = point["ttft_ms"]
        rows.append(
            (
                str(point["prompt_tokens"]),
                *(f"{ttft[mode]:,.0f} ms" for mode, _ in _MODES),
                f"{ttft['off'] / ttft['on']:.1f}x",
                f"{ttft['on'] / ttft['local']:.2f}",
                f"{point['reused_tokens']} tokens",
                f"{point['transfer_ms']:.1f} ms",
                "yes" if point["identical"] else "NO",
                point["answer"].split("\n")[0][:48],
            )
        )
    widths = [max(len(row[column]) for row in rows) for column in range(len(head))]
    lines = ["  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]
    title = f"Time to first token of the second turn. {results['model']} on {results['machine']}, commit {results['commit']}"
    return "\n".join([title, lines[0], "-" * len(lines[0]), *lines[1:]])


def plot(results: dict[str, Any], path: Path) -> None:
    """Two panels: TTFT against prompt length, and what prefill's time of the on-turns went into."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    points = results["points"]
    tokens = [point["prompt_tokens"] for point in points]
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(11, 4.2), layout="constrained")
    for mode, label in _MODES:
        left.plot(tokens, [p["ttft_ms"][mode] for p in points], marker="o", label=label, color=_COLOURS[mode])
    left.set(yscale="log", xlabel="prompt tokens of the second turn", ylabel="time to first token, ms (log scale)")
    left.set_title("Time to first token")
    left.grid(alpha=0.25, which="both")
    left.legend(frameon=False)
    places = range(len(points))
    transfer = [point["transfer_ms"] for point in points]
    compute = [max(0.0, point["prefill_ms"] - point["transfer_ms"]) for point in points]
    right.bar(places, transfer, width=0.5, label="KV transfer", color=_COLOURS["on"])
    right.bar(places, compute, width=0.5, bottom=transfer, label="compute and hand-over", color="#e0a458")
    right.set_xticks(list(places), [f"{count:,}" for count in tokens])
    right.set(xlabel="prompt tokens of the second turn", ylabel="prefill's part of the on-turn, ms")
    right.set_title("Prefill time with the round trip on")
    right.legend(frameon=False)
    figure.suptitle(f"{results['model']} · {results['machine']}", fontsize=9, color="#555555")
    figure.savefig(path, dpi=130)
    pyplot.close(figure)
