"""`python -m scripts.smoke_test --url URL`: is this deployment up, right, and giving KV back? A line a check, then an exit code.

Checks run in order and stop at the first that makes the next ones pointless. Exit code: 0 all passed, 1 a check failed,
2 the arguments were wrong.
"""

from __future__ import annotations

import argparse
import json
import sys
import urllib.error
import urllib.request
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from openai import OpenAI, OpenAIError

from scripts.turns import Answer, Messages, ask, client, counter, following

# More than kv_recompute_threshold (64) and two blocks, so that reuse shows even where prefill still holds all it computed.
_ANSWER_TOKENS = 160
_TURNS = 3


class Failed(Exception):
    """A check that did not hold: what was seen, and what to do."""

    def __init__(self, reason: str, fix: str) -> None:
        super().__init__(reason)
        self.reason = reason
        self.fix = fix


@dataclass(slots=True)
class Deployment:
    url: str
    key: str
    model: str = ""

    @property
    def openai(self) -> OpenAI:
        return client(self.url, self.key)

    def get(self, path: str) -> tuple[int, bytes]:
        request = urllib.request.Request(self.url + path, headers={"authorization": f"Bearer {self.key}"})
        try:
            with urllib.request.urlopen(request, timeout=10) as answer:
                return answer.status, answer.read()
        except urllib.error.HTTPError as error:
            return error.code, error.read()
        except OSError as error:
            raise Failed(
                f"{self.url}{path} does not answer: {error}", "start the router, or check --url and the network"
            ) from None


def health(deployment: Deployment) -> str:
    status, _ = deployment.get("/health")
    if status != 200:
        raise Failed(f"/health answered {status}", "see the router's log")
    return "the router is alive"


def ready(deployment: Deployment) -> str:
    status, body = deployment.get("/ready")
    if status != 200:
        raise Failed(
            f"/ready answered {status}: {body.decode(errors='replace')}", "start the engines named; see their logs"
        )
    return "a prefill and a decode engine are up"


def models(deployment: Deployment) -> str:
    status, body = deployment.get("/v1/models")
    names = _model_names(body) if status == 200 else []
    if not names:
        raise Failed(f"/v1/models answered {status} with no model", "check that decode serves a model")
    if deployment.model and deployment.model not in names:
        raise Failed(f"model {deployment.model} is not among {', '.join(names)}", "give --model one of these")
    deployment.model = deployment.model or names[0]
    return f"serves {', '.join(names)}"


def conversation(deployment: Deployment) -> str:
    """Three turns with the round trip: each answer must equal a cold run, and decode's tokens must have been pulled."""
    name = f"smoke-{uuid.uuid4()}"
    pulled = _pulled(deployment)
    messages: Messages = [
        {"role": "system", "content": f"Session {name}. You answer at length."},
        {"role": "user", "content": "Describe a day at the sea."},
    ]
    for turn in range(1, _TURNS + 1):
        warm = _turn(deployment, messages, name)
        cold = _turn(deployment, messages, None)
        if not warm.same_as(cold):
            raise Failed(
                f"turn {turn} differs from a cold run: {_difference(warm, cold)}",
                "stop using this deployment with the round trip (--round-trip false) and report the engines' versions",
            )
        messages = following(messages, warm.text, "And what happened after that?")
    gained = _pulled(deployment) - pulled
    if gained <= 0:
        raise Failed(
            f"no token was pulled in {_TURNS} turns; handles: {_fates(deployment)}",
            "check that decode loads the RoundtripConnector, that its streaming plugin is installed, and round_trip is true",
        )
    return f"{_TURNS} turns equal their cold runs; {gained:.0f} tokens came back from decode"


CHECKS: tuple[tuple[str, Callable[[Deployment], str]], ...] = (
    ("health", health),
    ("ready", ready),
    ("models", models),
    ("conversation", conversation),
)


def _model_names(body: bytes) -> list[str]:
    try:
        return [str(entry["id"]) for entry in json.loads(body)["data"]]
    except (ValueError, TypeError, KeyError):  # something else than an OpenAI-compatible server answers here
        return []


def _pulled(deployment: Deployment) -> float:
    try:
        return counter(deployment.url, "kvr_pulled_tokens_total")
    except OSError as error:
        raise Failed(
            f"/metrics can't be read, so reuse can't be proved: {error}", "check that --url is our router"
        ) from None


def _turn(deployment: Deployment, messages: Messages, name: str | None) -> Answer:
    """A turn of the conversation `name`; without a name a cold one, whose salt no cached KV was computed under."""
    # ignore_eos: an answer that ends early would have too few tokens to prove reuse with.
    extra: dict[str, object] = {"ignore_eos": True}
    if name is None:
        extra["cache_salt"] = str(uuid.uuid4())
    try:
        return ask(
            deployment.openai,
            deployment.model,
            messages,
            conversation=name,
            max_tokens=_ANSWER_TOKENS,
            extra_body=extra,
        )
    except (OpenAIError, RuntimeError) as error:
        raise Failed(f"a turn failed: {error}", "see the log of the router, then of the engine it names") from None


def _difference(warm: Answer, cold: Answer) -> str:
    for place, (left, right) in enumerate(zip(warm.tokens, cold.tokens, strict=False)):
        if left != right:
            return f"token {place} is {left!r}, cold {right!r}"
    return f"first log-probability {warm.first_logprob:.3f}, cold {cold.first_logprob:.3f}"


def _fates(deployment: Deployment) -> str:
    fates = ("stored", "taken", "missed", "absent", "invalid", "expired", "engine_gone")
    return ", ".join(f"{fate} {counter(deployment.url, 'kvr_handles_total', fate=fate):.0f}" for fate in fates)


def run(deployment: Deployment) -> int:
    for name, check in CHECKS:
        try:
            print(f"pass  {name:<13} {check(deployment)}", flush=True)
        except Failed as failed:
            print(f"FAIL  {name:<13} {failed.reason}\n      fix: {failed.fix}", flush=True)
            return 1
    return 0


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m scripts.smoke_test", description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--url", required=True, help="the router, e.g. http://127.0.0.1:8000")
    parser.add_argument("--key", default="none", help="API key, if the deployment asks for one")
    parser.add_argument("--model", default="", help="model to ask (default: the first one served)")
    arguments = parser.parse_args(argv)
    if not arguments.url.startswith(("http://", "https://")):
        parser.error(f"--url is {arguments.url!r}. hint: give the whole address, e.g. http://127.0.0.1:8000")
    return run(Deployment(arguments.url.rstrip("/").removesuffix("/v1"), arguments.key, arguments.model))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
