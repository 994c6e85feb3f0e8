"""How fast the explorer answers: from Python start-up to the first screen, and from a key to its answer.

    python benchmarks/explorer.py MODEL_DIR [CONFIG]

MODEL_DIR: a checkpoint (SmolLM2-135M) for the start. CONFIG: a config.json of a 4B-size model for the stepping. Goals:
first screen under 1 s after start-up, a step within 100 ms.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import subprocess
import sys
import time
from pathlib import Path

START_GOAL, STEP_GOAL = 1.0, 0.1
"""Seconds."""
CONFIG = str(Path(__file__).parents[1] / "tests/data/configs/Qwen3-4B.json")
CHILD = """
import time; start = time.perf_counter()
import asyncio, sys
async def main():
    from app.explorer import Explorer
    from app.session import Session
    from app.workspace import Workspace
    app = Explorer(Workspace.of(Session.open(sys.argv[1], {"seq_length": 512})))
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.pause(0)
        print(time.perf_counter() - start)
        app.action_cancel()
asyncio.run(main())
"""


def first_screen(model: str, runs: int) -> list[float]:
    """Seconds from the first line of Python to the first screen, in fresh processes."""
    command = [sys.executable, "-c", CHILD, model]
    found = []
    for _ in range(runs):
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        found.append(float(done.stdout.split()[0]))
    return found


async def steps(config: str) -> list[float]:
    """Seconds from a key to the pass that it asked for on the screen, over every pass of a compiled model.

    An upper bound: the test driver itself waits about 50 ms for the screen to be idle.
    """
    from app.explorer import Explorer
    from app.session import Session
    from app.workspace import Workspace

    session = Session.open(config, {})
    app = Explorer(Workspace.of(session))
    found = []
    async with app.run_test(size=(120, 40)) as pilot:
        while session.running or not session.compilation.complete:
            await pilot.pause(0.1)
        await pilot.pause(1)
        await pilot.press("d")
        workspace = app.work
        assert workspace is not None
        for key in (*("]",) * 11, *("[",) * 11):
            before = workspace.pass_name
            start = time.perf_counter()
            await pilot.press(key)
            found.append(time.perf_counter() - start)
            if workspace.pass_name == before:
                raise SystemExit(f"key {key} did not change the pass {before}")
    return found


async def timeline_keys(model: str) -> list[float]:
    """Seconds from a key to the next instruction on the timeline of a prefill block, under the same upper bound."""
    from app.explorer import Explorer
    from app.session import Session
    from app.widgets.timeline import TimelineView
    from app.workspace import Workspace

    session = Session.open(model, {"seq_length": 2048})
    app = Explorer(Workspace.of(session))
    found = []
    async with app.run_test(size=(120, 40)) as pilot:
        while session.running or not session.compilation.complete:
            await pilot.pause(0.1)
        await pilot.press("3")
        await pilot.pause(3)
        await pilot.press("left_square_bracket", "t")
        await pilot.pause(3)
        view = app.screen.query_one(TimelineView)
        for key in ("right",) * 20:
            before = view.cursor
            start = time.perf_counter()
            await pilot.press(key)
            found.append(time.perf_counter() - start)
            if view.cursor == before:
                raise SystemExit(f"key {key} did not move the cursor")
    return found


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("config", nargs="?", default=CONFIG)
    arguments = parser.parse_args()
    start = first_screen(arguments.model, 5)
    stepped = asyncio.run(steps(arguments.config))
    walked = asyncio.run(timeline_keys(arguments.config))
    print(f"{'':34}{'median':>10}{'worst':>10}{'goal':>10}{'median / goal':>16}")
    for name, values, goal in (
        ("first screen", start, START_GOAL),
        ("a step, with the diff on", stepped, STEP_GOAL),
        ("an instruction of the timeline", walked, STEP_GOAL),
    ):
        median = statistics.median(values)
        print(
            f"{name:34}{median * 1e3:>7.0f} ms{max(values) * 1e3:>7.0f} ms{goal * 1e3:>7.0f} ms{median / goal:>16.2f}"
        )


if __name__ == "__main__":
    main()
