"""Text to token ids and back, from the tokenizer.json of a checkpoint folder or of a deployable file."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from engine.errors import UserError

TOKENIZER = "tokenizer.json"
SETTINGS = "tokenizer_config.json"
CHAT_TEMPLATE = "chat_template.jinja"
FILES = (TOKENIZER, SETTINGS, CHAT_TEMPLATE)
"""What is read, where it is present; only the first is needed."""

_UNFINISHED = "\ufffd"
"""Ends a text whose last token is part of a character."""


class TextTokenizer:
    """A model's tokenizer. files: contents by file name (FILES); source: what messages call it."""

    def __init__(self, files: Mapping[str, bytes], source: str) -> None:
        if TOKENIZER not in files:
            raise UserError(
                f"{source}: there is no {TOKENIZER}, so text cannot become tokens; add the model's {TOKENIZER}, or "
                "give token ids"
            )
        from tokenizers import Tokenizer  # the library is only needed where text is

        try:
            self._tokenizer = Tokenizer.from_buffer(files[TOKENIZER])
        except Exception as error:  # the library raises nothing more specific
            raise UserError(f"{source}: {TOKENIZER} cannot be read ({error}); copy it again") from None
        # padding and truncation are for batches; what a user types is taken as it is
        self._tokenizer.no_padding()
        self._tokenizer.no_truncation()
        self._settings = _json_object(files.get(SETTINGS), f"{source}/{SETTINGS}")
        self._template = _text(files.get(CHAT_TEMPLATE), f"{source}/{CHAT_TEMPLATE}")
        self._source = source

    @classmethod
    def of_folder(cls, folder: Path | str) -> TextTokenizer:
        """The tokenizer beside a config.json. Raises UserError naming the folder when it has none."""
        folder = Path(folder)
        folder = folder.parent if folder.is_file() else folder
        found = {name: (folder / name).read_bytes() for name in FILES if (folder / name).is_file()}
        return cls(found, str(folder))

    def encode(self, text: str) -> list[int]:
        """Token ids of a raw prompt, with the special tokens that the tokenizer itself adds and no others."""
        return list(self._tokenizer.encode(text).ids)

    def encode_chat(self, text: str) -> list[int]:
        """Token ids of one user message in the model's chat template, ready for the answer.

        Raises UserError when the model has no chat template, or one that cannot be rendered.
        """
        rendered = self._render([{"role": "user", "content": text}])
        # the template writes the special tokens itself
        return list(self._tokenizer.encode(rendered, add_special_tokens=False).ids)

    def decode(self, ids: Sequence[int]) -> str:
        """Text of token ids, special tokens left out."""
        return str(self._tokenizer.decode(list(ids), skip_special_tokens=True))

    def token(self, token: int) -> str:
        """One token as people read it: its text, or its name when it is a special one."""
        text = str(self._tokenizer.decode([token], skip_special_tokens=False))
        return text or str(self._tokenizer.id_to_token(token) or "")

    def stream(self, prompt: Sequence[int] = ()) -> TokenStream:
        """A decoder that is given one token at a time."""
        return TokenStream(self, prompt)

    def _render(self, messages: list[dict[str, str]]) -> str:
        from jinja2 import TemplateError
        from jinja2.sandbox import ImmutableSandboxedEnvironment

        def refuse(message: str) -> None:
            raise TemplateError(message)

        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
        )
        environment.globals["raise_exception"] = refuse
        names = {name: self._special(name) for name in ("bos_token", "eos_token", "pad_token", "unk_token")}
        source = self._chat_template()
        try:
            template = environment.from_string(source)
            return template.render(messages=messages, add_generation_prompt=True, **names)
        except Exception as error:  # a template is a program: it may raise anything
            raise UserError(f"{self._source}: the chat template cannot be rendered ({error})") from None

    def _chat_template(self) -> str:
        stored = self._template or self._settings.get("chat_template")
        if isinstance(stored, list):
            named = {entry.get("name"): entry.get("template") for entry in stored if isinstance(entry, dict)}
            stored = named.get("default")
        if not isinstance(stored, str):
            raise UserError(
                f"{self._source}: the model has no chat template ({CHAT_TEMPLATE}, or 'chat_template' in "
                f"{SETTINGS}); give a raw prompt without --chat"
            )
        return stored

    def _special(self, name: str) -> str:
        value = self._settings.get(name)
        if isinstance(value, dict):
            value = value.get("content")
        return value if isinstance(value, str) else ""


class TokenStream:
    """Turns tokens into text as they come: a character that several tokens make up appears with the last of them."""

    def __init__(self, tokenizer: TextTokenizer, prompt: Sequence[int] = ()) -> None:
        self._tokenizer = tokenizer
        # a few tokens of context decide about spaces at the seam
        self._ids = list(prompt[-_CONTEXT:])
        self._start, self._read = 0, len(self._ids)

    def push(self, token: int) -> str:
        """The text that this token completes; empty while a character is unfinished."""
        self._ids.append(token)
        known, text = self._texts()
        if text.endswith(_UNFINISHED):
            return ""
        self._start, self._read = self._read, len(self._ids)
        return text[len(known) :]

    def finish(self) -> str:
        """What is left of an unfinished character."""
        known, text = self._texts()
        self._start = self._read = len(self._ids)
        return text[len(known) :]

    def _texts(self) -> tuple[str, str]:
        window = self._ids[self._start :]
        return self._tokenizer.decode(window[: self._read - self._start]), self._tokenizer.decode(window)


_CONTEXT = 8


def _text(content: bytes | None, source: str) -> str | None:
    try:
        return None if content is None else content.decode()
    except UnicodeDecodeError:
        raise UserError(f"{source}: is not UTF-8 text; copy it again") from None


def _json_object(content: bytes | None, source: str) -> dict[str, Any]:
    if content is None:
        return {}
    try:
        found = json.loads(content)
    except ValueError as error:
        raise UserError(f"{source}: is not JSON ({error})") from None
    return found if isinstance(found, dict) else {}
