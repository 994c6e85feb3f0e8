"""Decode speed of `tpuscope run` on a real model against transformers in float32 on the CPU.

    python benchmarks/decode.py CHECKPOINT --peer-python PYTHON_WITH_TORCH_AND_TRANSFORMERS

Each side runs in a process of its own with one thread on one core, decodes the same number of tokens behind the same
prompt, in turns. Ours is the compiled program (bf16, S 512) on the simulator. Prints a table and the ratio of medians.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PROMPT = "The capital of France is"
SEQ_LENGTH = 512
ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
Decode = Callable[[int], float]
"""Decode so many tokens behind the prompt; seconds without the prompt's own."""


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument(
        "--peer-python", default=sys.executable, help="interpreter with torch and transformers"
    )
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--quantize", default="bf16")
    parser.add_argument("--core", type=int, default=0, help="the core that both sides are pinned to")
    parser.add_argument("--side", choices=("ours", "peer"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.side:
        serve(ours(given.checkpoint, given.quantize) if given.side == "ours" else peer(given.checkpoint))
        return
    sides = {"ours": sys.executable, "peer": given.peer_python}
    workers = {side: start(side, python, given) for side, python in sides.items()}
    seconds: dict[str, list[float]] = {side: [] for side in sides}
    for worker in workers.values():
        ask(worker, given.tokens)
    for _ in range(given.rounds):
        for side, worker in workers.items():
            seconds[side].append(ask(worker, given.tokens))
    for worker in workers.values():
        worker.terminate()
    report(seconds, given)


def report(seconds: dict[str, list[float]], given: argparse.Namespace) -> None:
    """Print tokens/s of each round, the medians and their ratio."""
    names = {"ours": f"tpuscope {given.quantize}", "peer": "transformers f32"}
    speeds = {side: [given.tokens / s for s in found] for side, found in seconds.items()}
    medians = {side: statistics.median(found) for side, found in speeds.items()}
    print(f"{given.tokens} tokens behind {PROMPT!r}, one thread on one core, in turns; tokens/s")
    for side, found in speeds.items():
        rounds = "".join(f"{speed:8.1f}" for speed in found)
        print(f"{names[side]:18}{rounds}   median{medians[side]:8.1f}")
    print(f"ratio {medians['ours'] / medians['peer']:.2f}")


# -- processes -----------------------------------------------------------------------------------------------------


def start(side: str, python: str, given: argparse.Namespace) -> subprocess.Popen[str]:
    """One side, loaded and waiting."""
    command = [python, str(Path(__file__).resolve()), str(given.checkpoint), "--side", side]
    command += ["--quantize", given.quantize]
    environment = {**os.environ, **ONE_THREAD, "PYTHONPATH": str(ROOT) if side == "ours" else ""}
    worker = subprocess.Popen(
        command,
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(worker.pid, {given.core})
    if read(worker) != "ready":
        raise SystemExit(f"{side} did not start")
    return worker


def ask(worker: subprocess.Popen[str], tokens: int) -> float:
    """Seconds of one run."""
    assert worker.stdin is not None
    worker.stdin.write(f"{tokens}\n")
    worker.stdin.flush()
    return float(read(worker))


def read(worker: subprocess.Popen[str]) -> str:
    """A line that the worker printed. Ends the benchmark when the worker died."""
    assert worker.stdout is not None
    line = worker.stdout.readline()
    if not line:
        raise SystemExit(f"a worker ended with code {worker.wait()}; see its messages above")
    return line.strip()


def serve(decode: Decode) -> None:
    """Run what is asked for on stdin."""
    print("ready", flush=True)
    for line in sys.stdin:
        print(decode(int(line)), flush=True)


# -- sides ---------------------------------------------------------------------------------------------------------


def ours(checkpoint: Path, quantize: str) -> Decode:
    """The compiled program on the simulator."""
    from engine.compiler import compile_model, open_model
    from engine.sim.interpreter import CheckpointWeights
    from engine.sim.runtime import Runtime
    from engine.sim.tokenizer import TextTokenizer
    from engine.top.checkpoint.source import ModelTensors

    model = open_model(checkpoint)
    assert model.checkpoint is not None
    start = time.perf_counter()
    program = compile_model(model, model.resolve(seq_length=SEQ_LENGTH, quantize=quantize))
    program.require_complete()
    compiled = time.perf_counter()
    prompt = TextTokenizer.of_folder(checkpoint).encode(PROMPT)
    runtime = Runtime(program, CheckpointWeights(ModelTensors(model.checkpoint, model.config)))
    next(runtime.generate(prompt, 1))
    first = time.perf_counter() - compiled
    print(f"compiled in {compiled - start:.1f} s, first token {first:.1f} s later", file=sys.stderr)

    def decode(tokens: int) -> float:
        stream = runtime.generate(prompt, tokens + 1, stop=())
        next(stream)
        return sum(token.seconds for token in stream)

    return decode


def peer(checkpoint: Path) -> Decode:
    """transformers, greedy, with a KV cache, one forward pass a token."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    torch.set_num_threads(1)
    model = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32).eval()
    prompt = AutoTokenizer.from_pretrained(checkpoint)(PROMPT, return_tensors="pt").input_ids

    def decode(tokens: int) -> float:
        with torch.inference_mode():
            found = model(prompt, use_cache=True)
            token = found.logits[:, -1:].argmax(-1)
            start = time.perf_counter()
            for _ in range(tokens):
                found = model(token, past_key_values=found.past_key_values, use_cache=True)
                token = found.logits[:, -1:].argmax(-1)
            return time.perf_counter() - start

    return decode


if __name__ == "__main__":
    main()
