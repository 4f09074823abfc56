"""The live driver of the scheduler: asyncio, slots, workers. Importing the package alone loads no torch."""

from __future__ import annotations

import os


def quiet_native_libraries() -> None:
    """Call before torch and numpy are imported: idle OpenMP threads must sleep, not spin on cores that serve HTTP."""
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # numpy's, which solves control tables beside live traffic
    os.environ.setdefault("KMP_BLOCKTIME", "0")
