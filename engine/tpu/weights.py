"""Makes the numbers of a `top.Weight`, which holds only names: of checkpoint tensors and of what passes did.

A weight's `transforms` are applied in order to its stored tensor (several tensors are first stacked along
their first axis):

    transpose                         2-D only
    reshape(a,b,...)
    cast(bf16|f16|f32)                round to nearest even
    add(x)                            in float32 (norms whose stored gain is centred on zero)
    quantize(w4,g64,asymmetric).part  of a weight [K, N] along K: w4|w8, group size, asymmetric|symmetric;
                                      the parts are weight (ui8 [N, K*bits/8]), scale (f32 [N, G]) and
                                      zero_point (ui8 [N, G])
    lane-reorder(64)                  [N, G] to [lanes, ceil(N/lanes), G]

A float result is then cast to the dtype of the weight's type. Names that begin with `@` are computed, not
stored: `@rope.cos`, `@rope.sin`, `@causal_mask`.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from engine.errors import UserError
from engine.snapshot import OpRecord, TensorType
from engine.tpu.quantize import QuantizedWeight, lane_reorder, quantize

Array = NDArray[Any]

NUMPY_DTYPES: dict[str, np.dtype[Any]] = {
    "f32": np.dtype(np.float32),
    "f16": np.dtype(np.float16),
    "bf16": np.dtype(ml_dtypes.bfloat16),
    "ui8": np.dtype(np.uint8),
}
"""The array dtype of each IR dtype that a weight may have."""


class TensorSource(Protocol):
    """Where the numbers come from: a checkpoint, or random numbers in a test."""

    def tensor(self, name: str) -> Array:
        """The stored tensor, in its stored dtype. Raises UserError when there is none of this name."""

    def computed(self, name: str, shape: tuple[int, ...]) -> Array:
        """The tensor, float32, of a name that begins with `@`. Raises UserError for unknown names."""


@dataclass(frozen=True)
class Transform:
    """One step: `quantize(w4,g64,asymmetric).scale` has args ("w4", "g64", "asymmetric") and part "scale"."""

    name: str
    args: tuple[str, ...] = ()
    part: str = ""

    def __str__(self) -> str:
        args = f"({','.join(self.args)})" if self.args else ""
        return self.name + args + (f".{self.part}" if self.part else "")


def _transpose(value: Array) -> Array:
    if value.ndim != 2:
        raise ValueError(f"transpose takes a matrix, found shape {list(value.shape)}")
    return value.T


def _reshape(value: Array, *dims: str) -> Array:
    return value.reshape([int(dim) for dim in dims])


def _cast(value: Array, dtype: str) -> Array:
    if value.dtype == NUMPY_DTYPES[dtype]:
        return value
    with np.errstate(over="ignore"):
        result = value.astype(NUMPY_DTYPES[dtype])
    if dtype == "f16" and not np.isfinite(result).all():
        raise ValueError("has NaN or values beyond the range of f16 (65504); quantise with a bf16 mode")
    return result


def _add(value: Array, number: str) -> Array:
    return value.astype(np.float32) + np.float32(number)


def _lane_reorder(value: Array, lanes: str) -> Array:
    return lane_reorder(value, int(lanes))


def _quantize(value: Array, bits: str, group: str, symmetry: str) -> QuantizedWeight:
    # The transpose of a transposed checkpoint tensor is a view of it, rows contiguous.
    return quantize(_transpose(value), int(bits[1:]), int(group[1:]), symmetry == "symmetric")


@dataclass(frozen=True)
class _Rule:
    """form: how the transform is written. arguments: what its arguments, comma separated, must match."""

    form: str
    arguments: str
    apply: Callable[..., Any]


QUANTIZE = "quantize"
QUANTIZED_PARTS = {"weight": "packed", "scale": "scale", "zero_point": "zero_point"}
"""Name of each part of a quantised weight and the field that holds it."""

TRANSFORMS = {
    "transpose": _Rule("transpose", r"", _transpose),
    "reshape": _Rule("reshape(a,b,...)", r"\d+(,\d+)*", _reshape),
    "cast": _Rule("cast(bf16|f16|f32)", r"bf16|f16|f32", _cast),
    "add": _Rule("add(number)", r"-?\d+(\.\d+)?", _add),
    "lane-reorder": _Rule("lane-reorder(lanes)", r"[1-9]\d*", _lane_reorder),
    QUANTIZE: _Rule(
        "quantize(w4|w8,g<size>,asymmetric|symmetric).weight|scale|zero_point",
        r"w[48],g[1-9]\d*,a?symmetric",
        _quantize,
    ),
}
"""Every transform by name."""


def parse_transform(text: str) -> Transform:
    """Read one transform. Raises ValueError naming the accepted forms."""
    match = re.fullmatch(r"([a-z-]+)(?:\(([^()]+)\))?(?:\.([a-z_]+))?", text)
    rule = TRANSFORMS.get(match[1]) if match else None
    if match is None or rule is None:
        accepted = ", ".join(rule.form for rule in TRANSFORMS.values())
        raise ValueError(f"unknown weight transform {text!r}; known are: {accepted}")
    name, arguments, part = match[1], match[2] or "", match[3] or ""
    part_fits = part in QUANTIZED_PARTS if name == QUANTIZE else not part
    if not part_fits or not re.fullmatch(rule.arguments, arguments):
        raise ValueError(f"malformed weight transform {text!r}; it is written {rule.form}")
    return Transform(name, tuple(arguments.split(",")) if arguments else (), part)


@dataclass(frozen=True)
class WeightReference:
    """What a `top.Weight` says: tensor names (`{i}` is the layer), transforms as text, the result's type."""

    tensors: tuple[str, ...]
    transforms: tuple[str, ...]
    type: TensorType

    @classmethod
    def from_record(cls, op: OpRecord) -> WeightReference:
        """The reference of a `top.Weight` record."""
        return cls(tuple(op.attributes["tensors"]), tuple(op.attributes["transforms"]), op.result_types[0])

    def resolved(self, layer: int) -> tuple[str, ...]:
        """The tensor names of one layer."""
        return tuple(name.replace("{i}", str(layer)) for name in self.tensors)

    def key(self, layer: int) -> str:
        """Identifies the numbers, whatever module and address they are for: equal keys mean equal numbers."""
        shape = "x".join(map(str, self.type.shape))
        return "|".join(
            ["+".join(self.resolved(layer)), ";".join(self.transforms), f"{shape}x{self.type.dtype}"]
        )


def materialize(reference: WeightReference, layer: int, source: TensorSource) -> Array:
    """The numbers of one weight: contiguous, of the shape and dtype of the reference's type.

    Raises UserError naming the tensor when it is missing or does not fit the type, and ValueError for a
    transform that no pass can have written.
    """
    return next(materialize_many([reference], layer, source))


def materialize_many(
    references: Iterable[WeightReference], layer: int, source: TensorSource
) -> Iterator[Array]:
    """`materialize` of each reference in order; the parts of one quantised weight are computed together.

    A quantised weight is held from its first part to its last: keep the parts of one weight close together.
    """
    recipes = [_Recipe.of(reference, layer) for reference in references]
    remaining = Counter(recipe.quantized_key for recipe in recipes if recipe.quantize)
    held: dict[str, QuantizedWeight] = {}
    for recipe in recipes:
        try:
            numbers = recipe.make(source, held)
        except ValueError as error:
            raise UserError(f"tensor {' + '.join(recipe.names)}: {error}") from error
        yield numbers
        if recipe.quantize:
            remaining[recipe.quantized_key] -= 1
            if not remaining[recipe.quantized_key]:
                del held[recipe.quantized_key]


@dataclass(frozen=True)
class _Recipe:
    """A reference for one layer, its transforms parsed and cut at the quantisation, if there is one."""

    names: tuple[str, ...]
    type: TensorType
    before: tuple[Transform, ...]
    quantize: Transform | None
    after: tuple[Transform, ...]

    @classmethod
    def of(cls, reference: WeightReference, layer: int) -> _Recipe:
        steps = tuple(parse_transform(text) for text in reference.transforms)
        cuts = [position for position, step in enumerate(steps) if step.name == QUANTIZE]
        if len(cuts) > 1:
            raise ValueError(f"weight transforms {list(reference.transforms)} quantise twice")
        cut = cuts[0] if cuts else len(steps)
        quantize_step = steps[cut] if cuts else None
        return cls(reference.resolved(layer), reference.type, steps[:cut], quantize_step, steps[cut + 1 :])

    @property
    def quantized_key(self) -> str:
        """Identifies the quantised weight that the recipe takes a part of."""
        assert self.quantize
        return repr((self.names, self.before, self.quantize.args))

    def make(self, source: TensorSource, held: dict[str, QuantizedWeight]) -> Array:
        if self.quantize is None:
            value = _apply(self.before, self._stored(source))
        else:
            if self.quantized_key not in held:
                unquantized = _apply(self.before, self._stored(source))
                held[self.quantized_key] = _quantize(unquantized, *self.quantize.args)
            value = getattr(held[self.quantized_key], QUANTIZED_PARTS[self.quantize.part])
        return self._fitted(_apply(self.after, value))

    def _stored(self, source: TensorSource) -> Array:
        arrays = [
            source.computed(name, self.type.shape) if name.startswith("@") else source.tensor(name)
            for name in self.names
        ]
        return arrays[0] if len(arrays) == 1 else np.concatenate(arrays)

    def _steps(self) -> str:
        steps = [*self.before, *([self.quantize] if self.quantize else []), *self.after]
        return ", ".join(map(str, steps)) or "no transforms"

    def _fitted(self, value: Array) -> Array:
        needed = self.type
        if value.shape != needed.shape:
            raise ValueError(
                f"shape is {list(value.shape)} after {self._steps()}, the module needs {list(needed.shape)}: "
                "the checkpoint does not fit the config.json that the module was built from"
            )
        if (value.dtype == np.uint8) != (needed.dtype == "ui8"):
            raise ValueError(f"dtype is {value.dtype} after {self._steps()}, the module needs {needed.dtype}")
        return np.ascontiguousarray(_cast(value, needed.dtype))


def _apply(steps: Iterable[Transform], value: Array) -> Array:
    for step in steps:
        value = TRANSFORMS[step.name].apply(value, *step.args)
    return value
