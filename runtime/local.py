"""`python -m runtime.local`: the whole system on this machine until Ctrl-C."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from collections.abc import Sequence
from types import FrameType
from typing import NoReturn

from runtime.command import best_dtype, cpu_flags
from runtime.fleet import Fleet, FleetError, FleetOptions, require_free
from runtime.model import ModelError, resolve
from runtime.parameters import PARAMETERS, ParameterError, add_arguments, from_arguments

_NAME = "local"
_STARTS_IN_A_ROW = 3


def parse(argv: Sequence[str]) -> FleetOptions:
    """Exits with status 2 and one line that says what to change. Fetches the model, once the port is known to be free."""
    parser = argparse.ArgumentParser(
        prog="python -m runtime.local",
        description="Prefill engines, decode engines and the router on this machine, until Ctrl-C.",
    )
    parser.add_argument("--port", type=int, default=8000, help="the router's port (default %(default)s)")
    parser.add_argument("--model", default="demo", help="a folder, a hub id, demo or tiny (default %(default)s)")
    parser.add_argument("--prefill", type=int, default=1, metavar="N", help="prefill engines (default %(default)s)")
    parser.add_argument("--decode", type=int, default=1, metavar="M", help="decode engines (default %(default)s)")
    parser.add_argument("--max-model-len", type=int, help="longest prompt and answer, in tokens (default: the model's)")
    parser.add_argument("--dtype", help="float32 or bfloat16 (default: what this CPU computes fastest)")
    add_arguments(parser, PARAMETERS)
    arguments = parser.parse_args(argv)
    for name in ("prefill", "decode"):
        if getattr(arguments, name) < 1:
            parser.error(f"--{name} is {getattr(arguments, name)}. hint: at least 1 engine of each role is needed")
    try:
        require_free(arguments.port)
        return FleetOptions(
            model=resolve(arguments.model),
            served_name=_NAME,
            prefill=arguments.prefill,
            decode=arguments.decode,
            port=arguments.port,
            dtype=arguments.dtype or best_dtype(cpu_flags()),
            max_model_len=arguments.max_model_len,
            values=from_arguments(arguments, os.environ, PARAMETERS),
        )
    except (FleetError, ModelError, ParameterError) as error:
        parser.exit(2, f"{error}\n")  # one line: the usage would bury it


def say(line: str) -> None:
    print(line, flush=True)


def interrupt_on_signals() -> None:
    """SIGTERM ends us the way Ctrl-C does, so that one path cleans up; Ctrl-C too where a shell had it ignored (`... &`)."""

    def interrupt(_: int, __: FrameType | None) -> None:
        raise KeyboardInterrupt

    for which in (signal.SIGINT, signal.SIGTERM):
        signal.signal(which, interrupt)


def keep_running(fleet: Fleet, seconds: float = 1.0) -> NoReturn:
    """Starts again what ends, on its own port; the rest goes on meanwhile. Raises `FleetError` when that does not help.

    `seconds` is the time between two looks.
    """
    starts: dict[str, int] = {}
    while True:
        time.sleep(seconds)
        for server in fleet.servers:
            if not server.is_running:
                starts[server.name] = starts.get(server.name, 0) + 1
                if starts[server.name] > _STARTS_IN_A_ROW:
                    raise FleetError(
                        f"{server.name} ended {_STARTS_IN_A_ROW} times before it was ready. "
                        f"Its last lines:\n{server.last_lines()}"
                    )
                say(f"{server.name} ended; starting it again, its conversations go on cold")
                server.start()
            elif server.name in starts and server.is_ready():
                del starts[server.name]
                say(f"{server.name} is ready again")


def _examples(url: str) -> str:
    question = "What is the capital of France?"
    return f"""
Ready at {url}/v1  (model "{_NAME}"; metrics at {url}/metrics; Ctrl-C stops everything)

curl -N {url}/v1/chat/completions -H 'content-type: application/json' -H 'x-conversation-id: one' \\
  -d '{{"model": "{_NAME}", "stream": true, "messages": [{{"role": "user", "content": "{question}"}}]}}'

from openai import OpenAI
client = OpenAI(base_url="{url}/v1", api_key="none")
answer = client.chat.completions.create(
    model="{_NAME}",
    messages=[{{"role": "user", "content": "{question}"}}],
    extra_body={{"conversation_id": "one"}},  # the same id on every turn of a conversation
)
print(answer.choices[0].message.content)
"""


def main(argv: Sequence[str]) -> int:
    interrupt_on_signals()
    try:
        options = parse(argv)
        fleet = Fleet(options, say)
    except KeyboardInterrupt:
        say("Stopped.")
        return 130
    except (FleetError, ParameterError) as error:
        print(error, file=sys.stderr)
        return 2
    try:
        say(f"Starting {options.prefill} prefill, {options.decode} decode and the router; logs are in {fleet.folder}")
        with fleet:
            say(_examples(fleet.router_url))
            keep_running(fleet)
    except KeyboardInterrupt:
        say("Stopped.")
        return 0
    except FleetError as error:
        print(error, file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
