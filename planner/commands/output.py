"""What several commands print: JSON, tables, the flags of a server, progress on a terminal."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any


def print_json(found: Sequence[Any]) -> None:
    """One object, or a list of several."""
    print(json.dumps(found[0] if len(found) == 1 else found, indent=2))


def serve_flags(threads: int | None, workers: Sequence[int]) -> str:
    """The size of a server as flags of `starling serve`."""
    parts = [] if threads is None else [f"--threads {threads}"]
    parts.append(f"--workers {f'1x{workers[0]}' if len(workers) == 1 else ','.join(map(str, workers))}")
    return " ".join(parts)


@contextmanager
def progress(what: str, total: float | None = None) -> Iterator[Callable[[int], None]]:
    """A line on standard error with the time that has passed, if that is a terminal; for a `total` a bar. Yields a
    function that counts on."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TimeElapsedColumn

    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda count: None
        return
    columns = (SpinnerColumn(),) if total is None else (BarColumn(), MofNCompleteColumn())
    with Progress(what, *columns, TimeElapsedColumn(), console=console, transient=True) as bar:
        task = bar.add_task("", total=total)
        yield lambda count: bar.update(task, advance=count)


def tabulated(columns: Sequence[tuple[str, str, str]], cells: Sequence[Mapping[str, Any]]) -> list[str]:
    """Lines of a table. `columns`: (title, key of a cell, format); columns without a format are text, aligned left."""
    rows = [[title for title, _, _ in columns]]
    for cell in cells:
        values = [(cell.get(name), form) for _, name, form in columns]
        rows.append(["-" if value is None else format(value, form) for value, form in values])
    return aligned(rows, [at for at, (_, _, form) in enumerate(columns) if not form])


def aligned(rows: Sequence[Sequence[str]], left: Collection[int] = ()) -> list[str]:
    """Lines of a table with aligned columns: to the left for the column numbers in `left`, else to the right."""
    columns = []
    for at, column in enumerate(zip(*rows, strict=True)):
        width = max(map(len, column))
        columns.append([cell.ljust(width) if at in left else cell.rjust(width) for cell in column])
    return ["  ".join(row).rstrip() for row in zip(*columns, strict=True)]
