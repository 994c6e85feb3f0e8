"""Settings survive a restart, and damage does not stop the program."""

from __future__ import annotations

from pathlib import Path

import pytest

from app.settings import RECENT_LIMIT, Settings, settings_path


def test_settings_come_back(tmp_path: Path) -> None:
    file = tmp_path / "deep" / "settings.json"
    kept = Settings(theme="light").opened("/models/a", {"chip_name": "bm1688", "decode_chunks": [64]})
    assert kept.save(file)
    assert Settings.load(file) == kept
    assert [path.name for path in file.parent.iterdir()] == ["settings.json"]


def test_the_latest_model_comes_first_and_only_once(tmp_path: Path) -> None:
    settings = Settings()
    for name in ("a", "b", "a"):
        settings = settings.opened(tmp_path / name)
    assert [Path(model.path).name for model in settings.recent] == ["a", "b"]
    for number in range(2 * RECENT_LIMIT):
        settings = settings.opened(tmp_path / str(number))
    assert len(settings.recent) == RECENT_LIMIT


@pytest.mark.parametrize("content", ["{", '{"recent": 3}', "\x00"])
def test_damaged_settings_are_reported_and_replaced(tmp_path: Path, content: str) -> None:
    file = tmp_path / "settings.json"
    file.write_text(content)
    found = Settings.load(file)
    assert found == Settings()
    assert str(file) in found.problem


def test_a_folder_that_cannot_be_written_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert not Settings().save(tmp_path / "file" / "settings.json")


def test_the_file_lies_in_the_users_configuration(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    assert settings_path().name == "settings.json"
