"""Runs a decoder on a CPU, step by step: each step writes one more token of every row of a unit.

New rows of a unit first read their prompts, those of similar length together. Then all rows step together until one has
finished its text, or the unit is recalled. Only prompts are padded. How much is read before each step is decided in
`app/scheduler/prefill.py`.

Rows do not change before a step has been made, so a unit whose first step fails can run again in halves. If a later
step fails, the unit ends well with the steps before it.
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
from app.engine.device import NO_BOUND, TRIED_TOKENS, WHOLE, BatchResult, Job, Piece
from app.engine.executor import Steps
from app.engine.pool import Pool, Slots
from app.engine.tensors import padded
from app.models.decoders.texts import TOKENS, Text, TextDecoder
from app.scheduler import prefill

if TYPE_CHECKING:  # transformers is imported when a model needs it
    from app.models.decoders.decoder import Encoding, Prompts


@dataclass(slots=True)
class _Readers:
    """Rows that read their prompts: their slots, texts, and how far they have read."""

    slots: list[int]
    texts: list[Text]
    pieces: Encoding | Prompts


class DecodingExecutor(CpuExecutor):
    """For a model whose `call` is a TextDecoder. One thread runs it at a time."""

    activations: Places
    one_unit = True  # the rows of a unit must be at the front of the one slab

    def __init__(self, model: Model, pool: Pool) -> None:
        super().__init__(model, pool)
        call = model.call
        assert isinstance(call, TextDecoder)
        self._call = call
        encodes = call.decoder.encodes
        bounds = call.bounds
        self.activations = Places(call.decoder, bounds.both or bounds.text + 1, bounds.prompt if encodes else 0)
        pieces = call.decoder.encoder_layers or -(-bounds.prompt // prefill.LEAST)
        self.steps = Steps(bounds.text + pieces, True)
        self._readers: _Readers | None = None
        self._budget = prefill.PrefillBudget()
        self._step_ns: list[int] = []  # of the unit that runs
        self._last_ns = 0  # what the last step took

    def trial(self, slots: Slots, size: int) -> BatchResult:
        """A few steps of the rows, as one batch of `size`. Nothing is kept."""
        begin = time.perf_counter_ns()
        rows = padded(slots, size)
        lengths, longest = self._lengths(rows)
        (ids, *_), keywords = self._gather(slots, rows, lengths, longest)
        tokens = min(TRIED_TOKENS, self._call.bounds.text)
        given = [{**each, "max_new_tokens": tokens} for each in keywords["parameters"]]
        texts, begun = self._call.begin(ids, lengths[TOKENS].tolist(), given)
        gathered = time.perf_counter_ns()
        times = self._call.write(texts, begun)
        inferred = time.perf_counter_ns()
        outputs = list(self._call.answers(texts[: len(slots)]))
        infer_ns = inferred - gathered
        output_ns = time.perf_counter_ns() - inferred
        return BatchResult(outputs, gathered - begin, infer_ns, output_ns, step_ns=int(median(times)))

    def run(self, slots: Slots, size: int, stage: int = WHOLE, job: Job | None = None) -> BatchResult:
        """Make up to `job.steps` steps, or one without a job. `size` is ignored, because there is no padding.

        WHOLE: a trial.
        """
        if stage == WHOLE:
            return self.trial(slots, size)
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
            except Exception:  # after the first step: the next unit of these rows begins here, and will raise it again
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

    def _ran(self, slots: Slots, made: int, job: Job | None, times: tuple[int, int, int]) -> BatchResult:
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
        return BatchResult(
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
        """Publish the number of steps made, and send what was written to calls that stream."""
        if job is None:
            return
        job.done = made
        if job.on_pieces is not None:
            rows = ((slot, self.activations.known(slot)) for slot in job.read.intersection(job.slots))
            found = [(slot, row.text) for slot, row in rows if row is not None]
            pieces = [
                Piece(slot, (text.piece(), text.reason, text.prompt, text.tokens), text.tokens) for slot, text in found
            ]
            pieces = [piece for piece in pieces if any(piece.made[:2])]
            if pieces:
                job.on_pieces(pieces)

    def _read(self, new: Sequence[int], going: list[Written]) -> list[Written]:
        """Have new rows read their prompts: at least one piece, and as much as the budget allows. Returns all rows that
        have read theirs, those of `going` first."""
        self._budget.start(self._last_ns)
        while new and (tokens := self._budget.tokens(self._least_of(new[0]))) is not None:
            begin = time.perf_counter_ns()
            readers = self._readers_of(new, tokens)
            rows, before = len(readers.slots), readers.pieces.left
            begun = readers.pieces.advance(prefill.each(tokens, rows))
            if begun is not None:
                self._readers = None
                going = [*going, *self.activations.begin(readers.slots, readers.texts, begun, going)]
                new = [slot for slot in new if slot not in readers.slots]
            self._budget.took(rows * (before - readers.pieces.left), time.perf_counter_ns() - begin)
        return going

    def _least_of(self, slot: int) -> int:
        """The smallest piece, in tokens, that the row in this slot can read."""
        length, layers = int(self.pool.lengths[TOKENS][slot]), self._call.decoder.encoder_layers
        return max(min(length, prefill.LEAST), -(-length // layers) if layers else 0)

    def _readers_of(self, new: Sequence[int], tokens: int) -> _Readers:
        """The rows that read next: those that already do, unless one of them has left or is not in the unit; else the
        first and others of similar length, up to so many tokens."""
        readers = self._readers
        slots = self.activations.reading
        if readers is None or not slots or not slots <= set(new):
            lengths = self.pool.lengths[TOKENS]
            chosen = prefill.together([int(lengths[slot]) for slot in new], tokens)
            readers = self._readers = self._start_reading([new[place] for place in chosen])
        return readers

    def _start_reading(self, new: list[int]) -> _Readers:
        lengths, longest = self._lengths(new)
        (ids, *_), keywords = self._gather(new, new, lengths, longest)
        own = lengths[TOKENS].tolist()
        rows = [row[:length] for row, length in zip(ids.tolist(), own, strict=True)]
        texts = [self._call.start(row, given) for row, given in zip(rows, keywords["parameters"], strict=True)]
        self.activations.reading = frozenset(new)
        return _Readers(list(new), texts, self._call.decoder.reading(ids, own))

    def _step(self, rows: Sequence[Written]) -> None:
        """Write one more token for each of these rows, which are at the first places."""
        begin, places = time.perf_counter_ns(), self.activations
        places.make_room(rows)
        texts: list[Text] = [row.text for row in rows]
        written, read = [row.written for row in rows], [row.read for row in rows]
        logits = self._call.step([text.last for text in texts], places.cache, rows[0].end, written, read)
        self._call.extend(texts, logits)
        places.stepped(rows)
        self._last_ns = time.perf_counter_ns() - begin
        self._step_ns.append(self._last_ns)
