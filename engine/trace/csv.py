"""The instructions of a timeline as a table, one row each, in issue order."""

from __future__ import annotations

import csv
import io

from engine.sim.events import ModuleRun, OperandPlace, Timeline
from engine.tpu.isa import OPERANDS
from engine.trace import words

COLUMNS = (
    "module",
    "engine",
    "core",
    "id",
    "waits_for",
    "start_cycle",
    "cycles",
    "instruction",
    "op",
    "location",
    "direction",
    "bytes",
    "result",
    *(f"operand_{index}" for index in range(OPERANDS)),
)
"""Cycles count from the timeline's start; waits_for is an id of the other engine, 0 for none."""


def csv_text(found: Timeline) -> str:
    """The table with a header line."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    for run in found.runs:
        for event in run.events.instructions:
            places = [place_text(place, run) for place in event.operands]
            writer.writerow(
                (
                    run.name,
                    event.engine.name,
                    event.core,
                    event.number,
                    event.wait,
                    run.start + event.start,
                    event.cycles,
                    event.kind,
                    run.events.op_names[event.op],
                    words.in_layer(run.events.locations[event.op], run.layer),
                    event.direction,
                    event.nbytes,
                    place_text(event.result, run),
                    *places,
                    *[""] * (OPERANDS - len(places)),
                )
            )
    return text.getvalue()


def place_text(place: OperandPlace, run: ModuleRun) -> str:
    """An operand in words: `1x64x9x64 bf16 at LMEM 0x4000 bank 1`, with the layer's DDR address."""
    if place.space == "constant":
        return f"{place.value:g} {place.dtype}"
    shape = "x".join(map(str, place.shape))
    if place.arena is None:
        return f"{shape} {place.dtype} at LMEM {place.address:#x} bank {place.bank}"
    address = run.bases[place.arena] + place.address
    return f"{shape} {place.dtype} at DDR {address:#x} ({place.arena.name.lower()})"
