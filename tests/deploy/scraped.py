"""What /metrics of the application gives, and which of it a PromQL expression asks for."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import promql_parser as promql
from lifespan import serving
from models.folders import write_model
from prometheus_client.parser import text_string_to_metric_families

from app.lifecycle import Lifecycle
from app.main import create_app
from app.settings import Settings

DEMO = Path(__file__).resolve().parents[2] / "app" / "models" / "demo"
#: What Prometheus adds to every series of a target.
TARGET = {"job", "instance", "namespace", "pod"}
STAGED = """\
from torch import nn
from app.models import Staged
def build():
    return Staged([nn.ReLU(), nn.Softmax(dim=1)])
"""
#: Name of a series -> name of a label -> its values.
Series = Mapping[str, Mapping[str, set[str]]]


async def scrape(folder: Path) -> list[str]:
    """Three pages of a server with a whole model and one in stages: before any call, after calls of both classes, and
    after the whole model has been unloaded.
    """
    write_model(folder / "staged", code=STAGED)
    settings = Settings(
        models=str(folder), model=(f"echo={DEMO / 'echo'}",), profile_dir=folder / "profiles", profile_budget_s=0
    )
    lifecycle = Lifecycle()
    lifecycle.certificate_expires = lambda: 4e9  # as with HTTPS
    async with serving(create_app(settings, lifecycle)) as (client, state):

        async def page() -> str:
            return (await client.get("/metrics")).text

        pages = [await page()]
        for model, row in (("echo", [1, 2, 3, 4]), ("staged", [1, 2, 3])):
            for klass in ("realtime", "best_effort"):
                answer = await client.post(f"/predict/{model}", json=row, headers={"X-Class": klass})
                assert answer.status_code == 200, answer.text
        pages.append(await page())
        await state["catalog"].unload("echo")
        return [*pages, await page()]


def names(text: str) -> set[str]:
    """All series of a page, with their labels."""
    return {line.rpartition(" ")[0] for line in text.splitlines() if not line.startswith("#")}


def series_of(text: str) -> dict[str, dict[str, set[str]]]:
    found: dict[str, dict[str, set[str]]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels = found.setdefault(sample.name, defaultdict(set))
            for name, value in sample.labels.items():
                labels[name].add(value)
    return found


@dataclass(frozen=True)
class ModelCall:
    """One selector of an expression: the series, and its matchers as (label, whether by regular expression, value)."""

    name: str
    matchers: tuple[tuple[str, bool, str], ...]


@dataclass
class Parsed:
    """An expression: its selectors, the labels that it groups by, and those that it leaves out or joins on."""

    asked: list[ModelCall] = field(default_factory=list)
    by: set[str] = field(default_factory=set)
    others: set[str] = field(default_factory=set)

    def labels(self, series: Series, recorded: Series) -> set[str]:
        """What labels its result may have."""
        if self.by:
            return self.by
        own = (series.get(one.name) or recorded.get(one.name, {}) for one in self.asked)
        return TARGET.union(*own) - self.others


def parsed(expression: str) -> Parsed:
    """Raises ValueError if it is no PromQL, or of the wrong types."""
    found = Parsed()

    def visit(node: Any) -> bool:
        if isinstance(node, promql.MatrixSelector | promql.VectorSelector):
            found.asked.append(_asked(getattr(node, "vector_selector", node)))
        elif isinstance(node, promql.AggregateExpr) and node.modifier is not None:
            kept = node.modifier.type == promql.AggModifierType.By
            (found.by if kept else found.others).update(node.modifier.labels)
        elif isinstance(node, promql.BinaryExpr) and node.modifier is not None and node.modifier.matching is not None:
            found.others.update(node.modifier.matching.labels)
        return True

    promql.walk(promql.parse(expression), visit)
    return found


def _asked(node: Any) -> ModelCall:
    by_pattern = (promql.MatchOp.Re, promql.MatchOp.NotRe)
    return ModelCall(node.name, tuple((one.name, one.op in by_pattern, one.value) for one in node.matchers.matchers))


def faults(expression: str, series: Series, recorded: Series) -> Iterator[str]:
    """What an expression asks for that is not there. `recorded`: the series that rules make."""
    told = parsed(expression)
    known = set(TARGET)
    for one in told.asked:
        own = series.get(one.name)
        if own is None and one.name not in {*recorded, "up"}:
            yield f"{one.name}: no such series"
            continue
        has = TARGET.union(own or recorded.get(one.name, {}))
        known |= has
        for name, by_pattern, value in one.matchers:
            if name not in has:
                yield f"{one.name}: no label {name}"
            elif own and name not in TARGET and "$" not in value:
                yield from _values(one.name, name, value.split("|") if by_pattern else [value], own[name])
    yield from (f"no series has the label {name}" for name in sorted((told.by | told.others) - known))


def _values(series: str, label: str, alternatives: list[str], seen: set[str]) -> Iterator[str]:
    """Each alternative of a matcher must be a value that there is, or stand for any."""
    yield from (f"{series}: {label} is never {one!r}" for one in alternatives if one not in {*seen, ".+"})
