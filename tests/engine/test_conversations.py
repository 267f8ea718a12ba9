"""Many conversations at once through the router: every answer right, nothing left held, the router no larger than before."""

import random
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from runtime.fleet import Fleet
from scripts.turns import counter
from tests.engine.conftest import HOLD_SECONDS
from tests.engine.turns import cold, complete, kv_usage

CONVERSATIONS = 200
AT_ONCE = 8
TURNS = 3
ANSWER = 40  # with the prompt of 70 more whole blocks than prefill computed: every on-turn has something to pull


def converse(url: str, number: int) -> list[str]:
    """What went wrong in three turns of one conversation; odd ones are streamed."""
    rnd = random.Random(number)
    history: list[int] = []
    faults = []
    for turn in range(TURNS):
        history += [rnd.randrange(3, 99) for _ in range(70)]
        warm = complete(url, history, ANSWER, stream=bool(number % 2), conversation_id=f"conversation-{number}")
        if len(warm.tokens) != ANSWER:
            faults.append(f"{number}.{turn}: {len(warm.tokens)} tokens")
        if turn and not warm.same_as(cold(url, history, ANSWER)):
            faults.append(f"{number}.{turn}: differs from its cold run")
        history += warm.tokens
    return faults


def resident_mib(pid: int) -> float:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(next(line.split()[1] for line in status.splitlines() if line.startswith("VmRSS"))) / 1024


def until(holds: Callable[[], bool], seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while not holds() and time.monotonic() < deadline:
        time.sleep(1)
    return holds()


def test_200_conversations_8_at_a_time(fleet: Fleet) -> None:
    url, pid = fleet.router_url, fleet.router.pid
    assert pid is not None
    assert until(lambda: max(map(kv_usage, fleet.engines)) < 0.01, HOLD_SECONDS + 10), (
        "blocks held before the test began"
    )
    before = {engine.name: kv_usage(engine) for engine in fleet.engines}
    with ThreadPoolExecutor(AT_ONCE) as threads:
        warm_up = list(threads.map(lambda number: converse(url, 10_000 + number), range(AT_ONCE)))
        resident = resident_mib(pid)
        pulled = counter(url, "kvr_pulled_tokens_total")
        faults = warm_up + list(threads.map(lambda number: converse(url, number), range(CONVERSATIONS)))
    assert [fault for of_one in faults for fault in of_one] == []
    assert counter(url, "kvr_requests_total", code="200") >= CONVERSATIONS * (TURNS * 2 - 1)
    assert counter(url, "kvr_pulled_tokens_total") > pulled
    assert counter(url, "kvr_retries_total") == 0
    assert resident_mib(pid) < resident + 8
    for engine in fleet.engines:
        assert until(lambda: kv_usage(engine) <= before[engine.name] + 0.001, HOLD_SECONDS + 10), engine.name  # noqa: B023
