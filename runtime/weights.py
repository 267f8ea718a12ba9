"""`python -m runtime.weights`: the model's weights into STATE/weights, from S3 or from the Hugging Face hub.

A run that was cut short goes on where it was, file by file; one that finished leaves a mark, and the next does nothing. A
folder that holds another model is emptied first. Exit code 1 with a reason when the weights can't be had.
"""

from __future__ import annotations

import json
import logging
import os
import re
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path, PurePosixPath
from typing import Any

from boto3.s3.transfer import S3TransferRetriesExceededError, TransferConfig

from runtime import log
from runtime.node import NodeConfig, NodeError, weights_folder
from runtime.patience import may_pass
from runtime.source import AWS_ERRORS, SourceError, client, explain, replace, secret

logger = logging.getLogger(__name__)

HUB = "hub"
MARK = ".kv-roundtrip.json"
_PARTIAL = ".partial-"
_S3 = re.compile(r"s3://(?P<bucket>[a-z0-9][a-z0-9.-]+)/(?P<prefix>.+?)/*")
_FILES_AT_ONCE = 4
_PARTS_AT_ONCE = 8
"""Of one file. One stream of S3 gives some 100 MB/s, a P5en's network a hundred times that."""
_PART_BYTES = 16 * 1024 * 1024
_PAUSES_S = (1.0, 5.0)
# The same weights once more, in forms that vLLM does not choose when there are safetensors.
_OTHER_FORMS = ("*.bin", "*.pt", "*.pth", "*.gguf", "*.onnx", "*.h5", "*.msgpack", "original/*")


class WeightsError(RuntimeError):
    """The weights can't be had. The text has a hint."""


class CutShort(WeightsError):
    """A part of them is here, and another try may bring the rest."""


@dataclass(frozen=True, slots=True)
class File:
    name: str
    """Relative to the folder of the weights."""
    size: int


def in_place(folder: Path, source: str) -> bool:
    """Is a finished download of `source` here?"""
    mark = _mark(folder)
    return mark.get("source") == source and mark.get("complete") is True


def begin(folder: Path, source: str) -> None:
    """Empties a folder that holds anything but a part of `source`."""
    if folder.exists() and _mark(folder).get("source") != source:
        for entry in folder.iterdir():
            shutil.rmtree(entry) if entry.is_dir() and not entry.is_symlink() else entry.unlink()
    replace(folder / MARK, json.dumps({"source": source, "complete": False}) + "\n")


def finish(folder: Path, source: str, files: Sequence[File]) -> None:
    """Raises `WeightsError` unless every file is here in its size, and they are a model."""
    wrong = [file.name for file in missing(folder, files)]
    if wrong:
        raise CutShort(
            f"{len(wrong)} of {len(files)} files of {source} are not whole, {wrong[0]} first. "
            "hint: start kv-roundtrip-weights again; it goes on"
        )
    if not any(file.name == "config.json" for file in files):
        raise WeightsError(f"{source} has no config.json. hint: give the folder of a model in Hugging Face's layout")
    replace(folder / MARK, json.dumps({"source": source, "complete": True}) + "\n")


def missing(folder: Path, files: Sequence[File]) -> list[File]:
    def size(file: File) -> int:
        try:
            return (folder / file.name).stat().st_size
        except OSError:
            return -1

    return [file for file in files if size(file) != file.size]


def require_room(folder: Path, files: Sequence[File]) -> None:
    """Raises `WeightsError` when the files do not fit."""
    needed, free = sum(file.size for file in files), shutil.disk_usage(folder).free
    if needed > free:
        raise WeightsError(
            f"{folder} has {free / 1e9:.1f} GB free, the weights need {needed / 1e9:.1f} GB more. "
            "hint: see `journalctl -u kv-roundtrip-storage`, or give the nodes a larger volume"
        )


def from_s3(folder: Path, source: str, s3: Any) -> None:
    """Raises `WeightsError`, and what boto3 raises."""
    match = _S3.fullmatch(source)
    if match is None:
        raise WeightsError(f"weights is {source!r}. hint: give hub, or s3://bucket/prefix")
    bucket, prefix = match["bucket"], match["prefix"] + "/"
    files = _listed(s3, bucket, prefix, source)
    left = missing(folder, files)
    for cut in folder.rglob(f"{_PARTIAL}*"):
        # Begun again, so that its bytes are not needed twice.
        cut.unlink()
    require_room(folder, left)
    logger.info("%d files of %s, %d to download (%.1f GB)", len(files), source, len(left), _gigabytes(left))
    config = TransferConfig(max_concurrency=_PARTS_AT_ONCE, multipart_chunksize=_PART_BYTES)

    def download(file: File) -> None:
        target = folder / file.name
        target.parent.mkdir(parents=True, exist_ok=True)
        partial = target.with_name(_PARTIAL + target.name)
        try:
            with partial.open("wb") as unfinished:
                s3.download_fileobj(bucket, prefix + file.name, unfinished, Config=config)
        except S3TransferRetriesExceededError as error:
            raise CutShort(
                f"{file.name} of {source} broke off: {error}. hint: start kv-roundtrip-weights again"
            ) from None
        if partial.stat().st_size != file.size:
            raise CutShort(
                f"{file.name} came with {partial.stat().st_size} bytes, listed with {file.size}. hint: try again"
            )
        partial.rename(target)

    with ThreadPoolExecutor(_FILES_AT_ONCE) as pool:
        try:
            # Largest first: else the last to start is the longest.
            list(pool.map(download, sorted(left, key=lambda file: -file.size)))
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    finish(folder, source, files)


def _listed(s3: Any, bucket: str, prefix: str, source: str) -> list[File]:
    pages = s3.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=prefix)
    files = [
        File(str(found["Key"]).removeprefix(prefix), int(found["Size"]))
        for page in pages
        for found in page.get("Contents", ())
        if not found["Key"].endswith("/")
    ]
    if not files:
        raise WeightsError(
            f"nothing is below {source}/. hint: see `aws s3 ls {source}/`; upload the model's folder there"
        )
    for file in files:
        if not file.name or ".." in PurePosixPath(file.name).parts or file.name.startswith("/"):
            raise WeightsError(
                f"{source} has a key that would leave the folder: {file.name!r}. hint: remove that object"
            )
    return files


def from_hub(folder: Path, source: str, model: str, token: str) -> None:
    """Raises `WeightsError`."""
    from huggingface_hub import HfApi, snapshot_download
    from huggingface_hub.errors import GatedRepoError, HfHubHTTPError, RepositoryNotFoundError

    # False: none, and no look for one that someone left on this machine.
    key: Any = token or False
    try:
        found = HfApi(token=key).model_info(model, files_metadata=True)
        names = [file.rfilename for file in found.siblings or ()]
        skipped = _OTHER_FORMS if any(name.endswith(".safetensors") for name in names) else ()
        files = [
            File(file.rfilename, file.size or 0)
            for file in found.siblings or ()
            if not any(fnmatch(file.rfilename, form) for form in skipped)
        ]
        left = missing(folder, files)
        require_room(folder, left)
        logger.info(
            "%d files of %s at %s, %d to download (%.1f GB)", len(files), model, found.sha, len(left), _gigabytes(left)
        )
        snapshot_download(model, revision=found.sha, local_dir=folder, token=key, ignore_patterns=list(skipped))
    except GatedRepoError:
        raise WeightsError(
            f"{model} is gated. hint: accept its terms on the hub and give a token that may read it (hub_token_parameter)"
        ) from None
    except RepositoryNotFoundError:
        raise WeightsError(
            f"the hub does not show {model}. hint: check the name; a private model needs a token (hub_token_parameter)"
        ) from None
    except (HfHubHTTPError, OSError, ValueError) as error:
        raise CutShort(f"{model} can't be downloaded: {error}. hint: {_HUB_HINT}") from None
    except Exception as error:
        # The hub's HTTP client, whose package changes between versions.
        if not type(error).__module__.startswith("httpx"):
            raise
        raise CutShort(f"{model} can't be downloaded: {error or type(error).__name__}. hint: {_HUB_HINT}") from None
    # The hub's own code takes a folder with a part of the files for a whole one when it loses the connection.
    finish(folder, source, files)


_HUB_HINT = "check the way out to huggingface.co, or keep the weights in S3 (weights: s3://bucket/prefix)"


def download(node: NodeConfig, folder: Path) -> None:
    """Raises `WeightsError`, `SourceError`, and what boto3 raises."""
    if not node.is_engine:
        logger.info("a router needs no weights")
        return
    if (Path(node.model) / "config.json").is_file():
        logger.info("the weights are part of this machine: %s", node.model)
        return
    source = node.weights if node.weights != HUB else f"{HUB}:{node.model}"
    if in_place(folder, source):
        logger.info("%s is here already", source)
        return
    started = time.monotonic()
    begin(folder, source)
    if node.weights == HUB:
        name = node.hub_token_parameter
        from_hub(
            folder, source, node.model, secret(client("ssm", node.region, node.endpoint_url), name) if name else ""
        )
    else:
        s3 = client("s3", node.region, node.endpoint_url, _FILES_AT_ONCE * _PARTS_AT_ONCE)
        from_s3(folder, source, s3)
    logger.info("%s is in %s after %.0f s", source, folder, time.monotonic() - started)


def persist(node: NodeConfig, folder: Path, pauses_s: Sequence[float] = _PAUSES_S) -> None:
    """`download`, again after each of the pauses when what went wrong may pass: hours of it are not given up for a broken stream."""
    for pause in pauses_s:
        try:
            download(node, folder)
            return
        except (CutShort, *AWS_ERRORS) as error:
            if not may_pass(error):
                raise
            logger.warning("%s; goes on in %.0f s", explain(error), pause)
        time.sleep(pause)
    download(node, folder)


def _gigabytes(files: Sequence[File]) -> float:
    return sum(file.size for file in files) / 1e9


def _mark(folder: Path) -> Mapping[str, Any]:
    try:
        found = json.loads((folder / MARK).read_text())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def main() -> int:
    log.configure()
    # Its bars fill the journal.
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    folder = weights_folder()
    try:
        persist(NodeConfig.read(), folder)
        return 0
    except (NodeError, SourceError, WeightsError) as error:
        logger.error("%s", error)
    except AWS_ERRORS as error:
        logger.error("weights from S3: %s", explain(error))
    except OSError as error:
        logger.error("%s: %s. hint: see `journalctl -u kv-roundtrip-storage`", folder, error)
    return 1


if __name__ == "__main__":
    sys.exit(main())
