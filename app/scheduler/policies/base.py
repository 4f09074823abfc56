"""The interface of a policy, and its two answers: Cut and Hold.

A policy decides about one unit of one key at a time. It is asked again, with one worker fewer and the remaining rows,
until it holds or no worker is left. So after each unit another key with an older row can take the next worker, which a
plan for all workers at once would prevent.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from app.scheduler.policies.view import Facts, JoinOffer, KeyView
from app.scheduler.types import Batch, DeviceSpec, Formed


class Cut(NamedTuple):  # one is made for each unit, and a tuple costs a third of a frozen dataclass
    """Start a unit of the first `rows` rows as a batch of `size` >= rows.

    `joins`: new rows become part of this batch and catch up with it. `divide`: first split the rows here of the first
    row's batch into batches of so many rows. `shorter`, if at least 0: take the first row and its neighbours in order
    of length instead, `shorter` of them before it (`KeyView.length_window`).
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


def held(view: KeyView, longest: int, now: int) -> Hold | Formed:
    """Hold rows so that others can join, or the reason to start: the oldest has waited `longest` ns, or one is due."""
    ends = min(view.oldest() + longest, view.due)
    if now < ends:
        return Hold(ends)
    return Formed.DEADLINE if ends == view.due else Formed.HOLD_ENDED


def cut_rows(view: KeyView, rows: int, reason: Formed = Formed.IDLE) -> Cut:
    """A cut of so many rows, or of as many as can run."""
    rows = min(rows, view.limit)
    return Cut(rows, rows, Formed.FULL if rows == view.full else reason)


def cut_padded(view: KeyView, rows: int, idle: Sequence[int], reason: Formed = Formed.IDLE) -> Cut:
    """The same, padded to the size that is fastest for these rows if the largest usable worker takes that."""
    cut = cut_rows(view, rows, reason)
    if not view.facts.sizes:
        return cut
    sizes = view.facts.sizes[view.stage]
    running, _ = view.running_and_free()
    size = sizes[min(running, len(sizes)) - 1][cut.rows - 1]
    return cut if size > idle[0] else Cut(cut.rows, size, cut.reason)


class Policy:
    """How units are cut from one key, and what the policy needs of its device. By itself this is `no_wait`."""

    #: The only place where a policy's name is written.
    name = ""
    #: It may hold rows, whatever the control tables say.
    holds = False
    #: It needs a device for itself: it alone sets threads, workers and bounds, no program of another policy runs there,
    #: and no worker is handed a second unit.
    owns_device = False
    #: It uses control tables, which the driver must solve.
    uses_tables = False
    #: It uses `KeyView.neighbours` for a program of several stages.
    sees_stages = False
    #: It also uses them for a program that is a single cell.
    sees_lone_cells = True
    #: A unit of a cell has no more rows than give nearly the highest throughput; others wait until some of these end.
    trims_cells = False
    #: It picks rows by length: within a key, class and priority a row may start before an earlier one.
    reorders = False
    #: It uses `KeyView.schedule`: the deadlines of waiting rows, and a high quantile of unit times.
    sees_deadlines = False

    @classmethod
    def workers(cls, max_batch: int) -> tuple[int, ...]:
        """The capacities of the workers that it wants: here one worker of the largest batch."""
        return (max_batch,)

    def target(self, facts: Facts) -> int | None:
        """The preferred batch size if the policy sets its own, else None."""
        return None

    def passes_through(self, facts: Facts, stage: int, rows: int, longest: int) -> bool:
        """Whether a batch of so many rows would run `stage` unchanged if nothing else waits or arrives.

        `longest`: the length of its longest row, 0 if no times by length are known.
        """
        return True

    def joins(self, offer: JoinOffer) -> bool:
        """Whether a running unit of a cell is to end now, so that waiting rows can join it."""
        return True

    def check(self, device: DeviceSpec, others: Mapping[str, Policy]) -> None:
        """Raise ValueError if the policy cannot serve on this device together with these others, by name."""
        different = sorted(name for name in others if name != self.name)
        alone = [name for name in different if others[name].owns_device]
        if different and (alone or self.owns_device):
            lonely = self.name if self.owns_device else alone[0]
            beside = ", ".join(different if lonely == self.name else [self.name])
            raise ValueError(f"policy: {lonely} shares a device with no other policy, here {beside}")
        if self.owns_device and device.push_depth > 1:
            raise ValueError(f"policy: {self.name} needs push_ahead_ms 0, in a simulation push_depth 1")

    def decide(self, view: KeyView, idle: Sequence[int], now: int) -> Cut | Hold:
        """Start a unit or hold. Here: start all waiting rows, up to the largest batch, as soon as a worker is usable.

        `idle`: capacities of the workers that may be handed a unit now, largest first, never empty. The device may have
        room for fewer rows: see `view.limit`.
        """
        return cut_rows(view, view.ready)
