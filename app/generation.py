"""`tpuscope run`: generated text as it comes, on stdout."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from app import units
from app.console import emit, messages

if TYPE_CHECKING:
    from app.session import Session
    from engine.sim.runtime import GeneratedToken


def generate_text(
    session: Session,
    prompt: Sequence[int],
    max_new_tokens: int,
    sampling: Mapping[str, Any] | None,
    as_json: bool,
) -> None:
    """Generate and print. sampling: fields of `engine.sim.runtime.Sampling`; None is greedy."""
    from engine.sim.runtime import Sampling

    stream = session.token_stream(prompt)
    texts: list[str] = []
    tokens: list[GeneratedToken] = []
    start = time.perf_counter()
    chosen = None if sampling is None else Sampling(**sampling)
    for token in session.generate(prompt, max_new_tokens, chosen):
        tokens.append(token)
        texts.append(stream.push(token.token) if stream else f"{token.token} ")
        if not as_json:
            _write(texts[-1])
    texts.append(stream.finish() if stream else "")
    seconds = time.perf_counter() - start
    if as_json:
        emit(_json(prompt, tokens, texts, seconds))
        return
    _write(texts[-1] + "\n")
    full = len(tokens) < max_new_tokens and session.runtime.filled == session.options.seq_length
    end = f"ended because all {session.options.seq_length} rows of history are full" if full else ""
    messages().print(_summary(prompt, tokens, end), style="dim", markup=False, soft_wrap=True)


def _write(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


def _summary(prompt: Sequence[int], tokens: Sequence[GeneratedToken], end: str) -> str:
    first, rest = tokens[0], tokens[1:]
    parts = [
        f"{_plural(len(prompt), 'prompt token')} in {_plural(len(first.segments), 'segment')}",
        f"first token after {units.duration(first.seconds)}",
    ]
    if rest:
        seconds = sum(token.seconds for token in rest)
        parts.append(f"{len(rest)} more at {len(rest) / seconds:.1f} tokens/s")
    parts += [end] if end else []
    return " · ".join([*parts, "computed on this machine, see `tpuscope simulate` for the chip's speed"])


def _plural(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def _json(
    prompt: Sequence[int], tokens: Sequence[GeneratedToken], texts: Sequence[str], seconds: float
) -> dict[str, Any]:
    return {
        "prompt_ids": list(prompt),
        "text": "".join(texts),
        "tokens": [
            {
                "id": token.token,
                "position": token.position,
                "text": text,
                "module": token.module,
                "seconds": token.seconds,
                "copied_bytes": token.copied_bytes,
            }
            for token, text in zip(tokens, texts, strict=False)
        ],
        "seconds": seconds,
    }
