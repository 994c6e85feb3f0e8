"""The only door to the MLIR bindings: contexts with the Top and Tpu dialects, parse, print, build, locations, records.

Everything else in the engine deals in plain records (`engine/snapshot.py`) or calls the helpers here.
"""

from __future__ import annotations

import re
import sys
import types
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import repeat
from typing import Any

from torch_mlir import ir
from torch_mlir.dialects import ext, func, irdl

from engine.errors import UserError, VerifyError
from engine.op import REGISTRY, VARIADIC_LIMIT, Op, is_variadic, verify_structure
from engine.snapshot import OpRecord, TensorType

Module = ir.Module
Operation = ir.Operation
Value = ir.Value
Type = ir.Type
Location = ir.Location
Block = ir.Block

for _name in ("top", "tpu"):
    # the bindings import a dialect's Python module at every sight of an op and forget when there is none: 60 us each
    sys.modules.setdefault(f"torch_mlir.dialects.{_name}", types.ModuleType(_name))

MODULE_PREFIX = "module."
"""Prefix of the module attributes, as in TPU-MLIR."""


# -- dialects ------------------------------------------------------------------------------------------------------


def _declare(dialect: type[ext.Dialect], full_name: str, declaration: type[Op]) -> None:
    """Turn one declaration into an op class of the bindings' dialect builder."""
    annotations: dict[str, Any] = {}
    for kind, names, suffix in (
        (ext.Operand, declaration.operands, "_operand"),
        (ext.Result, declaration.results, "_result"),
    ):
        for name in names[:-1] if is_variadic(names) else names:
            annotations[name.rstrip("?") + suffix] = kind[Any]
        if is_variadic(names):
            # values of one variadic must agree in type, optional ones need not
            for index in range(VARIADIC_LIMIT):
                annotations[f"{names[-1].rstrip('*')}{index}{suffix}"] = kind[Any] | None
    for index in range(declaration.regions):
        annotations[f"region{index}"] = ext.Region

    def verify_invariants(op: Any) -> bool:
        operation = op.operation
        record = _bare_record(operation)
        try:
            verify_structure(record, declaration)
            declaration.verify(record)
        except VerifyError as error:
            operation.location.emit_error(f"'{full_name}' op {error}")
            return False
        return True

    types.new_class(
        full_name.replace(".", "_"),
        (dialect.Operation,),
        {
            "name": full_name.partition(".")[2],
            "traits": [ir.IsTerminatorTrait] if declaration.terminator else [],
        },
        lambda namespace: namespace.update(
            __annotations__=annotations, verify_invariants=staticmethod(verify_invariants)
        ),
    )


def _dialects() -> list[type[ext.Dialect]]:
    """The two dialect classes, built from every declaration once per process."""
    if not _DIALECTS:
        import engine.top.ops
        import engine.tpu.ops  # noqa: F401

        for name in ("top", "tpu"):
            dialect = types.new_class(name.capitalize(), (ext.Dialect,), {"name": name})
            for full_name, declaration in REGISTRY.items():
                if declaration.dialect == name:
                    _declare(dialect, full_name, declaration)
            _DIALECTS.append(dialect)
    return _DIALECTS


_DIALECTS: list[type[ext.Dialect]] = []


def new_context() -> ir.Context:
    """A context with Top and Tpu loaded.

    Unregistered dialects are allowed because module attributes keep TPU-MLIR's `module.` prefix; `verify` refuses
    ops of other dialects.
    """
    # its keys keep the contexts that they belong to alive
    _TYPE_CACHE.clear()
    context = ir.Context()
    context.allow_unregistered_dialects = True
    with context, ir.Location.unknown():
        for dialect in _dialects():
            # IRDL's own verifier refuses upper-case op names, the loader does not: skip its pass manager
            definition = dialect._emit_module()
            irdl.load_dialects(definition)
            for operation in dialect.operations:
                operation._attach_traits()
    return context


@contextmanager
def using(context: ir.Context) -> Iterator[None]:
    """Make the context current, with an unknown default location."""
    with context, ir.Location.unknown():
        yield


def parse(text: str, source: str = "input") -> ir.Module:
    """Parse and verify a module in the current context. Raises UserError with op, location and reason."""
    try:
        module = ir.Module.parse(text)
    except ir.MLIRError as error:
        raise UserError(f"{source}: malformed IR: {_diagnostics(error)}") from None
    verify(module, source)
    return module


def verify(module: ir.Module, source: str = "module") -> None:
    """Verify every op of the module. Raises UserError with op, location and reason."""
    for operation in walk(module):
        dialect = operation.name.partition(".")[0]
        if dialect not in ("top", "tpu", "func", "builtin"):
            raise UserError(
                f"{source}: op {operation.name} at {operation.location} is of dialect {dialect!r}; "
                "accepted dialects: top, tpu, func, builtin"
            )
    try:
        module.operation.verify()
    except ir.MLIRError as error:
        raise UserError(f"{source}: malformed IR: {_diagnostics(error)}") from None


def _diagnostics(error: Any) -> str:
    lines = [f"{d.location}: {d.message}" for d in error.error_diagnostics]
    return "\n".join(lines) or str(error)


def print_module(module: ir.Module) -> str:
    """The text, with locations, of a module that `verify` accepts; printing its parse gives the same bytes.

    Values have names of their own in all of the module: the printer itself begins anew in every region.
    """
    # without the promise the printer runs all verifiers once more
    text = str(module.operation.get_asm(enable_debug_info=True, assume_verified=True))
    return _with_unique_names(text) if _OPENS_REGION in text else text


_OPENS_REGION = "({\n"
_MADE = re.compile(r"\s*(%\d+)(?::\d+)? = ")
_NUMBERED = re.compile(r"%\d+")


def _with_unique_names(text: str) -> str:
    """Number the values of nested regions on from the last one of the function, in the order of the text."""
    lines = text.split("\n")
    depth, made = 0, []
    for line in lines:
        depth -= line.lstrip().startswith("})")
        match = _MADE.match(line)
        made.append((match[1], depth) if match else None)
        depth += line.endswith("({")
    counter = sum(found is not None and found[1] == 0 for found in made)
    scopes: list[dict[str, str]] = [{}]
    for index, line in enumerate(lines):
        if line.lstrip().startswith("})"):
            scopes.pop()
        found = made[index]
        if found is not None and found[1]:
            scopes[-1][found[0]] = f"%{counter}"
            counter += 1
        if len(scopes) > 1:
            lines[index] = _renamed(line, scopes[-1])
        if line.endswith("({"):
            scopes.append(dict(scopes[-1]))
    return "\n".join(lines)


def _renamed(line: str, names: Mapping[str, str]) -> str:
    return _NUMBERED.sub(lambda match: names.get(match[0], match[0]), line)


# -- values, types and attributes ----------------------------------------------------------------------------------

_INTEGER_TYPES = {"si32": (32, "signed"), "ui32": (32, "unsigned"), "si16": (16, "signed"), "ui16": (16, "unsigned"),
                  "si8": (8, "signed"), "ui8": (8, "unsigned")}  # fmt: skip


def element_type(dtype: str) -> ir.Type:
    """MLIR element type of a dtype name."""
    if dtype in _INTEGER_TYPES:
        bits, sign = _INTEGER_TYPES[dtype]
        make = ir.IntegerType.get_signed if sign == "signed" else ir.IntegerType.get_unsigned
        return make(bits)
    return ir.Type.parse(dtype)


def to_mlir_type(type_: TensorType) -> ir.Type:
    """MLIR type of a tensor type; the address becomes the encoding, as in TPU-MLIR."""
    if type_.is_none:
        return ir.NoneType.get()
    encoding = None
    if type_.address is not None:
        encoding = ir.IntegerAttr.get(ir.IntegerType.get_signless(64), type_.address)
    return ir.RankedTensorType.get(list(type_.shape), element_type(type_.dtype), encoding)


_TYPE_CACHE: dict[ir.Type, TensorType] = {}


def from_mlir_type(type_: ir.Type) -> TensorType:
    """Plain tensor type of an MLIR type."""
    known = _TYPE_CACHE.get(type_)
    if known is None:
        known = _TYPE_CACHE[type_] = _parse_type(type_)
    return known


def _parse_type(type_: ir.Type) -> TensorType:
    if isinstance(type_, ir.NoneType):
        return TensorType((), "none")
    if not isinstance(type_, ir.RankedTensorType):
        raise UserError(f"unsupported type {type_}; values are ranked tensors or none")
    encoding = type_.encoding
    address = int(ir.IntegerAttr(encoding)) if encoding is not None else None
    return TensorType(tuple(type_.shape), str(type_.element_type), address)


def to_attribute(value: Any) -> ir.Attribute:
    """MLIR attribute of a plain value: bool, int (i64), float (f64), str, list, dict."""
    if isinstance(value, bool):
        return ir.BoolAttr.get(value)
    if isinstance(value, int):
        return ir.IntegerAttr.get(ir.IntegerType.get_signless(64), value)
    if isinstance(value, float):
        return ir.FloatAttr.get(ir.F64Type.get(), value)
    if isinstance(value, str):
        return ir.StringAttr.get(value)
    if isinstance(value, (list, tuple)):
        return ir.ArrayAttr.get([to_attribute(v) for v in value])
    if isinstance(value, Mapping):
        return ir.DictAttr.get({k: to_attribute(v) for k, v in value.items()})
    raise TypeError(f"no MLIR attribute for {value!r}")


def from_attribute(attribute: ir.Attribute) -> Any:
    """Plain value of an MLIR attribute; unknown kinds become their text."""
    if isinstance(attribute, ir.BoolAttr):
        return bool(attribute)
    if isinstance(attribute, ir.IntegerAttr):
        return attribute.value
    if isinstance(attribute, ir.FloatAttr):
        return attribute.value
    if isinstance(attribute, ir.StringAttr):
        return attribute.value
    if isinstance(attribute, (ir.ArrayAttr, ir.DenseI64ArrayAttr)):
        return [from_attribute(a) if isinstance(a, ir.Attribute) else a for a in attribute]
    if isinstance(attribute, ir.DictAttr):
        return {named.name: from_attribute(named.attr) for named in attribute}
    return str(attribute)


SEGMENTS = ("operandSegmentSizes", "resultSegmentSizes")
"""Attributes with which MLIR tells which of the optional operands and results are there; not the op's own."""


def attributes_of(operation: ir.Operation) -> dict[str, Any]:
    """All attributes of an op as plain values."""
    return {
        name: from_attribute(operation.attributes[name])
        for name in operation.attributes
        if name not in SEGMENTS
    }


def attribute(operation: ir.Operation, name: str) -> Any:
    """One attribute as a plain value; None for one that the op does not have."""
    return from_attribute(operation.attributes[name]) if name in operation.attributes else None


def _segments(declaration: type[Op], operands: int, results: int) -> dict[str, ir.Attribute]:
    """The segment attributes of an op with these numbers of operands and results."""
    found = {}
    for attribute, names, count in zip(
        SEGMENTS, (declaration.operands, declaration.results), (operands, results), strict=True
    ):
        if is_variadic(names):
            sizes = [1] * count + [0] * (len(names) - 1 + VARIADIC_LIMIT - count)
            found[attribute] = ir.DenseI32ArrayAttr.get(sizes)
    return found


def module_attributes(module: ir.Module) -> dict[str, Any]:
    """The module's own attributes, without their prefix."""
    found = attributes_of(module.operation)
    return {k.removeprefix(MODULE_PREFIX): v for k, v in found.items() if k.startswith(MODULE_PREFIX)}


def set_module_attributes(module: ir.Module, values: Mapping[str, Any]) -> None:
    """Set module attributes; names are given without the prefix."""
    for name, value in values.items():
        module.operation.attributes[MODULE_PREFIX + name] = to_attribute(value)


# -- locations -----------------------------------------------------------------------------------------------------


def named_location(name: str) -> ir.Location:
    """The location of an op built for a checkpoint tensor or a module input."""
    return ir.Location.name(name)


def derived_location(pass_name: str, *sources: ir.Location, detail: str = "") -> ir.Location:
    """Location of an op that a pass made from others: the sources' origins, plus `detail`, plus the pass's name."""
    locations = list(sources)
    if detail:
        locations.append(ir.Location.name(detail))
    return ir.Location.fused(locations, ir.StringAttr.get(pass_name))


_ORIGIN_CACHE: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {}


def origins(location: ir.Location) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """(origins, passes) of a location chain: leaf names in order without repeats; pass names, oldest first."""
    text = str(location)
    known = _ORIGIN_CACHE.get(text)
    if known is None:
        names: list[str] = []
        passes: list[str] = []
        _collect(location, names, passes)
        known = _ORIGIN_CACHE[text] = (tuple(dict.fromkeys(names)), tuple(dict.fromkeys(passes)))
    return known


def _collect(location: ir.Location, names: list[str], passes: list[str]) -> None:
    if isinstance(location, ir.NameLoc):
        names.append(location.name_str)
    elif isinstance(location, ir.FusedLoc):
        for part in location.locations:
            _collect(part, names, passes)
        # the bindings return the metadata as a plain attribute, not downcast: a string prints in quotes
        metadata = str(location.metadata)
        if metadata.startswith('"'):
            passes.append(metadata.strip('"'))


# -- building ------------------------------------------------------------------------------------------------------


def build(
    name: str,
    operands: Sequence[ir.Value],
    results: Sequence[TensorType],
    attributes: Mapping[str, Any] | None = None,
    *,
    location: ir.Location,
    regions: int = 0,
) -> ir.Operation:
    """The one op builder: create an op at the current insertion point."""
    plain = {k: to_attribute(v) for k, v in (attributes or {}).items()}
    return ir.Operation.create(
        name,
        results=[to_mlir_type(t) for t in results],
        operands=list(operands),
        attributes=plain | _segments(REGISTRY[name], len(operands), len(results)),
        regions=regions,
        loc=location,
    )


def at_end(block: ir.Block) -> ir.InsertionPoint:
    """Insertion point behind the last op of a block; use as a context manager."""
    return ir.InsertionPoint(block)


def before(operation: ir.Operation) -> ir.InsertionPoint:
    """Insertion point in front of an op; use as a context manager."""
    return ir.InsertionPoint(operation)


def main_function(module: ir.Module) -> func.FuncOp:
    """The module's `@main`. Raises UserError when there is none."""
    for operation in module.body.operations:
        if isinstance(operation, func.FuncOp) and operation.name.value == "main":
            return operation
    raise UserError("the module has no function @main")


def new_module(name: str, inputs: Sequence[tuple[str, TensorType]]) -> tuple[ir.Module, ir.Block]:
    """An empty module `@name` with `func @main(inputs)`; returns it with the entry block. Finish with `finish`."""
    module = ir.Module.create()
    module.operation.attributes["sym_name"] = ir.StringAttr.get(name)
    argument_types = [to_mlir_type(type_) for _, type_ in inputs]
    with ir.InsertionPoint(module.body):
        function = func.FuncOp("main", ir.FunctionType.get(argument_types, []))
        block = function.add_entry_block([ir.Location.name(label) for label, _ in inputs])
    return module, block


def finish(module: ir.Module, results: Sequence[ir.Value]) -> None:
    """End `@main` with a return of `results` and make its type agree."""
    function = main_function(module)
    with ir.InsertionPoint(function.entry_block):
        func.ReturnOp(list(results))
    update_function_type(module)


def update_function_type(module: ir.Module) -> None:
    """Make `@main`'s type agree with its arguments and its return."""
    function = main_function(module)
    returned = list(function.entry_block.operations)[-1]
    function.attributes["function_type"] = ir.TypeAttr.get(
        ir.FunctionType.get([a.type for a in function.arguments], [v.type for v in returned.operands])
    )


def walk(module: ir.Module) -> Iterator[ir.Operation]:
    """Every op inside the module, in program order, regions after their op."""

    def visit(operation: ir.Operation) -> Iterator[ir.Operation]:
        for region in operation.regions:
            for block in region.blocks:
                for inner in block.operations:
                    yield inner.operation
                    yield from visit(inner.operation)

    yield from visit(module.operation)


def body_operations(module: ir.Module) -> list[ir.Operation]:
    """The ops of `@main`, without those inside regions, ending with the return."""
    return [op.operation for op in main_function(module).entry_block.operations]


def top_level(operation: ir.Operation) -> ir.Operation:
    """The op of `@main`'s body in whose region an op stands; the op itself outside of regions."""
    while operation.parent is not None and operation.parent.name != "func.func":
        operation = operation.parent.operation
    return operation


def stands_in(operation: ir.Operation, other: ir.Operation) -> bool:
    """Whether an op stands directly in a region of another."""
    return operation.parent is not None and bool(operation.parent.operation == other)


def yielded(operation: ir.Operation) -> list[ir.Value]:
    """The values with which the first region of an op ends, one for each of its results."""
    (block,) = operation.regions[0].blocks
    return list(list(block.operations)[-1].operation.operands)


def retype(value: ir.Value, type_: TensorType) -> None:
    """Change the type of a value in place."""
    value.set_type(to_mlir_type(type_))


def set_attribute(operation: ir.Operation, name: str, value: Any) -> None:
    """Set one attribute from a plain value."""
    operation.attributes[name] = to_attribute(value)


def defining(value: ir.Value) -> ir.Operation | None:
    """The op that makes a value; None for a function argument."""
    owner = value.owner
    return None if isinstance(owner, ir.Block) else owner.operation


def replace(operation: ir.Operation, values: Sequence[ir.Value]) -> None:
    """Use `values` instead of the op's results everywhere and erase the op."""
    for result, value in zip(operation.results, values, strict=True):
        result.replace_all_uses_with(value)
    erase(operation)


def erase(operation: ir.Operation) -> None:
    """Erase an op whose results have no uses. Raises ValueError when they have (MLIR itself would abort)."""
    for result in operation.results:
        if any(True for _ in result.uses):
            raise ValueError(f"{operation.name} at {operation.location} is erased but still used")
    operation.erase()


def move_before(operation: ir.Operation, other: ir.Operation) -> None:
    """Move an op in front of another one of the same block."""
    operation.move_before(other)


def move_to_end(operation: ir.Operation, block: ir.Block) -> None:
    """Move an op behind the last one of any block."""
    block.append(operation)


def add_block(operation: ir.Operation) -> ir.Block:
    """A new empty block in the first region of an op."""
    return operation.regions[0].blocks.append()


def after(operation: ir.Operation) -> ir.InsertionPoint:
    """Insertion point behind an op; use as a context manager."""
    return ir.InsertionPoint.after(operation)


def uses(value: ir.Value) -> list[tuple[ir.Operation, int]]:
    """(op, operand number) of every use of a value. An op's hash follows its operands and attributes: no keys."""
    return [(use.owner.operation, use.operand_number) for use in value.uses]


# -- records -------------------------------------------------------------------------------------------------------


def _bare_record(operation: ir.Operation) -> OpRecord:
    """A record with types and attributes only: what verifiers need."""
    return OpRecord(
        operation.name,
        ("",) * len(operation.operands),
        tuple(from_mlir_type(v.type) for v in operation.operands),
        ("",) * len(operation.results),
        tuple(from_mlir_type(v.type) for v in operation.results),
        attributes_of(operation),
        (),
    )


def records(module: ir.Module, text: str | None = None) -> tuple[OpRecord, ...]:
    """Records of every op of `@main`, with SSA names and, given the print of this module, line numbers in `text`."""
    names: dict[ir.Value, str] = {}
    function = main_function(module)
    counter = [0, 0]
    for argument in function.arguments:
        names[argument] = f"%arg{counter[1]}"
        counter[1] += 1
    _name_block(function.entry_block, names, counter)
    found: list[OpRecord] = []
    # the first two printed ops are the module and the function
    line_of = iter(_op_lines(text)[2:]) if text is not None else repeat(0)
    _record_block(function.entry_block.operations, None, names, line_of, found)
    return tuple(found)


def _name_block(
    block: ir.Block, names: dict[ir.Value, str], counter: list[int], nested: bool = False
) -> None:
    """Number values as `print_module` does: the function's own first, then those of regions in the text's order."""
    operations = [view.operation for view in block.operations]
    for operation in operations:
        _name_results(operation, names, counter)
        if nested:
            _name_regions(operation, names, counter)
    for operation in operations if not nested else ():
        _name_regions(operation, names, counter)


def _name_results(operation: ir.Operation, names: dict[ir.Value, str], counter: list[int]) -> None:
    results = operation.results
    if len(results) == 0:
        return
    base = f"%{counter[0]}"
    counter[0] += 1
    for index, result in enumerate(results):
        names[result] = base if len(results) == 1 else f"{base}#{index}"


def _name_regions(operation: ir.Operation, names: dict[ir.Value, str], counter: list[int]) -> None:
    for region in operation.regions:
        for inner in region.blocks:
            for argument in inner.arguments:
                names[argument] = f"%arg{counter[1]}"
                counter[1] += 1
            _name_block(inner, names, counter, nested=True)


def _op_lines(text: str) -> list[int]:
    """Line numbers of the printed ops in program order: every line that is not an alias, a brace or a block label."""
    return [
        number
        for number, line in enumerate(text.split("\n"))
        if line.strip() and not line.startswith("#") and not line.lstrip().startswith(("}", "^"))
    ]


def _record_block(
    operations: Iterable[Any],
    parent: int | None,
    names: dict[ir.Value, str],
    line_of: Iterator[int],
    found: list[OpRecord],
) -> None:
    for view in operations:
        operation = view.operation
        leaf_names, passes = origins(operation.location)
        operands = list(operation.operands)
        results = list(operation.results)
        found.append(
            OpRecord(
                operation.name,
                tuple(names[v] for v in operands),
                tuple(from_mlir_type(v.type) for v in operands),
                tuple(names[v] for v in results),
                tuple(from_mlir_type(v.type) for v in results),
                attributes_of(operation),
                leaf_names,
                passes,
                next(line_of),
                parent,
            )
        )
        index = len(found) - 1
        for region in operation.regions:
            for block in region.blocks:
                _record_block(block.operations, index, names, line_of, found)
