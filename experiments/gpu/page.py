"""The page of a run, from its JSON lines."""

from __future__ import annotations

import ast
import json
from contextlib import suppress
from pathlib import Path

from experiments.gpu.blocks import BY_NAME, SPECS, Data, Spec
from experiments.gpu.tables import TABLES, left_out
from experiments.gpu.targets import ABSENT, missed, targets
from loadtest.common.page import Page
from loadtest.common.paths import ROOT

RUN = "run"  # the line that begins a run

__all__ = ["BY_NAME", "PAGE", "SPECS", "described", "left_out", "read", "shown", "targets"]


def read(lines: Path) -> Data:
    """The figures of the page. Of several runs in a file, the last line of each block counts.

    Raises ValueError for a line that is no JSON object, and OSError.
    """
    run: Data = {}
    blocks: Data = {}
    for number, line in enumerate(lines.read_text(encoding="utf-8").splitlines(), 1):
        try:
            one = json.loads(line)
            name = one.pop("block")
        except (ValueError, KeyError, TypeError, AttributeError):
            raise ValueError(f"{lines.name}: line {number}: expected the JSON of a block") from None
        if name == RUN:
            run |= one
        elif name in BY_NAME:
            blocks[name] = one
    return {"run": run, "blocks": blocks, "facts": run.get("facts", {})}


def described(spec: Spec) -> str:
    """What the block measures, in the words of its module."""
    path = ROOT.joinpath(*spec.module.split(".")).with_suffix(".py")
    return ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""


def shown(name: str, of: Data) -> str:
    """The table and verdict of a block; its figures as they are, if it ended before they were complete."""
    try:
        table, verdict = TABLES[name](of)
    except ABSENT:
        kept = {key: value for key, value in of.items() if key not in ("log", "device", "left_out")}
        return f"The figures are not complete:\n\n```json\n{json.dumps(kept)[:4000]}\n```"
    with suppress(*ABSENT):
        table += f"\n\n{verdict()}"
    return table


PAGE = Page("gpu", __name__, missed)
