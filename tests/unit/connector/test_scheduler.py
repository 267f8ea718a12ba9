"""The scheduler side on vLLM's own objects: its config, its `Request`, its blocks; no engine and no network."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from vllm.engine.arg_utils import EngineArgs
from vllm.sampling_params import SamplingParams
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec, SlidingWindowSpec
from vllm.v1.outputs import KVConnectorOutput
from vllm.v1.request import Request, RequestStatus

from connector.handle import KEY
from connector.scheduler import RoundtripScheduler, UnsupportedModel

BLOCK = 32
TURN_1 = list(range(100, 250))
COLD = {"do_remote_decode": True, "do_remote_prefill": False}
GROUP: dict[str, Any] = {"block_size": BLOCK, "num_kv_heads": 2, "head_size": 32, "dtype": None}


@pytest.fixture(scope="module")
def vllm_config(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder: Path = tmp_path_factory.mktemp("model")
    (folder / "config.json").write_text(
        json.dumps(
            {
                "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "vocab_size": 512, "hidden_size": 64,
                "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
                "head_dim": 32, "max_position_embeddings": 4096, "torch_dtype": "float32",
            }
        )
    )  # fmt: skip
    return EngineArgs(
        model=str(folder), skip_tokenizer_init=True, block_size=BLOCK, enforce_eager=True,
        kv_transfer_config={
            "kv_connector": "RoundtripConnector", "kv_connector_module_path": "connector.connector", "kv_role": "kv_consumer",
            "kv_load_failure_policy": "recompute",
            "kv_connector_extra_config": {"bidirectional_kv_xfer": True, "kv_recompute_threshold": 0},
        },
    ).create_engine_config()  # fmt: skip


def kv_cache_config(spec: Any) -> KVCacheConfig:
    return KVCacheConfig(num_blocks=64, kv_cache_tensors=[], kv_cache_groups=[KVCacheGroupSpec(["layer"], spec)])


def scheduler(vllm_config: Any, engine_id: str) -> RoundtripScheduler:
    return RoundtripScheduler(vllm_config, engine_id, kv_cache_config(FullAttentionSpec(**GROUP)))


@pytest.fixture
def decode(vllm_config: Any) -> RoundtripScheduler:
    return scheduler(vllm_config, "decode-1")


@pytest.fixture
def prefill(vllm_config: Any) -> RoundtripScheduler:
    return scheduler(vllm_config, "prefill-1")


def request(name: str, tokens: list[int], params: dict[str, Any] | None, salt: str | None = None) -> Request:
    sampling = SamplingParams(max_tokens=50, extra_args={"kv_transfer_params": params} if params else None)
    return Request(
        request_id=name, prompt_token_ids=list(tokens), sampling_params=sampling, pooling_params=None, cache_salt=salt
    )


def blocks(ids: list[int]) -> Any:
    """What vLLM's block manager hands over: the newly allocated, not yet hashed blocks."""
    return SimpleNamespace(get_unhashed_block_ids_all_groups=lambda: (ids,), blocks=((),))


def finish(side: RoundtripScheduler, made: Request, sampled: list[int], ids: list[int]) -> dict[str, Any]:
    made.append_output_token_ids(sampled)
    made.num_computed_tokens = made.num_tokens - 1
    made.status = RequestStatus.FINISHED_LENGTH_CAPPED
    held, params = side.request_finished(made, (ids,))
    assert held and params is not None
    return dict(json.loads(json.dumps(params)))


def decoded_turn(decode: RoundtripScheduler, salt: str | None = None) -> dict[str, Any]:
    """Decode's handle for TURN_1, of which the last 10 tokens were generated. Its 149 tokens with KV fill 4 blocks and a part."""
    made = request("turn-1", TURN_1[:140], {"do_remote_decode": False}, salt)
    decode.on_new_request(made)
    return finish(decode, made, TURN_1[140:], [1, 2, 3, 4, 5]) | COLD


def asked(
    prefill: RoundtripScheduler, tokens: list[int], handle: dict[str, Any], name: str = "turn-2", **kwargs: Any
) -> Request:
    made = request(name, tokens, handle, **kwargs)
    prefill.on_new_request(made)
    return made


def matched(side: RoundtripScheduler, made: Request, computed: int = 0) -> int:
    tokens, is_async = side.get_num_new_matched_tokens(made, computed)
    assert is_async == (tokens > 0)
    return tokens


def test_extending_history_pulls_every_whole_block(prefill: RoundtripScheduler, decode: RoundtripScheduler) -> None:
    made = asked(prefill, [*TURN_1, 7, 8, 9], decoded_turn(decode))
    assert matched(prefill, made) == 4 * BLOCK
    assert made.kv_transfer_params is not None
    assert made.kv_transfer_params["remote_block_ids"] == [[1, 2, 3, 4]]


def test_rep_01_edited_history_pulls_the_common_part_and_cuts_the_block_ids(
    prefill: RoundtripScheduler, decode: RoundtripScheduler
) -> None:
    edited = [*TURN_1, 7]
    edited[70] = 1
    made = asked(prefill, edited, decoded_turn(decode))
    assert matched(prefill, made) == 2 * BLOCK
    assert made.kv_transfer_params is not None
    assert made.kv_transfer_params["remote_block_ids"] == [[1, 2]]


def test_what_prefill_still_holds_is_not_pulled(prefill: RoundtripScheduler, decode: RoundtripScheduler) -> None:
    made = asked(prefill, [*TURN_1, 7], decoded_turn(decode))
    assert matched(prefill, made, computed=3 * BLOCK) == BLOCK


@pytest.mark.parametrize(
    ("tokens", "salt", "change", "reason"),
    [
        ([1, *TURN_1[1:]], None, {}, "nothing_verified"),
        (TURN_1, "tenant-b", {}, "nothing_verified"),
        (TURN_1, None, {KEY: None}, "no_digests"),
        (TURN_1, None, {KEY: {"version": 99}}, "format"),
        (TURN_1, None, {"remote_block_ids": [[1, 2]]}, "malformed"),
        (TURN_1, None, {"remote_block_ids": [[1], [2]]}, "malformed"),
        (TURN_1, None, {"remote_block_ids": "x"}, "malformed"),
        (TURN_1, None, {"remote_port": None}, "malformed"),
    ],
)
def test_a_refused_handle_computes_and_says_why(
    prefill: RoundtripScheduler,
    decode: RoundtripScheduler,
    tokens: list[int],
    salt: str | None,
    change: dict[str, Any],
    reason: str,
) -> None:
    made = asked(prefill, tokens, decoded_turn(decode) | change, salt=salt)
    assert matched(prefill, made) == 0
    prefill.update_state_after_alloc(made, blocks([]), 0)
    answer = finish(prefill, made, [3], [9])
    assert answer[KEY]["refused"] == reason and answer[KEY]["pulled_tokens"] == 0


def test_decode_hears_of_a_handle_that_nobody_reads(prefill: RoundtripScheduler, decode: RoundtripScheduler) -> None:
    made = asked(prefill, [1, *TURN_1[1:]], decoded_turn(decode))
    prefill.update_state_after_alloc(made, blocks([]), 0)
    message = prefill.build_connector_meta(SimpleNamespace()).reqs_to_recv[made.request_id]
    assert message.remote is not None and message.remote.request_id == "turn-1"
    assert not any(message.local_block_ids)


def test_rep_02_a_handle_is_not_read_twice(prefill: RoundtripScheduler, decode: RoundtripScheduler) -> None:
    handle = decoded_turn(decode)
    assert matched(prefill, asked(prefill, [*TURN_1, 7], dict(handle))) == 4 * BLOCK
    assert matched(prefill, asked(prefill, [*TURN_1, 7], dict(handle), name="again")) == 0


def test_asked_again_after_a_failed_read_it_computes(prefill: RoundtripScheduler, decode: RoundtripScheduler) -> None:
    made = asked(prefill, [*TURN_1, 7], decoded_turn(decode))
    tokens = matched(prefill, made)
    prefill.update_state_after_alloc(made, blocks([11, 12, 13, 14]), tokens)
    assert matched(prefill, made) == 0
    assert finish(prefill, made, [3], [9])[KEY]["refused"] == "load_failed"


def test_a_failed_read_behind_a_local_hit_is_not_counted_as_pulled(
    prefill: RoundtripScheduler, decode: RoundtripScheduler
) -> None:
    made = asked(prefill, [*TURN_1, 7], decoded_turn(decode))
    tokens = matched(prefill, made, computed=BLOCK)
    prefill.update_state_after_alloc(made, blocks([12, 13, 14]), tokens)
    prefill.update_connector_output(KVConnectorOutput(invalid_block_ids={13}))
    assert finish(prefill, made, [3], [9])[KEY]["pulled_tokens"] == 0


def test_pulled_tokens_are_reported(prefill: RoundtripScheduler, decode: RoundtripScheduler) -> None:
    made = asked(prefill, [*TURN_1, 7], decoded_turn(decode))
    prefill.update_state_after_alloc(made, blocks([11, 12, 13, 14]), matched(prefill, made))
    answer = finish(prefill, made, [3], [9])
    assert answer[KEY]["pulled_tokens"] == 4 * BLOCK and "refused" not in answer[KEY]


def prefilled(prefill: RoundtripScheduler, tokens: list[int]) -> dict[str, Any]:
    made = asked(prefill, tokens, dict(COLD), name="p")
    prefill.update_state_after_alloc(made, blocks([]), 0)
    return finish(prefill, made, [3], [1, 2, 3, 4, 5])


def test_decode_takes_prefills_blocks(prefill: RoundtripScheduler, decode: RoundtripScheduler) -> None:
    assert matched(decode, asked(decode, TURN_1, prefilled(prefill, TURN_1))) == len(TURN_1)


@pytest.mark.parametrize("tokens", [[*TURN_1[:149], 1], TURN_1[:149], [*TURN_1, 1]])
def test_decode_computes_when_prefill_saw_another_prompt(
    prefill: RoundtripScheduler, decode: RoundtripScheduler, tokens: list[int]
) -> None:
    made = asked(decode, tokens, prefilled(prefill, TURN_1))
    assert matched(decode, made) == 0


@pytest.mark.parametrize(
    "params",
    [
        {"do_remote_prefill": True},
        {"do_remote_prefill": True, "remote_block_ids": [[1]], "remote_engine_id": "x"},
        {
            "do_remote_prefill": True,
            "remote_block_ids": [[1]],
            "remote_engine_id": 5,
            "remote_host": [],
            "remote_port": "x",
        },
        {"do_remote_prefill": "yes", "tp_size": "two", KEY: 7},
    ],
)
def test_garbage_on_decode_is_a_plain_request(decode: RoundtripScheduler, params: dict[str, Any]) -> None:
    made = asked(decode, TURN_1, params)
    assert matched(decode, made) == 0
    decode.update_state_after_alloc(made, blocks([]), 0)
    assert not decode.build_connector_meta(SimpleNamespace()).reqs_to_recv
    assert decode.request_finished(made, ([],)) == (False, None)


def test_nothing_is_remembered_of_finished_requests(prefill: RoundtripScheduler, decode: RoundtripScheduler) -> None:
    made = asked(prefill, [*TURN_1, 7], decoded_turn(decode))
    made.status = RequestStatus.FINISHED_ABORTED
    prefill.request_finished(made, ([1],))
    assert not prefill._pulls and not decode._pulls


def test_a_sliding_window_model_is_refused_at_start(vllm_config: Any) -> None:
    with pytest.raises(UnsupportedModel, match="round_trip to false"):
        RoundtripScheduler(vllm_config, "e", kv_cache_config(SlidingWindowSpec(**GROUP, sliding_window=64)))
