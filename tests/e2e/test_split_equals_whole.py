"""The claim of the product: where prefill and decode ran can't be seen in the answer."""

from concurrent.futures import ThreadPoolExecutor

import pytest
from fleet import completion, events_of

TOKENS = 12
SAMPLINGS = {"greedy": {}, "seeded": {"temperature": 0.8, "top_p": 0.9, "seed": 1234}}
OTHERS = 8


def visible(answer: dict) -> tuple:
    """All that a client may compare; not what tells of caches or times."""
    choice = answer["choices"][0]
    usage = answer["usage"]
    return (
        tuple(choice["token_ids"]),
        choice["text"],
        choice["finish_reason"],
        usage["prompt_tokens"],
        usage["completion_tokens"],
    )


def ask_all(fleet, prompts, at_once: int) -> list[tuple]:
    """Every prompt with every sampling, so many at once; in order."""
    jobs = [(prompt, fields) for prompt in prompts for fields in SAMPLINGS.values()]
    with ThreadPoolExecutor(at_once) as pool:
        return list(pool.map(lambda job: visible(fleet.complete(job[0], TOKENS, **job[1])), jobs))


@pytest.fixture(scope="module")
def expected(whole, prompts) -> list[tuple]:
    """One node, one request at a time."""
    answers = ask_all(whole, prompts, 1)
    assert [answer[3] for answer in answers[::2]] == [len(prompt) for prompt in prompts]
    assert all(answer[2] == "length" and len(answer[0]) == TOKENS for answer in answers)
    # The samplings differ, or the second one tests nothing.
    assert sum(a[0] != b[0] for a, b in zip(answers[::2], answers[1::2])) > len(prompts) // 2
    return answers


@pytest.mark.parametrize("at_once", [1, 1 + OTHERS])
@pytest.mark.parametrize("kind", ["split", "embedded"])
def test_split_equals_whole(kind, at_once, expected, prompts, request):
    fleet = request.getfixturevalue(kind)
    assert ask_all(fleet, prompts, at_once) == expected
    assert fleet.metric("pdserve_disagg_decisions_total", decision="split") >= len(expected)
    fleet.expect_nothing_held(2)


def test_whole_is_the_same_among_others(whole, expected, prompts):
    assert ask_all(whole, prompts, 1 + OTHERS) == expected


def test_a_stream_is_the_same_as_the_whole_answer(split, expected, prompts):
    for prompt, answer in list(zip(prompts, expected[::2]))[:20]:
        body = completion(prompt, TOKENS, stream=True, stream_options={"include_usage": True})
        status, _, text = split.request("POST", "/v1/completions", body)
        assert status == 200
        events = list(events_of(text))
        choices = [event["choices"][0] for event in events if event["choices"]]
        ids = [token for choice in choices for token in choice.get("token_ids") or []]
        streamed = "".join(choice["text"] for choice in choices)
        usage = events[-1]["usage"]
        assert (
            tuple(ids), streamed, choices[-1]["finish_reason"],
            usage["prompt_tokens"], usage["completion_tokens"],
        ) == answer  # fmt: skip


def test_the_first_token_can_be_the_last(split, whole, prompts):
    """max_tokens 1 needs no decode node; which of the two nodes is heard first does not matter."""
    for prompt in prompts[:8] * 3:
        answers = [visible(fleet.complete(prompt, 1)) for fleet in (split, whole)]
        assert answers[0] == answers[1]
        assert len(answers[0][0]) == 1
