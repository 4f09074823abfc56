"""Phrases that readers stumbled over stay out of the code, its comments and the documentation. See CONTRIBUTING.md."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
#: A regular expression, and what to write in its place.
PHRASES = {
    r"does not count as one that waits": "rows blocked by max_alive are ignored",
    r"nor do later stages wait": "earlier rows have started, so holds at later stages may no longer apply",
    r"ended by whoever": "end when their unit finishes",
    r"Whether a call may come": "admission control",
    r"somebody else's": "None if no stream is free",
    r"A GPU checks no index": "set both: an out-of-range index crashes a GPU kernel",
    r"What is least is": "the objective minimised is",
    r"By how much of its time": "largest slowdown",
    r"\bwho(ever)? waits\b": "what waits on this event",
    r"goes_on|going_on|\bgo_on\b": "multi_step, continued, passes_through(stage)",
    r"runs some for nobody": "runs unchanged; results of dropped rows are discarded",
    r"take chance for a burst": "mistake noise for a burst",
    r"in the course of things": "exact for a single deviation",
    r"\bthe short way\b|uvicorn's way": "fast path, ASGI path",
    r"\b_Unheard\b|\bfarewell\b|\bmended\b": "_NoEvent, TlsClose, uvicorn_fixes",
    r"class (Around|Alike|Beside|Fits|Joining|Known|Learned|Asked|Found|Home|Host)\b": "a noun for the thing",
    r"\bhears of\b|\bheard of\b|\bunheard\b": "name the call: on_finished(unit)",
    r"\bgoes by\b": "follows, uses",
    r"\bis told (that|of|when|how|to)\b": "name the call, or what it is given",
    r"\bstands (for|in|behind|at|beside|there)\b": "is, is in, follows",
}


def texts() -> Iterator[Path]:
    yield from (ROOT / name for name in ("README.md", "CONTRIBUTING.md"))
    yield from sorted((ROOT / "docs").glob("*.md"))
    yield from sorted((ROOT / "app").rglob("*.py"))


@cache
def found(phrase: str) -> dict[str, int]:
    """The files that hold a phrase, with the line of the first; a phrase may be broken over two lines."""
    pattern = re.compile(phrase.replace(" ", r"\s+(?:# )?"))
    lines = {}
    for path in texts():
        text = path.read_text(encoding="utf-8")
        if match := pattern.search(text):
            lines[str(path.relative_to(ROOT))] = text.count("\n", 0, match.start()) + 1
    return lines


@pytest.mark.parametrize("phrase", PHRASES)
def test_nobody_has_to_read_a_sentence_twice(phrase: str) -> None:
    places = [f"{file}:{line}" for file, line in found(phrase).items()]
    assert not places, f"write: {PHRASES[phrase]}; now in {', '.join(places)}"
