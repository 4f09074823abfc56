"""The product and what users run beside it need no experiment."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_what_users_run_needs_no_experiment() -> None:
    modules = [path for folder in ("app", "planner", "loadtest") for path in (ROOT / folder).rglob("*.py")]
    needed = re.compile(r"^\s*(from|import) experiments\b", re.MULTILINE)
    assert [path for path in modules if needed.search(path.read_text(encoding="utf-8"))] == []
