"""The rounds of bench/compare_llamacpp.sh, which builds what this runs: every work on every engine
in turn, round after round, each in a process of its own; then the table of medians, spreads and
ratios.
"""

import argparse
import datetime
import json
import os
import platform
import re
import statistics
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

LIMIT_SECONDS = 900
STEPS = 64
SHORT_CONTEXT = 4
WIDE = {"avx512_vnni": "AVX-512 VNNI", "avx512_bf16": "BF16", "amx_int8": "AMX", "asimddp": "NEON"}


class Refused(RuntimeError):
    """An engine gave no figure; why."""


def output_of(command: list[str]) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_SECONDS)
    except subprocess.TimeoutExpired as error:
        raise Refused(f"{command[0]}: no end in {LIMIT_SECONDS} s") from error
    if done.returncode != 0:
        raise Refused(f"{' '.join(command)}: exit code {done.returncode}\n{done.stderr[-800:]}")
    return done.stdout


@dataclass(frozen=True)
class Work:
    text: str  # as engine_bench names it

    @property
    def kind(self) -> str:
        return self.text.split(":")[0]

    @property
    def numbers(self) -> list[int]:
        return [int(number) for number in self.text.split(":")[1:]]

    @property
    def context(self) -> int:
        return self.numbers[1] if len(self.numbers) > 1 else 0

    def title(self) -> str:
        if self.kind == "prefill":
            return f"prefill {self.numbers[0]:,}"
        at = f", context {self.context:,}" if self.context else ""
        return f"decode, batch {self.numbers[0]}{at}"


class Ours:
    name = "pdserve"

    def __init__(self, options: argparse.Namespace, file: str):
        self.command = [options.engine_bench, f"--model={file}", f"--threads={options.threads}"]
        self.rows: dict[Work, list[str]] = {}

    def measure(self, work: Work) -> float:
        row = output_of(self.command + [f"--works={work.text}"]).splitlines()[-1]
        rows = self.rows.setdefault(work, [])
        rows.append(row)
        if row.split("hash ")[1] != rows[0].split("hash ")[1]:
            raise Refused(f"two rounds computed different results:\n{rows[0]}\n{row}")
        # Of a whole run, as the peers count, not of the median step.
        rate = re.search(r"whole run ([\d.]+)", row) or re.search(r": +([\d.]+) tok/s", row)
        return float(rate[1])

    def limit(self, work: Work) -> str:
        """The share of what the machine could do, where it is the limit: memory for one token
        at a time, arithmetic else."""
        of_memory = work.kind == "decode" and work.numbers[0] == 1
        unit = "GB/s" if of_memory else "GOP/s"
        pairs = [re.search(rf"([\d.]+) of +([\d.]+) {unit}", row) for row in self.rows[work]]
        done = statistics.median(float(pair[1]) for pair in pairs)
        limit = statistics.median(float(pair[2]) for pair in pairs)
        return f"{done:,.0f} of {limit:,.0f} {unit}" + (f" ({done / limit:.0%})" if limit else "")


class Llama:
    def __init__(self, options: argparse.Namespace, kind: str, file: str):
        self.name = f"llama.cpp {kind}"
        self.folder = Path(options.llama)
        self.common = ["-m", file, "-t", str(options.threads)]

    def measure(self, work: Work) -> float:
        if work.kind == "decode" and work.numbers[0] > 1:
            return self.batched(work)
        count = str(work.numbers[0])
        shape = ["-p", count, "-n", "0"] if work.kind == "prefill" else ["-p", "0", "-n", str(STEPS)]
        command = [str(self.folder / "llama-bench"), *self.common, *shape]
        command += ["-d", str(work.context), "-r", "3", "-o", "json"]
        return statistics.median(json.loads(output_of(command))[0]["samples_ts"])

    def batched(self, work: Work) -> float:
        sequences = work.numbers[0]
        prompt = work.context or SHORT_CONTEXT
        command = [str(self.folder / "llama-batched-bench"), *self.common]
        command += ["-c", str(sequences * (prompt + STEPS)), "-npp", str(prompt)]
        command += ["-ntg", str(STEPS), "-npl", str(sequences), "--output-format", "jsonl"]
        rows = [line for line in output_of(command).splitlines() if line.startswith("{")]
        return json.loads(rows[-1])["speed_tg"]


class OpenVino:
    def __init__(self, options: argparse.Namespace, kind: str, file: str):
        self.name = f"OpenVINO {kind}"
        script = Path(__file__).with_name("compare_openvino.py")
        self.command = [options.openvino_python, str(script), file, str(options.threads)]

    def measure(self, work: Work) -> float:
        return float(output_of(self.command + [work.text]).split()[-1])


@dataclass
class Comparison:
    """Engines on the same works; ours is the first, the second reads the same file."""

    title: str
    engines: list
    works: list[Work]
    rates: dict[tuple[Work, str], list[float]] = field(default_factory=dict)

    def run_round(self) -> None:
        for work in self.works:
            for engine in self.engines:
                try:
                    rate = engine.measure(work)
                except Refused as error:
                    if engine is self.engines[0]:
                        raise
                    print(f"{engine.name}, {work.title()}: no figure: {error}", file=sys.stderr)
                    continue
                print(f"  {work.title()}, {engine.name}: {rate:,.0f} tok/s", file=sys.stderr)
                self.rates.setdefault((work, engine.name), []).append(rate)

    def median(self, work: Work, name: str) -> float | None:
        rates = self.rates.get((work, name))
        return statistics.median(rates) if rates else None

    def cell(self, work: Work, name: str) -> str:
        rates = self.rates.get((work, name))
        if not rates:
            return "-"
        spread = f" ({min(rates):,.0f}-{max(rates):,.0f})" if len(rates) > 1 else ""
        return f"{statistics.median(rates):,.0f}{spread}"

    def ratio_cells(self, work: Work) -> list[str]:
        ours, *peers = (engine.name for engine in self.engines)
        mine = self.median(work, ours)
        medians = {name: rate for name in peers if (rate := self.median(work, name))}
        same = medians.get(peers[0])
        if not medians:
            return ["-", "-"]
        best = max(medians, key=medians.get)
        return [f"{mine / same:.2f}" if same else "-", f"{mine / medians[best]:.2f} ({best})"]

    def rows(self) -> list[list[str]]:
        names = [engine.name for engine in self.engines]
        head = ["work", *names, "x llama.cpp, same file", "x best peer", "of the machine's limit"]
        return [head] + [
            [work.title()]
            + [self.cell(work, name) for name in names]
            + self.ratio_cells(work)
            + [self.engines[0].limit(work)]
            for work in self.works
        ]


def table(rows: list[list[str]], markdown: bool) -> str:
    if markdown:
        lines = ["| " + " | ".join(row) + " |" for row in rows]
        lines.insert(1, "|" + "---|" * len(rows[0]))
        return "\n".join(lines)
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip() for row in rows
    )


def first_match(path: str, pattern: str, otherwise: str) -> str:
    found = re.search(pattern, Path(path).read_text(), re.MULTILINE)
    return found[1] if found else otherwise


def machine() -> str:
    flags = first_match("/proc/cpuinfo", r"^(?:flags|Features)\s*: (.*)", "").split()
    model = first_match("/proc/cpuinfo", r"^model name\s*: (.*)", platform.machine())
    wide = ", ".join(name for flag, name in WIDE.items() if flag in flags) or "no VNNI"
    gigabytes = int(first_match("/proc/meminfo", r"^MemTotal: +(\d+)", "0")) / 1e6
    system = first_match("/etc/os-release", r'^PRETTY_NAME="?([^"\n]*)', platform.system())
    return f"{model} ({wide}), {os.cpu_count()} cores, {gigabytes:.0f} GB, {system}"


def our_version() -> str:
    root = str(Path(__file__).parent.parent)
    try:
        commit = output_of(["git", "-C", root, "rev-parse", "--short", "HEAD"]).strip()
        changes = output_of(["git", "-C", root, "status", "--porcelain", "-uno"]).strip()
    except (Refused, OSError):
        return "pdserve, unknown commit"
    return f"pdserve {commit}" + (" with changes" if changes else "")


def comparisons(options: argparse.Namespace) -> list[Comparison]:
    name = Path(options.model).stem
    kind = re.search(r"[A-Z0-9]*Q\d\w*$|B?F16$|$", name)[0] or "same file"
    engines = [Ours(options, options.model), Llama(options, kind, options.model)]
    engines.append(Llama(options, "Q4_0", options.four_bit))
    if options.openvino_python:
        engines.append(OpenVino(options, kind, options.model))
    works = [Work(text) for text in options.works.split(",")]
    result = [Comparison(f"{kind} file", engines, works)]
    if options.bf16_works:
        engines = [Ours(options, options.bf16), Llama(options, "BF16", options.bf16)]
        works = [Work(text) for text in options.bf16_works.split(",")]
        result.append(Comparison("the same weights as bf16", engines, works))
    return result


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    for number in ("rounds", "threads"):
        parser.add_argument(f"--{number}", type=int, required=True)
    for text in ("works", "engine-bench", "model", "four-bit", "bf16", "llama", "llama-about"):
        parser.add_argument(f"--{text}", required=True)
    for text in ("bf16-works", "openvino-python", "openvino-about"):
        parser.add_argument(f"--{text}", default="")
    parser.add_argument("--markdown", action="store_true")
    return parser.parse_args()


def main() -> int:
    options = parse_options()
    all_comparisons = comparisons(options)
    loads = [os.getloadavg()[0]]
    try:
        for number in range(options.rounds):
            print(f"round {number + 1} of {options.rounds}", file=sys.stderr)
            for comparison in all_comparisons:
                comparison.run_round()
            loads.append(os.getloadavg()[0])
    except Refused as error:
        print(error, file=sys.stderr)
        return 1
    versions = [our_version(), options.llama_about]
    if options.openvino_python:
        versions.append(options.openvino_about)
    print(f"{'## ' if options.markdown else ''}{datetime.date.today()}, {machine()}\n")
    print(f"{'; '.join(versions)}.\n")
    print(f"{options.threads} threads each; tok/s, median of {options.rounds} alternating rounds")
    print(f"(least-most); load average before {loads[0]:.1f}, after {loads[-1]:.1f}.\n")
    for comparison in all_comparisons:
        print(f"{comparison.title}:\n\n{table(comparison.rows(), options.markdown)}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
