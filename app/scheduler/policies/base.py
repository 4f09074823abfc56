"""What a policy answers, and what it says of itself.

A policy decides about one key and one unit at a time: it is asked again, with one worker fewer and the rows that are
left, until it holds or nothing is idle. Asking again after each unit is what lets another key with an older head take
the next worker; a plan for all workers at once would not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from app.scheduler.policies.view import Facts, JoinOffer, KeyView
from app.scheduler.types import Batch, DeviceSpec, Formed


class Cut(NamedTuple):  # one is made for each unit, and a tuple costs a third of a frozen dataclass
    """Start a unit of the first `rows` rows as a batch of `size` >= rows, for the reason given.

    `joins`: rows that begin are to belong to this batch and catch up with it. `divide`: the first row's batch, as far
    as it is here, is split into batches of so many rows first. `shorter` of at least 0: not the first rows but the
    first one and its neighbours in order of length, so many of them before it (`KeyView.length_window`).
    """

    rows: int
    size: int
    reason: Formed
    joins: Batch | None = None
    divide: int = 0
    shorter: int = -1


class Hold(NamedTuple):
    """Start nothing of this key before `until`; None: not before something else happens."""

    until: int | None


def held(view: KeyView, longest: int, now: int) -> Hold | Formed:
    """Hold rows for company, or the reason why no longer: the oldest has waited `longest` ns, or one is due."""
    ends = min(view.oldest() + longest, view.due)
    if now < ends:
        return Hold(ends)
    return Formed.DEADLINE if ends == view.due else Formed.HOLD_ENDED


def cut_rows(view: KeyView, rows: int, reason: Formed = Formed.IDLE) -> Cut:
    """Run so many rows now, or as many of them as can run."""
    rows = min(rows, view.limit)
    return Cut(rows, rows, Formed.FULL if rows == view.full else reason)


def cut_padded(view: KeyView, rows: int, idle: Sequence[int], reason: Formed = Formed.IDLE) -> Cut:
    """The same as a batch of the size that is fastest for them, where a worker that is idle takes it."""
    cut = cut_rows(view, rows, reason)
    if not view.facts.sizes:
        return cut
    sizes = view.facts.sizes[view.stage]
    size = sizes[min(view.running, len(sizes)) - 1][cut.rows - 1]
    return cut if size > idle[0] else Cut(cut.rows, size, cut.reason)


class Policy:
    """How units are cut from one key, and what a policy needs of its device. This one is `no_wait`'s."""

    #: The only place where a policy's name is written.
    name = ""
    #: It may hold rows back, whatever the control tables say.
    holds = False
    #: It has a device for itself: threads, workers and bounds follow it alone, never the profiles of its models, no
    #: program of another policy runs there, and no worker is given a unit behind the one at work.
    owns_device = False
    #: It looks its decisions up in control tables, which the driver must solve.
    uses_tables = False
    #: It looks at the batches and at other stages of a program that has several.
    sees_stages = False
    #: It looks at batches of a program that is one cell and nothing else.
    sees_lone_cells = True
    #: A cell runs no more rows than are nearly as fast as any; others wait until some of these have ended.
    trims_cells = False
    #: Within a key, class and priority it may let rows start before earlier ones, by their length.
    reorders = False
    #: It looks at the deadlines of the rows that wait, and at how long units take at most.
    sees_deadlines = False

    @classmethod
    def workers(cls, max_batch: int) -> tuple[int, ...]:
        """The capacities of the workers that it wants: one of the largest batch."""
        return (max_batch,)

    def target(self, facts: Facts) -> int | None:
        """The preferred batch size if the policy sets its own, else None."""
        return None

    def passes_through(self, facts: Facts, stage: int, rows: int, longest: int) -> bool:
        """Whether a batch of so many rows would run through `stage` as it is, if nothing else waits or arrives.

        `longest`: the length of the longest of them, 0 where it is not known what lengths change.
        """
        return True

    def joins(self, offer: JoinOffer) -> bool:
        """Whether a unit of a cell is to end now, so that rows which wait can join those that it has."""
        return True

    def check(self, device: DeviceSpec, others: Mapping[str, Policy]) -> None:
        """Raise ValueError if the policy cannot serve on this device beside these others, by name."""
        different = sorted(name for name in others if name != self.name)
        alone = [name for name in different if others[name].owns_device]
        if different and (alone or self.owns_device):
            lonely = self.name if self.owns_device else alone[0]
            beside = ", ".join(different if lonely == self.name else [self.name])
            raise ValueError(f"policy: {lonely} shares a device with no other policy, here {beside}")
        if self.owns_device and device.push_depth > 1:
            raise ValueError(f"policy: {self.name} needs push_ahead_ms 0, in a simulation push_depth 1")

    def decide(self, view: KeyView, idle: Sequence[int], now: int) -> Cut | Hold:
        """Start a unit or hold. Here: serve what waits, up to the largest batch, as soon as a worker may take a unit.

        `idle`: capacities of the workers that may be handed a unit now, largest first, never empty. They are what the
        workers can take; what the device has room for is in the view.
        """
        return cut_rows(view, view.ready)
