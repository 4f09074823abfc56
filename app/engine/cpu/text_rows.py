"""The rows of a decoder on a CPU. Only the worker that runs the model moves them; the event loop releases them, and the
worker frees their places before it uses any.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

from app.engine.kept import Kept
from app.engine.pool import Slots
from app.models.decoders.places import PlacedText, Places
from app.models.decoders.texts import Text

if TYPE_CHECKING:  # transformers is imported when a model needs it
    from app.models.decoders.decoder import DecoderModel, Encoding, Prompts

TextRow = PlacedText[Text]


@dataclass(slots=True)
class PromptReading:
    """Rows that read their prompts together: their slots, texts, and how far they have read."""

    slots: list[int]
    texts: list[Text]
    pieces: Encoding | Prompts


class TextRows(Kept[TextRow]):
    """Of one placed decoder. `places` are reserved when `bound` is called."""

    places: Places[Text]

    def __init__(self, decoder: DecoderModel, longest: int, read: int) -> None:
        """`longest`: the most columns of a row. A place has half as many more, so that rows can grow before they move.

        `read`: columns of a place in the other slab, 0 without an encoder.
        """
        super().__init__()
        self._decoder = decoder
        self._columns, self._read_columns = longest + longest // 2 + 1, read
        self.row_bytes = self.place_bytes = (self._columns + read) * decoder.shape.column_bytes
        self._gone: deque[TextRow] = deque()  # released by the loop, places not freed yet
        self.reading: PromptReading | None = None  # until the loop has released one of its rows

    def bound(self, most: int) -> None:
        """Reserve places for so many rows."""
        self.reserved = most
        self.places = Places(self._decoder, most, self._columns, self._read_columns)

    def arrange(self, slots: Slots) -> list[TextRow]:
        """Move those of these rows that have joined to the first places, with room for the others behind them."""
        while self._gone:
            self.places.leave(self._gone.popleft())
        rows = [row for slot in slots if (row := self.get(slot)) is not None]
        return self.places.arrange(rows, len(slots) - len(rows))

    def release(self, slots: Slots) -> None:
        super().release(slots)
        if (reading := self.reading) is not None and any(slot in reading.slots for slot in slots):
            self.reading = None  # the slot may get another row

    def _left(self, row: TextRow) -> None:
        self._gone.append(row)
