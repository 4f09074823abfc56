"""Texts are as long as they should be, and clients wait for one another."""

from __future__ import annotations

import pytest
from generator.scripted import http, serving

from experiments.texts import compared, models, tasks
from experiments.texts.models import texts
from experiments.texts.tasks import TASKS


@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.name)
def test_rows_are_as_long_as_asked_for(task: tasks.Task) -> None:
    tokenizer = models.tokenizer()
    for text in task.texts(5, "fixed:20", seed=3):
        pair = (tasks.QUERY, text) if task.scores else (text,)
        ids = tokenizer(*pair)["input_ids"]
        assert len(ids) == 20
        assert tokenizer.unk_token_id not in ids
    assert texts(3, "uniform:8:30", special=2, seed=1) != texts(3, "uniform:8:30", special=2, seed=2)


async def test_each_client_sends_again_when_it_is_answered() -> None:
    async with serving(lambda connection, request: http({"data": []})) as server:
        found = await compared.many_clients(server.port, TASKS[0], [TASKS[0].body(["a"])], clients=3, seconds=0.2)
    assert len(found) > 3
    assert (found > 0).all()
    assert len(server.connections) <= 3
