"""`make demo`: time to first token of a second turn, with the round trip off, on, and with a prefill that never forgot.

Per prompt length and mode, one fresh conversation of its own: turn 1 goes through prefill and decode, then turn 2 is
measured. In every mode decode holds the same when turn 2 begins: its own turn 1 and nothing else of that text. Only what
prefill holds, and whether decode's KV comes back to it, differs:

    off     prefill's prefix cache is emptied after turn 1, as by eviction; the router carries no handle
    on      prefill's prefix cache is emptied after turn 1; the router carries the handle, decode's KV comes back
    local   prefill's prefix cache keeps turn 1's prompt; only the first answer and the new message are computed

`identical` compares the measured on-turn with the same prompt computed from nothing by prefill's engine alone.
"""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
import sys
import time
import urllib.request
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from openai import OpenAIError

from runtime.command import best_dtype, cpu_flags
from runtime.fleet import Fleet, FleetError, FleetOptions, Server
from runtime.local import interrupt_on_signals, say
from runtime.model import ModelError, resolve
from scripts import atlas, report
from scripts.turns import Answer, Messages, ask, client, counter, following

_POINTS = (600, 1_300, 2_700)
_LONG_POINT = 5_300
_MODEL = "demo"
_ANSWER_TOKENS = 80
_OUT = Path("out/demo")


@dataclass(frozen=True, slots=True)
class Point:
    """One prompt length. Times in milliseconds; `transfer_ms` and `prefill_ms` are of the on-turn."""

    prompt_tokens: int
    ttft_ms: dict[str, float]
    transfer_ms: float
    prefill_ms: float
    reused_tokens: int
    identical: bool
    answer: str


@dataclass(frozen=True, slots=True)
class _Measured:
    """A second turn, what was asked, and the counters just before it."""

    answer: Answer
    messages: Messages
    before: tuple[float, float, float]


class Demo:
    def __init__(self, fleet: Fleet, off_router: Server) -> None:
        self._fleet = fleet
        self._routers = {"on": fleet.router, "off": off_router, "local": off_router}
        self._prefill = fleet.prefill[0]
        self._seed = 0

    def warm_up(self) -> None:
        """Both directions' handshakes and each code path once, so that no measured turn pays for them."""
        for mode in ("off", "on"):
            self._second_turn(400, mode)

    def point(self, prompt_tokens: int) -> Point:
        ttft = {mode: self._second_turn(prompt_tokens, mode).answer.ttft for mode in ("off", "local")}
        on = self._second_turn(prompt_tokens, "on")
        answer = on.answer
        ttft["on"] = answer.ttft
        transfer, prefill, pulled = (now - then for now, then in zip(self._counters(), on.before, strict=True))
        cold = self._alone(on.messages)
        return Point(
            prompt_tokens=answer.prompt_tokens,
            ttft_ms={mode: round(ttft[mode] * 1000, 1) for mode in ("off", "on", "local")},
            transfer_ms=round(transfer * 1000, 2),
            prefill_ms=round(prefill * 1000, 2),
            reused_tokens=int(pulled),
            identical=answer.same_as(cold),
            answer=answer.text.strip(),
        )

    def _second_turn(self, prompt_tokens: int, mode: str) -> _Measured:
        self._seed += 1
        to = client(self._routers[mode].url)
        conversation = f"demo-{self._seed}"
        first = atlas.conversation(prompt_tokens, self._seed)
        answer = ask(to, _MODEL, first, conversation=conversation, max_tokens=_ANSWER_TOKENS)
        if mode != "local":
            forget(self._prefill.url)
        messages = following(first, answer.text, atlas.SECOND_QUESTION)
        before = self._counters()
        return _Measured(
            ask(to, _MODEL, messages, conversation=conversation, max_tokens=_ANSWER_TOKENS), messages, before
        )

    def _alone(self, messages: Messages) -> Answer:
        """The same prompt by one engine from nothing: no cache, no transfer, no router."""
        forget(self._prefill.url)
        return ask(client(self._prefill.url), _MODEL, messages, max_tokens=_ANSWER_TOKENS)

    def _counters(self) -> tuple[float, float, float]:
        router, prefill = self._fleet.router_url, self._prefill.url
        return (
            counter(prefill, "vllm:nixl_xfer_time_seconds_sum"),
            counter(router, "kvr_prefill_seconds_sum"),
            counter(router, "kvr_pulled_tokens_total"),
        )


def forget(engine_url: str, seconds: float = 40.0) -> None:
    """Empties an engine's prefix cache; waits while blocks are still held. Raises `RuntimeError` when they stay held."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        request = urllib.request.Request(engine_url + "/reset_prefix_cache", method="POST")
        with urllib.request.urlopen(request, timeout=30) as answer:
            if json.load(answer)["success"]:
                return
        time.sleep(0.1)
    raise RuntimeError(f"prefill still holds KV blocks after {seconds:.0f} s, so its prefix cache can't be emptied")


def results(points: Sequence[Point]) -> dict[str, Any]:
    longest = points[-1].ttft_ms
    return {
        "model": "SmolLM2-135M-Instruct",
        "machine": machine(),
        "commit": commit(),
        "points": [asdict(point) for point in points],
        "ratio_longest": round(longest["off"] / longest["on"], 1),
    }


def machine() -> str:
    names = [
        line.split(":", 1)[1].strip() for line in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in line
    ]
    return (
        f"{names[0] if names else platform.processor()}, {len(names)} cores, {platform.system()} {platform.machine()}"
    )


def commit() -> str:
    command = ["git", "describe", "--always", "--dirty", "--abbrev=12", "--match="]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=Path(__file__).parent)
    return done.stdout.strip() or "unknown"


def verdict(points: Sequence[Point]) -> list[str]:
    """What makes the demo fail, each with what it means."""
    faults = []
    for point in points:
        if not point.identical:
            faults.append(f"at {point.prompt_tokens} tokens the answer differs from the cold run: reused KV was wrong")
        if point.reused_tokens <= 0:
            faults.append(f"at {point.prompt_tokens} tokens nothing was reused: see the router's and prefill's logs")
    return faults


def run(lengths: Sequence[int], out: Path) -> int:
    say("Preparing the model (first time: a download of 93 MB)")
    options = FleetOptions(
        model=resolve("demo"), served_name=_MODEL, dtype=best_dtype(cpu_flags()), values={"kv_cache_gib": 2}
    )
    with Fleet(options, say) as fleet:
        demo = Demo(fleet, fleet.add_router("router-off", {"round_trip": False}))
        say("Warming up")
        demo.warm_up()
        points = []
        for length in lengths:
            say(f"Measuring a second turn of about {length} tokens: off, local, on, and a cold run to compare with")
            points.append(demo.point(length))
    found = results(points)
    out.mkdir(parents=True, exist_ok=True)
    (out / "results.json").write_text(json.dumps(found, indent=2) + "\n")
    say("\n" + report.table(found))
    report.plot(found, out / "ttft.png")
    say(f"\nWrote {out / 'results.json'} and {out / 'ttft.png'}")
    faults = verdict(points)
    for fault in faults:
        say(f"FAILED: {fault}")
    return 1 if faults else 0


def main(argv: Sequence[str]) -> int:
    interrupt_on_signals()
    parser = argparse.ArgumentParser(prog="make demo", description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--long", action="store_true", help=f"also measure about {_LONG_POINT} tokens")
    parser.add_argument(
        "--out", type=Path, default=_OUT, help="folder for results.json and ttft.png (default %(default)s)"
    )
    arguments = parser.parse_args(argv)
    try:
        return run([*_POINTS, _LONG_POINT] if arguments.long else _POINTS, arguments.out)
    except KeyboardInterrupt:
        say("Stopped.")
        return 130
    except (FleetError, ModelError, RuntimeError, OpenAIError, OSError) as error:
        print(f"The demo stopped: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
