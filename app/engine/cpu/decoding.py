"""A decoder on a CPU, step by step: rows begin together, then each step gives every row of a unit one more token.

New rows of a unit first read what they were sent, those of about one length together; then all step together, until one
has written its text, or the unit is recalled. Nothing is padded but what rows read. Before each step rows read for as
long as `_READ_STEPS` steps take, a long prompt in pieces, so that it holds up the steps of others no longer. Where the
least that can be read at once takes longer, that is all: some tokens of a prompt, but the whole of a row that an
encoder reads. The mean latency is least where all rows read at once that wait (`experiments/writing/simulated.py`).

Until a step has been made nothing of its rows has changed, so a unit whose first step fails can run again, in halves;
where a later one fails, the unit ends well with the steps before it.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING

from app.contract import Array, Model
from app.engine.cpu.executor import CpuExecutor
from app.engine.cpu.places import Places, Written
from app.engine.device import NO_BOUND, WHOLE, Job, Piece, Ran, Steps
from app.engine.pool import Pool, Slots
from app.engine.tensors import padded
from app.models.decoders.texts import TOKENS, Text, TextDecoder

if TYPE_CHECKING:  # transformers is imported when a model needs it
    from app.models.decoders.decoder import Encoding, Prompts

_TRIED = 8  # tokens of a trial: later steps show nothing else
_READ_STEPS = 3  # as long as so many steps take rows that read may hold up the next one of others
_READ_NS = 50_000_000  # and so long where that is more
_LEAST = 16  # tokens of a piece: fewer read no faster
_FIRST = 64  # tokens of the first piece, before it is known how long one takes
_ALIKE = 8  # tokens that rows which read together may differ: more padding costs more than another call of the model


@dataclass(slots=True)
class _Reading:
    """Rows that read what they were sent: their slots, texts, and how far they are."""

    slots: list[int]
    texts: list[Text]
    pieces: Encoding | Prompts


class DecodingExecutor(CpuExecutor):
    """Implements engine.device.Executor, of a model whose `call` is a TextDecoder. One thread runs it at a time."""

    activations: Places
    one_unit = True  # its rows are at the front of one slab

    def __init__(self, model: Model, pool: Pool) -> None:
        super().__init__(model, pool)
        call = model.call
        assert isinstance(call, TextDecoder)
        self._call = call
        encodes = call.decoder.encodes
        longest = call.most + (1 if encodes else call.max_tokens)
        self.activations = Places(call.decoder, longest, call.max_tokens if encodes else 0)
        self.steps = Steps(call.most + (0 if encodes else -(-call.max_tokens // _LEAST)), True)
        self._reading: _Reading | None = None
        self._token_ns = 0.0  # of a prompt
        self._step_ns: list[int] = []  # of the unit that runs
        self._last_ns = 0  # what the last step took

    def trial(self, slots: Slots, size: int) -> Ran:
        """A few steps of the rows, as one batch."""
        return self._whole(slots, size, _TRIED)

    def run(self, slots: Slots, size: int, stage: int = WHOLE, job: Job | None = None) -> Ran:
        """Up to as many steps as the job has, or one. `size` means nothing: there is no padding.

        WHOLE: whole texts, as a batch of `size`, and nothing is kept.
        """
        if stage == WHOLE:
            return self._whole(slots, size, NO_BOUND)
        begin = time.perf_counter_ns()
        places, self._step_ns = self.activations, []
        new = [slot for slot in slots if places.known(slot) is None]
        going = [row for slot in slots if (row := places.known(slot)) is not None]
        going = places.arrange(going, len(new))
        gathered = time.perf_counter_ns()
        made, most = 0, job.steps if job is not None else 1
        while True:
            try:
                going = self._read(new, going)
                if going:
                    self._step(going)
            except Exception:  # a later one will be raised again by the next unit of these rows, which begins there
                if not made:
                    raise
                break
            made += 1
            self._note(job, made)
            new = new and [slot for slot in new if places.known(slot) is None]
            if made == most or any(row.text.reason for row in going) or (job is not None and job.recalled):
                break
        inferred = time.perf_counter_ns()
        return self._ran(slots, made, job, (begin, gathered, inferred))

    def _ran(self, slots: Slots, made: int, job: Job | None, times: tuple[int, int, int]) -> Ran:
        begin, gathered, inferred = times
        places = self.activations
        rows = [places.known(slot) for slot in slots]
        ended = [at for at, row in enumerate(rows) if row is not None and row.text.reason]
        over = [row for at in ended if (row := rows[at]) is not None]
        outputs: list[Array] = list(self._call.answers([row.text for row in over])) if over else []
        for row in over:
            places.leave(row)
        continues = job is not None and job.continue_without and not job.recalled and 0 < len(ended) < len(rows)
        if job is not None and continues:
            left = [slot for at, slot in enumerate(slots) if at not in ended]
            job.slots, job.size, job.steps, job.done = left, len(left), NO_BOUND, 0
        return Ran(
            outputs,
            gathered - begin,
            inferred - gathered,
            time.perf_counter_ns() - inferred,
            stages_ns=(inferred - gathered,),
            step_ns=sum(self._step_ns) // max(1, len(self._step_ns)),
            steps=made,
            ended=tuple(ended),
            continues=continues,
        )

    def _note(self, job: Job | None, made: int) -> None:
        """So many steps have been made: the loop may read that, and calls that read along get what was written."""
        if job is None:
            return
        job.done = made
        if job.on_pieces is not None:
            rows = ((slot, self.activations.known(slot)) for slot in job.read.intersection(job.slots))
            found = [(slot, row.text) for slot, row in rows if row is not None]
            pieces = [Piece(slot, (text.piece(), text.reason), text.tokens) for slot, text in found]
            pieces = [piece for piece in pieces if any(piece.made)]
            if pieces:
                job.on_pieces(pieces)

    def _read(self, new: Sequence[int], going: list[Written]) -> list[Written]:
        """Have rows in these slots read what they were sent, a piece at least, and as far as there is time. Returns all
        rows that have begun, those of `going` first."""
        begin, most_ns = time.perf_counter_ns(), max(_READ_NS, _READ_STEPS * self._last_ns)
        tokens, least = self._tokens_in(most_ns), 0
        while new and tokens >= least:
            reading = self._reading_of(new, tokens)
            rows, before, started = len(reading.slots), reading.pieces.left, time.perf_counter_ns()
            begun = reading.pieces.advance(max(_LEAST, tokens // rows))
            if read := rows * (before - reading.pieces.left):
                self._token_ns = (time.perf_counter_ns() - started) / read
            if begun is not None:
                self._reading = None
                going = [*going, *self.activations.begin(reading.slots, reading.texts, begun, going)]
                new = [slot for slot in new if slot not in reading.slots]
            tokens = self._tokens_in(begin + most_ns - time.perf_counter_ns())
            least = self._least_of(new[0]) if new else 0
        return going

    def _tokens_in(self, ns: int) -> int:
        """How many tokens rows can read in this time."""
        return int(ns / self._token_ns) if self._token_ns else _FIRST

    def _least_of(self, slot: int) -> int:
        """How many tokens the row in this slot reads at once, at least."""
        length = int(self.pool.lengths[TOKENS][slot])
        return length if self._call.decoder.encodes else min(length, _LEAST)

    def _reading_of(self, new: Sequence[int], tokens: int) -> _Reading:
        """Those of these rows that read next: as before, unless one of them has left or is to wait; else the first and
        others of about its length, with up to so many tokens together."""
        reading = self._reading
        slots = self.activations.reading
        if reading is None or not slots or not slots <= set(new):
            lengths = self.pool.lengths[TOKENS]
            longest = lengths[new[0]] + _ALIKE
            alike = [slot for slot in new if longest - 2 * _ALIKE <= lengths[slot] <= longest]
            reading = self._reading = self._start_reading(alike[: max(1, tokens // int(longest))])
        return reading

    def _start_reading(self, new: list[int]) -> _Reading:
        lengths, longest = self._lengths(new)
        (ids, *_), keywords = self._gather(new, new, lengths, longest)
        own = lengths[TOKENS].tolist()
        rows = [row[:length] for row, length in zip(ids.tolist(), own, strict=True)]
        texts = [self._call.start(row, given) for row, given in zip(rows, keywords["parameters"], strict=True)]
        self.activations.reading = frozenset(new)
        return _Reading(list(new), texts, self._call.decoder.reading(ids, own))

    def _step(self, rows: Sequence[Written]) -> None:
        """One more token for each of these, which are at the first places."""
        begin, places = time.perf_counter_ns(), self.activations
        places.make_room(rows)
        texts: list[Text] = [row.text for row in rows]
        written, read = [row.written for row in rows], [row.read for row in rows]
        logits = self._call.step([text.last for text in texts], places.cache, rows[0].end, written, read)
        self._call.extend(texts, self._call.choose(texts, logits))
        places.stepped(rows)
        self._last_ns = time.perf_counter_ns() - begin
        self._step_ns.append(self._last_ns)

    def _whole(self, slots: Slots, size: int, most: int) -> Ran:
        begin = time.perf_counter_ns()
        rows = padded(slots, size)
        lengths, longest = self._lengths(rows)
        (ids, *_), keywords = self._gather(slots, rows, lengths, longest)
        given = keywords["parameters"]
        if most < NO_BOUND:
            given = [{**each, "max_new_tokens": min(most, self._call.most)} for each in given]
        texts, begun = self._call.begin(ids, lengths[TOKENS].tolist(), given)
        gathered = time.perf_counter_ns()
        times = self._call.write(texts, begun)
        inferred = time.perf_counter_ns()
        outputs = list(self._call.answers(texts[: len(slots)]))
        infer_ns = inferred - gathered
        output_ns = time.perf_counter_ns() - inferred
        return Ran(outputs, gathered - begin, infer_ns, output_ns, step_ns=int(median(times)))
