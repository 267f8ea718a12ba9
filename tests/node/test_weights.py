"""Weights from a real S3 emulator, and from a hub on loopback that speaks enough of the hub's API for its own client."""

import dataclasses
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count
from pathlib import Path

import pytest

from runtime.node import NodeConfig
from runtime.weights import CutShort, File, WeightsError, download, persist, require_room
from tests.aws import REGION, Answer, Aws, Call, Front, free_port, front, node

ROOT = Path(__file__).parents[2]
MODEL = {
    "config.json": b"{}",
    "model-00001.safetensors": os.urandom(20 * 1024 * 1024),  # two parts
    "model-00002.safetensors": b"2" * 1000,
    "deep/vocab.txt": b"a b",
}
_numbers = count()


@pytest.fixture
def bucket(aws: Aws) -> str:
    name = f"weights-{next(_numbers)}"
    s3 = aws.client("s3")
    s3.create_bucket(Bucket=name, CreateBucketConfiguration={"LocationConstraint": REGION})
    for file, content in MODEL.items():
        s3.put_object(Bucket=name, Key=f"models/tiny/{file}", Body=content)
    s3.put_object(Bucket=name, Key="models/tiny/", Body=b"")
    s3.put_object(Bucket=name, Key="models/tiny-other/config.json", Body=b"other")
    return name


def s3_node(url: str, bucket: str, prefix: str = "models/tiny") -> NodeConfig:
    return node(url, "", weights=f"s3://{bucket}/{prefix}", model="org/tiny")


def content(folder: Path) -> dict[str, bytes]:
    return {
        str(file.relative_to(folder)): file.read_bytes()
        for file in folder.rglob("*")
        if file.is_file() and not str(file.relative_to(folder)).startswith(".")
    }


def gets(before: Front) -> list[str]:
    """Keys that were downloaded, each once however many parts it took."""
    return sorted(
        {
            call.action.rpartition("models/tiny/")[2]
            for call in before.calls
            if call.action.startswith("GET ") and "tiny/" in call.action
        }
    )


def test_all_files_come_and_a_second_run_asks_nobody(aws: Aws, bucket: str, tmp_path: Path) -> None:
    config = s3_node(aws.url, bucket, "models/tiny/")
    download(config, tmp_path)
    assert content(tmp_path) == MODEL
    download(dataclasses.replace(config, endpoint_url=f"http://127.0.0.1:{free_port()}"), tmp_path)


def test_a_listing_of_two_pages(aws: Aws, bucket: str, tmp_path: Path) -> None:
    def page(name: str, size: int, more: bool) -> Answer:
        key = f"<Contents><Key>models/tiny/{name}</Key><Size>{size}</Size></Contents>"
        end = "<IsTruncated>true</IsTruncated><NextContinuationToken>2</NextContinuationToken>" if more else ""
        return Answer(200, f"<ListBucketResult><Name>{bucket}</Name>{key}{end}</ListBucketResult>".encode())

    pages = [page("config.json", 2, True), page("model-00002.safetensors", 1000, False)]
    with front(aws) as before:
        before.rules.append(lambda call: pages.pop(0) if call.action == f"GET /{bucket}" else None)
        download(s3_node(before.url, bucket), tmp_path)
    assert sorted(content(tmp_path)) == ["config.json", "model-00002.safetensors"]


def test_a_download_cut_short_goes_on(aws: Aws, bucket: str, tmp_path: Path) -> None:
    with front(aws) as before:
        config = s3_node(before.url, bucket)
        denied = Answer(403, b"<Error><Code>AccessDenied</Code></Error>")
        before.rules.append(lambda call: denied if call.action.endswith("00002.safetensors") else None)
        with pytest.raises(Exception, match=r"403|AccessDenied"):
            download(config, tmp_path)
        assert "model-00001.safetensors" in content(tmp_path)
        before.rules.clear()
        before.calls.clear()
        download(config, tmp_path)
        assert content(tmp_path) == MODEL
        assert "model-00001.safetensors" not in gets(before) and "model-00002.safetensors" in gets(before)


def test_a_file_of_the_wrong_size_is_fetched_again(aws: Aws, bucket: str, tmp_path: Path) -> None:
    config = s3_node(aws.url, bucket)
    download(config, tmp_path)
    (tmp_path / "model-00002.safetensors").write_bytes(b"2")
    mark = tmp_path / ".kv-roundtrip.json"
    mark.write_text(json.dumps(json.loads(mark.read_text()) | {"complete": False}))
    download(config, tmp_path)
    assert content(tmp_path) == MODEL


def test_another_model_replaces_the_first(aws: Aws, bucket: str, tmp_path: Path) -> None:
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "model-00009.safetensors").touch()
    download(s3_node(aws.url, bucket), tmp_path)
    download(s3_node(aws.url, bucket, "models/tiny-other"), tmp_path)
    assert content(tmp_path) == {"config.json": b"other"}


def test_a_download_that_broke_off_goes_on_by_itself(aws: Aws, bucket: str, tmp_path: Path) -> None:
    # As often as boto3 itself begins a stream again.
    left = [5]

    def cut(call: Call) -> Answer | None:
        if call.action != f"GET /{bucket}/models/tiny/model-00002.safetensors" or not left[0]:
            return None
        left[0] -= 1
        return Answer(200, b"2" * 10, headers={"content-length": "1000", "connection": "close", "etag": '"x"'})

    with front(aws) as before:
        before.rules.append(cut)
        persist(s3_node(before.url, bucket), tmp_path, (0.1, 0.1))
    assert content(tmp_path) == MODEL


def test_patience_with_a_download_ends(aws: Aws, bucket: str, tmp_path: Path) -> None:
    def cut(call: Call) -> Answer | None:
        if call.action != f"GET /{bucket}/models/tiny/model-00002.safetensors":
            return None
        return Answer(200, b"2" * 10, headers={"content-length": "1000", "connection": "close", "etag": '"x"'})

    with front(aws) as before:
        before.rules.append(cut)
        with pytest.raises(CutShort, match="broke off"):
            persist(s3_node(before.url, bucket), tmp_path, (0.01,))
    # What came before it is not asked for twice.
    assert len(before.of(f"GET /{bucket}/models/tiny/model-00001.safetensors")) <= 2


def test_what_does_not_pass_is_not_tried_again(aws: Aws, tmp_path: Path) -> None:
    with pytest.raises(Exception, match="NoSuchBucket"):
        persist(s3_node(aws.url, "nobody-made-this"), tmp_path, (600,))


def test_the_bytes_of_a_cut_file_are_room(
    aws: Aws, bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A restart must not need a file's size twice."""
    config = s3_node(aws.url, bucket)
    with pytest.raises(WeightsError):
        download(dataclasses.replace(config, weights=f"s3://{bucket}/models/nothing"), tmp_path)
    download_begun = tmp_path / "deep" / ".partial-vocab.txt"
    (tmp_path / ".kv-roundtrip.json").write_text(json.dumps({"source": config.weights, "complete": False}))
    download_begun.parent.mkdir()
    download_begun.write_bytes(b"x" * 1000)
    seen = []
    monkeypatch.setattr("runtime.weights.require_room", lambda folder, files: seen.append(download_begun.exists()))
    download(config, tmp_path)
    assert seen == [False] and content(tmp_path) == MODEL


def test_a_stream_that_breaks_is_named(aws: Aws, bucket: str, tmp_path: Path) -> None:
    def cut(call: Call) -> Answer | None:
        if call.action != f"GET /{bucket}/models/tiny/model-00002.safetensors":
            return None
        return Answer(200, b"2" * 10, headers={"content-length": "1000", "connection": "close", "etag": '"x"'})

    with front(aws) as before:
        before.rules.append(cut)
        with pytest.raises(WeightsError, match=r"model-00002.safetensors of s3://.* broke off.*hint"):
            download(s3_node(before.url, bucket), tmp_path)
    assert "model-00002.safetensors" not in content(tmp_path)


@pytest.mark.parametrize("weights", ["s3://", "s3://bucket", "http://x", "/srv/model", "Hub"])
def test_what_is_no_source_is_refused(weights: str, tmp_path: Path) -> None:
    with pytest.raises(WeightsError, match="hint: give hub, or s3://bucket/prefix"):
        download(node("", "", weights=weights, model="org/tiny"), tmp_path)


def test_an_empty_prefix_and_one_that_is_no_model(aws: Aws, bucket: str, tmp_path: Path) -> None:
    with pytest.raises(WeightsError, match=r"nothing is below s3://.*/models/ti/\. hint: see `aws s3 ls"):
        download(s3_node(aws.url, bucket, "models/ti"), tmp_path)
    with pytest.raises(WeightsError, match=r"has no config\.json"):
        download(s3_node(aws.url, bucket, "models/tiny/deep"), tmp_path)


def test_a_key_that_leaves_the_folder_is_refused(aws: Aws, bucket: str, tmp_path: Path) -> None:
    listing = f"""<ListBucketResult><Name>{bucket}</Name><IsTruncated>false</IsTruncated>
        <Contents><Key>models/tiny/../../x</Key><Size>1</Size></Contents></ListBucketResult>"""
    with front(aws) as before:
        before.rules.append(lambda call: Answer(200, listing.encode()) if call.action == f"GET /{bucket}" else None)
        with pytest.raises(WeightsError, match="would leave the folder"):
            download(s3_node(before.url, bucket), tmp_path / "weights")


def test_no_room_is_said_before_anything_is_fetched(tmp_path: Path) -> None:
    with pytest.raises(WeightsError, match=r"GB free, the weights need 1000000000\.0 GB more. hint"):
        require_room(tmp_path, [File("a", 10**18)])


@pytest.mark.parametrize("given", [{"role": "router", "accelerator": "none"}, {"model": "here"}])
def test_nodes_that_need_none(given: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    given = given | {"model": str(tmp_path)} if "model" in given else given
    download(node("", "", weights="hub", **given), tmp_path / "weights")
    assert not (tmp_path / "weights").exists()


SHA = "0123456789abcdef0123456789abcdef01234567"
TOKEN = "hf_placeholder123"


@contextmanager
def hub(files: dict[str, bytes], token: str = "") -> Iterator[tuple[str, list[str]]]:
    """One model, org/tiny, and the paths that were asked."""
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            path = self.path.partition("?")[0]
            asked.append(f"{self.command} {path}")
            if token and self.headers.get("authorization") != f"Bearer {token}":
                self.answer(401, b"{}", **{"x-error-code": "GatedRepo", "x-error-message": "Access is restricted"})
            elif path in ("/api/models/org/tiny", "/api/models/org/tiny/revision/main"):
                siblings = [{"rfilename": name, "size": len(body), "blobId": name} for name, body in files.items()]
                self.answer(200, json.dumps({"id": "org/tiny", "sha": SHA, "siblings": siblings}).encode())
            elif path == f"/api/models/org/tiny/tree/{SHA}":
                tree = [{"type": "file", "path": name, "size": len(body), "oid": name} for name, body in files.items()]
                self.answer(200, json.dumps(tree).encode())
            elif path.startswith(f"/org/tiny/resolve/{SHA}/") and (name := path.partition(f"{SHA}/")[2]) in files:
                self.answer(200, files[name], **{"etag": f'"{len(name)}"', "x-repo-commit": SHA})
            else:
                self.answer(404, b"{}", **{"x-error-code": "RepoNotFound"})

        do_HEAD = do_GET  # noqa: N815

        def answer(self, status: int, body: bytes, **headers: str) -> None:
            self.send_response(status)
            for header, value in {"content-length": str(len(body)), **headers}.items():
                self.send_header(header, value)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", asked
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def run(config: NodeConfig, folder: Path, **environment: str) -> tuple[int, str]:
    (folder / "node.json").write_text(json.dumps(dataclasses.asdict(config)))
    places = {
        "KVR_NODE_CONFIG": str(folder / "node.json"),
        "KVR_STATE": str(folder / "state"),
        "HF_HOME": str(folder / "hf"),
    }
    done = subprocess.run(
        [sys.executable, "-m", "runtime.weights"],
        cwd=ROOT, capture_output=True, text=True, timeout=120, env={**os.environ, **places, **environment},
    )  # fmt: skip
    assert "Traceback" not in done.stderr
    return done.returncode, done.stdout + done.stderr


def test_rep_31_from_the_hub_with_a_token_that_shows_nowhere(aws: Aws, tmp_path: Path) -> None:
    aws.client("ssm").put_parameter(Name="/hub-token", Value=TOKEN, Type="SecureString")
    config = node(aws.url, "", weights="hub", model="org/tiny", hub_token_parameter="/hub-token")
    files = {name: body for name, body in MODEL.items() if len(body) < 10_000} | {"model.bin": b"the same again"}
    with hub(files, TOKEN) as (url, asked):
        code, said = run(config, tmp_path, HF_ENDPOINT=url)
        assert code == 0, said
        del files["model.bin"]
        assert content(tmp_path / "state" / "weights") == files
        asked.clear()
        assert run(config, tmp_path, HF_ENDPOINT=url)[0] == 0 and not asked
    assert TOKEN not in said
    assert not [file for file in tmp_path.rglob("*") if file.is_file() and TOKEN.encode() in file.read_bytes()]


def test_a_gated_model_without_a_token(tmp_path: Path) -> None:
    with hub(MODEL, TOKEN) as (url, _):
        code, said = run(node("", "", weights="hub", model="org/tiny"), tmp_path, HF_ENDPOINT=url)
    assert code == 1 and "org/tiny is gated. hint: accept its terms" in said


def test_a_model_that_the_hub_lacks(tmp_path: Path) -> None:
    with hub(MODEL) as (url, _):
        code, said = run(node("", "", weights="hub", model="org/huge"), tmp_path, HF_ENDPOINT=url)
    assert code == 1 and "the hub does not show org/huge. hint" in said


def test_no_hub_is_an_error_even_beside_a_part_of_the_files(tmp_path: Path) -> None:
    weights = tmp_path / "state" / "weights"
    weights.mkdir(parents=True)
    (weights / ".kv-roundtrip.json").write_text('{"source": "hub:org/tiny", "complete": false}')
    (weights / "config.json").write_bytes(MODEL["config.json"])
    url = f"http://127.0.0.1:{free_port()}"
    code, said = run(node("", "", weights="hub", model="org/tiny"), tmp_path, HF_ENDPOINT=url)
    assert code == 1 and "org/tiny can't be downloaded" in said and "hint: check the way out" in said


def test_rep_31_s3_that_refuses_is_one_line(aws: Aws, tmp_path: Path) -> None:
    code, said = run(s3_node(aws.url, "no-such-bucket"), tmp_path)
    assert code == 1 and "NoSuchBucket" in said and "hint: check the bucket's name" in said
