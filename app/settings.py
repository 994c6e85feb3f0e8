"""What tpuscope remembers between runs, and where: settings and recent models in the user's configuration folder."""

from __future__ import annotations

import contextlib
import os
import secrets
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec
import platformdirs

APP = "tpuscope"
RECENT_LIMIT = 12


class RecentModel(msgspec.Struct, frozen=True):
    """A model that was opened. path: absolute. options: those given, as keywords of engine.options.resolve."""

    path: str
    options: dict[str, Any] = {}


class _Stored(msgspec.Struct):
    theme: str = ""
    recent: tuple[RecentModel, ...] = ()


@dataclass(frozen=True)
class Settings:
    """Settings of the user; `load` reads them, `save` keeps them.

    problem: why the stored settings could not be read (defaults are used then), else "".
    """

    theme: str = ""
    """Name of the explorer's theme; empty for the default."""
    recent: tuple[RecentModel, ...] = ()
    """Models that were opened, the latest first."""
    problem: str = field(default="", compare=False)

    @classmethod
    def load(cls, path: Path | None = None) -> Settings:
        """The stored settings; defaults where there are none or they are damaged."""
        file = path or settings_path()
        try:
            stored = msgspec.json.decode(file.read_bytes(), type=_Stored)
        except FileNotFoundError:
            return cls()
        except (OSError, msgspec.MsgspecError) as error:
            return cls(problem=f"{file}: {error}; using default settings")
        return cls(stored.theme, stored.recent)

    def save(self, path: Path | None = None) -> bool:
        """Keep the settings; False when the folder cannot be written, which is no reason to stop."""
        file = path or settings_path()
        draft = file.with_name(f"{file.name}.{secrets.token_hex(4)}")
        content = msgspec.json.format(msgspec.json.encode(_Stored(self.theme, self.recent)), indent=2)
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            draft.write_bytes(content + b"\n")
            os.replace(draft, file)
        except OSError:
            with contextlib.suppress(OSError):
                draft.unlink()
            return False
        return True

    def opened(self, path: Path | str, options: dict[str, Any] | None = None) -> Settings:
        """The settings with a model at the head of the recent ones."""
        known = RecentModel(str(Path(path).expanduser().absolute()), dict(options or {}))
        others = [model for model in self.recent if model.path != known.path]
        return replace(self, recent=(known, *others)[:RECENT_LIMIT])


def settings_path() -> Path:
    """The settings file."""
    return platformdirs.user_config_path(APP, appauthor=False) / "settings.json"


def cache_path() -> Path:
    """The folder of things that can be made again: the bundled demo."""
    return platformdirs.user_cache_path(APP, appauthor=False)
