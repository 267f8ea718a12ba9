"""`python -m scripts.deploy_local --profile cpu`: a real `cdk bootstrap`, `deploy`, `diff` and `destroy` against an emulator.

No AWS account, no network but loopback. Each step is a line with its seconds. Exit code 0 when every step passed, else 1;
whatever it started has ended by then, also after Ctrl-C or a kill.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

import boto3

from runtime import group
from runtime.janitor import Janitor
from runtime.process import Child
from scripts import readback
from scripts.inventory import SERVICES, inventory
from scripts.readback import Failed, View

_ROOT = Path(__file__).resolve().parent.parent
_LOGS = _ROOT / "out" / "deploy-local"
_ACCOUNT = "123456789012"
_IMAGES = {"images.engine": "ami-0e0e0e0e0e0e0e0e0", "images.router": "ami-0a0a0a0a0a0a0a0a0"}
_START_S, _STEP_S, _STOP_S = 60.0, 240.0, 10.0
_TUNED = ("health_interval", "2")
"""What the operator changes; no template changes it."""
_ENDPOINT = re.compile(r"^emulator: (http://\S+)$", re.MULTILINE)


class Workbench:
    """The emulator and one command at a time beside it, in a folder that goes with them. Only owner of the processes."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="kvr-deploy-"))
        self._environ = dict(environ)
        self._janitor = Janitor(self.folder, self._environ)
        self._janitor.start()
        argv = [sys.executable, "-u", "-m", "tests.emulator", "--port", "0"]
        self._emulator = Child("emulator", argv, self._environ, self.folder / "emulator.log", self._janitor)
        self._running: subprocess.Popen[bytes] | None = None

    def start_emulator(self) -> str:
        """Its address. Raises `Failed`."""
        self._emulator.start()
        deadline = time.monotonic() + _START_S
        while time.monotonic() < deadline and self._emulator.is_running:
            found = _ENDPOINT.search(self._emulator.log.read_text())
            if found:
                return found.group(1)
            time.sleep(0.1)
        raise Failed(f"the emulator did not start: {self._emulator.last_lines()}")

    def run(self, name: str, argv: Sequence[str], environ: Mapping[str, str], *, limit: float = _STEP_S) -> str:
        """What the command printed. Raises `Failed` when it does not end well within `limit` seconds."""
        log = self.folder / f"{name.replace(' ', '-')}.log"
        with log.open("wb") as out:
            self._running = subprocess.Popen(
                argv,
                cwd=_ROOT,
                env=dict(environ),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._janitor.started(self._running.pid)
        try:
            code: int | None = self._running.wait(limit)
        except subprocess.TimeoutExpired:
            code = None
        self._end_running()
        text = log.read_text(errors="replace")
        if code != 0:
            what = f"exit code {code}" if code is not None else f"not done after {limit:g} s"
            last = "\n".join(text.splitlines()[-30:])
            raise Failed(f"{' '.join(argv[:3])}: {what}\n{last}")
        return text

    def _end_running(self) -> None:
        if self._running is not None:
            group.kill(self._running.pid)
            self._running.wait(_STOP_S)
            self._janitor.ended(self._running.pid)
            self._running = None

    def keep_logs(self) -> Path:
        _LOGS.mkdir(parents=True, exist_ok=True)
        for log in self.folder.glob("*.log"):
            shutil.copy(log, _LOGS / log.name)
        return _LOGS

    def close(self) -> None:
        self._end_running()
        self._emulator.stop(_STOP_S)
        self._janitor.dismiss()


class Run:
    """One profile, from nothing to nothing."""

    def __init__(self, bench: Workbench, profile: str, environ: Mapping[str, str]) -> None:
        self._bench = bench
        self._profile = profile
        self._given = json.loads((_ROOT / "cdk.json").read_text())["context"]["profiles"][profile]
        self._environ = dict(environ)
        self._endpoint = ""
        self._before: frozenset[str] = frozenset()
        self._assembly = bench.folder / "assembly"
        self._changed = bench.folder / "changed"
        self._kept: frozenset[str] = frozenset()

    def steps(self) -> Iterator[tuple[str, Callable[[], str]]]:
        yield "emulator", self._start
        yield "CDK CLI", lambda: self._cdk("cli", "--version").strip()
        yield "synth", lambda: self._synth(self._assembly, {})
        yield "bootstrap", self._bootstrap
        yield "deploy", lambda: self._deploy("deploy", self._assembly)
        yield "nothing left out", self._check_gaps
        yield "tunables", self._check_tunables
        for name, check in readback.CHECKS:
            yield name, functools.partial(self._look, check)
        yield "image pipelines", self._check_images
        yield "tune", self._tune
        yield "diff", lambda: self._diff(self._assembly)
        yield "changed synth", lambda: self._synth(self._changed, self._changes())
        yield "redeploy", lambda: self._deploy("redeploy", self._changed)
        yield "change arrived", self._check_change
        yield "groups again", lambda: readback.check_groups(self._view(self._changed))
        yield "destroy", self._destroy
        yield "nothing left", self._check_left

    # Steps.
    def _start(self) -> str:
        self._endpoint = self._bench.start_emulator()
        self._environ |= {"AWS_ENDPOINT_URL": self._endpoint}
        return self._endpoint

    def _synth(self, into: Path, changes: Mapping[str, str]) -> str:
        context = {"profile": self._profile, **_IMAGES, **changes}
        flags = [word for name, value in context.items() for word in ("-c", f"{name}={value}")]
        self._cdk(f"synth {into.name}", "synth", "--all", "--quiet", "--output", str(into), *flags)
        stacks = json.loads((into / "plan.json").read_text())["stacks"]
        return f"{len(stacks)} stacks" + "".join(f", {name} {value}" for name, value in changes.items())

    def _bootstrap(self) -> str:
        where = f"aws://{_ACCOUNT}/{self._given['region']}"
        self._cdk("bootstrap", "bootstrap", where, "--app", str(self._assembly))
        self._before = self._inventory()
        return f"{where}, {len(self._before)} things are there"

    def _deploy(self, name: str, assembly: Path) -> str:
        text = self._cdk(
            # moto's change sets know nothing of other stacks' exports.
            name, "deploy", "--all", "--method=direct", "--require-approval", "never", "--app", str(assembly),
        )  # fmt: skip
        return f"{text.count('✅')} stacks"

    def _check_gaps(self) -> str:
        report = self._report()
        gaps = [f"{what} {type_}" for what, types in report["gaps"].items() for type_ in types]
        if gaps:
            raise Failed(
                f"the emulator left out: {', '.join(gaps)}. hint: teach tests/emulator/ the type, or list it in "
                "tests/emulator/cloudformation.py's SKIPPED with a reason"
            )
        recorded = sorted({one["type"] for one in report["recorded"]})
        return f"no gaps; kept as records only: {', '.join(recorded)}"

    def _check_tunables(self) -> str:
        view = self._view(self._assembly)
        changed = set(self._given.get("tunables", {}))
        if not self._has_efa(view):
            changed.add("transfer_floor")
        return readback.check_tunables(view, self._path(view), frozenset(changed))

    def _look(self, check: Callable[[View], str]) -> str:
        return check(self._view(self._assembly))

    def _check_images(self) -> str:
        pipelines = [one for one in self._report()["recorded"] if one["type"] == "AWS::ImageBuilder::ImagePipeline"]
        names = sorted(one["properties"]["Name"] for one in pipelines)
        if len(names) != len(_IMAGES):
            raise Failed(f"image pipelines are {names}, expected one for the engine and one for the router")
        return ", ".join(names)

    def _tune(self) -> str:
        """As an operator would."""
        name, value = _TUNED
        path = self._path(self._view(self._assembly))
        argv = [sys.executable, "-m", "scripts.tune", "set", f"{name}={value}", "--prefix", path]
        self._bench.run("tune", argv, self._environ)
        found = readback.texts(self._client("ssm"), path)[name]
        if found != value:
            raise Failed(f"{name} is {found!r} after scripts/tune.py set it to {value!r}")
        return f"{name} is {value}"

    def _diff(self, assembly: Path) -> str:
        # By template: for each stack the CLI would wait half a minute for a change set that moto does not make.
        self._cdk("diff", "diff", "--fail", "--method=template", "--app", str(assembly))
        return "no differences"

    def _changes(self) -> dict[str, str]:
        return {
            "decode.count": str(self._given.get("decode", {}).get("count", 1) + 1),
            "load_budget_minutes": str(self._given["load_budget_minutes"] + 5),
            "tunables.max_attempts": "3",
        }

    def _check_change(self) -> str:
        view = self._view(self._changed)
        ec2 = self._client("ec2")
        for resource in view.of("AWS::EC2::LaunchTemplate"):
            (found,) = ec2.describe_launch_templates(LaunchTemplateIds=[resource.id])["LaunchTemplates"]
            if found["LatestVersionNumber"] != 2:
                raise Failed(
                    f"{resource.name} has version {found['LatestVersionNumber']}, expected 2: its user data changed"
                )
        readback.check_hooks(view)
        texts = readback.texts(self._client("ssm"), self._path(view))
        for name, value in (("max_attempts", "3"), _TUNED):
            if texts[name] != value:
                raise Failed(f"{name} is {texts[name]!r} after the redeploy, expected {value!r}")
        return "new launch template versions and hooks; the operator's value stayed"

    def _destroy(self) -> str:
        view = self._view(self._changed)
        used = {type_.split("::")[1] for type_ in view.types if type_.startswith("AWS::")}
        recorded = {one["type"].split("::")[1] for one in self._report()["recorded"]}
        unlisted = used - SERVICES - recorded - {"CDK"}
        if unlisted:
            raise Failed(f"nobody lists {', '.join(sorted(unlisted))}. hint: add them to scripts/inventory.py")
        self._kept = view.kept
        text = self._cdk("destroy", "destroy", "--all", "--force", "--app", str(self._changed))
        return f"{text.count('✅')} stacks; compared are {', '.join(sorted(used))}"

    def _check_left(self) -> str:
        left = {name for name in self._inventory() - self._before if name.split(" ", 2)[2] not in self._kept}
        lost = self._before - self._inventory()
        records = [one["id"] for one in self._report()["recorded"] if one["type"] != "AWS::S3::BucketPolicy"]
        if left or lost or records:
            raise Failed(f"left behind: {sorted(left) + records}; gone but not ours: {sorted(lost)}")
        self._check_gaps()
        return f"kept on purpose: {', '.join(sorted(self._kept))}" if self._kept else "as before the deploy"

    # Means.
    def _cdk(self, name: str, *words: str) -> str:
        return self._bench.run(name, [str(_ROOT / "scripts" / "cdk.sh"), *words], self._environ)

    @functools.cache  # noqa: B019 - one run per process
    def _client(self, service: str) -> Any:
        return boto3.client(
            service,
            region_name=self._given["region"],
            endpoint_url=self._endpoint,
            aws_access_key_id=self._environ["AWS_ACCESS_KEY_ID"],
            aws_secret_access_key=self._environ["AWS_SECRET_ACCESS_KEY"],
        )

    def _inventory(self) -> frozenset[str]:
        return inventory(self._client)

    def _report(self) -> dict[str, Any]:
        with urllib.request.urlopen(f"{self._endpoint}/emulator/report", timeout=10) as answer:
            report: dict[str, Any] = json.load(answer)
            return report

    def _view(self, assembly: Path) -> View:
        return View(assembly, self._client)

    @staticmethod
    def _has_efa(view: View) -> bool:
        templates = [one.properties["LaunchTemplateData"] for one in view.of("AWS::EC2::LaunchTemplate")]
        kinds = {one.get("InterfaceType", "") for data in templates for one in data["NetworkInterfaces"]}
        return any(kind.startswith("efa") for kind in kinds)

    @staticmethod
    def _path(view: View) -> str:
        (path,) = {resource.id.rpartition("/")[0] for resource in view.of("AWS::SSM::Parameter")}
        return path


def environment(given: Mapping[str, str], region: str) -> dict[str, str]:
    """`given` without what could reach an AWS account, with credentials that only an emulator takes."""
    kept = {name: value for name, value in given.items() if not name.startswith(("AWS_", "CDK_", "KVR_"))}
    return kept | {
        "AWS_ACCESS_KEY_ID": "emulator",
        "AWS_SECRET_ACCESS_KEY": "emulator",
        "AWS_REGION": region,
        "AWS_DEFAULT_REGION": region,
        "AWS_EC2_METADATA_DISABLED": "true",
        "AWS_CONFIG_FILE": os.devnull,
        "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
        "CDK_DISABLE_CLI_TELEMETRY": "true",
        "NO_PROXY": "localhost,127.0.0.1",
        "no_proxy": "localhost,127.0.0.1",
        "PYTHONUNBUFFERED": "1",
    }


def perform(run: Run) -> bool:
    """Step by step; the first that fails ends it."""
    begun = time.monotonic()
    for name, step in run.steps():
        start = time.monotonic()
        try:
            words, passed = step(), True
        except Failed as failed:
            words, passed = str(failed), False
        print(f"{'ok  ' if passed else 'FAIL'} {time.monotonic() - start:6.1f} s  {name:<17} {words}", flush=True)
        if not passed:
            return False
    print(f"all  {time.monotonic() - begun:6.1f} s", flush=True)
    return True


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m scripts.deploy_local", description=(__doc__ or "").split(": ", 1)[1]
    )
    profiles = json.loads((_ROOT / "cdk.json").read_text())["context"]["profiles"]
    parser.add_argument("--profile", choices=sorted(profiles), default="cpu", help="of cdk.json (default: cpu)")
    profile = parser.parse_args(argv).profile
    # SIGINT too: a shell starts background jobs with it ignored, and Python then leaves it so.
    for which in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(which, _interrupt)
    environ = environment(os.environ, profiles[profile]["region"])
    bench = Workbench(environ)
    passed = False
    try:
        passed = perform(Run(bench, profile, environ))
        if not passed:
            print(f"logs: {bench.keep_logs()}", flush=True)
    except KeyboardInterrupt:
        print("interrupted; ending what was started", flush=True)
    finally:
        bench.close()
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
