"""Policies are compared seed by seed on one device, and what the figures cannot tell apart is not told apart."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from app.bench.run import Session, in_loop
from app.bench.stats import Repeat
from app.engine.cpu.device import CpuDevice
from app.scheduler.estimates.profile import linear, parse
from app.settings import Settings
from experiments.common.simulated import Policy, Server, serve, stepped
from experiments.policies import live, live_page
from experiments.policies import live_statistics as statistics
from loadtest.common.paths import ZOO

MS = 1_000_000
SECONDS = 7


def repeat(seed: int, *latencies_ms: float, batch: int = 1, errors: int = 0, compute_ms: float = 1) -> Repeat:
    latency = np.array([round(ms * MS) for ms in latencies_ms], np.int64)
    zeros = np.zeros(len(latency), np.int64)
    return Repeat(
        seed=seed, duration_s=SECONDS, elapsed_s=SECONDS,
        intended_ns=np.linspace(0, SECONDS * 1e9, len(latency), endpoint=False).astype(np.int64), latency_ns=latency,
        wait_ns=zeros, lag_ns=zeros, compute_ns=zeros + round(compute_ms * MS), server_ns=zeros, queue_ns=zeros,
        batch=zeros + batch, status=Counter(), errors=Counter({"timeout": errors} if errors else {}), examples={},
        unchecked=0,
    )  # fmt: skip


def runs(**means: tuple[float, ...]) -> dict[str, list[Repeat]]:
    return {name: [repeat(seed, mean, mean) for seed, mean in enumerate(found)] for name, found in means.items()}


def compare(found: dict[str, list[Repeat]]) -> dict[str, dict[str, Any]]:
    return {cell["policy"]: cell for cell in statistics.compare("m", 0.3, 100.0, found)}


def drawn(scale: float, seed: int, seeds: int = 8, requests: int = 700) -> list[Repeat]:
    """Latencies that are exponential, independent of any other's."""
    random = np.random.default_rng(seed)
    return [repeat(index, *(scale * random.exponential(10, requests))) for index in range(seeds)]


class TestMeans:
    def test_seeds_are_paired(self) -> None:
        """Both policies vary from seed to seed by far more than they differ; the difference is the same in each."""
        found = compare(runs(adaptive=(10, 20, 30), no_wait=(11, 21, 31)))
        assert (found["adaptive"]["beyond_ms"], found["adaptive"]["ci95_ms"]) == (0, 0)
        assert (found["no_wait"]["beyond_ms"], found["no_wait"]["ci95_ms"]) == (pytest.approx(1), pytest.approx(0))
        assert not live_page.same(found["no_wait"])

    def test_a_difference_within_its_interval_is_none(self) -> None:
        found = compare(runs(adaptive=(10, 20, 30), no_wait=(14, 16, 31)))
        assert live_page.same(found["no_wait"])
        assert found["no_wait"]["ci95_ms"] > found["no_wait"]["beyond_ms"] > 0

    def test_fewer_seeds_are_compared_with_the_same_ones(self) -> None:
        """The seed that `preferred` did not have is a slow one: its mean is not the lowest for that."""
        found = compare(runs(adaptive=(10, 20, 90), no_wait=(11, 22, 92), preferred=(12, 23)))
        assert found["preferred"]["mean_ms"] < found["adaptive"]["mean_ms"]
        assert found["adaptive"]["beyond_ms"] == 0
        assert found["preferred"]["beyond_ms"] == pytest.approx(2.5)
        assert found["preferred"]["seeds"] == 2

    def test_the_lowest_is_found_among_all(self) -> None:
        found = compare(runs(adaptive=(10, 20), no_wait=(9, 18), window=(9.5, 19)))
        assert [name for name, cell in found.items() if not cell["beyond_ms"]] == ["no_wait"]

    def test_rows_a_batch_is_a_mean_over_batches(self) -> None:
        """Two requests in a batch of two and one in a batch of one are two batches."""
        mixed = repeat(0, 1, 1, 1)
        mixed.batch[:] = (2, 2, 1)
        assert compare({"adaptive": [mixed]})["adaptive"]["batch"] == pytest.approx(1.5)


class TestTails:
    def test_the_best_itself_has_ratio_one(self) -> None:
        tail = statistics.tail("m", 0.3, {"adaptive": drawn(1, 0), "no_wait": drawn(2, 1)}, draws=500)
        assert (tail["best"], tail["ratio"], tail["low"], tail["high"]) == ("adaptive", 1, 1, 1)

    def test_a_clear_loss_is_one(self) -> None:
        tail = statistics.tail("m", 0.3, {"adaptive": drawn(2, 0), "no_wait": drawn(1, 1), "ebird": drawn(3, 2)}, 500)
        assert tail["best"] == "no_wait"
        assert 1.1 < tail["low"] < tail["ratio"] < tail["high"]
        assert tail["low"] < 2 < tail["high"]

    def test_likes_are_not_told_apart(self) -> None:
        """The plain ratio of `adaptive` to the luckiest of four like it is above 1; the interval holds the truth."""
        found = {name: drawn(1, seed) for seed, name in enumerate(("adaptive", "a", "b", "c", "d"), 20)}
        tail = statistics.tail("m", 0.3, found, draws=500)
        assert 1 < tail["ratio"] < tail["high"]
        assert tail["low"] == 1

    def test_what_both_met_is_not_noise(self) -> None:
        """Seeds and seconds differ by tens, the policies by 1.05 in each request: drawn together, the ratio is that."""
        random = np.random.default_rng(3)
        own = []
        for _ in range(6):
            load = random.uniform(1, 30) * np.repeat(random.uniform(1, 9, SECONDS), 100)
            own.append(load * random.exponential(1, SECONDS * 100))
        found = {
            "adaptive": [repeat(seed, *(1.05 * latency)) for seed, latency in enumerate(own)],
            "no_wait": [repeat(seed, *latency) for seed, latency in enumerate(own)],
        }
        tail = statistics.tail("m", 0.3, found, draws=300)
        assert (tail["low"], tail["high"]) == (pytest.approx(1.05), pytest.approx(1.05))

    def test_weights_are_counts_of_blocks(self) -> None:
        """Drawn once each, the 99th percentile is that of all; a draw without the slow block does not see it."""
        one = repeat(0, *([1.0] * 600), *([50.0] * 100))
        weights = np.array([[1] * 7, [1] * 6 + [0]])
        assert statistics._drawn([one], weights, 7).tolist() == [50 * MS, MS]

    def test_no_answer_takes_for_ever(self) -> None:
        """A rival that lets the slow ones time out does not win by it."""
        dropping = repeat(0, *([1.0] * 90))
        dropping.latency_ns[::9] = -1  # some in each second
        tail = statistics.tail("m", 0.3, {"adaptive": [repeat(0, *([2.0] * 90))], "preferred": [dropping]}, 100)
        assert (tail["best"], tail["high"]) == ("adaptive", 1)

    def test_only_common_seeds_count(self) -> None:
        """`preferred` was not run at the slow seed."""
        found = {"adaptive": [*drawn(1, 0, 2), repeat(2, *([900.0] * 700))], "preferred": drawn(1, 1, 2)}
        assert statistics.tail("m", 0.3, found, 200)["ratio"] < 1.5


class TestDevice:
    @pytest.mark.parametrize(("at_once", "threads", "cores"), [(1, 1, 1), (2, 1, 2), (2, 2, 4), (1, 4, 4), (4, 1, 4)])
    def test_every_policy_runs_as_many_units_at_once(self, at_once: int, threads: int, cores: int) -> None:
        found = live.contenders(at_once, cores // threads, 5)
        assert list(found) == ["adaptive", "no_wait", "window, 5 ms", "preferred", "ebird"]
        for name, flags in found.items():
            given = dict(zip(flags[::2], flags[1::2], strict=True))
            workers = Settings(workers=given.get("--workers", ()), threads=1).workers
            capacities = workers or live.Ebird.workers(live.LARGEST)
            assert CpuDevice(tuple(capacities), threads, cores).spec.max_running == at_once
            assert given["--policy"] == name.partition(",")[0]
            assert ("--workers" in given) != (name == "ebird")
            assert workers in ((), (32,) * at_once)

    @pytest.mark.parametrize(("at_once", "bound"), [(1, 2), (3, 4), (7, 7)])
    def test_ebird_is_left_out_where_its_device_is_another(self, at_once: int, bound: int) -> None:
        """It would run two units at once against one; or its six workers against seven."""
        found = live.contenders(at_once, bound, 5)
        assert "ebird" not in found
        assert all(flags[flags.index("--workers") + 1] == ",".join(["32"] * at_once) for flags in found.values())


class TestOrder:
    @pytest.mark.parametrize("slow", [(), ("preferred",)])
    def test_alternation(self, slow: Sequence[str], monkeypatch: pytest.MonkeyPatch) -> None:
        """Every policy at a seed before the next, an empty server behind each; what is overloaded ends early."""
        said: list[tuple[str, object]] = []

        class Played(Session):
            async def __aenter__(self) -> Played:
                return self

            async def __aexit__(self, *exc: object) -> None: ...

            async def warm(self, progress: object = None) -> None: ...

            async def settle(self) -> None:
                said.append((self.plan.url, "settled"))

            async def once(self, plan: object, seed: int, duration_s: float, progress: object = None) -> Repeat:
                said.append((self.plan.url, seed))
                return repeat(seed, 300.0 if self.plan.url.rpartition(":")[2] in ports_of_slow else 3.0)

        monkeypatch.setattr(live, "Session", Played)
        names = ["adaptive", "no_wait", "preferred"]
        servers = {name: SimpleNamespace(port=port) for port, name in enumerate(names, 1)}
        ports_of_slow = [str(servers[name].port) for name in slow]
        chosen = live.EXPERIMENT.parse(["--repeats", "4", "--seed", "10"])
        model_run = live.ModelRun(ZOO / "mlp", chosen, "", print)
        found = in_loop(model_run.alternate(servers, 9.0))  # type: ignore[arg-type]
        assert {name: [one.seed for one in repeats] for name, repeats in found.items()} == {
            name: [10, 11, 12] if name in slow else [10, 11, 12, 13] for name in names
        }
        at = [(url[-1], what) for url, what in said[len(names) :]]
        assert at[1::2] == [(url, "settled") for url, _ in at[::2]]
        assert [seed for _, seed in at[::2]] == sorted(seed for _, seed in at[::2])
        assert [url for url, _ in at[:6:2]] == ["1", "2", "3"]
        assert [url for url, _ in at[6:12:2]] == ["2", "1", "3"]


def test_the_delay_of_the_least_mean_is_simulated(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where one row takes as long as eight, waiting pays at a load that single rows exceed; for a line it does not."""
    monkeypatch.setattr(live, "SIMULATED_REQUESTS", 1500)
    monkeypatch.setattr(live, "SIMULATED_SEEDS", 1)
    line = linear(0.2, 3, 32)
    assert live.least_mean_ms(line, 1, 0.3 * line.peak) == min(live.SIMULATED_DELAYS_MS)
    peaked = parse({"batch_ms": {"1": 4.6, "2": 9.5, "3": 14.0, "4": 10.0, "8": 11.7, "32": 25.3}})
    rate = 0.3 * peaked.peak
    found = live.least_mean_ms(peaked, 1, rate)
    arrivals = stepped([(1500, rate)], 0)
    means = {
        delay: serve(Server(Policy("window", delay), peaked, (32,)), arrivals).latency_ms.mean()
        for delay in live.SIMULATED_DELAYS_MS
    }
    assert found == min(means, key=lambda delay: means[delay])
