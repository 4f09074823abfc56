"""Paths in the checkout, and the only address that the experiments use."""

from __future__ import annotations

from pathlib import Path

#: The checkout. Child processes start here, so that they can import this package.
ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs" / "bench"
TABLES = ROOT / "out" / "bench"  # all tables and plots of a run; what pages quote of them is in docs/
ZOO = ROOT / "loadtest" / "models"
LOOPBACK = "127.0.0.1"
