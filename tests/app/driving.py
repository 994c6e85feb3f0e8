"""Driving the explorer under Textual's Pilot: waiting for what comes later, keys with their effects."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from textual.pilot import Pilot


async def until(pilot: Pilot[Any], condition: Callable[[], object], seconds: float = 20) -> None:
    """Wait for something that another thread brings; it must come within so many seconds."""
    for _ in range(int(seconds / 0.05)):
        if condition():
            return
        await asyncio.sleep(0.05)
        await pilot.pause()
    raise AssertionError("it did not happen in time")


async def settled(pilot: Pilot[Any], *keys: str) -> None:
    """Press keys and let the screen come to rest, before and after."""
    await pilot.pause()
    await pilot.press(*keys)
    await pilot.pause()
