"""Text to tokens and back, and text as it streams."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tiny import write_json, write_tiny

from engine.errors import UserError
from engine.sim.tokenizer import TextTokenizer

TEXT = "the naïve café costs 5 € — 漢字 and 🙂"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny(tmp_path_factory.mktemp("model"), "llama")


@pytest.fixture(scope="module")
def tokenizer(folder: Path) -> TextTokenizer:
    return TextTokenizer.of_folder(folder)


def test_text_survives_the_round_trip(tokenizer: TextTokenizer) -> None:
    ids = tokenizer.encode(TEXT)
    assert len(ids) > 10
    assert tokenizer.decode(ids) == TEXT


def test_streamed_text_equals_the_whole_and_never_shows_half_a_character(tokenizer: TextTokenizer) -> None:
    # GIVEN a byte-level tokenizer, whose tokens are parts of the characters
    stream = tokenizer.stream()
    # WHEN the tokens come one by one
    pieces = [stream.push(token) for token in tokenizer.encode(TEXT)]
    # THEN no piece holds a replacement character and together they are the text
    assert not any("\ufffd" in piece for piece in pieces)
    assert "".join(pieces) + stream.finish() == TEXT
    assert "" in pieces


def test_stream_shows_an_unfinished_character_at_the_end(tokenizer: TextTokenizer) -> None:
    ids = tokenizer.encode("a€")
    stream = tokenizer.stream()
    assert "".join(stream.push(token) for token in ids[:-1]) == "a"
    assert "\ufffd" in stream.finish()
    assert stream.finish() == ""


def test_stream_goes_on_after_a_prompt(tokenizer: TextTokenizer) -> None:
    prompt, rest = tokenizer.encode("the "), tokenizer.encode("sea")
    stream = tokenizer.stream(prompt)
    assert "".join(stream.push(token) for token in rest) == "sea"


def test_special_tokens_are_named_but_not_part_of_the_text(tokenizer: TextTokenizer) -> None:
    assert tokenizer.token(1) == "</s>"
    assert tokenizer.decode([*tokenizer.encode("sea"), 1]) == "sea"


def test_missing_tokenizer_names_the_folder(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"no tokenizer\.json") as error:
        TextTokenizer.of_folder(tmp_path)
    assert str(tmp_path) in str(error.value)


def test_damaged_tokenizer_is_named() -> None:
    with pytest.raises(UserError, match=r"model: tokenizer\.json cannot be read"):
        TextTokenizer({"tokenizer.json": b"{}"}, "model")


def test_chat_template_is_applied(folder: Path, tmp_path: Path) -> None:
    template = "{{ bos_token }}{% for m in messages %}[{{ m.role }}] {{ m.content }}{% endfor %} [assistant]"
    settings = {"bos_token": {"content": "<s>"}, "chat_template": template}
    files = {"tokenizer.json": (folder / "tokenizer.json").read_bytes()}
    tokenizer = TextTokenizer(files | {"tokenizer_config.json": json.dumps(settings).encode()}, "model")
    ids = tokenizer.encode_chat("hello")
    assert ids[0] == 0
    assert tokenizer.decode(ids) == "[user] hello [assistant]"


def test_model_without_a_chat_template_is_refused(tokenizer: TextTokenizer) -> None:
    with pytest.raises(UserError, match="no chat template"):
        tokenizer.encode_chat("hello")


def test_chat_template_that_refuses_is_reported(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_bytes((folder / "tokenizer.json").read_bytes())
    write_json(tmp_path / "tokenizer_config.json", {})
    (tmp_path / "chat_template.jinja").write_text("{{ raise_exception('only with a system prompt') }}")
    with pytest.raises(UserError, match="only with a system prompt"):
        TextTokenizer.of_folder(tmp_path).encode_chat("hello")


def test_template_that_fails_is_the_users_error(folder: Path) -> None:
    # GIVEN a chat template that computes with what is not there, and one that is no text
    files = {"tokenizer.json": (folder / "tokenizer.json").read_bytes()}
    failing = TextTokenizer({**files, "chat_template.jinja": b"{{ messages[0].content + 1 }}"}, "model")
    # WHEN it is rendered THEN the message says so
    with pytest.raises(UserError, match="chat template cannot be rendered"):
        failing.encode_chat("hello")
    with pytest.raises(UserError, match=r"model/chat_template\.jinja: is not UTF-8"):
        TextTokenizer({**files, "chat_template.jinja": b"\xff"}, "model")
