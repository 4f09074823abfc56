"""Writes model folders for measurements."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

Table = Mapping[str, Any]


def write_model(
    folder: Path, source: str, inputs: Sequence[Table] = (), outputs: Sequence[Table] = (), *,
    batching: Table | None = None, **more: Any,
) -> None:  # fmt: skip
    """A model.toml with these tables, by the keys that docs/models.md lists; `more` are its other keys."""
    tables = [("[[inputs]]", one) for one in inputs] + [("[[outputs]]", one) for one in outputs]
    tables += [(f"[{name}]", one) for name, one in {"batching": batching, **more}.items() if isinstance(one, dict)]
    plain = {"source": source, **{name: value for name, value in more.items() if not isinstance(value, dict)}}
    lines = [_line(*pair) for pair in plain.items()]
    for heading, table in tables:
        lines += ["", heading, *(_line(*pair) for pair in table.items())]
    folder.mkdir(parents=True)
    (folder / "model.toml").write_text("\n".join([*lines, ""]), encoding="utf-8")


def vector(name: str, *shape: int | str, datatype: str = "FP32", **more: Any) -> Table:
    """An input or an output."""
    return {"name": name, "datatype": datatype, "shape": shape, **more}


def _line(key: str, value: Any) -> str:
    """TOML writes numbers, texts and lists of them as JSON does."""
    return f"{key} = {json.dumps(value)}"
