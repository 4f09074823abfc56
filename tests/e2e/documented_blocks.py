"""What is done with blocks of the documentation that are no commands: programs in Python, messages, profiles.

Files of models are those that the shared server serves. Those of docs/ray.md are run by tests/integrations, which has
Ray loaded. Other blocks, such as diagrams, are not looked at.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from torch import nn

from app.models import Staged
from app.models.checks.check import check, describe
from app.models.repository import Repository
from app.scheduler.estimates.profile import parse as parse_profile
from loadtest.disb.workload import parse as parse_workload

from .documented import Block, alike
from .documented_errors import PAGE, tells
from .documented_world import CELLS, ROWS, TASKS, World, block, write

Run = Callable[[Block, World], None]


def block_rule(one: Block) -> Run | None:
    """What is done with a block that is no command, by the first rule for its page whose pattern its beginning fits."""
    return next((run for page, begins, run in RULES if page == one.page and re.match(begins, one.text)), None)


def executed(one: Block, world: World, **given: Any) -> dict[str, Any]:
    """Run in a namespace of its own, against the shared server."""
    namespace: dict[str, Any] = {"__name__": "documented", **given}
    exec(compile(one.text.replace("localhost:8000", world.server.host), str(one), "exec"), namespace)
    return namespace


def runs(one: Block, world: World) -> None:
    executed(one, world)


def measures(one: Block, world: World) -> None:
    short = one.text.replace("repeats=5", "repeats=2, duration_s=0.2, warmup_s=0.1, max_lag_ms=1e5")
    assert short != one.text
    result = executed(replace(one, text=short), world)["result"]
    assert len(result.repeats) == 2


def is_refused(one: Block, world: World) -> None:
    """What `starling check` says of the recurrent layer without a bound on what reads its padding."""
    rows = "Rows are independent"
    place = world.folder / "refused"
    write(place / "tones", model_py=block(ROWS, rows, "python"), model_toml=block(ROWS, rows, "toml"))
    (found,) = check(place).results
    assert alike(one.text, found.error), f"{one}: it says\n{found.error}"


def tells_a_wrong_shape(one: Block, world: World) -> None:
    place = world.folder / "wrong"
    toml = (world.mine / "scaled" / "2" / "model.toml").read_text(encoding="utf-8")
    write(place / "scaled" / "2", model_toml=toml.replace("shape = [2]", 'shape = "2"', 1))
    _tells(one, place)


def tells_a_wrong_cut(one: Block, world: World) -> None:
    place = world.folder / "uncut"
    write(place / "net", model_py=_BLOCKS, model_toml=_VECTORS + 'cuts = ["blocks.7"]\n')
    _tells(one, place)


def _tells(one: Block, place: Path) -> None:
    (listed,) = describe(Repository(str(place)))
    error = listed.error or check(place).results[0].error
    assert alike(one.text, error.replace(str(place), "mine")), f"{one}: it says\n{error}"


def tells_of_company(one: Block, world: World) -> None:
    """What is said of a cell whose rows hear of one another, here by their mean: the same but for numbers of steps."""
    cells = "Recurrent models"
    code = block(CELLS, cells, "python").text
    broken = code.replace("self.head(hidden)", "self.head(hidden - hidden.mean(0))")
    assert broken != code
    place = world.folder / "broken"
    write(place / "tagger", model_py=broken, model_toml=block(CELLS, cells, "toml", 1))
    (found,) = check(place).results
    form = re.sub(r"\d+", r"\\d+", one.text.strip().partition(" at steps ")[0])
    assert re.search(form, found.error), f"{one}: it says\n{found.error}"


def is_a_profile(one: Block, world: World) -> None:
    parse_profile(json.loads(one.text))


def is_a_workload(one: Block, world: World) -> None:
    assert parse_workload(json.loads(one.text), "the page").tasks


def has_this_form(one: Block, world: World) -> None:
    """The answer of the model `mood`: fields and labels as on the page, scores of its own."""
    got = world.server.post("/predict/mood", b"what a fine day", {"Content-Type": "text/plain"}).json()
    assert form(got) == form(json.loads(one.text))
    assert {each["label"] for each in got["top"]} == {each["label"] for each in json.loads(one.text)["top"]}


def form(value: Any) -> Any:
    """The fields of a JSON value, and the type of each."""
    if isinstance(value, dict):
        return {name: form(each) for name, each in value.items()}
    return [form(each) for each in value] if isinstance(value, list) else type(value)


def makes_stages(one: Block, world: World) -> None:
    parts = {name: nn.Identity() for name in ("embed", "first_half", "second_half")}
    made = executed(one, world, load_network=lambda: SimpleNamespace(**parts))["build"]()
    assert len(made.stages) == 3


def gives_inputs_again(one: Block, world: World) -> None:
    given = {name: nn.Identity() for name in ("embed", "attend", "pool")}
    executed(one, world, Staged=Staged, **given)


_VECTORS = """
source = "model.py:build"
inputs = [{ name = "x", datatype = "FP32", shape = [2] }]
outputs = [{ name = "y", datatype = "FP32", shape = [2] }]
"""
_BLOCKS = """
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.Sequential(*(nn.Linear(2, 2) for _ in range(4)))

    def forward(self, x):
        return self.blocks(x)

build = Net
"""

#: Page, how the block begins as a regular expression, and what is done with it.
RULES: tuple[tuple[str, str, Run], ...] = (
    ("docs/bench.md", "from app.bench", measures),
    ("docs/client.md", "import numpy", runs),
    ("docs/loadtest.md", r'\{"time"', is_a_workload),
    ("docs/model-toml.md", "mine/scaled/2/model.toml: ", tells_a_wrong_shape),
    ("docs/cutting.md", "mine/net/model.toml: cuts", tells_a_wrong_cut),
    (ROWS, "a row's answer depends", is_refused),
    (ROWS, "  output 'tags'|output 'tags'", tells_of_company),
    (TASKS, r'\{"label"', has_this_form),
    ("docs/cutting.md", r"from app.models import Staged", makes_stages),
    ("docs/cutting.md", r"Staged\(", gives_inputs_again),
    ("docs/protocol.md", "import numpy", runs),
    ("docs/texts.md", "import openai", runs),
    ("docs/writing.md", "import openai", runs),
    ("docs/client.md", "from starling_client", runs),
    ("docs/simulation.md", r'\{"model"', is_a_profile),
    (PAGE, "", tells),
)
