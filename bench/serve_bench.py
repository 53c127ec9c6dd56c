"""What a client sees of a running fleet, by HTTP on loopback: time to the first token with prompt
and output computed on one node (whole) and on two (split), decode speed at several numbers of
streams, and what the hand-over costs. Bounded in requests. Prints tables, each line with a hash of
the output tokens: equal hashes are equal answers.

usage: bench/serve_bench.py [--threads N] [--streams 1,8,32] [--tokens N]
"""

import argparse
import hashlib
import json
import statistics
import sys
import threading
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "tests/e2e"))
from fleet import Client, Fleet, Stream, completion, free_ports  # noqa: E402

PROMPT_LENGTHS = (32, 256, 1024)
REPEATS = 5
KINDS = {"whole": ("both",), "split": ("prefill", "decode"), "all": "all"}


def prompt_of(length: int, which: int) -> list[int]:
    """Distinct from the first token on, so that no cache knows it."""
    return [1000 + (length * 131 + which) % 20000] + [2000 + (i * 37 + which * 101) % 20000 for i in range(length - 1)]


class Timed:
    """One streamed request: when each token came, and its id."""

    def __init__(self, fleet: Client, prompt: list[int], tokens: int):
        self.start = time.monotonic()
        self.times: list[float] = []
        self.ids: list[int] = []
        stream = Stream(fleet.port, "/v1/completions", completion(prompt, tokens, stream=True))
        pending = b""
        while data := stream.receive():
            now = time.monotonic()
            *lines, pending = (pending + data).split(b"\n")
            for line in lines:
                self.take(line, now)
            if b"data: [DONE]" in lines:
                break
        stream.leave("fin")

    def take(self, line: bytes, now: float) -> None:
        if not line.startswith(b"data: {"):
            return
        event = json.loads(line[len(b"data: ") :])
        if "error" in event:
            raise RuntimeError(event["error"]["message"])
        for choice in event["choices"]:
            new = choice.get("token_ids") or []
            self.ids += new
            self.times += [now] * len(new)

    @property
    def ttft(self) -> float:
        return self.times[0] - self.start

    @property
    def rate(self) -> float:
        return (len(self.times) - 1) / (self.times[-1] - self.times[0])


def hash_of(requests: list[Timed]) -> str:
    return hashlib.sha256(json.dumps([r.ids for r in requests]).encode()).hexdigest()[:12]


def ttft_table(fleets: dict[str, Fleet]) -> None:
    print("\n| prompt tokens | fleet | TTFT median ms | min ms | prefill tok/s | hash |")
    print("|---|---|---|---|---|---|")
    for length in PROMPT_LENGTHS:
        for kind, fleet in fleets.items():
            done = [Timed(fleet, prompt_of(length, 50 + i), 4) for i in range(REPEATS)]
            best = min(request.ttft for request in done)
            median = statistics.median(request.ttft for request in done)
            print(
                f"| {length} | {kind} | {median * 1e3:.1f} | {best * 1e3:.1f} "
                f"| {length / median:.0f} | {hash_of(done)} |"
            )


def at_once(fleet: Fleet, streams: int, tokens: int) -> list[Timed]:
    done: list[Timed | None] = [None] * streams

    def one(i: int) -> None:
        done[i] = Timed(fleet, prompt_of(32, i), tokens)

    threads = [threading.Thread(target=one, args=(i,)) for i in range(streams)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if None in done:
        raise RuntimeError("a request failed")
    return done


def total_rate(done: list[Timed]) -> float:
    """Tokens a second while every stream was decoding."""
    begin = max(request.times[0] for request in done)
    end = min(request.times[-1] for request in done)
    tokens = sum(begin < t <= end for request in done for t in request.times)
    return tokens / (end - begin) if end > begin else 0.0


def decode_table(fleets: dict[str, Fleet], streams: list[int], tokens: int) -> None:
    print("\n| streams | fleet | tok/s a stream, median | tok/s in all | hash |")
    print("|---|---|---|---|---|")
    for count in streams:
        for kind, fleet in fleets.items():
            done = at_once(fleet, count, tokens)
            rate = statistics.median(request.rate for request in done)
            print(f"| {count} | {kind} | {rate:.1f} | {total_rate(done):.1f} | {hash_of(done)} |")


def transfer_table(fleet: Fleet, page: Client) -> None:
    """By the decode node's own page: bytes handed over, the time from first to last byte (most of
    it hidden: finished blocks leave while the prompt is still computed), and what was left of it
    after the prefill's end."""
    print("\n| prompt tokens | hand-overs | MB each | first to last byte ms | exposed ms |")
    print("|---|---|---|---|---|")
    names = [
        "pdserve_kv_transfer_seconds_sum",
        "pdserve_kv_transfer_exposed_seconds_sum",
        "pdserve_kv_transfer_seconds_count",
    ]
    for length in PROMPT_LENGTHS:
        before = [page.metric(name) for name in names]
        bytes_before = fleet.metric("pdserve_kv_transfer_bytes")
        for i in range(REPEATS):
            Timed(fleet, prompt_of(length, 90 + i), 2)
        time.sleep(0.3)  # the last load message
        seconds, exposed, count = (page.metric(n) - was for n, was in zip(names, before))
        moved = (fleet.metric("pdserve_kv_transfer_bytes") - bytes_before) / 1e6
        if count:
            print(
                f"| {length} | {count:.0f} | {moved / count:.2f} | {seconds / count * 1e3:.2f} "
                f"| {exposed / count * 1e3:.2f} |"
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--threads", type=int, default=0, help="compute threads a node; 0: one a core"
    )
    parser.add_argument("--streams", default="1,8,32", help="numbers of streams, parted by commas")
    parser.add_argument("--tokens", type=int, default=64, help="output tokens of each stream")
    arguments = parser.parse_args()
    streams = [int(count) for count in arguments.streams.split(",")]
    flags = [f"--threads={arguments.threads}"]
    fleets = {kind: Fleet(nodes, node_flags=flags) for kind, nodes in KINDS.items()}
    try:
        for fleet in fleets.values():
            Timed(fleet, prompt_of(64, 1), 4)  # warm
        ttft_table(fleets)
        decode_table(fleets, streams, arguments.tokens)
    finally:
        for fleet in fleets.values():
            fleet.close()
    (port,) = free_ports(1)
    with Fleet(start=False) as fleet:
        fleet.roles["decode"].command.append(f"--metrics_listen=127.0.0.1:{port}")
        for role in fleet.roles.values():
            role.command += flags if role.name != "router" else []
            role.start()
        fleet.wait_ready()
        transfer_table(fleet, Client(port))


if __name__ == "__main__":
    main()
