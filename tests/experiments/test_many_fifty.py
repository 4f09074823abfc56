"""What a batch costs the scheduler does not grow with the models that have nothing waiting."""

from __future__ import annotations

from experiments.many import fifty


def test_a_batch_makes_as_many_calls_beside_49_idle_models_as_alone() -> None:
    alone, idle, busy = (fifty.cost(*given, 20)["calls"] for given in ((1, 1), (50, 1), (50, 50)))
    assert idle <= alone + 1
    assert busy < 10 * alone
