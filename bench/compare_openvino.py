"""Rate of OpenVINO GenAI on one work, printed alone, in tokens per second. Run by
bench/compare_rounds.py with the Python that has openvino_genai.

usage: compare_openvino.py MODEL.gguf THREADS decode:SEQUENCES[:CONTEXT] | prefill:TOKENS
"""

import random
import sys
import time

import numpy
import openvino
import openvino_genai

SHORT_CONTEXT = 4
STEPS = 64
REPEATS = 3
VOCABULARY = 40000

# Every prompt is another one: the second of two equal ones would be found in a cache.
source = random.Random(20)


def generate(pipeline, sequences: int, prompt: int, steps: int) -> tuple[float, float]:
    """Seconds to the first token, and from it to the last."""
    ids = [[source.randrange(100, VOCABULARY) for _ in range(prompt)] for _ in range(sequences)]
    ids = numpy.array(ids, dtype=numpy.int64)
    config = openvino_genai.GenerationConfig()
    config.max_new_tokens = steps
    config.ignore_eos = True
    config.do_sample = False
    inputs = openvino_genai.TokenizedInputs(
        openvino.Tensor(ids), openvino.Tensor(numpy.ones_like(ids))
    )
    start = time.monotonic()
    metrics = pipeline.generate(inputs, config).perf_metrics
    whole = time.monotonic() - start
    if metrics.get_num_generated_tokens() != sequences * steps:
        raise RuntimeError("ended early")
    first = metrics.get_ttft().mean / 1e3
    return first, whole - first


def measure(pipeline, kind: str, numbers: list[int]) -> float:
    if kind == "prefill":
        prompt, steps, sequences = numbers[0], 1, 1
    else:
        prompt = numbers[1] if len(numbers) > 1 else SHORT_CONTEXT
        sequences, steps = numbers[0], STEPS + 1
    generate(pipeline, sequences, prompt, min(steps, 8))
    rates = []
    for _ in range(REPEATS):
        first, rest = generate(pipeline, sequences, prompt, steps)
        rates.append(prompt / first if kind == "prefill" else sequences * STEPS / rest)
    return sorted(rates)[REPEATS // 2]


def main() -> None:
    model, threads, work = sys.argv[1:]
    kind, *numbers = work.split(":")
    pipeline = openvino_genai.LLMPipeline(model, "CPU", INFERENCE_NUM_THREADS=int(threads))
    print(measure(pipeline, kind, [int(number) for number in numbers]))


if __name__ == "__main__":
    main()
