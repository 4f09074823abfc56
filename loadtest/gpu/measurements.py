"""The measurements of part 1, each in child processes: their order and how long they should take."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from loadtest.common.paths import ROOT
from loadtest.common.servers import clean_environment

from . import child, model_folders
from .data import PIXELS, TINY_PIXELS, Found

_START_S = 9.0  # of a child: import torch and transformers, open a context, draw a network
_CHILD_LIMIT_S = 240.0


class OutOfTimeError(Exception):
    """The rest of the call is shorter than the measurement should take."""


@dataclass(frozen=True)
class Engine:
    """The engine that all compared policies share: capacities of the workers, push depth, CUDA graphs or none."""

    workers: tuple[int, ...]
    push_depth: int = 1
    graphs: bool = True


@dataclass(frozen=True)
class Session:
    """What was asked for. `ends`: when the call must be over, on the monotonic clock."""

    rehearsed: bool
    quick: bool
    repository: Path  # of model_folders that hold a model.toml
    models: tuple[str, ...]  # of the effects
    served: tuple[str, ...]  # of what is measured over HTTP
    precisions: tuple[str, ...]
    ends: float
    say: Callable[[str], None]
    engine: Engine  # of every server that is compared over HTTP

    def left(self) -> float:
        return self.ends - time.monotonic()

    def need(self, seconds: float) -> None:
        """Raises OutOfTimeError if less than `seconds` are left. A rehearsal has no time limit."""
        if not self.rehearsed and self.left() < seconds:
            raise OutOfTimeError(f"{self.left():.0f} s were left of the call, about {seconds:.0f} s wanted")

    def folder(self, name: str) -> Path:
        """The model's folder in its own repository, made at the first call."""
        home = self.repository / f"only-{name}"
        if not home.exists():
            model_folders.write(name, home, tiny=self.rehearsed, max_batch=self.largest)
        return home / name

    @property
    def largest(self) -> int:
        """Rows of the largest batch that is served."""
        return largest_of(self.rehearsed)

    def child(self, what: str, seconds: float, **given: Any) -> Found:
        self.need(seconds)
        limit = _CHILD_LIMIT_S if self.rehearsed else min(_CHILD_LIMIT_S, max(1.0, self.left()))
        begin = time.monotonic()
        found = child.run(what, given, rehearsed=self.rehearsed, limit_s=limit)
        self.say(f"  {what} {_told(given)}: {time.monotonic() - begin:.0f} s, about {seconds:.0f} s expected")
        return found


def largest_of(rehearsed: bool) -> int:
    return 4 if rehearsed else 32


@dataclass(frozen=True)
class Measurement:
    """`run` returns the result that is stored under `name`; parts that did not fit are named in its "left_out"."""

    name: str
    part: int
    seconds: Callable[[Session], float]
    run: Callable[[Session], Found]


def run_all(session: Session, orders: Sequence[Callable[[], Found]]) -> Found:
    """Run each in turn, results under "runs". One that fails or does not fit into the time ends none of the others."""
    found: Found = {"runs": [], "left_out": [], "failed": []}
    for order in orders:
        try:
            found["runs"].append(order())
        except OutOfTimeError as exc:
            found["left_out"].append(str(exc))
        except child.ChildError as exc:
            found["failed"].append(str(exc))
            session.say(f"  FAILED: {exc}")
    return found


def tests(session: Session) -> Found:
    """The tests marked `cuda`, which are all in tests/engine. They come first: if they fail, figures mean nothing."""
    begin = time.monotonic()
    command = [sys.executable, "-m", "pytest", "-m", "cuda", "-q", "-p", "no:cacheprovider", "tests/engine"]
    try:
        ended = subprocess.run(
            command, cwd=ROOT, env=clean_environment(), timeout=180, capture_output=True, text=True, check=False
        )
    except subprocess.TimeoutExpired:
        return {"passed": 0, "failed": ["the tests were not over after 180 s"], "left_out": [], "last": ""}
    return read_tests(ended.stdout, ended.returncode) | {"seconds": round(time.monotonic() - begin, 1)}


def read_tests(output: str, code: int) -> Found:
    """pytest's last line and the names of failed tests. No passed test at all counts as a failure, too."""
    lines = output.strip().splitlines()
    last = lines[-1].strip("= ") if lines else ""
    passed = re.search(r"(\d+) passed", last)
    failed = [line for line in lines if line.startswith(("FAILED", "ERROR"))]
    count = int(passed[1]) if passed else 0
    if not failed and (code or not count):
        failed = [f"pytest ended with {code}: {last or 'it said nothing'}"]
    return {"passed": count, "failed": failed, "left_out": [], "last": last}


def figure6a(session: Session) -> Found:
    tiny = session.rehearsed
    given = {"repeats": 3 if tiny else 30, "rows": 8 if tiny else 256,
             "pixels": TINY_PIXELS if tiny else PIXELS}  # fmt: skip
    return run_all(session, [lambda: session.child("figure6a", _START_S + 5, **given)])


def figure6b(session: Session) -> Found:
    """ResNet-50 in each precision, and BERT-base in the first one."""
    tiny = session.rehearsed
    wanted = [("resnet50", precision) for precision in session.precisions]
    wanted += [] if session.quick else [("bert-base", session.precisions[0])]
    given = {"repeats": 2 if tiny else 10, "rows": 8 if tiny else 256, "most": 4 if tiny else 64, "eager": True}
    return run_all(
        session,
        [
            lambda model=model, precision=precision: session.child(
                "figure6b", _START_S + 25, folder=str(session.folder(model)), precision=precision, **given
            )
            for model, precision in wanted
        ],
    )


def figure11(session: Session) -> Found:
    from .memory import cases

    folder = str(session.folder("bert-large"))
    orders = [
        lambda case=case: session.child("figure11", _START_S + 10, folder=folder, case=case, largest=session.largest)
        for case in cases(session.largest)
    ]
    return run_all(session, [*orders, lambda: session.child("copies", _START_S + 3, folder=folder)])


def effects(session: Session) -> Found:
    if session.rehearsed:
        scale: Found = {"rounds": 2, "seconds": 0.02, "sizes": [1, 2], "workers": 2, "repeats": 2}
    else:
        scale = {
            "rounds": 3,
            "seconds": 0.05 if session.quick else 0.1,
            "sizes": [1, 8, 32],
            "workers": 6,
            "repeats": 20,
        }
    seconds = _START_S + _effects_s(session) * len(session.precisions)
    return run_all(
        session,
        [
            lambda model=model: session.child(
                "effects", seconds, folder=str(session.folder(model)), precisions=list(session.precisions), scale=scale
            )
            for model in session.models
        ],
    )


def _effects_s(session: Session) -> float:
    """Seconds for one precision: two devices, 36 loops and three rounds, graphs of twelve streams."""
    return 14.0 if session.quick else 20.0


def boundaries(session: Session) -> Found:
    scale: Found = {"sizes": [1, 2], "width": 8, "steps": 6, "repeats": 3} if session.rehearsed else {}
    return run_all(session, [lambda: session.child("boundaries", _START_S + 15, scale=scale)])


def preemption(session: Session) -> Found:
    scale: Found = {}
    if session.rehearsed:
        scale = {"stages": [1, 2], "layers": 2, "width": 8, "rows": 2, "shares": [0.5], "repeats": 4}
    return run_all(session, [lambda: session.child("preemption", _START_S + 25, scale=scale)])


MEASUREMENTS = [
    Measurement("tests", 1, lambda session: 45.0, tests),
    Measurement("figure6a", 1, lambda session: _START_S + 5, figure6a),
    Measurement("boundaries", 1, lambda session: _START_S + 15, boundaries),
    Measurement("preemption", 1, lambda session: _START_S + 25, preemption),
    Measurement("figure11", 1, lambda session: 5 * (_START_S + 9), figure11),
    Measurement("figure6b", 1, lambda session: (2 if session.quick else 3) * (_START_S + 25), figure6b),
    Measurement(
        "effects", 1,
        lambda session: len(session.models) * (_START_S + _effects_s(session) * len(session.precisions)), effects,
    ),
]  # fmt: skip


def _told(given: Found) -> str:
    named = [Path(given["folder"]).name] if "folder" in given else []
    return ", ".join([*named, *(str(given[key]) for key in ("precision", "case") if key in given)])
