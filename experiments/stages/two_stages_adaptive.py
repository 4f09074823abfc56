"""How far `adaptive` is from the best for a model in two stages: `python -m experiments.stages.two_stages_adaptive`.

Of batches of up to 8 rows, exactly: the least mean latency of any policy (`two_stages`), that of `adaptive` on the same
chain, and that of the best policy for the whole model. Of a profile with two stages, or of two halves of its time.
Prints a table, and what the optimum does at the last load.

The policy is asked as the scheduler asks it at the end of a unit: with the rows between the stages, because they
arrived first, and if it holds them, with those that wait. The rate is known to it, and no burst is under way.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace

from app.scheduler.estimates.profile import ModelProfile
from app.scheduler.optimal import solver
from app.scheduler.policies import Cut, Hold, KeyView, Neighbours
from app.scheduler.rows.program import ProgramState
from app.scheduler.types import DeviceSpec, Program, WorkerSpec
from experiments.stages.two_stages import LARGEST, WAIT, Action, Rule, Solution, evaluate, solve
from loadtest.common.page import lines_table
from planner import option_values
from planner.fleet import Setup
from planner.node import PROGRAM

_NEVER = 1 << 62
_SHOWN = 12  # rows that wait, in the decisions shown


def halved(profile: ModelProfile) -> ModelProfile:
    """The same model in two stages, each of which takes half of its time for any number of rows."""
    stage = ModelProfile(tuple(max(1, time // 2) for time in profile.batch_ns))
    return replace(profile, stages=(stage, stage))


def times(setup: Setup) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Batch times of both stages with their hand-over. Raises ValueError unless the profile has two, and no cell."""
    stages = setup.profile.stages
    if len(stages) != 2 or any(stage.cell for stage in stages):
        raise ValueError(f"stages: expected a profile of two stages that are no cells, got {len(stages)} stages")
    first, second = (tuple(time + (setup.profile.handover_ns or 0) for time in stage.batch_ns) for stage in stages)
    return first, second


def exact(setup: Setup) -> Solution:
    """The mean latency of the setup's policy, at its rate, on one device that runs one unit at a time."""
    first, second = times(setup)
    assert setup.rate is not None
    return evaluate(first, second, setup.rate, rule(setup))


def rule(setup: Setup) -> Rule:
    """The decisions of the setup's policy."""
    setup = setup.solved()
    profile, most = setup.profile, setup.profile.max_batch
    program = Program(PROGRAM, profile.model, profile.program_stages(), setup.policy, most, setup.max_queue)
    state = ProgramState(program, None, DeviceSpec((WorkerSpec(most),)), 0)
    state.set_control(setup.tables)
    state.facts.rate = setup.rate or 0.0
    state.facts.level = -1 if setup.tables is None else setup.tables.level(state.facts.rate, 1.0)

    def ask(stage: int, waiting: int, standing: int) -> Cut | Hold:
        ready = standing if stage else waiting
        neighbours = Neighbours(
            cell=False, batch=None, here=min(ready, most), newcomers=False, latest=None, last_formed=-1,
            active=standing, other_buckets=0, oldest=0, upstream_stage=0 if stage and waiting else -1,
            upstream=waiting if stage else 0, downstream=0 if stage else standing,
            downstream_stage=1 if standing and not stage else -1,
            waiting_before=waiting if stage else 0, waiting_after=0 if stage else standing,
        )  # fmt: skip
        view = KeyView(
            ready=ready, limit=most, full=most, oldest=lambda: 0, max_delay=setup.max_delay_ns, room=_NEVER, due=_NEVER,
            running_and_free=lambda: (1, 1), facts=state.facts, stage=stage, neighbours=neighbours,
        )  # fmt: skip
        return state.policy.decide(view, (most,), 0)

    def follow(waiting: int, standing: int) -> Action:
        for stage, rows in ((1, standing), (0, waiting)):
            if rows and isinstance(cut := ask(stage, waiting, standing), Cut):
                return Action(stage, cut.rows, cut.size)
        return WAIT

    return follow


def decisions(best: Solution) -> str:
    """What the optimum does, by the rows that wait (across) and the rows between the stages (down)."""
    largest = len(best.table[0]) // 2
    rows = [
        [str(between), *(f"{action.stage}:{action.rows}" if action.rows else "wait"
                         for action in (best.table[waiting][between] for waiting in range(_SHOWN + 1)))]
        for between in range(largest + 1)
    ]  # fmt: skip
    return lines_table(["", *map(str, range(_SHOWN + 1))], rows)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--profile", default="linear:7+0.6b", help="as of `starling optimum` [linear:7+0.6b]")
    parser.add_argument("--max-batch", type=int, default=LARGEST, help="rows [8]")
    parser.add_argument("--load", default="0.3,0.9", help="of the most rows a second [0.3,0.9]")
    chosen = parser.parse_args(arguments)
    profile = option_values.profile(chosen.profile, chosen.max_batch)
    profile = profile if profile.stages else halved(profile)
    lines = []
    for load in map(float, chosen.load.split(",")):
        setup = Setup(profile, load * profile.peak, max_queue=1 << 30)
        both = times(setup)
        best = solve(*both, load * profile.peak)
        whole = solver.solve(tuple(map(sum, zip(*both, strict=True))), load * profile.peak)
        line = [f"{load:g}", f"{best.mean_ns / 1e6:.3f}"]
        for mean_ns in (exact(setup).mean_ns, whole.mean_ns):
            line += [f"{mean_ns / 1e6:.3f}", f"{mean_ns / best.mean_ns - 1:+.2%}"]
        lines.append(line)
    print(lines_table(["load", "optimum, ms", "adaptive, ms", "above", "whole, ms", "above"], lines))
    print(f"\nthe optimum at load {load:g}: rows waiting across, rows between the stages down; 0:b and 1:b run b\n")
    print(decisions(best))


if __name__ == "__main__":
    main()
