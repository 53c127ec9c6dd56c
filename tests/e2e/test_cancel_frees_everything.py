"""A client that leaves frees everything on both nodes within a second, in whichever phase."""

import itertools
import signal

import pytest
from fleet import Stream, completion, events_of, wait_until

FREED_WITHIN_SECONDS = 1
MAX_TOKENS = 500
counter = itertools.count(1000)


def new_prompt(length: int) -> list[int]:
    """One that no cache knows."""
    return [next(counter), *(1000 + i % 7000 for i in range(length - 1))]


def leaves(fleet, stream: bool, prompt, max_tokens: int = MAX_TOKENS) -> Stream:
    return Stream(fleet.port, "/v1/completions", completion(prompt, max_tokens, stream=stream))


def waits_for_stage(fleet, stage: str, count: int = 1) -> None:
    wait_until(
        lambda: fleet.metric("pdserve_attempts", stage=stage) >= count, 10, f"an attempt is {stage}"
    )


def when_queued(fleet, stream):
    clients = [leaves(fleet, stream, new_prompt(1400)) for _ in range(5)]
    waits_for_stage(fleet, "waiting", 2)
    return clients


def when_prefilling(fleet, stream):
    client = leaves(fleet, stream, new_prompt(1400))
    waits_for_stage(fleet, "prefilling")
    return [client]


def when_handing_over(fleet, stream):
    """The decode node stands still, so the cache can't arrive; the prefill ends all the same."""
    before = fleet.metric("pdserve_prefilled_tokens")
    fleet.roles["decode"].send(signal.SIGSTOP)
    prompt = new_prompt(300)
    client = leaves(fleet, stream, prompt)
    wait_until(
        lambda: fleet.metric("pdserve_prefilled_tokens") >= before + len(prompt), 2, "prefill's end"
    )
    return [client]


def when_decoding(fleet, stream):
    client = leaves(fleet, stream, new_prompt(20))
    if stream:
        client.receive_events(5)
    waits_for_stage(fleet, "decoding")
    return [client]


PHASES = [when_queued, when_prefilling, when_handing_over, when_decoding]


@pytest.mark.parametrize("how", ["fin", "rst"])
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("phase", PHASES, ids=lambda phase: phase.__name__)
def test_leaving_frees_everything(phase, stream, how, split):
    split.expect_nothing_held(5)
    left_before = split.metric("pdserve_requests_total", code="499")
    try:
        clients = phase(split, stream)
        assert split.held(), "nothing was running"
        for client in clients:
            client.leave(how)
    finally:
        split.roles["decode"].send(signal.SIGCONT)
    split.expect_nothing_held(FREED_WITHIN_SECONDS)
    wait_until(
        lambda: split.metric("pdserve_requests_total", code="499") == left_before + len(clients),
        FREED_WITHIN_SECONDS,
        "each client is counted once as having left",
    )


def test_leaving_ends_the_work_and_not_only_the_answer(split):
    split.expect_nothing_held(5)
    before = split.metric("pdserve_prefilled_tokens")
    clients = [leaves(split, False, new_prompt(1400)) for _ in range(5)]
    waits_for_stage(split, "prefilling")
    for client in clients:
        client.leave("fin")
    split.expect_nothing_held(FREED_WITHIN_SECONDS)
    assert split.metric("pdserve_prefilled_tokens") - before < 4 * 1400


def test_others_go_on_as_if_alone(split):
    prompt = new_prompt(40)
    alone = split.complete(prompt, 60)["choices"][0]["token_ids"]
    stays = Stream(split.port, "/v1/completions", completion(prompt, 60, stream=True))
    stays.receive_events(2)
    for _ in range(4):
        client = leaves(split, True, new_prompt(64))
        client.receive_events(1)
        client.leave("rst")
    streamed = [
        token
        for event in events_of(stays.receive_all())
        for choice in event["choices"]
        for token in choice.get("token_ids") or []
    ]
    assert streamed == alone
    assert split.complete(prompt, 60)["choices"][0]["token_ids"] == alone
    stays.leave("fin")
    split.expect_nothing_held(FREED_WITHIN_SECONDS)
