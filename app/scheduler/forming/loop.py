"""The loop that forms units, and its three seats.

`order` says which ready set is next, `share` how much of the device it may have now, and its program's `policy` how
many rows start, or until when they are held. Rows of a failed unit run again as one unit, without asking the policy.
Calls with a row that would end after its deadline are dropped instead, and the policy is asked again: an overloaded
device that finished late work would do nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping

from app.scheduler.forming.order import Order
from app.scheduler.forming.share import Share
from app.scheduler.forming.units import Units
from app.scheduler.policies import Cut, Hold, Offer, Policy
from app.scheduler.rows.ledger import Ledger
from app.scheduler.rows.ready import ReadySet, longest_of
from app.scheduler.types import Call, Formed, Reason, Unit
from app.scheduler.workers import Workers


class Loop:
    """Of one device. Takes rows from the ledger's ready table and hands units to the workers."""

    def __init__(
        self,
        ledger: Ledger,
        workers: Workers,
        order: Order,
        share: Share,
        policies: Mapping[int, Policy],
        units: Units,
    ) -> None:
        self._ledger = ledger
        self._workers = workers
        self._order = order
        self._share = share
        self._policies = policies
        self._units = units

    def run(self, start: list[Unit], now: int) -> int | None:
        """Append to `start` all units that can start. Returns when to ask again if nothing happens before, or None."""
        ledger, workers, share = self._ledger, self._workers, self._share
        held: list[ReadySet] = []
        wake_at: int | None = None
        decision: Cut | Hold
        share.best_effort, share.joins_later = ledger.best_effort > 0 or bool(share.units), False
        while ledger.ready.nonempty and not workers.full:  # mostly full: then nothing is asked
            ready = self._order.next(held, now)
            usable = workers.usable(now) if ready is not None else ()
            if ready is None or not usable:
                if ready is not None or share.joins_later:
                    wake_at = _earlier(wake_at, workers.next_opening(now))
                break
            program = ready.key[0]
            offer = share.limit(Offer(ready, ledger.states[program], ledger, workers, usable), now)
            if not offer.rows:
                decision = Hold(offer.until)
            elif ready.again:
                decision = Cut(offer.exact, 1, Formed.RETRY)
            else:
                decision = self._policies[program].decide(offer, now)
            if isinstance(decision, Hold):  # rows behind these at the same key are held, too, unless they have room
                held += ledger.ready.alike(ready) if offer.room + offer.started > 0 else [ready]
                wake_at = _earlier(wake_at, decision.until)
                continue
            if offer.exact < decision.size < offer.rows and not ready.again:
                decision = decision._replace(size=offer.rows)
            if ledger.deadlines.heap and (late := self._late(offer, decision, now)):
                for call in late:
                    ledger.drop(call, Reason.DEADLINE_UNREACHABLE)
                self._remove_dropped(start, now)
                held.clear()  # they may have been held because of the dropped calls
                continue
            start.append(self._units.start(offer, decision, now))
            if held:
                held = [other for other in held if _not_behind(other, ready)]
        if share.best_effort:
            share.end(held)
        return wake_at

    def _late(self, offer: Offer, cut: Cut, now: int) -> list[Call]:
        """The calls with a row in this unit that would end after its deadline."""
        if cut.reason is Formed.RETRY:
            return []
        _, begins, running = self._workers.place(offer.usable, cut.size, offer.state.capacity[offer.stage], now)
        rows = offer.ready.similar(cut.rows, cut.shorter) if cut.shorter >= 0 else offer.first(cut.rows)
        ends = begins + offer.estimates.time(cut.size, offer.stage, running, longest_of(rows), begins - now)
        late = {call.id: call for row in rows if (call := row.call).deadline and call.deadline < ends}
        return list(late.values())

    def _remove_dropped(self, start: list[Unit], now: int) -> None:
        """Calls were dropped that have rows in units of this very step. Take these rows out, and remove empty units."""
        for unit in list(start):
            gone = [row for row in unit.rows if not row.call.alive]
            if not gone:
                continue
            left = [row for row in unit.rows if row.call.alive]
            for row in gone:
                self._ledger.end(row)
            if left:
                unit.rows = left
                continue
            start.remove(unit)
            self._workers.give_back(unit.id, now)
            self._share.ended(unit)
            state = self._ledger.states[unit.program]
            state.queue.units -= 1
            self._ledger.forget_if_over(state)


def _not_behind(held: ReadySet, ready: ReadySet) -> bool:
    """Whether `held` is no later stage of the program of `ready`, from which rows have just started: then its hold
    may no longer apply.
    """
    return held.key[0] != ready.key[0] or held.key[1] <= ready.key[1]


def _earlier(one: int | None, other: int | None) -> int | None:
    if one is None or other is None:
        return other if one is None else one
    return min(one, other)
