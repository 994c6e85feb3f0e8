"""Which tpuscope this is."""

from __future__ import annotations

from importlib import metadata

FROM_SOURCE = "from source"


def version() -> str:
    """The installed version, or that there is none because the source tree is run."""
    try:
        return metadata.version("tpuscope")
    except metadata.PackageNotFoundError:
        return FROM_SOURCE
