"""How many prompt tokens a decoder reads between two decoding steps (chunked prefill).

A long prompt is read in pieces, so that it does not hold up the next token of the other rows. Before each decoding
step, reading may take as long as three steps, and at least 50 ms; at least one piece is always read. Mean latency is
lowest if all waiting rows read together.

The CPU worker and the simulator's device call `start` before each step, read pieces of up to `tokens` until that is
None, and report each piece with `took`.
"""

from __future__ import annotations

from collections.abc import Sequence

LEAST = 16  # tokens in a piece: fewer read no faster
_STEPS = 3  # reading may take as long as this many decoding steps
_NS = 50_000_000  # but at least so long
_FIRST = 64  # tokens in the first piece, before the time of a token is known
_SIMILAR = 8  # tokens by which prompts read together may differ: more padding costs more than another call of the model


class PrefillBudget:
    """The time left for reading before the next decoding step, and the measured time per token."""

    __slots__ = ("_began", "_left_ns", "_token_ns")

    def __init__(self) -> None:
        self._began = False
        self._left_ns = 0
        self._token_ns = 0.0

    def start(self, step_ns: int) -> None:
        """A new budget. `step_ns`: what the last decoding step took, 0 if there was none."""
        self._began = False
        self._left_ns = max(_NS, _STEPS * step_ns)

    def tokens(self, least: int) -> int | None:
        """How many tokens can be read in the time left, by all rows together.

        None if fewer than `least` can, which is the smallest piece that the next row can read. The first piece is
        always allowed.
        """
        found = int(self._left_ns / self._token_ns) if self._token_ns else _FIRST
        return None if self._began and found < least else max(0, found)

    def took(self, tokens: int, ns: int) -> None:
        """A piece of so many tokens has been read in this time."""
        self._began = True
        self._left_ns -= ns
        if tokens:
            self._token_ns = ns / tokens


def together(lengths: Sequence[int], tokens: int) -> list[int]:
    """Positions of the rows that read together: the first, and others of similar length, up to so many tokens."""
    longest = lengths[0] + _SIMILAR
    similar = [place for place, length in enumerate(lengths) if longest - 2 * _SIMILAR <= length <= longest]
    return similar[: max(1, tokens // longest)]


def each(tokens: int, rows: int) -> int:
    """How many of the tokens each row reads."""
    return max(LEAST, tokens // rows)
