"""The prefix cache: what was computed before is not computed, sent or held for ever, and can't be
seen in the tokens."""

import pytest
from fleet import Fleet

TOKENS = 40
BLOCK = 32
OFF = "--prefix_cache=false"


@pytest.fixture(scope="module")
def without():
    """The truth: one node, no prefix cache."""
    with Fleet(("both",), [OFF]) as fleet:
        yield fleet


@pytest.fixture(scope="module")
def long_prompt(prompts) -> list[int]:
    return next(prompt for prompt in prompts if len(prompt) > 300)


def ask(fleet, prompt, max_tokens: int = TOKENS, **fields) -> tuple[list[int], int]:
    """Token ids, and of how many tokens of the prompt the usage says that they were cached."""
    answer = fleet.complete(prompt, max_tokens, **fields)
    usage = answer["usage"]
    assert usage["prompt_tokens"] == len(prompt)
    return (
        answer["choices"][0]["token_ids"],
        usage["prompt_tokens_details"]["cached_tokens"],
    )


def hits(fleet) -> float:
    """What the nodes say that they hold in cached blocks, as far as the router's page tells."""
    return fleet.metric("pdserve_kv_blocks", state="cached")


KINDS = pytest.mark.parametrize("kind", ["whole", "split", "embedded"])


@KINDS
def test_what_was_asked_before_is_found_and_answered_alike(kind, without, long_prompt, request):
    fleet = request.getfixturevalue(kind)
    longer = long_prompt[: 5 * BLOCK + 7] + long_prompt[:100]
    expected = {
        name: ask(without, prompt) for name, prompt in (("same", long_prompt), ("longer", longer))
    }
    assert all(cached == 0 for _, cached in expected.values())
    computed = fleet.metric("pdserve_prefilled_tokens")
    assert ask(fleet, long_prompt) == (expected["same"][0], 0)
    # Whole blocks, and the last token is computed in any case.
    found = (len(long_prompt) - 1) // BLOCK * BLOCK
    for _ in range(2):
        assert ask(fleet, long_prompt) == (expected["same"][0], found)
    assert ask(fleet, longer) == (expected["longer"][0], 5 * BLOCK)
    fleet.expect_nothing_held(2)
    wanted = 3 * len(long_prompt) + len(longer) - 2 * found - 5 * BLOCK
    assert fleet.metric("pdserve_prefilled_tokens") - computed == wanted
    assert hits(fleet) > 0


@KINDS
def test_the_next_turn_of_a_chat(kind, without, long_prompt, request):
    """Its beginning was partly decoded: that is on the decode node only."""
    fleet = request.getfixturevalue(kind)
    prompt = long_prompt[100:300]
    first, _ = ask(fleet, prompt, 80)
    turn = prompt + first + long_prompt[:20]
    sent = fleet.metric("pdserve_kv_transfer_bytes")
    tokens, cached = ask(fleet, turn)
    assert tokens == ask(without, turn)[0]
    generated_too = (len(prompt) + 79) // BLOCK * BLOCK
    assert cached == (generated_too if kind == "whole" else 200 // BLOCK * BLOCK)
    if kind == "whole":
        return
    fleet.expect_nothing_held(2)
    blocks = fleet.metric("pdserve_kv_transfer_bytes") - sent
    once = fleet.metric("pdserve_kv_transfer_bytes")
    ask(fleet, [7, *turn[1:]])  # all of it is new
    fleet.expect_nothing_held(2)
    whole = fleet.metric("pdserve_kv_transfer_bytes") - once
    total = -(-len(turn) // BLOCK)
    assert blocks / whole == pytest.approx((total - generated_too // BLOCK) / total)


def test_the_choices_of_one_prompt_compute_it_once(split, without, long_prompt):
    prompt = [11, *long_prompt[:250]]
    computed = split.metric("pdserve_prefilled_tokens")
    fields = {"n": 4, "temperature": 0.9, "seed": 5}
    answer = split.complete(prompt, 12, **fields)
    expected = without.complete(prompt, 12, **fields)
    assert [c["token_ids"] for c in answer["choices"]] == [
        c["token_ids"] for c in expected["choices"]
    ]
    split.expect_nothing_held(2)
    assert split.metric("pdserve_prefilled_tokens") - computed < 2 * len(prompt)


def test_switched_off_nothing_is_cached(without, long_prompt):
    for _ in range(2):
        assert ask(without, long_prompt)[1] == 0
    without.expect_nothing_held(2)
    assert hits(without) == 0
    free = without.metric("pdserve_kv_blocks", state="free")
    assert free == without.metric("pdserve_kv_blocks_capacity")


def test_cached_blocks_give_way(without):
    """A pool that holds two of the prompts, asked for in turns."""
    few = [[1000 * i + j for j in range(200 + 50 * i)] for i in range(1, 7)]
    expected = {i: ask(without, prompt, 8)[0] for i, prompt in enumerate(few)}
    block_bytes = 30 * 2 * 3 * BLOCK * 64 * 2  # layers, K and V, heads, tokens, dimension, bf16
    flags = [f"--kv_pool_bytes={24 * block_bytes}"]
    with Fleet(("prefill", "decode"), flags) as fleet:
        assert fleet.metric("pdserve_kv_blocks_capacity") == 2 * 24
        for i in [0, 1, 0, 2, 3, 1, 4, 5, 4, 3, 2, 1, 0, 5]:
            assert ask(fleet, few[i], 8)[0] == expected[i]
        fleet.expect_nothing_held(2)

