"""The optimum of two stages against the one-stage solver, against brute force, and against itself with more states."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from tiers import full

from app.scheduler.estimates.profile import linear
from app.scheduler.optimal import solver
from experiments.stages.two_stages import WAIT, Action, Rule, evaluate, solve

MS = 1_000_000
FLAT = linear(3.5, 0.3, 4).batch_ns
STEEP = linear(0.1, 1.5, 4).batch_ns
FREE = (1,) * 4  # nanosecond


def peak(first: tuple[int, ...], second: tuple[int, ...]) -> float:
    return max(size * 1e9 / sum(times) for size, times in enumerate(zip(first, second, strict=True), 1))


def unsliced(waiting: int, standing: int) -> Action:
    """All that waits, from end to end."""
    rows = min(standing or waiting, 4)
    return Action(int(standing > 0), rows, rows)


@full
@pytest.mark.parametrize("load", [0.9])
@pytest.mark.parametrize("first", [FLAT, (4 * MS, 9 * MS, 13 * MS, 10 * MS)])
def test_a_second_stage_that_costs_nothing_changes_nothing(first: tuple[int, ...], load: float) -> None:
    rate = load * peak(first, FREE)
    assert solve(first, FREE, rate).mean_ns == pytest.approx(solver.solve(first, rate).mean_ns, rel=1e-5)
    assert solve(FREE, first, rate).mean_ns == pytest.approx(solver.solve(first, rate).mean_ns, rel=1e-5)


@full
@pytest.mark.parametrize("load", [0.3, 0.9])
def test_going_through_at_once_is_the_whole_model(load: float) -> None:
    whole = tuple(map(sum, zip(FLAT, STEEP, strict=True)))
    rate = load * peak(FLAT, STEEP)
    table = [min(waiting, 4) for waiting in range(257)]
    expected = solver.evaluate(whole, rate, table).mean_ns
    assert evaluate(FLAT, STEEP, rate, unsliced, states=128).mean_ns == pytest.approx(expected, rel=1e-6)
    assert solve(FLAT, STEEP, rate).mean_ns < solver.solve(whole, rate).mean_ns


@full
@pytest.mark.parametrize(
    ("first", "second", "load"),
    [(STEEP, FLAT, 0.6), (FLAT, STEEP, 0.95)],
    ids=["steep-flat-0.6", "flat-steep-0.95"],
)
def test_more_states_give_the_same(first: tuple[int, ...], second: tuple[int, ...], load: float) -> None:
    rate = load * peak(first, second)
    once = solve(first, second, rate)
    assert solve(first, second, rate, states=96).mean_ns == pytest.approx(once.mean_ns, rel=1e-7)
    assert solve(first, second, rate, standing=12).mean_ns == pytest.approx(once.mean_ns, rel=1e-3)
    follow = evaluate(first, second, rate, lambda waiting, standing: once.table[waiting][standing])
    assert follow.mean_ns == pytest.approx(once.mean_ns, rel=1e-9)


def plain_mean_ns(first: tuple[int, ...], second: tuple[int, ...], rate: float, rule: Rule, most: int) -> float:
    """The chain written down state by state; arrivals beyond `most` waiting are lost."""
    count = 3 * (most + 1)
    chances, area, spent = np.zeros((count, count)), np.zeros(count), np.zeros(count)
    for waiting, standing in product(range(most + 1), range(3)):
        state, action = 3 * waiting + standing, rule(waiting, standing)
        if not action.rows:
            spent[state], area[state] = 1e9 / rate, (waiting + standing) * 1e9 / rate
            chances[state, 3 * min(most, waiting + 1) + standing] = 1
            continue
        time = (first, second)[action.stage][action.size - 1]
        come, chance = rate * time / 1e9, np.exp(-rate * time / 1e9)
        spent[state], area[state] = time, (waiting + standing) * time + come * time / 2
        left, after = waiting - action.rows * (action.stage == 0), standing + (1 - 2 * action.stage) * action.rows
        for more in range(40):
            chances[state, 3 * min(most, left + more) + after] += chance
            chance *= come / (more + 1)
    system = np.vstack([(chances.T - np.eye(count)), np.ones(count)])
    stationary = np.linalg.lstsq(system, np.r_[np.zeros(count), 1.0], rcond=None)[0]
    return float(stationary @ area / (stationary @ spent) / rate * 1e9)


@full
@pytest.mark.parametrize("load", [0.7])
@pytest.mark.parametrize(("first", "second"), [((4 * MS, 5 * MS), (MS, 2 * MS)), ((3 * MS, 3 * MS), (3 * MS, 4 * MS))])
def test_no_policy_is_better(first: tuple[int, ...], second: tuple[int, ...], load: float) -> None:
    """All that can be done with up to two rows on either side, at most two of them between the stages, tried out."""
    rate = load * peak(first, second)
    free = {
        (1, 0): [(0, 0), (0, 1)], (2, 0): [(0, 1), (0, 2)], (0, 1): [(0, 0), (1, 1)], (0, 2): [(1, 1), (1, 2)],
        (1, 1): [(0, 1), (1, 1)], (2, 1): [(0, 1), (1, 1)], (1, 2): [(1, 1), (1, 2)], (2, 2): [(1, 1), (1, 2)],
    }  # fmt: skip
    best = solve(first, second, rate, standing=2)

    def rule_of(chosen: dict[tuple[int, int], tuple[int, int]]) -> Rule:
        def rule(waiting: int, standing: int) -> Action:
            if (waiting, standing) not in chosen:
                return best.table[min(waiting, 60)][standing]
            stage, rows = chosen[waiting, standing]
            return Action(stage, rows, rows)

        return rule

    tried = min(
        plain_mean_ns(first, second, rate, rule_of(dict(zip(free, chosen, strict=True))), 24)
        for chosen in product(*free.values())
    )
    assert best.mean_ns == pytest.approx(tried, rel=2e-4)
    plain = plain_mean_ns(first, second, rate, lambda waiting, standing: best.table[min(waiting, 60)][standing], 40)
    assert best.mean_ns == pytest.approx(plain, rel=1e-5)


def test_bad_questions_are_refused() -> None:
    with pytest.raises(ValueError, match=r"stages: expected times above 0 of 1 to 8 rows"):
        solve((MS,) * 9, (MS,) * 9, 1.0)
    with pytest.raises(ValueError, match=r"rate: expected less than 500 rows/s"):
        solve((MS,), (MS,), 501.0)
    with pytest.raises(ValueError, match="standing: expected at least the largest batch, 2, got 1"):
        solve((MS,) * 2, (MS,) * 2, 1.0, standing=1)
    with pytest.raises(ValueError, match=r"rule: expected at most 1 rows in \(1, 0\)"):
        evaluate((MS,) * 2, (MS,) * 2, 1.0, lambda waiting, standing: Action(0, 2, 2) if waiting else WAIT)
