"""Start in any order; SIGTERM lets running requests end; a second one does not."""

import itertools
import signal
import socket
import threading
import time

import pytest
from fleet import SLOWNESS, Fleet, Stream, completion, wait_until

PROMPT = [50, 60, 70, 80]
ORDERS = list(itertools.permutations(("prefill", "decode", "router")))


@pytest.mark.parametrize("order", ORDERS, ids="-".join)
def test_roles_start_in_any_order(order):
    with Fleet(("prefill", "decode"), start=False) as fleet:
        for position, name in enumerate(order):
            fleet.roles[name].start()
            if name == "router":
                wait_until(lambda: is_live(fleet), 10, "the router lives without nodes")
                if position < 2:
                    assert fleet.get("/readyz")[0] == 503
                    status, answer = fleet.post("/v1/completions", completion(PROMPT, 1))
                    assert status == 503 and answer["error"]["message"]
            else:
                says = fleet.roles[name].tail
                wait_until(lambda says=says: "sessions on" in says(), 30, f"{name} is up")
        fleet.wait_ready()
        assert len(fleet.complete(PROMPT, 4)["choices"][0]["token_ids"]) == 4


def is_live(fleet) -> bool:
    try:
        return fleet.get("/livez")[0] == 200
    except OSError:
        return False


class Running:
    """A request that runs while the test does something else."""

    def __init__(self, fleet, max_tokens: int):
        self.stream = Stream(
            fleet.port, "/v1/completions", completion(PROMPT, max_tokens, stream=True)
        )
        self.stream.receive_events(2)
        self.thread = threading.Thread(target=self.read, daemon=True)
        self.thread.start()

    def read(self) -> None:
        try:
            while self.stream.receive():
                if b"[DONE]" in self.stream.received:
                    return
        except OSError:
            pass

    def leave(self) -> None:
        """Lets the fleet end without waiting for it."""
        self.stream.sock.shutdown(socket.SHUT_RDWR)
        self.thread.join()

    def is_complete(self, seconds: float) -> bool:
        self.thread.join(seconds * SLOWNESS)
        return b"data: [DONE]" in self.stream.received


@pytest.mark.parametrize("victim", ["router", "prefill", "decode", "all"])
def test_sigterm_finishes_what_runs_and_exits_0(victim):
    with Fleet("all" if victim == "all" else ("prefill", "decode")) as fleet:
        running = Running(fleet, 150)
        role = fleet.roles[victim]
        role.send(signal.SIGTERM)
        assert running.is_complete(25), role.tail()
        assert role.wait(5) == 0, role.tail()


def test_new_requests_are_refused_while_draining():
    with Fleet("all") as fleet:
        running = Running(fleet, 300)
        role = fleet.roles["all"]
        role.send(signal.SIGTERM)
        wait_until(lambda: "draining" in role.tail(), 5, "it says so")
        try:
            status, answer = fleet.post("/v1/completions", completion(PROMPT, 1))
            assert status == 503 and answer["error"]["message"]
        except OSError:
            pass  # a closed port refuses too
        assert running.is_complete(30)
        assert role.wait(5) == 0


@pytest.mark.parametrize("roles", ["all", "router"])
def test_the_drain_ends_in_time_and_tells_what_still_ran(roles):
    flags = ["--drain_timeout=1s"]
    with Fleet("all" if roles == "all" else ("prefill", "decode"), router_flags=flags) as fleet:
        running = Running(fleet, 4000)
        start = time.monotonic()
        fleet.roles[roles].send(signal.SIGTERM)
        assert fleet.roles[roles].wait(10) == 0
        assert 0.5 < time.monotonic() - start < 5 * SLOWNESS
        running.thread.join(5 * SLOWNESS)
        assert b'data: {"error":{' in running.stream.received, "cut off without a word"


@pytest.mark.parametrize("victim", ["router", "decode", "all"])
def test_a_second_sigterm_ends_at_once(victim):
    with Fleet("all" if victim == "all" else ("prefill", "decode")) as fleet:
        running = Running(fleet, 4000)
        role = fleet.roles[victim]
        role.send(signal.SIGTERM)
        wait_until(lambda: "draining" in role.tail(), 5, "it says so")
        assert role.runs()
        start = time.monotonic()
        role.send(signal.SIGTERM)
        assert role.wait(5) != 0
        assert time.monotonic() - start < 2 * SLOWNESS
        running.leave()


def test_idle_roles_end_quickly():
    with Fleet(("prefill", "decode")) as fleet:
        start = time.monotonic()
        codes = {name: role.stop() for name, role in fleet.roles.items()}
        assert codes == dict.fromkeys(codes, 0)
        assert time.monotonic() - start < 5 * SLOWNESS


def test_idle_costs_nothing():
    """Processor time of an idle fleet: under 3 % of one core."""

    def processor_seconds(fleet) -> float:
        total = 0
        for role in fleet.roles.values():
            fields = open(f"/proc/{role.pid}/stat").read().rsplit(") ", 1)[1].split()
            total += int(fields[11]) + int(fields[12])
        return total / 100

    with Fleet(("prefill", "decode")) as fleet:
        fleet.complete(PROMPT, 4)
        before = processor_seconds(fleet)
        time.sleep(3)
        assert processor_seconds(fleet) - before < 0.03 * 3 * 3 * SLOWNESS
