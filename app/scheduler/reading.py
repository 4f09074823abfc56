"""How much rows of a decoder read of what they were sent between two steps of others.

A worker and the simulator's device ask the same: `start` before each step, then a piece for as long as `tokens` gives
any, and `took` after each. Rows read for as long as three steps take, at least 50 ms: a long prompt in pieces, so that
it holds up the steps of others no longer. Where the least that can be read at once takes longer, that is all. The mean
latency is least where all rows read at once that wait (`python -m experiments.writing.simulated`).
"""

from __future__ import annotations

from collections.abc import Sequence

LEAST = 16  # tokens of a piece: fewer read no faster
_STEPS = 3  # as long as so many steps take rows that read may hold up the next one of others
_NS = 50_000_000  # and so long where that is more
_FIRST = 64  # tokens of the first piece, before it is known how long one takes
_ALIKE = 8  # tokens that rows which read together may differ: more padding costs more than another call of the model


class Reading:
    """The time that is left for reading, and how long a token takes."""

    __slots__ = ("_began", "_left_ns", "_token_ns")

    def __init__(self) -> None:
        self._began = False
        self._left_ns = 0
        self._token_ns = 0.0

    def start(self, step_ns: int) -> None:
        """A step comes next; the last one took so long, 0 where there was none."""
        self._began = False
        self._left_ns = max(_NS, _STEPS * step_ns)

    def tokens(self, least: int) -> int | None:
        """How many tokens there is time for, of all rows that read together. None: not for `least`, which the next row
        reads at once; there is always time for the first piece."""
        found = int(self._left_ns / self._token_ns) if self._token_ns else _FIRST
        return None if self._began and found < least else max(0, found)

    def took(self, tokens: int, ns: int) -> None:
        """So many tokens have been read in this time."""
        self._began = True
        self._left_ns -= ns
        if tokens:
            self._token_ns = ns / tokens


def together(lengths: Sequence[int], tokens: int) -> list[int]:
    """Positions of rows that read together: the first, and others of about its length, up to so many tokens."""
    longest = lengths[0] + _ALIKE
    alike = [place for place, length in enumerate(lengths) if longest - 2 * _ALIKE <= length <= longest]
    return alike[: max(1, tokens // longest)]


def each(tokens: int, rows: int) -> int:
    """How many of the tokens each row reads."""
    return max(LEAST, tokens // rows)
