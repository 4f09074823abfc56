"""Where rows stand between two stages, or two steps, on a device of streams.

The launcher notes where a unit will leave its rows when it launches it, so that the next unit can be launched before
this one has run. Three things keep that right.
    1. What a unit leaves has an event (DVABatch's, one for each producer). Whatever reads it waits for that on its own
       stream; the host waits for nothing.
    2. A unit that fails marks what it would have left. A unit that was launched behind it finds the mark and fails too.
       When it has ended, its rows stand where they stood before, and what they read there is as it was.
    3. What a unit reads is kept until it has ended, so no memory goes back to the allocator of one stream while another
       stream still reads it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from app.engine.activations import Activations, Passed, Place, neighbours
from app.engine.pool import Slots


@dataclass(slots=True, eq=False)
class Produced(Passed):
    """What one unit leaves; its tensors are there when `event` has fired, which is None once the unit has ended.

    `error`: why it leaves nothing. `before`: by slot, where its rows stood, None where they had not begun; until the
    unit has ended well.
    """

    event: Any = None
    error: BaseException | None = None
    before: dict[int, Place | None] = field(default_factory=dict)


class StreamActivations(Activations):
    """Of one placed model. Its launcher has rows move on, completers move back those that failed, the loop lets go.

    `reserved`: bytes of what a row has in slabs, which are there whether it is under way or not.
    """

    def __init__(self, reserved: int = 0) -> None:
        super().__init__()
        self._reserved = reserved

    @property
    def nbytes(self) -> int:
        return super().nbytes + self.rows * self._reserved

    def standing(self, slots: Slots) -> list[Place | None]:
        """Where each of these rows stands; None for one that has not begun."""
        return [self._places.get(slot) for slot in slots]

    def move_on(self, slots: Slots, produced: Produced, numbers: Sequence[int]) -> None:
        """A unit is launched that will leave these rows there, each with its number: a position, or steps made."""
        places = self._places
        produced.before = {slot: places.get(slot) for slot in slots}
        for slot, number in zip(slots, numbers, strict=True):
            places[slot] = (produced, number)

    def ended(self, produced: Produced) -> None:
        """The unit has ended. If it failed, its rows go back to where no unit has failed."""
        if produced.error is None:
            produced.event, produced.before = None, {}
            return
        for slot, place in produced.before.items():
            at = self._places.get(slot)
            if at is None or at[0] is not produced:  # let go; or launched again since, and that unit moves it back
                continue
            while place is not None and isinstance(place[0], Produced) and place[0].error is not None:
                place = place[0].before[slot]
            if place is None:
                del self._places[slot]
            else:
                self._places[slot] = place

    def take(
        self,
        places: Sequence[Place | None],
        stage: int,
        longest: Mapping[str, int],
        into: Sequence[torch.Tensor] | None = None,
    ) -> list[torch.Tensor]:
        """The arguments of `stage` for rows that stand at these places, as long as `longest` says; on a stream.

        Without `into`, memory for them, neighbours of one batch are a view. Raises what a unit before has failed with.
        """
        found = check(places, stage - 1)
        runs = neighbours(found)
        taken = []
        for number in range(len(found[0][0].tensors)):
            pieces = [
                self._fitted(batch.tensors[number][first:end], stage, number, longest) for batch, first, end in runs
            ]
            if into is not None:
                torch.cat(pieces, out=into[number])
            else:
                taken.append(pieces[0] if len(pieces) == 1 else torch.cat(pieces))
        return taken if into is None else list(into)


def error_of(places: Iterable[Place | None]) -> BaseException | None:
    """What a unit has failed with that was to leave one of these rows there."""
    producers = (place[0] for place in places if place is not None)
    return next((one.error for one in producers if isinstance(one, Produced) and one.error is not None), None)


def check(places: Sequence[Place | None], stage: int) -> list[Place]:
    """The places, which must be those of rows that `stage` has left. Raises what that has failed with."""
    found: list[Place] = []
    for place in places:
        if place is None or place[0].stage != stage:  # a bug of the scheduler
            where = "has not begun" if place is None else f"comes from stage {place[0].stage}"
            raise RuntimeError(f"stage {stage + 1}: a row {where}")
        if isinstance(place[0], Produced) and place[0].error is not None:
            raise place[0].error
        found.append(place)
    return found


def events(places: Sequence[Place | None]) -> list[Any]:
    """What must have fired before these rows may be read."""
    producers = {id(place[0]): place[0] for place in places if place is not None}
    return [
        event
        for producer in producers.values()
        if isinstance(producer, Produced) and (event := producer.event) is not None
    ]
