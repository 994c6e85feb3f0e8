"""Compiles every module of an architecture through every pass from its config alone; goal for Qwen3-8B: 3 s.

    python benchmarks/config_only.py [CONFIG] [--runs 5]

Every run is a Python process of its own, timed from start-up to exit.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from statistics import median

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

CONFIG = ROOT / "tests/data/configs/Qwen3-8B.json"
GOAL_SECONDS = 3


def compile_once(config: str) -> None:
    """One run in this process; prints seconds by pass and module as JSON."""
    from engine.compiler import compile_model, open_model

    model = open_model(config)
    began = time.perf_counter()
    compilation = compile_model(model, model.resolve())
    compilation.require_complete()
    passes: dict[str, float] = {}
    modules: dict[str, tuple[float, int]] = {}
    for name, module in compilation.modules.items():
        for snapshot in module.snapshots:
            passes[snapshot.pass_name] = passes.get(snapshot.pass_name, 0) + snapshot.seconds
        modules[name] = (sum(s.seconds for s in module.snapshots), len(module.after("codegen").report))
    print(json.dumps({"compile": time.perf_counter() - began, "passes": passes, "modules": modules}))


def main() -> None:
    """Print the table."""
    from measure import cores, run

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("config", nargs="?", default=CONFIG, type=Path)
    parser.add_argument("--runs", type=int, default=5)
    arguments = parser.parse_args()
    runs = [run(__file__, "--once", arguments.config) for _ in range(arguments.runs)]
    found = [json.loads(one.output) for one in runs]
    wall = median(one.wall for one in runs)
    modules = found[-1]["modules"]
    print(f"{arguments.config.stem}, {len(modules)} modules; median of {len(runs)}, {cores()} cores\n")
    print(f"{'all, wall':<28} {wall:>9.2f} s   <= {GOAL_SECONDS} s")
    print(f"{'  compile_model':<28} {median(one['compile'] for one in found):>9.2f} s")
    print(f"{'processor time':<28} {median(one.cpu for one in runs):>9.2f} s")
    print(f"{'peak memory, all processes':<28} {max(one.resident for one in runs) / 1e6:>9.0f} MB\n")
    for name in found[-1]["passes"]:
        print(f"{name:<28} {median(one['passes'][name] for one in found) * 1e3:>9.0f} ms")
    print()
    for name, (_, count) in modules.items():
        seconds = median(one["modules"][name][0] for one in found)
        print(f"{name:<28} {seconds * 1e3:>9.0f} ms   {count:>7} instructions")
    if wall > GOAL_SECONDS:
        raise SystemExit(1)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--once"]:
        compile_once(*sys.argv[2:])
    else:
        main()
