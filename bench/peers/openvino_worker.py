"""Runs prompts of random tokens in OpenVINO GenAI for bench/peers/compare, which starts it with the Python of build/peers/venv.

usage: openvino_worker.py MODEL.gguf THREADS. A line {"prompt": tokens, "generate": tokens} of stdin is answered by a line of
stdout, {"prompt_per_s", "generate_per_s"}, from the library's own figures; the first line out, {}, says that it is ready.
"""
import json
import sys

import numpy
import openvino
import openvino_genai

RANDOM = numpy.random.default_rng(1)


def work(pipeline, prompt, generate):
    """The first token comes with the prompt; `generate` more follow it."""
    ids = openvino.Tensor(RANDOM.integers(100, 40000, (1, prompt)).astype(numpy.int64))
    config = openvino_genai.GenerationConfig(max_new_tokens=generate + 1, ignore_eos=True, do_sample=False)
    figures = pipeline.generate(ids, config).perf_metrics
    return {"prompt_per_s": 1000 * prompt / figures.get_ttft().mean,
            "generate_per_s": 1000 / figures.get_tpot().mean if generate else None}


def main(model, threads):
    pipeline = openvino_genai.LLMPipeline(model, "CPU", PERFORMANCE_HINT="LATENCY", NUM_STREAMS=1,
                                          INFERENCE_NUM_THREADS=int(threads), KV_CACHE_PRECISION="f16")
    print(json.dumps({}), flush=True)
    for line in sys.stdin:
        print(json.dumps(work(pipeline, **json.loads(line))), flush=True)


main(*sys.argv[1:])
