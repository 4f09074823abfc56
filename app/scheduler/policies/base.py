"""The interface of a policy, and its two answers: Cut and Hold.

A policy decides about one unit of one key at a time. It is asked again, with one worker fewer and the remaining rows,
until it holds or no worker is left. So after each unit another key with an older row can take the next worker, which a
plan for all workers at once would prevent.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from app.scheduler.policies.offer import JoinOffer, Offer
from app.scheduler.rows.estimates import Estimates
from app.scheduler.types import Batch, DeviceSpec, Formed, Row


class Cut(NamedTuple):  # one is made for each unit, and a tuple costs a third of a frozen dataclass
    """Start a unit of the first `rows` rows as a batch of `size` >= rows.

    `joins`: new rows become part of this batch and catch up with it. `divide`: first split the rows here of the first
    row's batch into batches of so many rows. `shorter`, if at least 0: take the first row and its neighbours in order
    of length instead, `shorter` of them before it (`Offer.by_length`).
    """

    rows: int
    size: int
    reason: Formed
    joins: Batch | None = None
    divide: int = 0
    shorter: int = -1


class Hold(NamedTuple):
    """Start nothing of this key before `until`; None: until the next input."""

    until: int | None


def cut_rows(offer: Offer, rows: int, reason: Formed = Formed.IDLE) -> Cut:
    """A cut of so many rows, or of as many as can run."""
    rows = min(rows, offer.rows)
    return Cut(rows, rows, Formed.FULL if rows == offer.full else reason)


def hold_or_cut(offer: Offer, rows: int, longest: int, now: int) -> Cut | Hold:
    """Hold rows so that others can join. So many start when the oldest has waited `longest` ns, or when one is due."""
    due = offer.due(now)
    ends = min(offer.oldest() + longest, due)
    if now < ends:
        return Hold(ends)
    return cut_rows(offer, rows, Formed.DEADLINE if ends == due else Formed.HOLD_ENDED)


def cut_padded(offer: Offer, rows: int, reason: Formed = Formed.IDLE) -> Cut:
    """The same, padded to the size that is fastest for these rows if the largest usable worker takes that."""
    cut, sizes = cut_rows(offer, rows, reason), offer.state.estimates.curves.sizes
    if not sizes:
        return cut
    by_running = sizes[offer.stage]
    running, _ = offer.free()
    size = by_running[min(running, len(by_running)) - 1][cut.rows - 1]
    return cut if size > offer.capacities()[0] else Cut(cut.rows, size, cut.reason)


class Policy:
    """How units are cut from one key. By itself this is `no_wait`. A program has one of its own."""

    #: The only place where a policy's name is written.
    name = ""
    #: Whether the driver must solve control tables for it.
    uses_tables = False
    #: Whether rows that wait may join others between two stages.
    merges = False

    # what it needs of its device and driver

    @classmethod
    def workers(cls, max_batch: int) -> tuple[int, ...]:
        """The capacities of the workers that it must have, on a device of its own and one unit each; (): any will do.

        Then it alone sets threads, workers and bounds, and no program of another policy runs there.
        """
        return ()

    def check(self, device: DeviceSpec, others: Mapping[str, Policy]) -> None:
        """Raise ValueError if the policy cannot serve on this device together with these others, by name."""
        different = sorted(name for name in others if name != self.name)
        alone = [name for name in different if others[name].workers(1)]
        lonely = bool(self.workers(1))
        if different and (alone or lonely):
            name = self.name if lonely else alone[0]
            beside = ", ".join(different if lonely else [self.name])
            raise ValueError(f"policy: {name} shares a device with no other policy, here {beside}")
        if lonely and device.push_depth > 1:
            raise ValueError(f"policy: expected one unit a worker: serve --policy {self.name}, simulate --push-depth 1")

    # what it decides

    def decide(self, offer: Offer, now: int) -> Cut | Hold:
        """Start a unit or hold. Here: start all waiting rows, up to the largest batch, once a worker is usable."""
        return cut_rows(offer, offer.ready.count)

    def passes_through(self, estimates: Estimates, stage: int, rows: Sequence[Row]) -> bool:
        """Whether a batch of these rows would run `stage` unchanged if nothing else waits or arrives."""
        return True

    def joins(self, offer: JoinOffer) -> bool:
        """Whether a running unit of a cell is to end now, so that waiting rows can join it."""
        return True

    def largest(self, speeds: Sequence[float]) -> int:
        """The largest unit of a cell, given the throughput of each size. Others wait until some of its rows end."""
        return len(speeds)

    # what others ask of it

    def target(self, estimates: Estimates) -> int:
        """The preferred batch size, which operators see."""
        return estimates.most_per_time()

    def reorders(self, estimates: Estimates) -> bool:
        """Whether within a key, class and priority a row may start before an earlier one."""
        return False

    def serves_in_order(self, estimates: Estimates) -> bool:
        """Whether rows that wait predict when a later call ends: admission counts them then."""
        return True
