"""The options that every command on a model shares: declared once, added to a command by a decorator."""

from __future__ import annotations

import inspect
import re
import shlex
from collections.abc import Callable, Iterator, Mapping
from functools import wraps
from typing import Annotated, Any, get_args

import typer

from engine.errors import UserError

_PANEL = "How the model is compiled"


def _option(flag: str, about: str) -> Any:
    return typer.Option(flag, help=about, rich_help_panel=_PANEL, show_default=False)


SHARED: dict[str, Any] = {
    "chip_name": Annotated[str | None, _option("--chip", "Chip; see `tpuscope chips` (default bm1684x).")],
    "quantize": Annotated[
        str | None,
        _option(
            "--quantize",
            "auto, f32, f16, bf16, w8f16, w8bf16, w4f16 or w4bf16; auto is w4 with the checkpoint's half type.",
        ),
    ],
    "q_group_size": Annotated[
        int | None, _option("--q-group-size", "Weights that share a scale, along K (default 64).")
    ],
    "symmetric": Annotated[bool | None, _option("--symmetric", "Quantise without zero points.")],
    "seq_length": Annotated[
        int | None,
        _option("--seq-length", "S, rows of history (default: 2048 or the model's maximum, if less)."),
    ],
    "history": Annotated[
        bool | None, _option("--history/--no-history", "Compile prefill_kv (default: yes).")
    ],
    "max_input_length": Annotated[
        int | None,
        _option("--max-input-length", "L, rows of one prefill (default S/4 with history, S without)."),
    ],
    "decode_chunks": Annotated[
        str | None,
        _option(
            "--decode-chunks",
            "Cache lengths of the decode variants, such as 128,256; none for no variants (default L, 2L, ... below S).",
        ),
    ],
    "prefill_mask": Annotated[
        str | None,
        _option("--prefill-mask", "small or full: a reused causal tile, or an input (default small)."),
    ],
    "sample": Annotated[bool | None, _option("--sample", "Compile the sampling heads.")],
    "batch": Annotated[int | None, _option("--batch", "Sequences decoded together (default 1).")],
    "cores": Annotated[int | None, _option("--cores", "Cores of the chip to use (default 1).")],
    "layer_group": Annotated[
        bool | None,
        _option(
            "--layer-group/--no-layer-group",
            "Keep tensors of consecutive ops in local memory (default: yes).",
        ),
    ],
    "opt": Annotated[
        int | None,
        _option(
            "--opt",
            "Search for layer groups: 1 greedy, 2 cheapest cut, 3 exact for small groups (default 2).",
        ),
    ],
    "fuse_weights": Annotated[
        bool | None,
        _option(
            "--fuse-weights",
            "Layer groups may hold quantised products: weights come tile by tile, activations stay (default: no).",
        ),
    ],
    "force_group": Annotated[
        list[str] | None,
        typer.Option(
            "--force-group",
            metavar="MODULE:a..b",
            help="A layer group that must be: first and last record of its ops, as `explain` numbers them; repeatable.",
            rich_help_panel=_PANEL,
            show_default=False,
        ),
    ],
}
"""Keyword of `engine.options.resolve` -> how the command line takes it; all default to None, not given."""


def with_model_options(function: Callable[..., None]) -> Callable[..., None]:
    """Give a command the shared options in place of its parameter `options`, a dict of those that were given."""

    @wraps(function)
    def command(**given: Any) -> None:
        options = {name: given.pop(name) for name in SHARED}
        function(options=resolved(options), **given)

    own = inspect.signature(function, eval_str=True)
    parameters = [parameter for name, parameter in own.parameters.items() if name != "options"]
    kind = inspect.Parameter.KEYWORD_ONLY
    parameters = [parameter.replace(kind=kind) for parameter in parameters]
    parameters += [
        inspect.Parameter(name, kind, default=None, annotation=annotation)
        for name, annotation in SHARED.items()
    ]
    command.__signature__ = own.replace(parameters=parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return command


def resolved(options: dict[str, Any]) -> dict[str, Any]:
    """The options that were given, lists of numbers read. Raises UserError for a malformed list."""
    # an option that may be repeated is an empty list when it was not given
    given = {name: value for name, value in options.items() if value is not None and value != []}
    if "decode_chunks" in given:
        given["decode_chunks"] = integers("--decode-chunks", given["decode_chunks"])
    if "force_group" in given:
        given["force_group"] = tuple(given["force_group"])
    return given


def integers(option: str, text: str) -> tuple[int, ...]:
    """Whole numbers with commas between, `none` for none. Raises UserError naming the option."""
    if text.strip() in ("none", ""):
        return ()
    parts = [part.strip() for part in text.split(",")]
    if not all(re.fullmatch("-?[0-9]{1,18}", part) for part in parts):
        raise UserError(f"{option} {text!r} is no list of whole numbers; write them like 128,256, or none")
    return tuple(map(int, parts))


def whole_number(name: str, text: str, accepted: str) -> int:
    """A whole number written in digits. Raises UserError saying what was found where, and what is accepted."""
    if not re.fullmatch("[0-9]{1,9}", text):
        raise UserError(f"{name}: {text!r} is no whole number; accepted: {accepted}")
    return int(text)


# -- options as one line ---------------------------------------------------------------------------------------------

_SWITCHED_OFF = ("history", "layer_group")
"""Options that are on unless `--no-...` is given."""


def _flag(name: str) -> str:
    return "--" + name.removesuffix("_name").replace("_", "-")


def spelled(options: Mapping[str, Any]) -> str:
    """Options as they stand on a command line."""
    return shlex.join(word for name, value in options.items() for word in _words(name, value))


def _words(name: str, value: Any) -> list[str]:
    if value is None or (value is False and name not in _SWITCHED_OFF):
        return []
    if isinstance(value, bool):
        return [_flag(name) if value else _flag(name).replace("--", "--no-")]
    if name == "force_group":
        return [word for group in value for word in (_flag(name), str(group))]
    text = ",".join(map(str, value)) or "none" if isinstance(value, (list, tuple)) else str(value)
    return [_flag(name), text]


def options_of(line: str, refused: Mapping[str, str]) -> dict[str, Any]:
    """The options that a line such as `--cores 2 --fuse-weights` gives, as keywords of `engine.options.resolve`.

    refused: why some keywords are not taken here. Raises UserError for what is no option, and for a value that an
    option does not take.
    """
    found: dict[str, Any] = {}
    words = _split(line)
    for word in words:
        flag, equals, value = word.partition("=")
        name, off = _name_of(flag)
        if name in refused:
            raise UserError(f"{flag}: {refused[name]}")
        kind = get_args(get_args(SHARED[name])[0])[0]
        if kind is bool:
            if equals:
                raise UserError(f"{flag} takes no value; leave out {equals}{value}")
            found[name] = not off
            continue
        value = value if equals else next(words, "")
        if not value or (value.startswith("--") and not equals):
            raise UserError(f"{flag} needs a value behind it")
        if name == "force_group":
            found[name] = (*found.get(name, ()), value)
        elif name == "decode_chunks":
            found[name] = integers(flag, value)
        else:
            found[name] = whole_number(flag, value, "digits only") if kind is int else value
    return found


def _split(line: str) -> Iterator[str]:
    try:
        return iter(shlex.split(line))
    except ValueError as error:
        raise UserError(f"{line!r} cannot be read ({error}); write options like --cores 2 --sample") from None


def _name_of(flag: str) -> tuple[str, bool]:
    """(keyword, switched off) of an option as written."""
    for name in SHARED:
        if flag == _flag(name):
            return name, False
        if name in _SWITCHED_OFF and flag == _flag(name).replace("--", "--no-"):
            return name, True
    accepted = ", ".join(map(_flag, SHARED))
    raise UserError(f"{flag!r} is no option of the compiler; accepted: {accepted}")
