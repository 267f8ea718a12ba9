"""`python -m runtime.engine`: becomes this node's vLLM engine, from node.json and tunables.json.

`--print` shows command line and environment as JSON and starts nothing. Exit code 2: the node's own configuration is wrong.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from typing import NoReturn

from runtime import address, launch
from runtime.address import AddressError
from runtime.command import best_dtype, cpu_flags
from runtime.launch import Host, LaunchError
from runtime.node import NodeConfig, NodeError, tunables_file, weights_folder
from runtime.parameters import ParameterError, Reader, Tunables, TunablesFile, for_reader, from_environment

MISCONFIGURED = 2


def model_folder(node: NodeConfig) -> Path | None:
    """Where the weights of this node lie: downloaded, or in a folder that the configuration names; None when nowhere."""
    for folder in (weights_folder(), Path(node.model)):
        if folder.is_absolute() and (folder / "config.json").is_file():
            return folder
    return None


def read_tunables(reader: Reader) -> Tunables:
    """Raises `LaunchError` or `ParameterError`: an engine does not start on defaults that nobody chose."""
    file = TunablesFile(tunables_file(), from_environment(os.environ, for_reader(reader)))
    file.poll()
    if file.fault:
        raise LaunchError(
            f"{file.fault}. hint: kv-roundtrip-tunables writes that file from Parameter Store; "
            "see `journalctl -u kv-roundtrip-tunables`"
        )
    return file.current


def survey(node: NodeConfig) -> Host:
    """Looks at this machine. Raises `LaunchError` or `AddressError`."""
    model = model_folder(node)
    if model is None:
        raise LaunchError(
            f"no weights of {node.model} in {weights_folder()} (no config.json there). "
            "hint: kv-roundtrip-weights downloads them; see `journalctl -u kv-roundtrip-weights`"
        )
    return Host(
        interface=address.find(node.metadata_url),
        model=str(model),
        tunables_file=tunables_file(),
        dtype=best_dtype(cpu_flags()),
        # A vCPU of EC2 is half a core, and two threads of one core do not multiply matrices faster than one.
        threads=max(1, (os.cpu_count() or 1) // 2),
    )


def _become(argv: list[str], environment: dict[str, str]) -> NoReturn:
    """Raises `LaunchError`."""
    sys.stdout.flush()
    sys.stderr.flush()
    try:
        os.execvpe(argv[0], argv, {**os.environ, **environment})
    except OSError as error:
        raise LaunchError(f"{argv[0]} can't be started: {error.strerror}. hint: build the image again") from None


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m runtime.engine", description="Starts this node's vLLM engine.")
    parser.add_argument("--print", action="store_true", dest="show", help="show it as JSON and start nothing")
    given = parser.parse_args(arguments)
    try:
        node = NodeConfig.read()
        tunables = read_tunables(launch.role(node))
        launch.check(node, tunables)
        host = survey(node)
        argv = launch.argv(node, tunables, host)
        environment = launch.environment(node, tunables, host, os.environ)
        if given.show:
            print(json.dumps({"argv": argv, "environment": environment}, indent=2))
            return 0
        print(f"{node.role} engine of {node.build} on {host.interface.address}:{node.engine_port}", file=sys.stderr)
        _become(argv, environment)
    except (NodeError, ParameterError, LaunchError, AddressError) as error:
        print(f"runtime.engine: {error}", file=sys.stderr)
    return MISCONFIGURED


if __name__ == "__main__":
    sys.exit(main())
