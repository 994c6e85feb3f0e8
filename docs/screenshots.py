"""Takes the README's screenshots: the explorer on a model, key by key, as PNG.

    python docs/screenshots.py MODEL [--out docs/screens]

Needs a monospaced font on the machine (DejaVu Sans Mono) for the PNG.
"""

from __future__ import annotations

import argparse
import asyncio
from pathlib import Path
from typing import Any

import resvg_py

FONT = "DejaVu Sans Mono"
WIDTH = 1300
WIDE_PREFILL = {"quantize": "bf16", "max_input_length": 512}
SHOTS: tuple[tuple[str, tuple[int, int], dict[str, Any], tuple[str, ...]], ...] = (
    ("explore", (120, 40), {}, ("1", "]", "]", "]", "d")),
    ("side-by-side", (200, 60), {}, ("1", "]", "]", "]", "d", "D")),
    ("explore-80", (80, 24), {}, ("1", "]", "]", "]", "d")),
    ("memory", (120, 40), {}, ("2", "t")),
    ("local-memory", (120, 40), WIDE_PREFILL, ("1", "{", "{", "{", "2", "m", "g", "g")),
    ("local-memory-80", (80, 24), {"quantize": "bf16"}, ("2", "m", "g")),
    ("local-memory-200", (200, 60), WIDE_PREFILL, ("2", "m")),
    ("simulate", (120, 40), {}, ("3",)),
    ("timeline", (120, 40), {}, ("3", "down", "t", "b", "plus")),
    ("kv", (120, 40), {}, ("4",)),
    ("run", (120, 40), {}, ("5",)),
)
"""name, columns and lines, options beside S = 512, keys."""


async def shoot(
    model: str, name: str, size: tuple[int, int], options: dict[str, Any], keys: tuple[str, ...]
) -> str:
    """Open the explorer, press the keys, return the screen as SVG."""
    from app.explorer import Explorer
    from app.session import Session
    from app.workspace import Workspace

    session = Session.open(model, {"seq_length": 512, **options})
    explorer = Explorer(Workspace.of(session))
    async with explorer.run_test(size=size) as pilot:
        while session.running or not session.compilation.complete:
            await pilot.pause(0.2)
        await pilot.pause(2)
        for key in keys:
            await pilot.press(key)
            await pilot.pause(1)
        if name == "run":
            await pilot.press("i", "enter")
            await pilot.pause(25)
        return explorer.export_screenshot(title="tpuscope")


def main() -> None:
    """Write every picture, or those named."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--out", type=Path, default=Path("docs/screens"))
    parser.add_argument("--only", nargs="*", default=None)
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    for name, size, options, keys in SHOTS:
        if arguments.only and name not in arguments.only:
            continue
        svg = asyncio.run(shoot(arguments.model, name, size, options, keys)).replace("Fira Code", FONT)
        png = resvg_py.svg_to_bytes(
            svg_string=svg, width=WIDTH, monospace_family=FONT, font_dirs=["/usr/share/fonts"]
        )
        (arguments.out / f"{name}.png").write_bytes(bytes(png))
        print(name)


if __name__ == "__main__":
    main()
