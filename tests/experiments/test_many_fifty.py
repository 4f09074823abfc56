"""What a batch costs the scheduler does not grow with the models that have nothing waiting."""

from __future__ import annotations

from pathlib import Path

from experiments.many import fifty


def test_a_batch_makes_as_many_calls_beside_49_idle_models_as_alone() -> None:
    alone, idle, busy = (fifty.cost(*given, 20)["calls"] for given in ((1, 1), (50, 1), (50, 50)))
    assert idle <= alone + 1
    assert busy < 10 * alone


def test_the_models_written_are_what_a_server_reads(tmp_path: Path) -> None:
    names = fifty.write_models(tmp_path, 3)
    assert names == ["small-0", "small-1", "small-2"]
    assert all((tmp_path / name / "model.toml").exists() for name in names)
