"""A decode node as its agent sees it: moto, a metadata service, and a service page that tests change. And pages to put there."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from runtime.agent import Agent
from runtime.drain import Drain
from runtime.lifecycle import Instance
from runtime.metadata import Metadata
from runtime.node import NodeConfig
from tests.aws import Aws, Front, LifecycleHooks, emulator, front, launch, node, tags
from tests.fakes.metadata import FakeMetadata, serving, usual
from tests.node.test_source import DEFAULTS, put
from tests.unit.scripts.server import Answers
from tests.unit.scripts.server import serving as answering

TERMINATE = "kv-decode-terminate"


def ttft(good: int, more: int, late: int) -> str:
    """Buckets of two label sets, as the router's page has them."""
    return f"""# TYPE kvr_ttft_seconds histogram
kvr_ttft_seconds_bucket{{le="1.0",reuse="none"}} {good}
kvr_ttft_seconds_bucket{{le="2.5",reuse="none"}} {good + more}
kvr_ttft_seconds_bucket{{le="+Inf",reuse="none"}} {good + more + late}
kvr_ttft_seconds_bucket{{le="1.0",reuse="full"}} 1
kvr_ttft_seconds_bucket{{le="2.5",reuse="full"}} 1
kvr_ttft_seconds_bucket{{le="+Inf",reuse="full"}} 1
"""


ENGINE = """vllm:num_requests_running{{engine="0",model_name="m"}} {running}
vllm:num_requests_waiting{{engine="0",model_name="m"}} {waiting}
vllm:num_requests_waiting_by_reason{{engine="0",model_name="m",reason="capacity"}} 7.0
vllm:nixl_num_kv_expired_reqs_total{{engine="0",model_name="m"}} {expired}
vllm:nixl_bytes_transferred_sum{{engine="0",model_name="m"}} {moved}
vllm:nixl_xfer_time_seconds_sum{{engine="0",model_name="m"}} {seconds}
"""


def engine_page(running: int = 0, waiting: int = 0, expired: float = 0, moved: float = 0, seconds: float = 0) -> str:
    return ENGINE.format(running=running, waiting=waiting, expired=expired, moved=moved, seconds=seconds)


@dataclass
class Site:
    """A decode node: an instance in its group, tunables, and a service page that tests change."""

    aws: Aws
    front: Front
    hooks: LifecycleHooks
    metadata: FakeMetadata
    instance: str
    config: NodeConfig
    folder: Path
    answers: Answers
    stopped: Path

    @property
    def stop(self) -> list[str]:
        return ["touch", str(self.stopped)]

    def page(self, text: str) -> None:
        self.answers["/metrics"] = [(200, text)]

    def agent(self) -> Agent:
        return Agent(self.config, self.stop, self.folder / "infiniband")

    def drain(self, stop: list[str] | None = None) -> Drain:
        instance = Instance(self.config, Metadata(self.config.metadata_url))
        return Drain(instance, self.folder / "draining", stop or self.stop, self.agent()._open_requests)

    @property
    def state(self) -> str | None:
        return tags(self.aws, self.instance).get("kv-roundtrip:state")

    def tunables(self) -> dict[str, str]:
        return dict(json.loads((self.folder / "tunables.json").read_text()))


@pytest.fixture(scope="module")
def aws() -> Iterator[Aws]:
    with emulator() as started:
        put(started, "/kv-roundtrip", **DEFAULTS)
        yield started


@pytest.fixture
def site(aws: Aws, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator[Site]:
    monkeypatch.setenv("KVR_RUN", str(tmp_path))
    put(aws, "/kv-roundtrip", **DEFAULTS | {"agent_interval": "0.2"})
    instance = launch(aws, request.node.name)
    hooks = LifecycleHooks((instance, TERMINATE))
    answers: Answers = {"/health": [(200, "")], "/metrics": [(200, engine_page())]}
    with front(aws) as before, serving(usual(instance, "127.0.0.1")) as metadata, answering(answers) as url:
        before.rules.append(hooks)
        port = int(url.rpartition(":")[2])
        config = node(before.url, metadata.url, engine_port=port, router_port=port, load_budget_s=0)
        yield Site(aws, before, hooks, metadata, instance, config, tmp_path, answers, tmp_path / "stopped")
