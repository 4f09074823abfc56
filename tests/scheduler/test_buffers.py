"""DVABatch's buffer pairs: nothing is overwritten or read too early, one pair is serial, several are a pipeline.

The diagram and the tables in docs/stages.md are drawn from the module's tables.
"""

from __future__ import annotations

import random
from itertools import product
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiers import repeatable

from app.scheduler.buffers import BUFFERS, TRANSITIONS, Buffer, Executor, Pipeline, legitimate

CI = repeatable(200)
PAGE = Path(__file__).parents[2] / "docs" / "stages.md"


class Batches:
    """A pipeline and what lies in its buffers: a batch that was written and not yet read must not be written over."""

    def __init__(self, stages: int, pairs: int, count: int, rng: random.Random) -> None:
        self.pipeline = Pipeline(stages, pairs)
        self.stages, self.pairs, self.left, self.rng = stages, pairs, count, rng
        self.holds: list[list[int | None]] = [[None] * (stages + 1) for _ in range(pairs)]
        self.queues: list[list[tuple[int, int]]] = [[] for _ in range(stages)]  # (batch, pair) before each executor
        self.has: list[tuple[int, int] | None] = [None] * stages
        self.done: list[int] = []
        self.most = 0  # executors at work at once
        self.seen: set[tuple[Executor, Executor]] = set()

    def run(self) -> Batches:
        self._arrive()
        while any(self.queues) or any(self.has) or self.left:
            moves = [*self._pulls(), *self._completions()]
            assert moves, "nobody can go on"
            before = list(self.pipeline.executors)
            move, executor = self.rng.choice(moves)
            self._pull(executor) if move == "pull" else self._complete(executor)
            self.seen |= set(zip(before, self.pipeline.executors, strict=True))
            working = [state is Executor.WORKING for state in self.pipeline.executors]
            self.most = max(self.most, sum(working))
            self._check_buffers()
        return self

    def _arrive(self) -> None:
        if self.left:
            self.queues[0].append((self.left, self.rng.randrange(self.pairs)))
            self.left -= 1

    def _pulls(self) -> list[tuple[str, int]]:
        states = self.pipeline.executors
        return [("pull", i) for i in range(self.stages) if self.queues[i] and states[i] is Executor.ACTIVE]

    def _completions(self) -> list[tuple[str, int]]:
        states = self.pipeline.executors
        return [("complete", i) for i in range(self.stages) if states[i] is Executor.WORKING]

    def _pull(self, executor: int) -> None:
        self.has[executor] = self.queues[executor].pop(0)
        self.pipeline.pull(executor, self.has[executor][1])
        if executor == 0:
            self._arrive()

    def _complete(self, executor: int) -> None:
        held = self.has[executor]
        assert held is not None
        batch, pair = held
        assert executor == 0 or self.holds[pair][executor] == batch, "it has read another batch's rows"
        assert executor + 1 == self.stages or self.holds[pair][executor + 1] is None, "rows nobody has read are gone"
        self.holds[pair][executor] = None
        self.has[executor] = None
        self.pipeline.complete(executor)
        if executor + 1 < self.stages:
            self.holds[pair][executor + 1] = batch
            self.queues[executor + 1].append((batch, pair))
        else:
            self.done.append(batch)

    def _check_buffers(self) -> None:
        """Nobody reads what is being written: each buffer in use is used by one executor, as its state says."""
        for pair, buffers in enumerate(self.pipeline.buffers):
            for place, state in enumerate(buffers):
                reads = place < self.stages and self._works(place, pair)
                writes = place > 0 and self._works(place - 1, pair)
                assert not (reads and writes)
                assert (state is Buffer.READING) == reads
                assert (state is Buffer.WRITING) == writes

    def _works(self, executor: int, pair: int) -> bool:
        held = self.has[executor]
        return held is not None and held[1] == pair and self.pipeline.executors[executor] is Executor.WORKING


def test_d4_what_makes_a_pair_legitimate() -> None:
    fine = {(one, other) for one, other in product(Buffer, Buffer) if legitimate(one, other)}
    assert fine == {(Buffer.AVAILABLE, Buffer.AVAILABLE), (Buffer.AVAILABLE, Buffer.INVALID)}


@CI
@given(st.integers(1, 4), st.integers(1, 3), st.integers(0, 10**6))
def test_d8_all_batches_pass_and_nothing_is_lost(stages: int, pairs: int, seed: int) -> None:
    """Whichever pair each batch takes, and in whatever order executors act; changes are those of the table alone."""
    batches = Batches(stages, pairs, 8, random.Random(seed)).run()
    assert len(batches.done) == 8
    allowed = {(change.source, change.target) for change in TRANSITIONS} | {(state, state) for state in Executor}
    assert batches.seen <= allowed


@CI
@given(st.integers(2, 4), st.integers(0, 10**6))
def test_d9_one_pair_runs_the_stages_one_after_another(stages: int, seed: int) -> None:
    batches = Batches(stages, 1, 6, random.Random(seed)).run()
    assert batches.most == 1
    assert batches.done == [6, 5, 4, 3, 2, 1]


def test_d9_two_pairs_run_stages_side_by_side() -> None:
    assert max(Batches(3, 2, 12, random.Random(seed)).run().most for seed in range(10)) > 1


def test_d8_every_change_of_the_table_happens() -> None:
    seen = set().union(*(Batches(3, 3, 12, random.Random(seed)).run().seen for seed in range(10)))
    assert {(change.source, change.target) for change in TRANSITIONS} <= seen


def test_what_is_not_in_the_table_is_refused() -> None:
    pipeline = Pipeline(2, 1)
    with pytest.raises(ValueError, match="complete: expected a working executor, got active"):
        pipeline.complete(0)
    pipeline.pull(0, 0)
    with pytest.raises(ValueError, match="pull: expected an active executor, got working"):
        pipeline.pull(0, 0)


def test_an_output_is_restored_to_what_it_was_before() -> None:
    """Of three stages the second reads, and meanwhile the first writes the same pair's buffer of another batch."""
    pipeline = Pipeline(3, 2)
    pipeline.pull(0, 0)
    assert pipeline.buffers[0] == ["in-reading", "in-writing", "available", "available"]
    pipeline.complete(0)
    assert pipeline.buffers[0] == ["invalid", "available", "available", "available"]
    assert pipeline.executors == ["active"] * 3  # the first has another pair


def test_the_page_draws_this_table() -> None:
    diagram = ["```mermaid", "stateDiagram-v2", "    [*] --> active"]
    diagram += [
        f"    {change.source} --> {change.target}: {change.event}, {change.when}" for change in TRANSITIONS
    ]  # fmt: skip
    table = ["| | input buffer | output buffer |", "|---|---|---|"]
    table += [f"| {event} | {read} | {written} |" for event, (read, written) in BUFFERS.items()]
    page = PAGE.read_text(encoding="utf-8")
    assert "\n".join([*diagram, "```"]) in page
    assert "\n".join(table) in page
