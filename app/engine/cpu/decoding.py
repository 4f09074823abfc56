"""Runs a decoder on a CPU: each step writes one more token of every row of a unit.

New rows of a unit first read their prompts, those of similar length together and only they padded, in pieces between
the steps of the others. How much is read before each step is decided in `app/scheduler/prefill.py`.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING

from app.contract import GeneratedText, Model
from app.engine.cpu.executor import CpuExecutor, since
from app.engine.executor import TRIED_TOKENS, Job, Kept, Ran, Readers, Steps, Stop
from app.engine.pool import Pool, Slots, padded
from app.models.decoders.places import PlacedText, Places
from app.models.decoders.texts import TOKENS, Text, TextDecoder
from app.scheduler import prefill

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
    """Of one placed decoder. `places` are reserved when `bound` is called. Only the worker that runs the model moves
    rows; the event loop releases them, and the worker frees their places before it uses any.
    """

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


class DecodingExecutor(CpuExecutor):
    """For a model whose `call` is a TextDecoder. One thread runs it at a time."""

    activations: TextRows
    one_unit = True  # the rows of a unit must be at the front of the one slab

    def __init__(self, model: Model, pool: Pool) -> None:
        super().__init__(model, pool)
        call = model.call
        assert isinstance(call, TextDecoder)
        self._call = call
        encodes = call.decoder.encodes
        bounds = call.bounds
        self.activations = TextRows(call.decoder, bounds.both or bounds.text + 1, bounds.prompt if encodes else 0)
        pieces = call.decoder.encoder_layers or -(-bounds.prompt // prefill.LEAST)
        self.steps = Steps(bounds.text + pieces, True)
        self._budget = prefill.PrefillBudget()
        self._last_ns = 0  # what the last step took

    def whole(self, slots: Slots, size: int) -> Ran:
        """A few steps of the rows, as one batch of `size`."""
        begin = time.perf_counter_ns()
        (ids, *_), keywords, lengths, _ = self.batch(padded(slots, size))
        tokens = min(TRIED_TOKENS, self._call.bounds.text)
        given = [{**each, "max_new_tokens": tokens} for each in keywords["parameters"]]
        own = lengths[TOKENS].tolist()
        texts, begun = self._call.start_all(ids, own, given), self._call.decoder.begin(ids, own)
        gathered = time.perf_counter_ns()
        times = self._call.write(texts, begun)
        inferred = time.perf_counter_ns()
        outputs = self._call.answers(texts[: len(slots)])
        return Ran([*outputs], *since(begin, gathered, inferred), step_ns=int(median(times)))

    def together(self, slots: Slots, most: int, job: Job, stop: Stop) -> Ran:
        """The rows are at the first places of the slab; new ones read their prompts between the steps."""
        rows, begin = self.activations, time.perf_counter_ns()
        new, going, times = rows.missing(slots), rows.arrange(slots), []
        gathered, made = time.perf_counter_ns(), 0
        while not made or not (made == most or stop.now or any(row.text.reason for row in going)):
            try:
                going = self.read(new, going)
                new = new and rows.missing(new)
                if going:
                    times.append(self.step(going))
            except Exception:  # after the first step: the next unit of these rows begins here, and will raise it again
                if not made:
                    raise
                break
            stop.made = made = made + 1
            if job.readers is not None:
                self._send(job.readers, slots)
        inferred = time.perf_counter_ns()
        ended = [at for at, row in enumerate(map(rows.get, slots)) if row is not None and row.text.reason]
        over = rows.of([slots[at] for at in ended])
        outputs = [*self._call.answers([row.text for row in over])] if over else []
        for row in over:
            rows.places.leave(row)
        parts = since(begin, gathered, inferred)
        step_ns = sum(times) // max(1, len(times))
        return Ran(outputs, *parts, step_ns=step_ns, steps=made, ended=tuple(ended))

    # prompts

    def read(self, new: Sequence[int], going: list[TextRow]) -> list[TextRow]:
        """Have new rows read their prompts: at least one piece, and as much as the budget allows. Returns all rows that
        have read theirs, those of `going` first."""
        self._budget.start(self._last_ns)
        while new and (tokens := self._budget.tokens(self._least_of(new[0]))) is not None:
            begin = time.perf_counter_ns()
            reading = self._reading_of(new, tokens)
            rows, before = len(reading.slots), reading.pieces.left
            begun = reading.pieces.advance(prefill.each(tokens, rows))
            if begun is not None:
                self.activations.reading = None
                joined = self.activations.places.begin(reading.texts, begun, going)
                self.activations.join(reading.slots, joined)
                going = [*going, *joined]
                new = [slot for slot in new if slot not in reading.slots]
            self._budget.took(rows * (before - reading.pieces.left), time.perf_counter_ns() - begin)
        return going

    def _least_of(self, slot: int) -> int:
        """The smallest piece, in tokens, that the row in this slot can read."""
        length, layers = int(self.pool.lengths[TOKENS][slot]), self._call.decoder.encoder_layers
        return max(min(length, prefill.LEAST), -(-length // layers) if layers else 0)

    def _reading_of(self, new: Sequence[int], tokens: int) -> PromptReading:
        """The rows that read next: those that already do, unless one of them has left or is not in the unit; else the
        first and others of similar length, up to so many tokens."""
        reading = self.activations.reading
        if reading is None or not set(reading.slots) <= set(new):
            lengths = self.pool.lengths[TOKENS]
            chosen = [new[place] for place in prefill.together([int(lengths[slot]) for slot in new], tokens)]
            (ids, *_), keywords, *_ = self.batch(chosen)
            own = lengths[chosen].tolist()
            texts = self._call.start_all(ids, own, keywords["parameters"])
            reading = self.activations.reading = PromptReading(chosen, texts, self._call.decoder.reading(ids, own))
        return reading

    # steps

    def step(self, rows: Sequence[TextRow]) -> int:
        """Write one more token for each of these rows, which are at the first places. Returns its nanoseconds."""
        begin, places = time.perf_counter_ns(), self.activations.places
        texts = [row.text for row in rows]
        self._call.extend(texts, places.step(rows, [text.ids[-1] for text in texts]))
        places.stepped(rows)
        self._last_ns = time.perf_counter_ns() - begin
        return self._last_ns

    def _send(self, readers: Readers, slots: Slots) -> None:
        """What was written, for calls that stream."""
        rows = ((slot, self.activations.get(slot)) for slot in readers.slots.intersection(slots))
        texts = [(slot, row.text) for slot, row in rows if row is not None]
        pieces = {slot: GeneratedText(text.piece(), text.reason, text.prompt, text.tokens) for slot, text in texts}
        if said := {slot: piece for slot, piece in pieces.items() if piece.text or piece.reason}:
            readers.send(said)
