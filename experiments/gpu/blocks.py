"""The blocks of a run, in order of what is lost last when time runs out, and what each of them is given."""

from __future__ import annotations

import json
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Data = dict[str, Any]


@dataclass(frozen=True)
class Spec:
    """`seconds`: at most so long; `least`: with less it is left out. `module` has a function `measure(block)`."""

    name: str
    module: str
    seconds: float
    least: float
    title: str


def _spec(name: str, seconds: float, least: float, title: str, module: str = "") -> Spec:
    return Spec(name, f"experiments.gpu.{module or name}", seconds, least, title)


#: A run leaves out the last ones first. Together they may take longer than a run, because few take all their time.
SPECS = (
    _spec("tests", 110, 20, "Tests on the device", "device_tests"),
    _spec("ceilings", 15, 5, "Ceilings"),
    _spec("empty", 20, 8, "A unit of an empty model", "empty_unit"),
    _spec("engine", 80, 20, "Policies on BERT-base (Ebird)", "policies"),
    _spec("classes", 60, 20, "Real time beside bulk (REEF)", "classes"),
    _spec("http", 60, 30, "Over HTTP", "over_http"),
    _spec("cells", 40, 15, "Cells against whole padded batches (Late Batching)"),
    _spec("stages", 55, 15, "Stages on mixed lengths (DVABatch)"),
    _spec("life", 30, 15, "Reload, two models, out of memory, 64 best-effort calls", "life"),
)
BY_NAME = {spec.name: spec for spec in SPECS}


class Block:
    """A running block: `device` is cuda or cpu, `quick` asks for tiny models and few repetitions.

    `found` collects the figures; `keep` writes them to `path` at once, so that what was measured before a hang, a
    crash or a deadline is not lost.
    """

    def __init__(self, device: str, quick: bool, seconds: float, path: Path) -> None:
        self.device = device
        self.quick = quick
        self.found: Data = {}
        self.left_out: list[str] = []
        self.kept: list[Any] = []  # graphs: one that goes may take the cuBLAS workspace of others along
        self._end = time.monotonic() + seconds
        self._path = path

    @property
    def cuda(self) -> bool:
        return self.device == "cuda"

    @property
    def left_s(self) -> float:
        """Seconds until the deadline."""
        return self._end - time.monotonic()

    def fits(self, what: str, seconds: float) -> bool:
        """Whether `what`, which takes so long, ends before the deadline; otherwise it is noted as left out."""
        fits = self.quick or seconds < self.left_s
        if not fits:
            self.left_out.append(what)
        return fits

    @contextmanager
    def noting(self, what: str) -> Iterator[None]:
        """Store what the body has found. A failure in it is noted under `what`, and ends no other part."""
        try:
            yield
        except Exception as exc:
            traceback.print_exc()
            self.found.setdefault("failures", {})[what] = f"{type(exc).__name__}: {exc}"[:500]
        self.keep()

    def keep(self, **figures: Any) -> None:
        """Add figures, and store all of them."""
        self.found |= figures
        aside = self._path.with_suffix(".tmp")
        aside.write_text(json.dumps({**self.found, "left_out": self.left_out}), encoding="utf-8")
        aside.replace(self._path)

    def seconds(self, usual: float) -> float:
        """The length of one run."""
        return min(usual, 0.15) if self.quick else usual
