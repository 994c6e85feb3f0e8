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
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from textual.pilot import Pilot

from app.explorer import Explorer
from app.session import Session
from app.widgets.timeline import TimelineView
from app.workspace import Workspace

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


@asynccontextmanager
async def compiled(model: str, options: Mapping[str, Any]) -> AsyncIterator[tuple[Explorer, Pilot[None]]]:
    """The explorer with every module compiled."""
    session = Session.open(model, options)
    app = Explorer(Workspace.of(session))
    async with app.run_test(size=(120, 40)) as pilot:
        while session.running or not session.compilation.complete:
            await pilot.pause(0.1)
        await pilot.pause(1)
        yield app, pilot


async def timed(pilot: Pilot[None], keys: Sequence[str], place: Callable[[], object]) -> list[float]:
    """Seconds from each key to its answer. place: what every key must change.

    An upper bound: the test driver itself waits about 50 ms for the screen to be idle.
    """
    found = []
    for key in keys:
        before = place()
        start = time.perf_counter()
        await pilot.press(key)
        found.append(time.perf_counter() - start)
        if place() == before:
            raise SystemExit(f"key {key} did not move on from {before}")
    return found


async def steps(config: str) -> list[float]:
    """Over every pass of a compiled model and back, with the diff on."""
    async with compiled(config, {}) as (app, pilot):
        await pilot.press("d")
        workspace = app.work
        assert workspace is not None
        return await timed(pilot, ("]",) * 11 + ("[",) * 11, lambda: workspace.pass_name)


async def timeline_keys(config: str) -> list[float]:
    """To the next instruction on the timeline of a prefill block."""
    async with compiled(config, {"seq_length": 2048}) as (app, pilot):
        await pilot.press("3")
        await pilot.pause(3)
        await pilot.press("left_square_bracket", "t")
        await pilot.pause(3)
        view = app.screen.query_one(TimelineView)
        return await timed(pilot, ("right",) * 20, lambda: view.cursor)


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
