"""Parses the fields of the profile format. A bad one raises ValueError: its key, what was expected and found."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping
from typing import Any

from app.scheduler.estimates.smooth import UNMEASURED

MS = 1_000_000  # nanoseconds
LARGEST_MS = 1e12  # 30 years; far larger ones are no nanoseconds any more, but infinite
_LARGEST = 65_536  # rows; bounds the table that a typing error would make


def interpolate(known: Mapping[int, float], points: Iterable[int]) -> list[float]:
    """The value at each point: the known one, or linearly interpolated between the nearest known ones.

    Raises ValueError for a point below or above all known ones.
    """
    places = sorted(known)
    values = []
    for point in points:
        above = bisect_left(places, point)
        if above < len(places) and places[above] == point:
            values.append(known[point])
            continue
        if not 0 < above < len(places):
            raise ValueError(f"interpolate: expected points from {places[0]} to {places[-1]}, got {point}")
        low, high = places[above - 1], places[above]
        share = (point - low) / (high - low)
        values.append(known[low] + share * (known[high] - known[low]))
    return values


def times(given: Any, key: str, max_batch: int | None) -> tuple[int, ...]:
    """Nanoseconds for each size from 1 to the largest; missing sizes are interpolated."""
    if not isinstance(given, Mapping) or not given:
        raise fault(key, "times by batch size", given)
    known: dict[int, float] = {}
    for name, value in given.items():
        known[whole(name, f"{key}.{name}")] = number(value, f"{key}.{name}")
        if known[int(name)] * MS < 1:
            raise fault(f"{key}.{name}", "milliseconds above 0", value)
    largest = max(known) if max_batch is None else max_batch
    for size in (1, largest):
        if size not in known:
            raise ValueError(f"{key}.{size}: expected a time for {size} row{'s' * (size > 1)}, got nothing")
    if max(known) > largest:
        raise ValueError(f"{key}.{max(known)}: expected sizes up to max_batch, {largest}")
    return tuple(round(time * MS) for time in interpolate(known, range(1, largest + 1)))


def tables(given: Any, key: str, by: str, max_batch: int | None) -> dict[int, tuple[int, ...]]:
    """Times by size for each length, or number of units, ascending; all up to the same largest batch."""
    if not isinstance(given, Mapping):
        raise fault(key, f"batch times by {by}", given)
    found = {}
    for name, one in given.items():
        at = whole(name, f"{key}.{name}")
        found[at] = times(one, f"{key}.{name}", max_batch)
        max_batch = len(found[at])
    return dict(sorted(found.items()))


def errors(given: Any, max_batch: int) -> tuple[float, ...]:
    """By size, see `known_errors`."""
    if not isinstance(given, Mapping):
        raise fault("error", "shares by batch size", given)
    known = {}
    for name, share in given.items():
        key = f"error.{name}"
        known[whole(name, key)] = number(share, key)
        if known[int(name)] < 0:
            raise fault(key, "a share of at least 0", share)
    return known_errors(known, max_batch) if known else ()


def known_errors(known: Mapping[int, float], max_batch: int) -> tuple[float, ...]:
    """By size; one that was not measured is known no better than the nearest that was, nor than a curve bends."""

    def error(size: int) -> float:
        return known[size] if size in known else max(UNMEASURED, known[min(known, key=lambda one: abs(one - size))])

    return tuple(map(error, range(1, max_batch + 1)))


def handover(given: Any) -> int:
    if (time := number(given, "handover_ms")) < 0:
        raise fault("handover_ms", "milliseconds of at least 0", given)
    return round(time * MS)


def whole(value: Any, key: str) -> int:
    """A whole number from 1 on; JSON's keys are texts."""
    text = isinstance(value, str) and value.isascii() and value.isdigit() and len(value) <= 9
    if not (text or (isinstance(value, int) and not isinstance(value, bool))) or not 1 <= int(value) <= _LARGEST:
        raise fault(key, f"a whole number from 1 to {_LARGEST}", value)
    return int(value)


def number(value: Any, key: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= LARGEST_MS:  # nor NaN
        raise fault(key, "a number", value)
    return float(value)


def fault(key: str, expected: str, got: Any) -> ValueError:
    return ValueError(f"{key}: expected {expected}, got {got!r}")


def to_ms(nanoseconds: tuple[int, ...]) -> dict[str, float]:
    return {str(size): time / MS for size, time in enumerate(nanoseconds, 1)}
