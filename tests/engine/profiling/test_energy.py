"""Invariant: the number is from the best source that works, and is reported under that source's name."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

import pytest

from app.engine.profiling import energy
from app.engine.profiling.energy import EnergyMeter, find_meter, powercap
from app.observe.prometheus import Metrics
from app.observe.snapshot import Energy, Snapshot

UUID = "GPU-0000"


@pytest.mark.parametrize(
    ("busy_s", "watts", "found"),
    [
        (4, (20.0, 65.0), Energy("profile", 20 * 6 + 65 * 4)),
        (35, (20.0, 65.0), Energy("profile", 650)),  # workers side by side are one device
        (4, None, Energy("busy_seconds", 4)),
        (35, None, Energy("busy_seconds", 10)),
    ],
)
def test_without_a_counter_watts_times_time_or_busy_seconds(busy_s, watts, found):
    times = iter([100.0, 110.0])
    assert EnergyMeter(None, lambda: next(times)).read(busy_s, watts) == found


def test_the_first_source_that_works(caplog):
    values = [3.0, OSError("gone")]

    def failing() -> float:
        value = values.pop(0)
        if isinstance(value, Exception):
            raise value
        return value

    meter = EnergyMeter(("powercap", failing))
    assert meter.read(1, None) == Energy("powercap", 3.0)
    assert meter.read(0, None).source == "busy_seconds"
    assert meter.read(0, None).source == "busy_seconds"
    assert caplog.text.count("powercap is not used any more: OSError: gone") == 1


def zone(root: Path, name: str, energy: int, most: int = 1_000_000) -> Path:
    folder = root / name
    folder.mkdir()
    (folder / "energy_uj").write_text(f"{energy}\n")
    (folder / "max_energy_range_uj").write_text(f"{most}\n")
    return folder / "energy_uj"


def test_powercap_adds_packages_without_their_parts_and_wraps(tmp_path: Path, monkeypatch):
    one, two = zone(tmp_path, "intel-rapl:0", 999_000), zone(tmp_path, "intel-rapl:1", 5)
    zone(tmp_path, "intel-rapl:0:0", 77)  # a part of the first
    counter = powercap(tmp_path)
    monkeypatch.setattr(energy, "powercap", lambda: counter)
    meter = find_meter()
    assert meter.read(0, None) == Energy("powercap", 0)
    one.write_text("499999")  # wrapped round at 1,000,000
    two.write_text("200005")
    assert meter.read(0, None).joules == pytest.approx((499_999 + 1_000_001 - 999_000 + 200_000) / 1e6)
    one.write_text("599999")
    assert meter.read(0, None).joules == pytest.approx((599_999 + 1_000_001 - 999_000 + 200_000) / 1e6)
    one.unlink()
    assert meter.read(0, None).source == "busy_seconds"


class FakeNvml(ModuleType):
    class NVMLError(Exception):
        pass

    def __init__(self, *energy: int | Exception) -> None:
        super().__init__("pynvml")
        self.energy = list(energy)
        self.asked: list[str] = []

    def nvmlInit(self) -> None:  # noqa: N802
        pass

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:  # noqa: N802
        self.asked.append(uuid)
        return "handle"

    def nvmlDeviceGetTotalEnergyConsumption(self, handle: str) -> int:  # noqa: N802
        assert handle == "handle"
        value = self.energy.pop(0)
        if isinstance(value, Exception):
            raise value
        return value


def test_nvml_counts_millijoules_from_start(monkeypatch):
    nvml = FakeNvml(5_000_000, 5_002_500, FakeNvml.NVMLError("lost"))
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    meter = find_meter(UUID)
    assert nvml.asked == [UUID]
    assert meter.read(0, None) == Energy("nvml", 2.5)
    assert meter.read(0, (1.0, 2.0)).source == "profile"


def test_a_gpu_without_a_counter_or_without_pynvml(monkeypatch, caplog):
    """The CPU's is not read in its place."""
    monkeypatch.setattr(energy, "powercap", lambda: pytest.fail("asked"))
    for nvml in (FakeNvml(FakeNvml.NVMLError("Not Supported")), None):  # None: importing it fails
        monkeypatch.setitem(sys.modules, "pynvml", nvml)
        assert find_meter(UUID).read(0, None).source == "busy_seconds"
    assert "Not Supported" in caplog.text


def test_a_scrape_shows_source_and_joules():
    text, _ = Metrics(lambda: Snapshot([], [1.0], lambda: Energy("nvml", 12.5))).render()
    assert b'starling_energy_joules_total{source="nvml"} 12.5' in text
    bare, _ = Metrics(lambda: Snapshot([], [1.0])).render()
    assert b"energy" not in bare
