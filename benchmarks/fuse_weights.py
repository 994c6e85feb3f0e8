"""What `--fuse-weights` saves: cycles and DDR bytes of every module, time to first token, tokens/s.

    python benchmarks/fuse_weights.py [--models smollm2-135m,...] [--quantize w4bf16,w8bf16] [--seq-length 512,2048]

Configs only, nothing is run. kcycles, load and store MB: without -> with. TIU, DMA: cycles of the busier engine, below
which no schedule of the same instructions gets. groups: streamed ones. ms: of the layer-group pass, with.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from reference_groups import DATA, load  # noqa: E402

from engine.check import check  # noqa: E402
from engine.compiler import Compilation, Model, compile_model, open_model  # noqa: E402
from engine.passes.layer_group.plan import GroupType  # noqa: E402
from engine.sim.throughput import Simulator  # noqa: E402
from engine.sim.timing import ModuleTiming  # noqa: E402
from engine.stages import ModuleSpec  # noqa: E402

MODELS = "smollm2-135m,qwen25-1p5b,qwen3-4b"
LAYERS = {"smollm2-135m": 30, "qwen25-1p5b": 28, "qwen3-4b": 36}
"""The reference compiled one layer of each; these are all of them."""
HEADER = (
    f"{'module':<18}{'kcycles':>22}{'':>8}{'TIU':>9}{'DMA':>9}{'load MB':>18}{'store MB':>18}"
    f"{'groups':>8}{'ops':>5}{'steps':>7}{'ms':>7}"
)


def compile_both(model: Model, quantize: str, length: int) -> tuple[Compilation, Compilation]:
    """The program without and with streamed weights; raises SystemExit when the second breaks a rule."""
    plain, fused = (
        compile_model(model, model.resolve(quantize=quantize, seq_length=length, fuse_weights=fuse))
        for fuse in (False, True)
    )
    problems = check(fused)
    if problems:
        raise SystemExit("\n".join(map(str, problems)))
    return plain, fused


def rows(plain: Compilation, fused: Compilation) -> Iterator[str]:
    """A line for every module of one layer that the option changes."""
    before, after = Simulator(plain), Simulator(fused)
    done = set()
    for spec in fused.specs:
        kind = (spec.kind, spec.stage, spec.cache)
        if not spec.layers or kind in done:
            continue
        done.add(kind)
        yield row(spec, before.timing(spec), after.timing(spec), fused)


def row(spec: ModuleSpec, before: ModuleTiming, after: ModuleTiming, fused: Compilation) -> str:
    """One module's line."""
    snapshot = fused.modules[spec.name].after("layer-group")
    streams = [group for group in snapshot.report.groups if group.type is GroupType.STREAM]

    def pair(old: float, new: float, digits: int) -> str:
        return f"{old:.{digits}f} -> {new:.{digits}f}"

    saved = 1 - after.total_cycles / before.total_cycles
    return (
        f"{spec.name:<18}{pair(before.total_cycles / 1e3, after.total_cycles / 1e3, 1):>22}{-saved:>8.1%}"
        f"{after.tiu_busy_cycles / 1e3:>9.1f}{after.gdma_busy_cycles / 1e3:>9.1f}"
        f"{pair(before.load_bytes / 1e6, after.load_bytes / 1e6, 2):>18}"
        f"{pair(before.store_bytes / 1e6, after.store_bytes / 1e6, 2):>18}"
        f"{len(streams):>8}{sum(len(group.records) for group in streams):>5}"
        f"{sum(len(group.steps) for group in streams):>7}{snapshot.seconds * 1e3:>7.0f}"
    )


def speeds(plain: Compilation, fused: Compilation) -> str:
    """Time to first token of a prompt that fills half of the history, and tokens/s behind it."""
    prompt = plain.options.seq_length // 2
    found = [Simulator(program).simulate(prompt, 1) for program in (plain, fused)]
    rates = [Simulator(program).tokens_per_second(prompt) for program in (plain, fused)]
    first = [simulation.time_to_first_token * 1e3 for simulation in found]
    return (
        f"{prompt} tokens of prompt: first token after {first[0]:.1f} -> {first[1]:.1f} ms "
        f"({first[1] / first[0] - 1:+.1%}), then {rates[0]:.1f} -> {rates[1]:.1f} tokens/s "
        f"({rates[1] / rates[0] - 1:+.1%})"
    )


def main() -> None:
    """Print a table for each model, quantisation and length."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--models", default=MODELS)
    parser.add_argument("--quantize", default="w4bf16,w8bf16")
    parser.add_argument("--seq-length", default="512")
    given = parser.parse_args()
    configs = load(DATA).configs
    with tempfile.TemporaryDirectory() as folder:
        for name in given.models.split(","):
            path = Path(folder) / f"{name}.json"
            config = configs[name]
            layers = LAYERS.get(name, config["num_hidden_layers"])
            path.write_text(json.dumps({**config, "num_hidden_layers": layers}))
            model = open_model(path)
            for quantize in given.quantize.split(","):
                for length in map(int, given.seq_length.split(",")):
                    plain, fused = compile_both(model, quantize, length)
                    print(f"\n{name} {quantize} S={length} L={plain.options.max_input_length}\n{HEADER}")
                    print("\n".join(rows(plain, fused)))
                    print(speeds(plain, fused), flush=True)


if __name__ == "__main__":
    main()
