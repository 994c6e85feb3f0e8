"""How an op of the Top and Tpu dialects is declared: once, as a class, from which the MLIR dialect is built.

A declaration is plain Python so that the simulator and the app can read it without the MLIR bindings; `engine/mlir.py`
registers it. A class states operands, results, attributes, a shape verifier and the op's meaning on NumPy arrays:

    class SiLU(TopOp):
        '''y = x * sigmoid(x). input, output [...], same shape.'''
        operands = ("input",)

An operand whose name ends with `?` may be `none`. An operand or result whose name ends with `*` (last only) stands for
any number of values up to VARIADIC_LIMIT, each of its own type.

A Tpu op with the operands and attributes of a Top op derives from it as well and states only what is the chip's:

    class Add(TpuOp, top.Add):
        ...
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from engine.errors import VerifyError
from engine.snapshot import OpRecord, TensorType
from engine.tpu.cores import CORE_ATTRIBUTES, CoreSplit, narrowed, outermost_split, verify_cores
from engine.tpu.ginfo import Ginfo
from engine.tpu.numerics import to_float32

if TYPE_CHECKING:
    from engine.tpu.chip import Chip
    from engine.tpu.emit import Emitter

VARIADIC_LIMIT = 16
"""Most values that one variadic operand or result holds: MLIR declares each of them, to let their types differ."""

REGISTRY: dict[str, type[Op]] = {}
"""Every declared op by full name (`top.MatMul`). Filled by importing `engine.top.ops` and `engine.tpu.ops`."""


class Op:
    """Base of all declarations; a subclass of TopOp or TpuOp registers itself.

    operands, results: names. attributes: required attribute names with the accepted Python types. optional_attributes:
    attributes that may be absent; common_attributes: those that every op of the dialect may have; any other name is
    refused. regions: number of regions. terminator: ends a block.
    """

    dialect: ClassVar[str] = ""
    operands: ClassVar[tuple[str, ...]] = ()
    results: ClassVar[tuple[str, ...]] = ("output",)
    attributes: ClassVar[Mapping[str, type | tuple[type, ...]]] = {}
    optional_attributes: ClassVar[Mapping[str, type | tuple[type, ...]]] = {}
    common_attributes: ClassVar[Mapping[str, type | tuple[type, ...]]] = {}
    regions: ClassVar[int] = 0
    terminator: ClassVar[bool] = False

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if cls.dialect and "abstract" not in cls.__dict__:
            REGISTRY[f"{cls.dialect}.{cls.__name__.rstrip('_')}"] = cls

    @classmethod
    def verify(cls, op: OpRecord) -> None:
        """Check shapes, dtypes and attribute values. Raises VerifyError with the reason."""

    @classmethod
    def compute(cls, op: OpRecord, inputs: Sequence[np.ndarray | None]) -> tuple[np.ndarray, ...]:
        """The op's meaning: `inputs` are the operands in order (None where absent), the result one array per result.

        Floats travel as float32 arrays. In Tpu ops their values are exactly representable in the dtype that `op` says,
        and every result is rounded where the chip rounds (`engine/tpu/numerics.py`). Integers keep their dtype.
        """
        raise NotImplementedError(f"{cls.dialect}.{cls.__name__} has no NumPy meaning")

    @classmethod
    def prepare(cls, op: OpRecord, constants: Mapping[int, np.ndarray]) -> dict[int, np.ndarray]:
        """The weights in `constants` (as stored, by operand number) in the form in which `bind` takes them.

        Costly work (dequantising, transposing) belongs here: the interpreter keeps the result for every op with the
        same weights and attributes. A number may be left out when another operand carries it. Default: floats as
        float32, integers as they are.
        """
        return {number: to_float32(stored) for number, stored in constants.items()}

    @classmethod
    def bind(cls, op: OpRecord, prepared: Mapping[int, np.ndarray]) -> Callable[..., tuple[np.ndarray, ...]]:
        """A function of all operands that uses the weights from `prepare`.

        The interpreter calls it for every run of the op, with None in the place of every weight. Default: `compute`.
        """
        return lambda *inputs: cls.compute(op, [prepared.get(i, x) for i, x in enumerate(inputs)])


class TopOp(Op):
    """An op of the framework- and chip-independent dialect; all tensors are f32 (ids and positions si32)."""

    abstract = True
    dialect = "top"


class TpuOp(Op):
    """An op of the chip dialect: its tensors have the dtypes that the chip computes with.

    ginfo: where and when an op of a layer group runs (see engine/tpu/ops/group.py). The others say which cores run it
    (engine/tpu/cores.py).
    """

    abstract = True
    dialect = "tpu"
    common_attributes = {"ginfo": dict, **CORE_ATTRIBUTES}
    host: ClassVar[bool] = False
    """Runs on the host beside the accelerator (TopK, sampling): no instructions, no cycles."""
    cut_operands: ClassVar[tuple[int, ...]] = ()
    """Operands of which a part of the result needs only the same part; none: the op is not cut for several cores."""

    @classmethod
    def kernel(cls, op: OpRecord, emit: Emitter) -> None:
        """Emit the instructions of the op run globally: operands and results in DDR. Default: no instructions."""

    @classmethod
    def core_split(cls, op: OpRecord, chip: Chip, cores: int) -> CoreSplit | None:
        """How the op is cut for so many cores; None when one core runs it. Default: along the outermost dimension of
        the result that is not 1, so that the parts are dense."""
        return outermost_split(op.result_types[0].shape, cores) if cls.cut_operands else None

    @classmethod
    def kernel_parts(cls, op: OpRecord, emit: Emitter, split: CoreSplit) -> None:
        """Emit the parts in `split`, those of one core. Default: the op's kernel on a smaller op, part by part.

        Raises ValueError for parts that the op cannot be cut into.
        """
        if split.dim is None or not cls.cut_operands:
            raise ValueError(f"{op.name} at {op.location} cannot be cut for several cores")
        for part in split.parts:
            emit.record = narrowed(op, split.dim, part, cls.cut_operands)
            emit.sync()
            cls.kernel(emit.record, emit)


def verify_structure(op: OpRecord, declaration: type[Op]) -> None:
    """Check the numbers of operands and results, absent operands, and attribute names and types.

    Raises VerifyError.
    """
    _check_count("operands", declaration.operands, len(op.operands))
    _check_count("results", declaration.results, len(op.results))
    for name, type_ in zip(declaration.operands, op.operand_types, strict=False):
        if type_.is_none and not name.endswith(("?", "*")):
            raise VerifyError(f"operand {name} is absent (none) but required")
    for name, accepted in declaration.attributes.items():
        if name not in op.attributes:
            raise VerifyError(f"attribute {name} is missing")
        _check_attribute(name, op.attributes[name], accepted)
    optional = {**declaration.optional_attributes, **declaration.common_attributes}
    for name, value in op.attributes.items():
        if name in declaration.attributes:
            continue
        if name not in optional:
            known = sorted([*declaration.attributes, *declaration.optional_attributes])
            raise VerifyError(
                f"attribute {name} is unknown; this op has: {', '.join(known) or 'no attributes'}"
            )
        _check_attribute(name, value, optional[name])
    if "ginfo" in op.attributes:
        Ginfo.of(op.attributes["ginfo"])
    if declaration.dialect == "tpu":
        verify_cores(op)


def _check_count(what: str, names: Sequence[str], found: int) -> None:
    if not is_variadic(names):
        if found != len(names):
            raise VerifyError(f"has {found} {what}, expected {len(names)}: {', '.join(names) or 'none'}")
        return
    fixed = len(names) - 1
    if not fixed <= found <= fixed + VARIADIC_LIMIT:
        raise VerifyError(f"has {found} {what}, expected {fixed} to {fixed + VARIADIC_LIMIT}")


def is_variadic(names: Sequence[str]) -> bool:
    """Whether the last of an op's operands or results stands for any number of values."""
    return bool(names) and names[-1].endswith("*")


def _check_attribute(name: str, value: Any, accepted: type | tuple[type, ...]) -> None:
    types = accepted if isinstance(accepted, tuple) else (accepted,)
    if not isinstance(value, types) or (isinstance(value, bool) and bool not in types):
        expected = " or ".join(t.__name__ for t in types)
        raise VerifyError(f"attribute {name} is {value!r}, expected {expected}")


def require(condition: bool, reason: str) -> None:
    """Raise VerifyError(reason) unless the condition holds."""
    if not condition:
        raise VerifyError(reason)


def same_shape(name: str, found: TensorType, expected: Sequence[int]) -> None:
    """Raise VerifyError unless `found` has the expected shape."""
    if tuple(found.shape) != tuple(expected):
        raise VerifyError(f"{name} has shape {list(found.shape)}, expected {list(expected)}")
