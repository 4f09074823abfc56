"""Energy is the sum of all packages, over the wrap of a counter, and nothing where nothing can be read."""

from __future__ import annotations

from pathlib import Path

import pytest

from app.engine.profiling.powercap import find


def zone(root: Path, name: str, value: int) -> Path:
    folder = root / name
    folder.mkdir(parents=True)
    (folder / "max_energy_range_uj").write_text("999999\n")
    (folder / "energy_uj").write_text(f"{value}\n")
    return folder / "energy_uj"


def test_packages_are_added_and_their_parts_are_not(tmp_path: Path):
    first, second = zone(tmp_path, "intel-rapl:0", 100), zone(tmp_path, "intel-rapl:1", 999_000)
    part = zone(tmp_path, "intel-rapl:0:0", 5)
    counter = find(tmp_path)
    assert counter is not None
    assert counter.joules() == 0
    first.write_text("500100")
    second.write_text("1000")  # it has wrapped round
    part.write_text("900000")
    assert counter.joules() == pytest.approx(0.502)
    first.write_text("600100")
    assert counter.joules() == pytest.approx(0.602)


def test_no_counter(tmp_path: Path):
    assert find(tmp_path) is None
    assert find(tmp_path / "none") is None
    zone(tmp_path, "intel-rapl:0", 1).write_text("a word")
    assert find(tmp_path) is None
