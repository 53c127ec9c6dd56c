"""What long prompts do to those who are decoding: some streams decode all the time while prompts
arrive at half of the rate that the fleet could compute alone. Time between tokens (ITL) of the
streams, and time to the first token (TTFT) of the prompts, for one node with both roles, with and
without a target, and for a prefill and a decode node with a core each. Bounded in requests and time.

usage: bench/latency_bench.py [--prompts 2048,8000] [--arrivals N] [--streams N] [--target MS]
"""

import argparse
import statistics
import sys
import threading
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "tests/e2e"))
sys.path.insert(0, str(Path(__file__).parent))
from fleet import Fleet  # noqa: E402
from serve_bench import Timed, prompt_of  # noqa: E402

STREAM_TOKENS = 128


def pinned(fleet: Fleet) -> Fleet:
    """Each node on a core of its own, with one thread."""
    for core, name in enumerate(("prefill", "decode")):
        role = fleet.roles[name]
        role.command = ["taskset", "-c", str(core), *role.command, "--threads=1"]
    return fleet


def both(*flags: str) -> Fleet:
    return Fleet(("both",), node_flags=["--prefix_cache=false", *flags], start=False)


def fleets(target_ms: int) -> dict:
    return {
        "both": both,
        f"both, {target_ms} ms": lambda: both(f"--itl_target_ms={target_ms}"),
        "prefill + decode, a core each": lambda: pinned(
            Fleet(node_flags=["--prefix_cache=false"], start=False)
        ),
    }


class Streams:
    """Streams that decode one after the other answer until told to stop."""

    def __init__(self, fleet: Fleet, count: int):
        self.fleet = fleet
        self.is_over = threading.Event()
        self.done: list[Timed] = []
        self.failures: list[BaseException] = []
        self.threads = [threading.Thread(target=self.run, args=(i,)) for i in range(count)]
        for thread in self.threads:
            thread.start()

    def run(self, which: int) -> None:
        try:
            while not self.is_over.is_set():
                self.done.append(Timed(self.fleet, prompt_of(32, which), STREAM_TOKENS))
        except BaseException as failure:  # told to whoever waits
            self.failures.append(failure)

    def end(self) -> None:
        self.is_over.set()
        for thread in self.threads:
            thread.join()
        if self.failures:
            raise self.failures[0]

    def gaps(self, begin: float, end: float) -> list[float]:
        """Seconds between neighbouring tokens that came within the time."""
        return sorted(
            b - a
            for request in self.done
            for a, b in zip(request.times, request.times[1:])
            if begin <= a and b <= end
        )


def quantile(ordered: list[float], share: float) -> float:
    return ordered[min(int(len(ordered) * share), len(ordered) - 1)]


def measure(fleet: Fleet, length: int, arrivals: int, count: int) -> str:
    Timed(fleet, prompt_of(64, 1), 4)  # warm
    alone = Timed(fleet, prompt_of(length, 900), 2).ttft
    streams = Streams(fleet, count)
    time.sleep(0.5)
    prompts: list[Timed] = []
    threads = []
    begin = time.monotonic()
    for i in range(arrivals):
        time.sleep(max(0.0, begin + 2 * alone * i - time.monotonic()))
        threads.append(
            threading.Thread(
                target=lambda i=i: prompts.append(Timed(fleet, prompt_of(length, 901 + i), 2))
            )
        )
        threads[-1].start()
    for thread in threads:
        thread.join()
    end = time.monotonic()
    streams.end()
    if len(prompts) != arrivals:
        raise RuntimeError("a prompt failed")
    gaps = streams.gaps(begin, end)
    ttft = [request.ttft for request in prompts]
    return (
        f"{quantile(gaps, 0.5) * 1e3:.1f} | {quantile(gaps, 0.99) * 1e3:.1f} | {gaps[-1] * 1e3:.1f} "
        f"| {len(gaps) / (end - begin):.0f} | {alone:.2f} | {statistics.median(ttft):.2f} "
        f"| {max(ttft):.2f}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--prompts", default="2048,8000", help="tokens, parted by commas")
    parser.add_argument("--arrivals", type=int, default=4, help="prompts of each length")
    parser.add_argument("--streams", type=int, default=4, help="streams that decode meanwhile")
    parser.add_argument("--target", type=int, default=30, help="ms between tokens, where one is set")
    arguments = parser.parse_args()
    print(
        "| prompts | fleet | ITL p50 ms | p99 | largest | decode tok/s in all "
        "| TTFT alone s | TTFT median | largest |"
    )
    print("|---|---|---|---|---|---|---|---|---|")
    for length in (int(length) for length in arguments.prompts.split(",")):
        for kind, make in fleets(arguments.target).items():
            with make() as fleet:
                for role in fleet.roles.values():
                    role.start()
                fleet.wait_ready()
                row = measure(fleet, length, arguments.arrivals, arguments.streams)
            print(f"| {length} | {kind} | {row} |", flush=True)


if __name__ == "__main__":
    main()
