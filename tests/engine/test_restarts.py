"""An engine dies in the middle of a turn: the client is told, the router stays, and the next turn works once it is back."""

import json
import random
import time
from collections.abc import Iterator

import httpx
import pytest

from runtime.fleet import Fleet, Server
from tests.engine.turns import Result, cold, complete, request


def history(name: str) -> list[int]:
    rnd = random.Random(name)
    return [rnd.randrange(3, 99) for _ in range(150)]


def ready(fleet: Fleet) -> bool:
    return httpx.get(fleet.router_url + "/ready").status_code == 200


def wait(fleet: Fleet, expected: bool, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while ready(fleet) != expected:
        assert time.monotonic() < deadline, f"the router is {'not ' if expected else 'still '}ready"
        time.sleep(0.1)


def restart(fleet: Fleet, engine: Server) -> None:
    engine.start()
    fleet.wait([engine])
    wait(fleet, True, 10)


def killed_mid_stream(fleet: Fleet, engine: Server, tokens: list[int], name: str) -> list[str]:
    """The data lines that a client saw of a long answer during which `engine` got SIGKILL."""
    body = request(tokens, 1500, stream=True, conversation_id=name)
    lines = []
    with httpx.stream("POST", fleet.router_url + "/v1/completions", json=body, timeout=60) as reply:
        assert reply.status_code == 200
        for line in reply.iter_lines():
            if line.startswith("data: "):
                lines.append(line.removeprefix("data: "))
            if len(lines) == 5:
                engine.kill()
    return lines


@pytest.fixture
def first(request: pytest.FixtureRequest, fleet: Fleet) -> Iterator[tuple[str, list[int]]]:
    """A conversation with a finished turn: its name and its history."""
    name = request.node.name
    tokens = history(name)
    result = complete(fleet.router_url, tokens, conversation_id=name)
    yield name, [*tokens, *result.tokens]


def check_next_turn(fleet: Fleet, name: str, tokens: list[int]) -> Result:
    result = complete(fleet.router_url, [*tokens, 5, 6, 7], conversation_id=name)
    assert result.same_as(cold(fleet.router_url, [*tokens, 5, 6, 7]))
    return result


def test_decode_killed_in_the_middle_of_a_stream(fleet: Fleet, first: tuple[str, list[int]]) -> None:
    name, tokens = first
    lines = killed_mid_stream(fleet, fleet.decode[0], tokens, name)
    assert json.loads(lines[-1])["error"]["code"] == 502 and "[DONE]" not in lines
    wait(fleet, False, 5)
    reply = httpx.post(fleet.router_url + "/v1/completions", json=request(tokens, 3), timeout=10)
    assert reply.status_code == 503 and reply.headers["retry-after"]
    restart(fleet, fleet.decode[0])
    check_next_turn(fleet, name, tokens)
    # Its handle now names the new engine: prefill has to get over the old one.
    check_next_turn(fleet, name, tokens)


def test_prefill_killed_in_the_middle_of_a_stream(fleet: Fleet, first: tuple[str, list[int]]) -> None:
    name, tokens = first
    lines = killed_mid_stream(fleet, fleet.prefill[0], tokens, name)
    assert lines[-1] == "[DONE]", "decode has all it needs and goes on"
    wait(fleet, False, 5)
    restart(fleet, fleet.prefill[0])
    for _ in range(2):
        check_next_turn(fleet, name, tokens)


def test_20_turns_after_a_restart_on_the_same_address(fleet: Fleet, first: tuple[str, list[int]]) -> None:
    """The engine is back before the router's next look at it could tell, with old handles on their way."""
    name, tokens = first
    fleet.decode[0].kill()
    restart(fleet, fleet.decode[0])
    for number in range(20):
        prompt = [*tokens, *([7] * number)]
        assert complete(fleet.router_url, prompt, 5, conversation_id=name).same_as(cold(fleet.router_url, prompt, 5))
