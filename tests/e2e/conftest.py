"""Fleets shared by the tests of a file: starting one maps and prepares the model's weights."""

import json
from pathlib import Path

import pytest
from fleet import Fleet

REFERENCE = Path(__file__).parent.parent / "data/smollm2/greedy.jsonl"


@pytest.fixture(scope="module")
def split():
    """Prefill and decode as processes, hand-over by TCP."""
    with Fleet(("prefill", "decode")) as fleet:
        yield fleet


@pytest.fixture(scope="module")
def whole():
    """One node with both roles: no hand-over."""
    with Fleet(("both",)) as fleet:
        yield fleet


@pytest.fixture(scope="module")
def embedded():
    """All in one process, hand-over within it."""
    with Fleet("all") as fleet:
        yield fleet


@pytest.fixture(scope="session")
def prompts() -> list[list[int]]:
    """24 prompts of 4 to 1500 token ids, shortest first."""
    cases = [json.loads(line) for line in REFERENCE.read_text().splitlines()]
    return sorted((case["prompt_ids"] for case in cases), key=len)
