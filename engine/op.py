"""How an op of the Top and Tpu dialects is declared: once, as a class, from which the MLIR dialect is built.

A declaration is plain Python so that the simulator and the app can read it without the MLIR bindings; `engine/mlir.py`
registers it. A class states operands, results, attributes, a shape verifier and the op's meaning on NumPy arrays:

    class SiLU(TopOp):
        '''y = x * sigmoid(x). input, output [...], same shape.'''
        operands = ("input",)

An operand whose name ends with `?` may be `none`; one that ends with `*` (last only) is variadic.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from engine.errors import VerifyError
from engine.snapshot import OpRecord, TensorType
from engine.tpu.numerics import to_float32

if TYPE_CHECKING:
    from engine.tpu.emit import Emitter

REGISTRY: dict[str, type[Op]] = {}
"""Every declared op by full name (`top.MatMul`). Filled by importing `engine.top.ops` and `engine.tpu.ops`."""


class Op:
    """Base of all declarations; a subclass of TopOp or TpuOp registers itself.

    operands, results: names. attributes: required attribute names with the accepted Python types. optional_attributes:
    attributes that may be absent; any other name is refused. regions: number of regions. terminator: ends a block.
    """

    dialect: ClassVar[str] = ""
    operands: ClassVar[tuple[str, ...]] = ()
    results: ClassVar[tuple[str, ...]] = ("output",)
    attributes: ClassVar[Mapping[str, type | tuple[type, ...]]] = {}
    optional_attributes: ClassVar[Mapping[str, type | tuple[type, ...]]] = {}
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
    """An op of the chip dialect: its tensors have the dtypes that the chip computes with."""

    abstract = True
    dialect = "tpu"
    host: ClassVar[bool] = False
    """Runs on the host beside the accelerator (TopK, sampling): no instructions, no cycles."""

    @classmethod
    def kernel(cls, op: OpRecord, emit: Emitter) -> None:
        """Emit the instructions of the op run globally: operands and results in DDR. Default: no instructions."""


def verify_structure(op: OpRecord, declaration: type[Op]) -> None:
    """Check operand count, absent operands and attribute names and types against the declaration.

    Raises VerifyError.
    """
    names = declaration.operands
    variadic = bool(names) and names[-1].endswith("*")
    fixed = names[:-1] if variadic else names
    if len(op.operands) < len(fixed) or (not variadic and len(op.operands) > len(fixed)):
        raise VerifyError(
            f"has {len(op.operands)} operands, expected {len(fixed)}: {', '.join(names) or 'none'}"
        )
    for name, type_ in zip(fixed, op.operand_types, strict=False):
        if type_.is_none and not name.endswith("?"):
            raise VerifyError(f"operand {name} is absent (none) but required")
    if len(op.results) != len(declaration.results) and not (
        declaration.results and declaration.results[-1] == "*"
    ):
        raise VerifyError(f"has {len(op.results)} results, expected {len(declaration.results)}")
    for name, accepted in declaration.attributes.items():
        if name not in op.attributes:
            raise VerifyError(f"attribute {name} is missing")
        _check_attribute(name, op.attributes[name], accepted)
    for name, value in op.attributes.items():
        if name in declaration.attributes:
            continue
        if name not in declaration.optional_attributes:
            known = sorted([*declaration.attributes, *declaration.optional_attributes])
            raise VerifyError(
                f"attribute {name} is unknown; this op has: {', '.join(known) or 'no attributes'}"
            )
        _check_attribute(name, value, declaration.optional_attributes[name])


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
