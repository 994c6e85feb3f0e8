"""A small module with one group planned by hand, to be corrupted: its text, its plan, its inputs."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import numpy as np
from group_bench import Built, HandPlan, build

from engine.passes.layer_group.plan import GroupPlan, Secs
from engine.passes.layer_group.view import GroupView, group_indices, read_group
from engine.snapshot import OpRecord
from engine.tpu.chip import Chip
from engine.tpu.numerics import round_to

X = "tensor<1x200x96xbf16>"
MODULE = f"""module @m {{
  func.func @main(%arg0: {X}, %arg1: {X}) -> ({X}, {X}) {{
    %0 = "top.Input"(%arg0) : ({X}) -> {X} loc("x")
    %1 = "top.Input"(%arg1) : ({X}) -> {X} loc("y")
    %2 = "top.Weight"() {{tensors = ["gain"], transforms = []}} : () -> tensor<96xbf16> loc("gain")
    %3 = "tpu.Add"(%0, %1) : ({X}, {X}) -> {X} loc("sum")
    %4 = "tpu.RMSNorm"(%3, %2) {{eps = 1.0e-6 : f64}} : ({X}, tensor<96xbf16>) -> {X} loc("norm")
    %5 = "tpu.Mul"(%4, %1) : ({X}, {X}) -> {X} loc("product")
    %6 = "tpu.Add"(%5, %5) : ({X}, {X}) -> {X} loc("twice")
    return %3, %6 : {X}, {X}
  }}
}}
"""


def plan(ops: Sequence[OpRecord], chip: Chip, pipelined: bool) -> GroupPlan:
    """sum, norm and product in four slices, in which no memory is used twice."""
    held = frozenset({"%2"}) if pipelined else frozenset[str]()
    return HandPlan(ops, [3, 4, 5], Secs(c=4), chip, held=held, pipelined=pipelined).build()


@cache
def module(pipelined: bool) -> Built:
    """The group, and an op behind it."""
    return build(MODULE, lambda ops, chip: [plan(ops, chip, pipelined)])


@cache
def inputs() -> dict[str, np.ndarray]:
    """x and y."""
    random = np.random.default_rng(1)
    return {
        name: round_to(random.standard_normal((1, 200, 96)).astype(np.float32), "bf16") for name in ("x", "y")
    }


def group_of(ops: Sequence[OpRecord]) -> GroupView:
    """The first group of a module."""
    return read_group(ops, group_indices(ops)[0])
