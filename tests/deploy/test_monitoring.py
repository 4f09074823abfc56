"""Alert rules, the adapter's rule and the dashboard: PromQL that parses and asks for series that /metrics has."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from .kustomize import documents
from .scraped import TARGET, Series, faults, names, parsed, scrape, series_of
from .server_facts import DEPLOY

MONITORING = DEPLOY / "monitoring"


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    return asyncio.run(scrape(tmp_path_factory.mktemp("repository")))


@pytest.fixture(scope="module")
def series(pages: list[str]) -> Series:
    """Of the page before any call: all that rules and panels ask for must be there then."""
    return series_of(pages[0])


def test_series_come_with_a_model_and_go_with_it(pages: list[str]) -> None:
    """`increase` does not see the step with which a series appears, and a value that stays would be an old one."""
    first, later, gone = (names(page) for page in pages)
    assert later == first
    assert {name for name in first - gone if 'model="echo"' not in name} == set()
    assert {name for name in gone if 'model="echo"' in name} == {'starling_model_ready{model="echo",version="1"}'}
    assert not [line for page in pages for line in page.splitlines() if line.lower().endswith((" nan", "inf"))]


def groups() -> list[dict[str, Any]]:
    (told,) = documents(MONITORING / "alerts.yaml")
    assert set(told) == {"groups"}
    found: list[dict[str, Any]] = told["groups"]
    return found


def rules(kind: str) -> Iterator[dict[str, Any]]:
    """`kind` is "alert" or "record"."""
    return (rule for group in groups() for rule in group["rules"] if kind in rule)


def recorded() -> dict[str, dict[str, set[str]]]:
    """The series that the recording rules make: their labels, with no values."""
    return {rule["record"]: {label: set() for label in parsed(rule["expr"]).by} for rule in rules("record")}


def seconds(text: str) -> float:
    units = {"s": 1, "m": 60, "h": 3600, "d": 86400}
    return float(text[:-1]) * units[text[-1]]


def test_rules_ask_for_what_there_is(series: Series) -> None:
    wrong = [fault for kind in ("alert", "record") for rule in rules(kind)
             for fault in faults(rule["expr"], series, recorded())]  # fmt: skip
    assert wrong == []


def test_annotations_name_labels_that_the_alert_has(series: Series) -> None:
    for rule in rules("alert"):
        has = parsed(rule["expr"]).labels(series, recorded())
        for text in rule["annotations"].values():
            assert set(re.findall(r"\$labels\.(\w+)", text)) <= has, rule["alert"]
            assert text.count("{{") == text.count("}}")


def test_burn_rates_have_every_window(series: Series) -> None:
    """Of errors and of latency: pairs of windows, a twelfth of each other, at the burn rates of their budget."""
    for what, budget in (("failed", "0.001"), ("late", "0.01")):
        text = " ".join(rule["expr"] for rule in rules("alert") if f"starling:{what}:" in rule["expr"])
        found = re.findall(rf"starling:{what}:ratio_rate(\w+) > ([\d.]+) \* ([\d.]+)", text)
        pairs = list(zip(found[::2], found[1::2], strict=True))
        assert [(long[0], short[0], float(long[1])) for long, short in pairs] == [
            ("1h", "5m", 14.4), ("6h", "30m", 6), ("1d", "2h", 3), ("3d", "6h", 1),
        ]  # fmt: skip
        for long, short in pairs:
            assert seconds(long[0]) == 12 * seconds(short[0])
            assert (long[1:], long[2]) == (short[1:], budget)


def test_what_can_go_wrong_has_an_alert() -> None:
    told = " ".join(rule["expr"] for rule in rules("alert"))
    for name in ("starling_live", "starling_ready", "starling_queue_length", "starling_best_effort_oldest_seconds"):
        assert name in told
    assert {"queue_full", "deadline_unreachable"} <= set(re.findall(r"\w+", told))


def test_best_effort_rows_that_wait_page_nobody() -> None:
    """They may wait for ever; that has a ticket of its own."""
    asked = [one for rule in rules("alert") if rule["labels"]["severity"] == "page"
             for one in parsed(rule["expr"]).asked if one.name == "starling_queue_length"]  # fmt: skip
    assert asked
    assert all(("class", False, "realtime") in one.matchers for one in asked)


def test_alerts_fire_when_they_should() -> None:
    """On made-up series, where there is a promtool; the cases name alerts that there are in any case."""
    cases = Path(__file__).with_name("alerts_test.yaml")
    (told,) = documents(cases)
    tried = {one["alertname"] for case in told["tests"] for one in case["alert_rule_test"]}
    assert tried | {"StarlingErrorBudgetSlow", "StarlingLatencyBudgetSlow"} == {
        rule["alert"] for rule in rules("alert")
    }
    promtool = shutil.which("promtool")
    if promtool is not None:
        ran = subprocess.run(
            [promtool, "test", "rules", str(cases)], capture_output=True, text=True, timeout=60, check=False
        )
        assert ran.returncode == 0, ran.stdout + ran.stderr


def test_the_operators_rules_are_the_same() -> None:
    (told,) = documents(MONITORING / "prometheus-rule.yaml")
    assert told["spec"]["groups"] == groups(), "copy the groups of alerts.yaml into prometheus-rule.yaml"


def test_adapter_asks_for_what_there_is(series: Series) -> None:
    (told,) = documents(MONITORING / "adapter-rules.yaml")
    (rule,) = told["rules"]
    assert {entry["resource"] for entry in rule["resources"]["overrides"].values()} == {"namespace", "pod"}
    assert set(rule["resources"]["overrides"]) <= TARGET
    assert list(faults(rule["seriesQuery"], series, {})) == []
    query = rule["metricsQuery"].replace("<<.GroupBy>>", "pod")
    assert query != rule["metricsQuery"]
    assert list(faults(query.replace("<<.LabelMatchers>>", 'namespace="a",pod=~"b|c"'), series, {})) == []


@pytest.fixture(scope="module")
def dashboard() -> dict[str, Any]:
    told: dict[str, Any] = json.loads((MONITORING / "dashboard.json").read_text(encoding="utf-8"))
    return told


def targets(dashboard: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """(expression, legend) of every query, with Grafana's variables filled in as it would."""
    for panel in dashboard["panels"]:
        for target in panel.get("targets", []):
            yield target["expr"].replace("$__rate_interval", "1m"), target["legendFormat"]


def test_panels_ask_for_what_there_is(dashboard: dict[str, Any], series: Series) -> None:
    found = list(targets(dashboard))
    assert len(found) > 15
    assert [fault for expression, _ in found for fault in faults(expression, series, recorded())] == []


def test_variables_are_those_that_are_used(dashboard: dict[str, Any], series: Series) -> None:
    variables = {one["name"]: one for one in dashboard["templating"]["list"]}
    text = json.dumps(dashboard["panels"])
    used = set(re.findall(r"\$\{?(\w+)", text)) - {"__rate_interval"}
    assert used == set(variables)
    for one in variables.values():
        if one["type"] == "query":
            (selector, label) = re.fullmatch(r"label_values\((.+), (\w+)\)", one["definition"]).groups()  # type: ignore[union-attr]
            assert list(faults(selector, series, {})) == []
            assert label in TARGET | set(series[parsed(selector).asked[0].name])
