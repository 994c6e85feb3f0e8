"""`export trace`: the two engines over time as a Perfetto trace, to be opened at ui.perfetto.dev.

Tracks of one process: modules, ops (the time that each adds), TIU and GDMA of each core, and DDR bandwidth as a counter
for reads and one for writes. Timestamps are nanoseconds at the chip's clock, from 0.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import (
    DebugAnnotation,
    TracePacket,
    TrackDescriptor,
    TrackEvent,
)
from perfetto.trace_builder.proto_builder import TraceProtoBuilder

from engine.compiler import Compilation
from engine.sim.events import InstructionEvent, ModuleRun, OpEvent, Timeline, timeline
from engine.tpu.isa import Engine
from engine.trace import words
from engine.trace.csv import csv_text, place_text
from engine.trace.output import suffix_of, write_file

FORMATS = (".pftrace", ".perfetto-trace", ".trace", ".csv")
"""Accepted suffixes; all but .csv are Perfetto's own format."""

Value = int | float | str


def write_trace(
    compilation: Compilation, path: Path | str, *, module: str | None = None, history: int | None = None
) -> None:
    """Write the trace of one call of `module`, or of one decoded token (all layers in order) for None; by suffix
    (FORMATS) for Perfetto, or the instructions as a table.

    history: rows of history that hold data in a prefill_kv module, None for all. Raises UserError for an unknown module
    or suffix, CompileError for a module that was not compiled.
    """
    suffix = suffix_of(path, FORMATS)
    found = timeline(compilation, module, history)
    write_file(path, csv_text(found).encode() if suffix == ".csv" else trace_bytes(found))


def trace_bytes(found: Timeline) -> bytes:
    """A timeline as a serialized Perfetto trace."""
    return _Writer(found).write()


SEQUENCE = 1
PROCESS = 1
"""Track of the process; the others are its children."""


@dataclass
class _Interned:
    """Strings that packets name by number; new ones are sent along with the first packet that uses them."""

    event_names: dict[str, int] = field(default_factory=dict)
    debug_annotation_names: dict[str, int] = field(default_factory=dict)
    debug_annotation_string_values: dict[str, int] = field(default_factory=dict)

    def number(self, table: str, value: str, packet: TracePacket) -> int:
        known: dict[str, int] = getattr(self, table)
        if value in known:
            return known[value]
        known[value] = number = len(known) + 1
        entry = getattr(packet.interned_data, table).add()
        entry.iid = number
        if table == "debug_annotation_string_values":
            entry.str = value.encode()
        else:
            entry.name = value
        return number


class _Writer:
    """Writes one timeline."""

    def __init__(self, found: Timeline) -> None:
        self.timeline = found
        self.builder = TraceProtoBuilder()
        self.strings = _Interned()
        self.tracks: dict[str, int] = {}

    def write(self) -> bytes:
        self._declare_process()
        for run in self.timeline.runs:
            self._run(run)
        self._bandwidth()
        return bytes(self.builder.serialize())

    # -- packets ---------------------------------------------------------------------------------------------------

    def _packet(self) -> TracePacket:
        packet = self.builder.add_packet()
        packet.trusted_packet_sequence_id = SEQUENCE
        packet.sequence_flags = TracePacket.SEQ_NEEDS_INCREMENTAL_STATE
        return packet

    def _declare_process(self) -> None:
        packet = self.builder.add_packet()
        packet.trusted_packet_sequence_id = SEQUENCE
        packet.sequence_flags = TracePacket.SEQ_INCREMENTAL_STATE_CLEARED
        track = packet.track_descriptor
        track.uuid = PROCESS
        track.process.pid = PROCESS
        track.process.process_name = f"{self.timeline.title} on {self.timeline.chip}"
        track.child_ordering = TrackDescriptor.EXPLICIT

    def _track(self, name: str, rank: int, unit: str = "") -> int:
        """A child track's number, declared at first use. unit: makes it a counter."""
        if name not in self.tracks:
            self.tracks[name] = PROCESS + 1 + len(self.tracks)
            track = self._packet().track_descriptor
            track.uuid = self.tracks[name]
            track.parent_uuid = PROCESS
            track.name = name
            track.sibling_order_rank = rank
            if unit:
                track.counter.unit_name = unit
        return self.tracks[name]

    def _time(self, cycle: int) -> int:
        return round(cycle * 1e9 / self.timeline.clock_hz)

    def _slice(self, track: int, start: int, cycles: int, name: str, args: Mapping[str, Value]) -> None:
        """A slice; one of no cycles is an instant."""
        packet = self._packet()
        packet.timestamp = self._time(start)
        event = packet.track_event
        event.type = TrackEvent.TYPE_SLICE_BEGIN if cycles else TrackEvent.TYPE_INSTANT
        event.track_uuid = track
        event.name_iid = self.strings.number("event_names", name, packet)
        for key, value in args.items():
            self._annotate(event.debug_annotations.add(), key, value, packet)
        if cycles:
            self._end(track, start + cycles)

    def _end(self, track: int, cycle: int) -> None:
        packet = self._packet()
        packet.timestamp = self._time(cycle)
        packet.track_event.type = TrackEvent.TYPE_SLICE_END
        packet.track_event.track_uuid = track

    def _annotate(self, note: DebugAnnotation, key: str, value: Value, packet: TracePacket) -> None:
        note.name_iid = self.strings.number("debug_annotation_names", key, packet)
        if isinstance(value, str):
            note.string_value_iid = self.strings.number("debug_annotation_string_values", value, packet)
        elif isinstance(value, int):
            note.int_value = value
        else:
            note.double_value = value

    # -- what is drawn ---------------------------------------------------------------------------------------------

    def _run(self, run: ModuleRun) -> None:
        events = run.events
        self._slice(self._track("module", 0), run.start, events.cycles, run.name, {"cycles": events.cycles})
        for op in events.ops:
            name = f"{op.name.partition('.')[2]} {words.short_name(op.location, run.layer)}"
            self._slice(self._track("op", 1), run.start + op.start, op.cycles, name, _op_args(op, run.layer))
        several = any(event.core for event in events.instructions)
        for event in events.instructions:
            label = f"{event.engine.name} core {event.core}" if several else event.engine.name
            track = self._track(label, 2 + 2 * event.core + event.engine)
            where = words.short_name(events.locations[event.op], run.layer)
            args = _instruction_args(event, run)
            self._slice(track, run.start + event.start, event.cycles, f"{event.kind} {where}", args)

    def _bandwidth(self) -> None:
        """Counters of the bytes that flow while a transfer runs, in GB/s."""
        for name, rank, directions in (
            ("DDR read", 100, ("load", "ddr_to_ddr")),
            ("DDR write", 101, ("store", "ddr_to_ddr")),
        ):
            track = self._track(name, rank, "GB/s")
            for cycle, bytes_per_cycle in _flow(self.timeline.runs, directions):
                packet = self._packet()
                packet.timestamp = self._time(cycle)
                packet.track_event.type = TrackEvent.TYPE_COUNTER
                packet.track_event.track_uuid = track
                packet.track_event.double_counter_value = bytes_per_cycle * self.timeline.clock_hz / 1e9


def _flow(runs: Sequence[ModuleRun], directions: Iterable[str]) -> Iterator[tuple[int, float]]:
    """(cycle, bytes a cycle from there on) wherever the flow changes; transfers of several cores add up."""
    changes: dict[int, float] = {}
    for run in runs:
        for event in run.events.instructions:
            if event.direction in directions and event.cycles and event.nbytes:
                rate, start = event.nbytes / event.cycles, run.start + event.start
                changes[start] = changes.get(start, 0.0) + rate
                changes[start + event.cycles] = changes.get(start + event.cycles, 0.0) - rate
    level = 0.0
    for cycle in sorted(changes):
        if changes[cycle]:
            level += changes[cycle]
            yield cycle, max(0.0, level)


def _op_args(op: OpEvent, layer: int) -> dict[str, Value]:
    return {
        "op": op.name,
        "location": words.in_layer(op.location, layer),
        "cycles": op.cycles,
        "bound by": op.bound,
        "DDR read bytes": op.ddr_read_bytes,
        "DDR write bytes": op.ddr_write_bytes,
    }


def _instruction_args(event: InstructionEvent, run: ModuleRun) -> dict[str, Value]:
    """What a click on an instruction shows."""
    other = Engine.TIU if event.engine is Engine.GDMA else Engine.GDMA
    args: dict[str, Value] = {
        "op": run.events.op_names[event.op],
        "location": words.in_layer(run.events.locations[event.op], run.layer),
        "instruction": event.kind,
        "cycles": event.cycles,
        "id": event.number,
    }
    if event.wait:
        args["waits for"] = f"{other.name} {event.wait}"
    if event.direction:
        args["direction"] = event.direction
        args["bytes"] = event.nbytes
        if event.cycles:
            args["bytes per cycle"] = event.nbytes / event.cycles
    args["result"] = place_text(event.result, run)
    for number, operand in enumerate(event.operands):
        args[f"operand {number}"] = place_text(operand, run)
    return args
