from connector import digest
from connector.handle import Cover, Refusal
from connector.policy import same_prompt, verified_blocks

BLOCK = 8


def cover(tokens: list[int], block_size: int = BLOCK, salt: str | None = None) -> Cover:
    digests, tail = digest.chain(tokens, block_size, digest.seed(block_size, salt, None))
    return Cover(block_size, len(tokens), digests, tail)


def prompt(tokens: list[int], salt: str | None = None) -> Cover:
    return cover(tokens, salt=salt)


TURN_1 = [*range(100)]
"""System and user text 0 to 59, reasoning 60 to 79, answer 80 to 99."""


def test_rep_01_extending_history_is_used_to_its_last_whole_block() -> None:
    assert verified_blocks(prompt([*TURN_1, 7, 7, 7]), cover(TURN_1)) == 100 // BLOCK


def test_rep_01_reasoning_removed_uses_what_precedes_it() -> None:
    assert verified_blocks(prompt([*range(60), *range(80, 100), 7]), cover(TURN_1)) == 60 // BLOCK


def test_rep_01_one_word_changed_at_the_same_length() -> None:
    edited = [*TURN_1, 7]
    edited[20] = 999
    assert verified_blocks(prompt(edited), cover(TURN_1)) == 20 // BLOCK


def test_rep_01_middle_message_summarised() -> None:
    assert verified_blocks(prompt([*range(40), 500, 501, *range(60, 100)]), cover(TURN_1)) == 40 // BLOCK


def test_rep_01_system_prompt_or_tools_changed_uses_nothing() -> None:
    assert verified_blocks(prompt([999, *range(1, 100)]), cover(TURN_1)) is Refusal.NOTHING_VERIFIED


def test_rep_04_same_text_of_another_tenant_uses_nothing() -> None:
    assert verified_blocks(prompt(TURN_1, salt="a"), cover(TURN_1, salt="b")) is Refusal.NOTHING_VERIFIED


def test_rep_07_think_block_gone_when_rendered_as_history() -> None:
    covered = [*range(1, 41), 90, 91, *range(50, 61)]
    following = [*range(1, 41), *range(50, 61), *range(70, 76)]
    assert verified_blocks(prompt(following), cover(covered)) == 40 // BLOCK


def test_rep_07_tool_arguments_rendered_without_the_space() -> None:
    assert (
        verified_blocks(prompt([*range(40), 10, 12, 13]), cover([*range(40), 10, 11, 12, 13, *range(60)]))
        == 40 // BLOCK
    )


def test_rep_07_one_space_token_inserted() -> None:
    assert verified_blocks(prompt([*range(40), 220, *range(40, 100)]), cover([*range(100)])) == 40 // BLOCK


def test_another_block_size_is_refused() -> None:
    assert verified_blocks(prompt(TURN_1), cover(TURN_1, block_size=16)) is Refusal.BLOCK_SIZE
    assert same_prompt(prompt(TURN_1), cover(TURN_1, block_size=16)) is Refusal.BLOCK_SIZE


def test_decode_takes_prefills_blocks_for_the_very_same_prompt_only() -> None:
    assert same_prompt(prompt(TURN_1), cover(TURN_1)) is None
    assert same_prompt(prompt(TURN_1), cover([*TURN_1, 1])) is Refusal.OTHER_PROMPT
    # 97 to 99 lie in the partial last block, which has no digest of its own.
    assert same_prompt(prompt(TURN_1), cover([*TURN_1[:99], 1])) is Refusal.OTHER_PROMPT
