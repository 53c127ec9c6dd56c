"""Nodes that die or freeze while requests run: every request ends, and the router serves again when
the node is back, with no restart of the other side."""

import json
import signal
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from fleet import SLOWNESS, Fleet, completion, events_of, wait_until

ENDS_WITHIN_SECONDS = 5
ROUNDS = 3
MAX_TOKENS = 48


@pytest.fixture(scope="module")
def fleet():
    with Fleet(("prefill", "decode")) as fleet:
        yield fleet


@pytest.fixture(scope="module")
def expected(fleet, prompts) -> list[list[int]]:
    """What each request would say undisturbed; short prompts decode, long ones prefill."""
    return [
        fleet.complete(prompt, MAX_TOKENS)["choices"][0]["token_ids"] for prompt in chosen(prompts)
    ]


def chosen(prompts) -> list[list[int]]:
    return [prompts[i] for i in (1, 6, 12, 21)]


def outcome(fleet, prompt, stream: bool) -> tuple[float, list[int] | None]:
    """When one request ended, and its token ids; None: it ended in an error of the right shape."""
    body = completion(prompt, MAX_TOKENS, stream=stream)
    status, _, text = fleet.request("POST", "/v1/completions", body, timeout=30)
    ended = time.monotonic()
    if not stream or status != 200:
        answer = json.loads(text)
        if status == 200:
            return ended, answer["choices"][0]["token_ids"]
        assert status >= 500 and answer["error"]["message"], (status, text)
        return ended, None
    events = list(events_of(text))
    ids = [
        t
        for e in events
        if "error" not in e
        for c in e["choices"]
        for t in c.get("token_ids") or []
    ]
    if "error" in events[-1]:
        assert "[DONE]" not in text, "an error ends a stream without [DONE]"
        return ended, None
    assert text.rstrip().endswith("data: [DONE]"), text[-300:]
    return ended, ids


def disturb(fleet, prompts, expected, act) -> None:
    """Runs requests, calls `act` while they run; each must end in time, right or in an error."""
    jobs = [(prompt, stream) for stream in (False, True) for prompt in chosen(prompts)]
    with ThreadPoolExecutor(len(jobs)) as pool:
        running = [pool.submit(outcome, fleet, *job) for job in jobs]
        wait_until(
            lambda: fleet.metric("pdserve_attempts", stage="decoding") >= 2, 20, "requests decode"
        )
        acted = time.monotonic()
        act()
        ends = [job.result() for job in running]
    for (ended, ids), right in zip(ends, expected * 2):
        assert ended - acted < ENDS_WITHIN_SECONDS * SLOWNESS
        assert ids is None or ids == right


def serves(fleet, prompt) -> bool:
    status, _ = fleet.post("/v1/completions", completion(prompt, 4), timeout=10)
    return status == 200


@pytest.mark.parametrize("victim", ["prefill", "decode"])
def test_a_killed_node_ends_its_requests_and_may_come_back(victim, fleet, prompts, expected):
    other = {"prefill": "decode", "decode": "prefill"}[victim]
    pids = [fleet.roles[name].pid for name in (other, "router")]
    for _ in range(ROUNDS):
        disturb(fleet, prompts, expected, fleet.roles[victim].kill)
        start = time.monotonic()
        assert not serves(fleet, prompts[1])
        assert time.monotonic() - start < ENDS_WITHIN_SECONDS * SLOWNESS
        assert fleet.get("/livez")[0] == 200
        assert fleet.get("/readyz")[0] == 503
        fleet.roles[victim].start()
        wait_until(lambda: serves(fleet, prompts[1]), 20, "serves again")
        assert (
            fleet.complete(chosen(prompts)[0], MAX_TOKENS)["choices"][0]["token_ids"] == expected[0]
        )
        fleet.expect_nothing_held(2)
    assert [fleet.roles[name].pid for name in (other, "router")] == pids
    assert fleet.roles[other].runs() and fleet.roles["router"].runs()


@pytest.mark.parametrize("victim", ["prefill", "decode"])
def test_a_frozen_node_is_noticed_and_may_thaw(victim, fleet, prompts, expected):
    role = fleet.roles[victim]
    try:
        disturb(fleet, prompts, expected, lambda: role.send(signal.SIGSTOP))
        wait_until(lambda: fleet.get("/readyz")[0] == 503, 5, "readiness tells of it")
        assert fleet.get("/livez")[0] == 200
    finally:
        role.send(signal.SIGCONT)
    wait_until(lambda: serves(fleet, prompts[1]), 20, "serves again")
    assert fleet.complete(chosen(prompts)[0], MAX_TOKENS)["choices"][0]["token_ids"] == expected[0]
    fleet.expect_nothing_held(2)


def test_a_killed_router_leaves_nothing_on_the_nodes(fleet, prompts):
    jobs = chosen(prompts)
    with ThreadPoolExecutor(len(jobs)) as pool:
        running = [
            pool.submit(fleet.post, "/v1/completions", completion(prompt, MAX_TOKENS))
            for prompt in jobs
        ]
        wait_until(lambda: fleet.metric("pdserve_attempts", stage="decoding"), 20, "decoding")
        fleet.roles["router"].kill()
        for job in running:
            assert isinstance(job.exception(), (OSError, Exception))
    fleet.roles["router"].start()
    fleet.wait_ready()
    fleet.expect_nothing_held(2)
    assert serves(fleet, prompts[1])
