"""Parses the options of `starling simulate`. A bad option raises ValueError that names it and what was expected."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from json import JSONDecodeError

from app.scheduler.estimates.profile import MS, Profile
from app.scheduler.estimates.profile_format import LARGEST_MS, parse
from app.scheduler.policies import policy_class
from planner.profile_times import linear

_BATCH = 32  # largest batch of a made-up device, rows
_LARGEST_BATCH = 4096  # of any model
_LEAST, _MOST = 1e-9, 1e12  # of numbers; beyond them what follows is infinite, or 0


def profile(text: str, max_batch: int = 0) -> Profile:
    """A profile from a file or from linear:A+Bb. `max_batch` 0 keeps the profile's own. Raises OSError."""
    if not text:
        raise ValueError("profile: expected a file or linear:A+Bb; give --profile")
    if not 0 <= max_batch <= _LARGEST_BATCH:
        raise ValueError(f"max_batch: expected 1 to {_LARGEST_BATCH}, got {max_batch}")
    if text.startswith("linear:"):
        return _linear(text, max_batch or _BATCH)
    with open(text, encoding="utf-8") as file:
        try:
            measured = parse(json.load(file))
        except (JSONDecodeError, UnicodeDecodeError) as exc:
            raise ValueError(f"profile: {text}: expected JSON, as `starling profile --out` writes it: {exc}") from None
        except ValueError as exc:
            raise ValueError(f"profile: {text}: {exc}") from None
    return measured.up_to(max_batch) if max_batch else measured


def _linear(text: str, max_batch: int) -> Profile:
    fixed, plus, row = text.removeprefix("linear:").partition("+")
    try:
        if not (plus and row.endswith("b")):
            raise ValueError
        times = float(fixed), float(row.removesuffix("b"))
    except ValueError:
        raise ValueError(f"profile: expected linear:A+Bb in ms, as linear:7+0.6b, got {text!r}") from None
    return linear(*times, max_batch)


def device(measured: Profile, capacities: Sequence[int], policy: str) -> str:
    """The default device: shared for several workers.

    For a policy with its own list of workers it is shared only if the profile has times of concurrent units.
    """
    if capacities:
        return "shared" if len(capacities) > 1 else "serial"
    several = len(default_workers(policy, measured.max_batch)) > 1
    return "shared" if several and measured.concurrency_ns else "serial"


def rates(rate: str, load: str, peak: float) -> list[float]:
    """Rates from --rate or --load; `peak` is the rate of load 1."""
    if rate and load:
        raise ValueError("rate: give either --rate or --load")
    if load:
        return [share * peak for share in numbers("load", load)]
    if not rate:
        raise ValueError("rate: expected --rate or --load")
    return numbers("rate", rate)


def fleets(router: str, replicas: Sequence[int]) -> Iterator[tuple[str, int]]:
    """Pairs of router and number of replicas. One replica needs no router and is run once."""
    for index, name in enumerate(names(router)):
        for count in replicas:
            if count > 1 or index == 0:
                yield ("random" if count == 1 and len(replicas) > 1 else name), count


def names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",")]


def numbers(name: str, text: str) -> list[float]:
    try:
        found = [float(part) for part in text.split(",")]
    except ValueError:
        found = []
    if not found or not all(_LEAST <= number < _MOST for number in found):
        raise ValueError(f"{name}: expected numbers above 0, from {_LEAST:g} to {_MOST:g}, got {text!r}")
    return found


def nanoseconds(name: str, ms: float) -> int:
    """From milliseconds."""
    if not 0 <= ms < LARGEST_MS:  # nor NaN
        raise ValueError(f"{name}: expected milliseconds from 0 to {LARGEST_MS:g}, got {ms:g}")
    return round(ms * MS)


def counts(name: str, text: str) -> list[int]:
    found = numbers(name, text)
    if not all(number.is_integer() for number in found):
        raise ValueError(f"{name}: expected whole numbers, got {text!r}")
    return [int(number) for number in found]


def default_workers(policy: str, max_batch: int) -> tuple[int, ...]:
    """The capacities of the workers if none are given. Raises ValueError for an unknown policy."""
    return policy_class(policy).workers(max_batch) or (max_batch,)
