"""What the fork server imports once, so that every worker starts with it: the bindings, both dialects, all passes."""

from __future__ import annotations

import engine.top.ops
import engine.tpu.ops
import engine.worker  # noqa: F401
from engine.passes import PASSES, load

for _name in PASSES:
    load(_name)
