"""Texts are as long as they should be, answers are read in the order of the texts, and clients wait for one another."""

from __future__ import annotations

import numpy as np
import pytest
from bench.scripted import Scripted, http, serving

from experiments.texts import compared, models, tasks
from experiments.texts.models import texts
from experiments.texts.tasks import TASKS
from loadtest.common.servers import MeasurementError

VECTORS, RANKER = TASKS


@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.name)
def test_rows_are_as_long_as_asked_for(task: tasks.Task) -> None:
    tokenizer = models.tokenizer()
    for text in task.texts(5, "fixed:20", seed=3):
        pair = (tasks.QUERY, text) if task.scores else (text,)
        ids = tokenizer(*pair)["input_ids"]
        assert len(ids) == 20
        assert tokenizer.unk_token_id not in ids
    assert texts(3, "uniform:8:30", special=2, seed=1) != texts(3, "uniform:8:30", special=2, seed=2)


def test_answers_are_in_the_order_of_the_texts() -> None:
    ranked = {"results": [{"index": 1, "relevance_score": 0.9}, {"index": 0, "relevance_score": 0.2}]}
    assert RANKER.values(ranked).tolist() == [0.2, 0.9]
    assert VECTORS.values({"data": [{"embedding": [1, 2]}, {"embedding": [3, 4]}]}).tolist() == [[1, 2], [3, 4]]


async def test_each_client_sends_again_when_it_is_answered() -> None:
    async with serving(lambda connection, request: http({"data": []})) as server:
        found = await compared.many_clients(server.port, VECTORS, [VECTORS.body(["a"])], clients=3, seconds=0.2)
    assert len(found) > 3
    assert (found > 0).all()
    assert len(server.connections) <= 3


async def test_a_refusal_is_no_figure() -> None:
    def refused(connection: Scripted, request: bytes) -> bytes:
        return http({"error": "full"}, 429)

    async with serving(refused) as server:
        with pytest.raises(MeasurementError, match="/v1/rerank: status 429"):
            await compared.many_clients(server.port, RANKER, [RANKER.body(["a"])], clients=2, seconds=0.1)


def test_in_turns_a_call_waits_for_those_of_all_clients(monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter([0.0, 0.1, 0.2, 0.3, 0.4, 9.0])
    monkeypatch.setattr(compared.time, "perf_counter", lambda: next(times))
    monkeypatch.setattr(compared, "all_at_once", lambda ask, given: float(given[0]))
    asked = [["0.001"], ["0.002"], ["0.004"], ["0.008"]]
    found = compared.one_by_one(np.asarray, asked, clients=2, seconds=1.0)
    assert found.tolist() == pytest.approx([3.0, 6.0, 12.0])
