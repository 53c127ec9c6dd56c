"""Real processes of the roles on free loopback ports, and a plain HTTP client for them."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import re
import signal
import socket
import struct
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

EXE = os.environ.get("PD_EXE", "build/release/pdserve")
MODEL = os.environ.get("PD_MODEL") or str(
    Path.home() / ".cache/pdserve/models/SmolLM2-135M-Instruct.Q4_1.gguf"
)
# Deadlines are multiplied by this: sanitizers make everything slower.
SLOWNESS = float(os.environ.get("PD_SLOWNESS", "1"))
LOOPBACK = "127.0.0.1"


def free_ports(count: int) -> list[int]:
    """Distinct ports nobody listens on now."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for sock in sockets:
            sock.bind((LOOPBACK, 0))
        return [sock.getsockname()[1] for sock in sockets]


def wait_until(condition: Callable[[], object], seconds: float, what: str = "") -> object:
    """The condition's first true value; fails when it stays false."""
    end = time.monotonic() + seconds * SLOWNESS
    while True:
        value = condition()
        if value:
            return value
        assert time.monotonic() < end, f"not within {seconds * SLOWNESS:g} s: {what}"
        time.sleep(0.01)


class Role:
    """One process of the program; may be killed and started again on the same ports."""

    def __init__(self, name: str, arguments: list[str]):
        self.name = name
        self.command = [EXE, *arguments]
        self.log = tempfile.NamedTemporaryFile("w+b", prefix=f"pdserve-{name}-", suffix=".log")
        self.process: subprocess.Popen | None = None

    def start(self) -> None:
        self.process = subprocess.Popen(
            self.command, stdin=subprocess.DEVNULL, stdout=self.log, stderr=self.log
        )

    @property
    def pid(self) -> int:
        return self.process.pid

    def send(self, sig: int) -> None:
        self.process.send_signal(sig)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def stop(self, seconds: float = 20) -> int:
        """SIGTERM; the exit code."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.process.terminate()
        return self.wait(seconds)

    def wait(self, seconds: float) -> int:
        try:
            return self.process.wait(seconds * SLOWNESS)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(f"{self.name} has not ended: {self.tail()}") from None

    def runs(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def tail(self) -> str:
        return Path(self.log.name).read_text(errors="replace")[-2000:]


class Client:
    """HTTP to one server. Every call has a time-out."""

    def __init__(self, port: int):
        self.port = port

    def request(self, method: str, path: str, body=None, timeout: float = 60, headers=None):
        """Status, headers, text."""
        connection = http.client.HTTPConnection(LOOPBACK, self.port, timeout=timeout * SLOWNESS)
        data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        try:
            connection.request(
                method, path, data, {"Content-Type": "application/json", **(headers or {})}
            )
            response = connection.getresponse()
            return response.status, dict(response.getheaders()), response.read().decode()
        finally:
            connection.close()

    def get(self, path: str, timeout: float = 10) -> tuple[int, str]:
        status, _, text = self.request("GET", path, timeout=timeout)
        return status, text

    def post(self, path: str, body, timeout: float = 60) -> tuple[int, dict]:
        status, _, text = self.request("POST", path, body, timeout)
        return status, json.loads(text)

    def is_ready(self) -> bool:
        try:
            return self.get("/readyz")[0] == 200
        except OSError:
            return False

    def complete(self, prompt, max_tokens: int, **fields) -> dict:
        """The whole answer of /v1/completions with token ids; greedy unless told otherwise."""
        status, answer = self.post("/v1/completions", completion(prompt, max_tokens, **fields))
        assert status == 200, (status, answer)
        return answer

    def gauges(self) -> dict[tuple, float]:
        """The page /metrics: (name, frozenset of label pairs) > value."""
        status, text = self.get("/metrics")
        assert status == 200
        values = {}
        for line in text.splitlines():
            found = re.match(r"(\w+)(?:\{(.*)\})? (\S+)$", line)
            if found:
                labels = frozenset(re.findall(r'(\w+)="([^"]*)"', found[2] or ""))
                values[found[1], labels] = float(found[3])
        return values

    def metric(self, name: str, **labels: str) -> float:
        """Sum over the series of `name` that have these labels."""
        wanted = set(labels.items())
        return sum(
            value
            for (found, has), value in self.gauges().items()
            if found == name and wanted <= has
        )

    def held(self) -> dict[tuple, float]:
        """What requests hold on the nodes, by the router's page: attempts by stage, and blocks that
        are neither free nor cached. Empty: nothing is held, and the states add up."""
        gauges = self.gauges()
        held = {}
        free: dict[str, float] = {}
        capacity: dict[str, float] = {}
        for (name, labels), value in gauges.items():
            by = dict(labels)
            if name == "pdserve_attempts" and value:
                held[name, by["node"], by["stage"]] = value
            if name == "pdserve_kv_blocks" and by["state"] in ("free", "cached"):
                free[by["node"]] = free.get(by["node"], 0) + value
            if name == "pdserve_kv_blocks_capacity":
                capacity[by["node"]] = value
        assert capacity, "no node is on the metrics page"
        for node, blocks in capacity.items():
            if free.get(node) != blocks:
                held["blocks", node] = blocks - free.get(node, 0)
        return held

    def expect_nothing_held(self, seconds: float) -> None:
        wait_until(lambda: not self.held(), seconds, f"held by the nodes: {self.held()}")


def completion(prompt, max_tokens: int, **fields) -> dict:
    return {
        "prompt": prompt,
        "max_tokens": max_tokens,
        "temperature": 0,
        "ignore_eos": True,
        "return_token_ids": True,
        **fields,
    }


class Fleet(Client):
    """A router with its nodes as processes, or `all` in one. Ready when constructed, unless told
    not to start."""

    def __init__(self, nodes=("prefill", "decode"), node_flags=(), router_flags=(), start=True):
        whole = nodes == "all"
        ports = free_ports(1 if whole else 1 + 2 * len(nodes))
        super().__init__(ports[0])
        self.roles: dict[str, Role] = {}
        listen = f"--listen={LOOPBACK}:{self.port}"
        if whole:
            arguments = ["all", f"--model={MODEL}", listen, *node_flags, *router_flags]
            self.roles["all"] = Role("all", arguments)
        else:
            sessions = ports[1 : 1 + len(nodes)]
            for node, session, transfer in zip(nodes, sessions, ports[1 + len(nodes) :]):
                self.roles[node] = Role(
                    node,
                    [node, f"--model={MODEL}", f"--listen={LOOPBACK}:{session}",
                     f"--transfer_listen={LOOPBACK}:{transfer}", *node_flags],
                )  # fmt: skip
            addresses = ",".join(f"{LOOPBACK}:{port}" for port in sessions)
            self.roles["router"] = Role(
                "router", ["router", listen, f"--nodes={addresses}", *router_flags]
            )
        if start:
            for role in self.roles.values():
                role.start()
            self.wait_ready()

    def wait_ready(self, seconds: float = 60) -> None:
        def ready():
            for role in self.roles.values():
                assert role.runs(), f"{role.name} ended: {role.tail()}"
            return self.is_ready()

        wait_until(ready, seconds, "the fleet is ready")

    def close(self) -> None:
        for role in self.roles.values():
            if role.runs():
                role.send(signal.SIGCONT)
                role.process.terminate()
        for role in self.roles.values():
            if role.process is not None:
                try:
                    role.process.wait(20 * SLOWNESS)
                except subprocess.TimeoutExpired:
                    role.kill()

    def __enter__(self) -> Fleet:
        return self

    def __exit__(self, *unused) -> None:
        self.close()


class Stream:
    """One POST over a raw socket, read as it comes, left as the test likes."""

    def __init__(self, port: int, path: str, body: dict, timeout: float = 30):
        data = json.dumps(body).encode()
        self.sock = socket.create_connection((LOOPBACK, port), timeout=timeout * SLOWNESS)
        head = (
            f"POST {path} HTTP/1.1\r\nHost: {LOOPBACK}:{port}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n"
        )
        self.sock.sendall(head.encode() + data)
        self.received = b""

    def receive(self) -> bytes:
        """What is there next; b"" at the end."""
        data = self.sock.recv(65536)
        self.received += data
        return data

    def receive_events(self, count: int) -> None:
        """Reads until so many events have begun to arrive."""
        while self.received.count(b"data: ") < count:
            assert self.receive(), f"the stream ended: {self.received[-500:]}"

    def receive_all(self) -> str:
        """Reads to the stream's last event; what has come, as text."""
        while b"data: [DONE]" not in self.received:
            assert self.receive(), f"the stream ended: {self.received[-500:]}"
        return self.received.decode()

    def leave(self, how: str) -> None:
        """Closes the connection with a FIN, or with a RST as a killed client's host does."""
        if how == "rst":
            self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.sock.close()


def events_of(text: str) -> Iterator[dict]:
    """The JSON events of an SSE body; checks that nothing follows [DONE]."""
    lines = [line for line in text.splitlines() if line.startswith("data: ")]
    for position, line in enumerate(lines):
        if line == "data: [DONE]":
            assert position == len(lines) - 1, "events after [DONE]"
            return
        yield json.loads(line[len("data: ") :])
