"""Perfetto traces, decoded again with Perfetto's own protos."""

from __future__ import annotations

import csv
import io
from collections import defaultdict
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from compiled import tiny_compilation
from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import Trace, TracePacket, TrackEvent

from engine.compiler import Compilation
from engine.errors import UserError
from engine.sim.events import Timeline, timeline
from engine.trace.csv import COLUMNS, csv_text
from engine.trace.perfetto import trace_bytes, write_trace


@dataclass
class Decoded:
    """slices: track name -> (begin, end, event name, args); counters: track name -> (timestamp, value)."""

    process: str = ""
    slices: dict[str, list[tuple[int, int, str, dict[str, Any]]]] = field(
        default_factory=lambda: defaultdict(list)
    )
    counters: dict[str, list[tuple[int, float]]] = field(default_factory=lambda: defaultdict(list))


def decode(data: bytes) -> Decoded:
    """Read a trace as its processor does: strings by number, slices by begin and end."""
    trace = Trace.FromString(data)
    found, tracks = Decoded(), {}
    names: dict[str, dict[int, Any]] = defaultdict(dict)
    open_slices: dict[int, tuple[int, str, dict[str, Any]]] = {}
    assert trace.packet[0].sequence_flags == TracePacket.SEQ_INCREMENTAL_STATE_CLEARED
    for packet in trace.packet:
        for table in ("event_names", "debug_annotation_names"):
            names[table].update({e.iid: e.name for e in getattr(packet.interned_data, table)})
        strings = packet.interned_data.debug_annotation_string_values
        names["strings"].update({e.iid: e.str.decode() for e in strings})
        if packet.HasField("track_descriptor"):
            track = packet.track_descriptor
            tracks[track.uuid] = track.name
            found.process = found.process or track.process.process_name
            continue
        event, at = packet.track_event, packet.timestamp
        track_name = tracks[event.track_uuid]
        if event.type == TrackEvent.TYPE_COUNTER:
            found.counters[track_name].append((at, event.double_counter_value))
        elif event.type == TrackEvent.TYPE_SLICE_END:
            begin, name, args = open_slices.pop(event.track_uuid)
            found.slices[track_name].append((begin, at, name, args))
        else:
            args = {}
            for note in event.debug_annotations:
                kind = note.WhichOneof("value")
                value = getattr(note, kind)
                args[names["debug_annotation_names"][note.name_iid]] = (
                    names["strings"][value] if kind == "string_value_iid" else value
                )
            entry = (at, names["event_names"][event.name_iid], args)
            if event.type == TrackEvent.TYPE_INSTANT:
                found.slices[track_name].append((at, at, *entry[1:]))
            else:
                assert event.track_uuid not in open_slices
                open_slices[event.track_uuid] = entry
    assert not open_slices
    return found


@pytest.fixture(scope="module")
def compilation() -> Compilation:
    return tiny_compilation()


@pytest.fixture(scope="module")
def block(compilation: Compilation) -> tuple[Timeline, Decoded]:
    found = timeline(compilation, "block_cache_1")
    return found, decode(trace_bytes(found))


def test_every_instruction_is_a_slice_on_its_engine(block: tuple[Timeline, Decoded]) -> None:
    found, trace = block
    (run,) = found.runs
    assert set(trace.slices) == {"module", "op", "TIU", "GDMA"}
    for engine in ("TIU", "GDMA"):
        wanted = [e for e in run.events.instructions if e.engine.name == engine]
        # 1 GHz: a cycle is a nanosecond
        assert [(b, e) for b, e, _, _ in trace.slices[engine]] == [
            (e.start, e.start + e.cycles) for e in wanted
        ]
    assert trace.slices["module"] == [(0, found.cycles, "block_cache_1", {"cycles": found.cycles})]
    assert trace.process.endswith("block_cache_1 on bm1684x")


def test_a_transfer_says_what_it_moves_between_where(block: tuple[Timeline, Decoded]) -> None:
    found, trace = block
    base = min(found.runs[0].bases.values())
    load = next(s for s in trace.slices["GDMA"] if "q_proj" in s[2] and s[3]["direction"] == "load")
    args = load[3]
    assert args["location"] == "model.layers.1.self_attn.q_proj"
    assert args["bytes"] > 0
    assert args["op"] == "A16MatMul"
    assert " at LMEM 0x" in args["result"]
    place = args["operand 0"]
    assert " at DDR 0x" in place
    assert int(place.partition(" at DDR ")[2].split()[0], 16) >= base


def test_counters_integrate_to_the_bytes_moved(block: tuple[Timeline, Decoded]) -> None:
    found, trace = block
    events = found.runs[0].events.instructions
    for name, one_way in (("DDR read", "load"), ("DDR write", "store")):
        samples = trace.counters[name]
        # a transfer of no cycles is an instant and no flow
        moved = sum(e.nbytes for e in events if e.cycles and e.direction in (one_way, "ddr_to_ddr"))
        area = sum(rate * (b - a) for (a, rate), (b, _) in pairwise(samples))
        assert area == pytest.approx(moved)
        assert samples[-1][1] == pytest.approx(0, abs=1e-9)


def test_a_decoded_token_has_all_layers_and_another_clock_scales_time(compilation: Compilation) -> None:
    found = timeline(compilation)
    slower = replace(found, clock_hz=found.clock_hz / 2)
    trace, slow = decode(trace_bytes(found)), decode(trace_bytes(slower))
    assert [s[2] for s in trace.slices["module"]] == [run.name for run in found.runs]
    assert slow.slices["module"][-1][1] == 2 * trace.slices["module"][-1][1]


def test_cores_have_tracks_of_their_own(compilation: Compilation) -> None:
    found = timeline(compilation, "lm_head")
    (run,) = found.runs
    one = run.events.instructions[0]
    events = replace(run.events, instructions=(one, replace(one, core=1)))
    trace = decode(trace_bytes(replace(found, runs=(replace(run, events=events),))))
    assert {f"{one.engine.name} core 0", f"{one.engine.name} core 1"} <= set(trace.slices)
    # both move at once: the counter shows their sum
    first, *_ = trace.counters["DDR read"]
    assert first[1] == pytest.approx(2 * one.nbytes / one.cycles)


def test_table_has_a_row_for_each_instruction(compilation: Compilation) -> None:
    found = timeline(compilation, "lm_head")
    rows = list(csv.DictReader(io.StringIO(csv_text(found))))
    assert tuple(rows[0]) == COLUMNS
    assert [int(row["start_cycle"]) for row in rows] == [e.start for e in found.runs[0].events.instructions]
    assert sum(int(row["bytes"]) for row in rows) == sum(e.nbytes for e in found.runs[0].events.instructions)


def test_files_by_suffix(compilation: Compilation, tmp_path: Path) -> None:
    write_trace(compilation, tmp_path / "t.pftrace", module="lm_head")
    write_trace(compilation, tmp_path / "t.csv", module="lm_head")
    assert decode((tmp_path / "t.pftrace").read_bytes()).slices["module"][0][2] == "lm_head"
    assert (tmp_path / "t.csv").read_text().startswith("module,engine,core")
    with pytest.raises(UserError, match=r"ends in '.json'; accepted: .pftrace"):
        write_trace(compilation, tmp_path / "t.json", module="lm_head")
