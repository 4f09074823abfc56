"""The hunt by seed finds a fault that is put there, in its smallest form, and finds it again."""

from __future__ import annotations

import pytest
from hunt import fault_of, main
from tiers import full

from app.scheduler.rows.ledger import Ledger
from app.scheduler.rows.program import ProgramState
from app.scheduler.types import Row

from .test_invariants import traces


@full
def test_a_fault_is_found_again_by_its_seed_and_made_small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Here rows that run again lose their place on the device."""
    right = Ledger.retry

    def retry(self: Ledger, rows: list[Row], state: ProgramState) -> None:
        right(self, rows, state)
        self.alive += len(rows)

    monkeypatch.setattr(Ledger, "retry", retry)
    kind = traces("no_wait", "realtime", most=4)
    found = next((number, fault) for number in range(50) if (fault := fault_of(number, kind)) is not None)
    number, (trace, error) = found
    assert isinstance(error, AssertionError)
    assert len(trace.arrivals) <= 2
    again = fault_of(number, kind)
    assert again is not None
    assert again[0] == trace
    monkeypatch.undo()
    assert fault_of(number, kind) is None


def test_seeds_without_a_fault_end_with_0(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--seeds", "1", "--first", "3"]) == 0
    assert "1 seeds, 4 traces, 0 faults" in capsys.readouterr().out
