"""Endpoints beside generation, and what a client is told."""

import json
from concurrent.futures import ThreadPoolExecutor

from fleet import Fleet, completion, wait_until


def test_a_ready_fleet_says_so_and_names_its_model(split):
    for path in ("/health", "/livez", "/readyz"):
        assert split.get(path)[0] == 200, path
    status, text = split.get("/v1/models")
    (model,) = json.loads(text)["data"]
    assert status == 200 and model["object"] == "model" and model["id"]
    assert json.loads(text)["object"] == "list"


def test_the_routers_metrics_name_both_nodes(split):
    gauges = split.gauges()
    nodes = {
        dict(labels)["node"] for name, labels in gauges if name == "pdserve_kv_blocks_capacity"
    }
    assert len(nodes) == 2
    assert split.metric("pdserve_node_up") == 2
    assert all(value == value for value in gauges.values()), "a metric is not a number"


def test_metrics_name_the_transport_of_each_node(embedded):
    assert embedded.metric("pdserve_transport_info", transport="inproc") == 2


def test_counters_move_by_what_was_done(split):
    names = ("pdserve_prompt_tokens_total", "pdserve_generation_tokens_total")
    before = [split.metric(name) for name in names]
    done = split.metric("pdserve_requests_total", code="200", endpoint="completions")
    split.complete([1, 2, 3], 5)
    assert [split.metric(name) for name in names] == [before[0] + 3, before[1] + 5]
    now = split.metric("pdserve_requests_total", code="200", endpoint="completions")
    assert now == done + 1


def test_a_hand_over_is_counted_in_bytes(split):
    before = split.metric("pdserve_kv_transfer_bytes")
    split.complete(list(range(100, 200)), 3)
    # Nodes tell their counts with the heartbeat.
    wait_until(
        lambda: split.metric("pdserve_kv_transfer_bytes") > before, 5, "the bytes are counted"
    )


def test_the_same_seed_gives_the_same_answer_whatever_runs_beside(split):
    fields = dict(temperature=1, seed=99)
    alone = split.complete([5, 6, 7], 12, **fields)["choices"][0]["token_ids"]
    with ThreadPoolExecutor(6) as pool:
        others = [pool.submit(split.complete, [i, 9], 20, temperature=1) for i in range(20, 25)]
        again = split.complete([5, 6, 7], 12, **fields)["choices"][0]["token_ids"]
        assert {len(job.result()["choices"][0]["token_ids"]) for job in others} == {20}
    assert again == alone


def test_a_client_request_id_comes_back(split):
    _, headers, _ = split.request(
        "POST", "/v1/completions", completion([1], 1), headers={"X-Request-Id": "mine-1"}
    )
    assert {name.lower(): value for name, value in headers.items()}["x-request-id"] == "mine-1"


def test_more_requests_than_the_limit_get_429():
    with Fleet("all", router_flags=["--max_requests=2"]) as fleet:
        with ThreadPoolExecutor(12) as pool:
            answers = list(
                pool.map(
                    lambda i: fleet.request("POST", "/v1/completions", completion([i], 60)),
                    range(1, 13),
                )
            )
        statuses = [status for status, _, _ in answers]
        assert set(statuses) == {200, 429}
        refused = next(headers for status, headers, _ in answers if status == 429)
        assert int({name.lower(): value for name, value in refused.items()}["retry-after"]) >= 1
        fleet.expect_nothing_held(2)
