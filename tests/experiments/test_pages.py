"""The pages in docs/bench are what their JSON says: made again from it, each is the same."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from experiments.cells import cells_page
from experiments.classes import bulk_page, preemption_page
from experiments.costs import hot_path_page
from experiments.disb import live_page as disb_live_page
from experiments.disb import simulated_page as disb_simulated_page
from experiments.papers import adaptive_batching_page, ebird_page, stages_page, steps_page
from experiments.policies import lengths_page, live_page, live_vs_sim_page, simulated_page
from experiments.ray import ray_serve_page
from experiments.simulation import page as simulation_page
from experiments.stages import ahead_page, glue_page, sliced_page
from loadtest.bench import http_page
from loadtest.common import experiment
from loadtest.common.paths import DOCS
from loadtest.drill import page as drill_page
from loadtest.soak import page as soak_page

PAGES: dict[str, Callable[[Any, Path], list[str]]] = {
    "ahead": ahead_page.write,
    "bulk": bulk_page.write,
    "cells": cells_page.write,
    "glue": glue_page.write,
    "lengths": lengths_page.write,
    "http": http_page.write,
    "hot-path": hot_path_page.write,
    "live-vs-sim": live_vs_sim_page.write,
    "policies": simulated_page.write,
    "preemption": preemption_page.write,
    "ray-serve": ray_serve_page.write,
    "soak": soak_page.write,
    "policies-live": live_page.write,
    "policies-live-1": live_page.write,
    "simulation": simulation_page.write,
    "disb-simulated": disb_simulated_page.write,
    "disb-live": disb_live_page.write,
    "drill": drill_page.write,
    "adaptive_batching": adaptive_batching_page.write,
    "ebird": ebird_page.write,
    "sliced": sliced_page.write,
    "stages": stages_page.write,
    "steps": steps_page.write,
}


@pytest.mark.parametrize("name", PAGES)
def test_page_is_what_its_json_says(name: str, tmp_path: Path) -> None:
    made = PAGES[name](experiment.load(DOCS / f"{name}.json"), tmp_path)
    assert f"{name}.md" in made
    assert (tmp_path / f"{name}.md").read_text("utf-8") == (DOCS / f"{name}.md").read_text("utf-8")
    plots = [one for one in made if one.endswith(".png")]
    assert all((tmp_path / plot).read_bytes()[:4] == b"\x89PNG" and (DOCS / plot).exists() for plot in plots)


def test_every_page_is_among_them() -> None:
    assert {path.stem for path in DOCS.glob("*.md")} == set(PAGES)
