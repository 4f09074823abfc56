"""Looks for a fault of the scheduler by seed: `python -m tests.hunt --seeds 10000`.

Each seed drives the scheduler through random traces: devices, policies, classes, stages, cells, cancels, deadlines,
faults, programs that are removed and measured anew. All invariants (`tests/scheduler/test_invariants.py`) are checked
after each event, and the record of each trace is replayed. A trace that breaks one is made as small as it can be and
printed with its seed; `--first SEED --seeds 1` finds it again. Ends with 1 if there was any.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

from hypothesis import HealthCheck, Phase, Verbosity, given, seed, settings
from hypothesis.strategies import SearchStrategy

sys.path.insert(0, str(Path(__file__).parent))  # the tests' helpers, as pytest has it

from scheduler.test_invariants import MIXED, cells, traces
from scheduler.world import Trace, World

from app.scheduler.policies import POLICIES
from planner.replay import replay

EACH = 4  # traces of a seed
LONGEST = 60  # calls of a trace


#: What the seeds try in turn: cells, several policies at once, and each policy.
KINDS = [cells(), *(traces(policy, most=LONGEST) for policy in (MIXED, *POLICIES))]


def fault_of(number: int, kind: SearchStrategy[Trace] | None = None) -> tuple[Trace, Exception] | None:
    """The smallest trace of this seed that breaks an invariant, and what it breaks."""
    tried: list[Trace] = []

    @seed(number)
    @settings(
        max_examples=EACH, database=None, deadline=None, phases=[Phase.generate, Phase.shrink],
        suppress_health_check=list(HealthCheck), verbosity=Verbosity.quiet, report_multiple_bugs=False,
    )  # fmt: skip
    @given(KINDS[number % len(KINDS)] if kind is None else kind)
    def holds(trace: Trace) -> None:
        tried[:] = [trace]
        replayed = replay([json.dumps(entry) for entry in World(trace).run().entries])
        assert replayed.same, f"a replay differs: {replayed}"

    try:
        holds()
    except Exception as exc:  # an invariant, or the scheduler itself
        return tried[0], exc  # Hypothesis runs the smallest last
    return None


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=1000, help="how many [1000]")
    parser.add_argument("--first", type=int, default=0, help="the first of them [0]")
    chosen = parser.parse_args(arguments)
    started, faults = time.monotonic(), 0
    for number in range(chosen.first, chosen.first + chosen.seeds):
        found = fault_of(number)
        if found is not None:
            faults += 1
            print(f"seed {number}: {type(found[1]).__name__}: {found[1]}\n    {found[0]}", flush=True)
    print(f"{chosen.seeds} seeds, {chosen.seeds * EACH} traces, {faults} faults, {time.monotonic() - started:.0f} s")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
