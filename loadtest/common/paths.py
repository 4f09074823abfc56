"""Where things are: the checkout, its pages, and the only address that anything here talks to."""

from __future__ import annotations

from pathlib import Path

#: The checkout: child processes start here, so that they can import this package.
ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs" / "bench"
ZOO = ROOT / "app" / "models" / "zoo"
LOOPBACK = "127.0.0.1"
