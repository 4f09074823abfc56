"""The simulator's page: sections made again, and live beside simulated."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest

from app.scheduler.estimates.profile import linear
from experiments import simulation
from loadtest.common.experiment import in_sections
from loadtest.common.paths import DOCS, ROOT
from loadtest.generator.plan import BenchPlan
from planner.fleet import Setup, run

ONE = {"cpu_s": 3.0, "peak_mib": 50.0}


def test_a_section_made_again_replaces_the_one_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The others are those of the documentation."""
    before = json.loads((DOCS / "simulation.json").read_text())
    made = {"model": "linear:1+1b", "requests": 7, "policies": {"no_wait": {**ONE, "wall_s": [2.0, 1.0, 4.0]}}}
    again = in_sections(simulation.PAGE, "experiments.simulation", "", {"speed": lambda say: made, "fleet": dict})
    assert again.main(["speed", "--out", str(tmp_path)]) == 0
    found = json.loads((tmp_path / "simulation.json").read_text())
    assert found["speed"].items() >= made.items()
    assert found["fleet"] == before["fleet"]
    text = (tmp_path / "simulation.md").read_text()
    assert "| no_wait | 2.0 | 1.0 – 4.0 | 3.0 | 4 | 50 |" in text


def test_simulated_seeds_are_those_of_the_load_generator() -> None:
    """The same instants: what the generator sends in a second is what a setup of that many requests is fed with."""
    plan = BenchPlan(url="localhost:1", model="m", rate=200)
    sent = plan.instants(200, 7, 1.0)
    setup = Setup(linear(1, 1, 4), 200, "no_wait", requests=len(sent), seed=7)
    assert np.concatenate(list(setup.instants())).tolist() == sent.tolist()
    assert run(setup)["requests"] == len(sent)


def test_the_documented_profile_is_the_example() -> None:
    """That the outputs of docs/simulation.md are those of its commands is seen where all documented commands run."""
    text = (ROOT / "docs" / "simulation.md").read_text(encoding="utf-8")
    profile, *_ = re.findall(r"```json\n(.*?)```", text, re.DOTALL)
    assert json.loads(profile) == json.loads((DOCS / "simulation-profile.json").read_text())
