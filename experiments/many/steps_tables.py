"""The tables of `steps`: two workers over HTTP, policies compared in each step of a rising rate."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from statistics import fmean

from loadtest.common.page import Column, Data, ms, standard_error, table

WITHIN = 1.02  # times the best of the others

RIVALS = ("no_wait", "window", "ebird")


@dataclass(frozen=True)
class Step:
    """One step of one model. `means_ms`: by policy and seed."""

    model: str
    name: str
    rate: float
    delay_ms: float
    means_ms: Mapping[str, list[float]]

    @property
    def over(self) -> tuple[float, float]:
        """The mean of `adaptive` over that of the best of the others, and the standard error of it, by paired runs."""
        best = min((self.means_ms[policy] for policy in RIVALS), key=fmean)
        more = [own - other for own, other in zip(self.means_ms["adaptive"], best, strict=True)]
        return 1 + fmean(more) / fmean(best), standard_error(more) / fmean(best)


def steps(data: Data) -> Iterator[Step]:
    for study in data["studies"]:
        for schedule, parts in data["steps"].items():
            found = study["schedules"][schedule]
            for number, (_, share) in enumerate(parts):
                means = {policy: [run[number] for run in runs] for policy, runs in found.items()}
                yield Step(study["model"], f"{schedule}, {share:.0%}", share * study["peak"], study["delay_ms"], means)


def missed(data: Data) -> list[str]:
    return [
        f"{step.model}, {step.name}: {step.over[0]:.2f} ± {step.over[1]:.2f} times the best of the others"
        for step in steps(data)
        if step.over[0] > WITHIN
    ]


def shown(step: Step, policy: str) -> str:
    return ms(fmean(step.means_ms[policy]))


COLUMNS: dict[str, Column] = {
    "model": lambda step: step.model,
    "step": lambda step: step.name,
    "requests/s": lambda step: f"{step.rate:,.0f}",
    "`no_wait`, ms": lambda step: shown(step, "no_wait"),
    "`window`": lambda step: f"{shown(step, 'window')} ({step.delay_ms:g})",
    "`ebird`": lambda step: shown(step, "ebird"),
    "`adaptive`": lambda step: shown(step, "adaptive"),
    "over the best": lambda step: "{:.2f} ± {:.2f}".format(*step.over),
}


def fill(data: Data) -> Mapping[str, object]:
    seeds = ", ".join(f"{study['seeds']} of {study['model']}" for study in data["studies"])
    slower = ", ".join(f"x {study['slower']:.2f} of {study['model']}" for study in data["studies"])
    return {"target": WITHIN, "seeds": seeds, "slower": slower, "table": table(COLUMNS, steps(data))}
