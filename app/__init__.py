"""The command line and the explorer."""

from __future__ import annotations

import os

# NumPy's BLAS reads this when it is first imported. One thread: a decode step's products are bound by memory, and on a
# busy machine a pool's threads wait for each other.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
