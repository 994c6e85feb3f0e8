"""Where a model's weights come from: its checkpoint's tensors, and tables that its config determines."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engine.errors import UserError
from engine.top.checkpoint.config import ModelConfig
from engine.top.checkpoint.rope import RopeConfig, rope_tables
from engine.top.checkpoint.tensors import Checkpoint

ROPE_COS = "@rope.cos"
ROPE_SIN = "@rope.sin"
CAUSAL_MASK = "@causal_mask"

MASKED = -1e9
"""Added to the score of a key that a query may not see, as in the reference's masks."""


class ModelTensors:
    """The `TensorSource` of a model. Picklable; a copy in another process maps the checkpoint anew."""

    def __init__(self, checkpoint: Checkpoint, config: ModelConfig) -> None:
        self.checkpoint = checkpoint
        self.config = config

    def tensor(self, name: str) -> NDArray[Any]:
        """Read-only view of the stored tensor, no copy. Raises UserError when the checkpoint lacks it."""
        return self.checkpoint.tensor(name)

    def computed(self, name: str, shape: tuple[int, ...]) -> NDArray[np.float32]:
        """A tensor that is not stored, float32 of `shape`.

        `@rope.cos`, `@rope.sin`: [S, 1, head_dim], positions 0..S-1, read-only. `@causal_mask`: [m, m],
        MASKED strictly above the diagonal, 0 elsewhere. Raises UserError for other names and ValueError for a
        shape that does not fit.
        """
        if name == CAUSAL_MASK:
            return _causal_mask(shape)
        if name not in (ROPE_COS, ROPE_SIN):
            raise UserError(f"no computed tensor {name!r}; known are: {ROPE_COS}, {ROPE_SIN}, {CAUSAL_MASK}")
        tables = _tables(self.config.rope, shape[0])
        return tables[name == ROPE_SIN].reshape(shape)


@lru_cache(maxsize=1)
def _tables(rope: RopeConfig, positions: int) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Every layer asks for the same two tables, one after the other."""
    tables = rope_tables(rope, positions)
    for table in tables:
        table.flags.writeable = False
    return tables


def _causal_mask(shape: tuple[int, ...]) -> NDArray[np.float32]:
    if len(shape) != 2 or shape[0] != shape[1]:
        raise ValueError(f"a causal mask is square, found shape {list(shape)}")
    return np.triu(np.full(shape, MASKED, np.float32), k=1)
