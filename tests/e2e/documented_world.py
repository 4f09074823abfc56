"""Where commands of the documentation are run: a folder that looks like a checkout, with the models of the pages in
`mine`, and one server of them all.
"""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import tiny_decoders
import tiny_transformers as tiny
from cli.running import invoke
from typer.testing import Result

from planner.commands.new_folder import make

from .conftest import Keeper
from .documented import GIVEN, Block, Command, blocks, commands
from .server import DEMO, ROOT, Server

ZOO = ROOT / "loadtest" / "models"
#: The pages on models whose files are served here.
ROWS, CELLS = "docs/rows.md", "docs/stages.md"
CODE, TASKS = "docs/model-code.md", "docs/tasks.md"
#: What the pages say in words of the model `scaled`, and a model for a file of rows whose text is a number.
SCALED = """
source = "model.py:build"
kwargs = { factor = 2.0 }
inputs = [{ name = "x", datatype = "FP32", shape = [2] }]
outputs = [{ name = "y", datatype = "FP32", shape = [2] }]
"""
#: Models of several texts: name, the heading whose model.toml it has or its task, head of the weights, their labels.
TEXTS = [
    ("vectors", "Vectors", "", "ab"),
    ("similar", "sentence-similarity", "", "ab"),
    ("follows", "Pairs", "SequenceClassification", ("contradiction", "entailment")),
    ("ranker", "Ranking", "SequenceClassification", "a"),
    ("any", "zero-shot-classification", "SequenceClassification", ("contradiction", "entailment")),
    ("gaps", "fill-mask", "MaskedLM", "ab"),
    ("facts", "question-answering", "QuestionAnswering", "ab"),
]
NUMBERS = """
import numpy as np
build = lambda: lambda text: np.array([[float(value) for value in row] for row in text])
"""


class World:
    """The folder, and the server, which starts when it is first asked for."""

    def __init__(self, folder: Path, keeper: Keeper) -> None:
        self.folder = folder
        self.keeper = keeper
        self.mine = folder / "mine"
        for path in ROOT.iterdir():
            if not path.name.startswith(".") and path.name != "mine":
                (folder / path.name).symlink_to(path)
        np.save(folder / "x.npy", np.arange(4, dtype=np.float32))
        make(self.mine / "net", "", [])  # as README.md does
        _given_files(self.mine.parent)
        _models(self.mine)

    @property
    def server(self) -> Server:
        """Of the demo models, `generate`, and those whose files the pages give."""
        places = {"digits": DEMO / "digits", "echo": DEMO / "echo", "generate": ZOO / "generate"}
        named = [word for name, path in places.items() for word in ("--model", f"{name}={path}")]
        flags = ("--models", str(self.mine), *named, "--model-control", "--drain-grace-s", "0")
        return self.keeper.kept((), *flags)

    def starling(self, *words: str) -> Result:
        """Run the command in this process; its profiles stay in the folder."""
        return invoke(*words, env={"STARLING_PROFILE_DIR": str(self.folder / "profiles")})


def block(page: str, heading: str, language: str, number: int = 0) -> Block:
    """The block of this language under a heading, by its number there."""
    return [one for one in blocks(page) if (one.heading, one.language) == (heading, language)][number]


def write(folder: Path, **files: str | Block) -> Path:
    """A model's folder: `model_py` becomes model.py, and so on."""
    folder.mkdir(parents=True)
    for name, text in files.items():
        (folder / name.replace("_", ".")).write_text(text if isinstance(text, str) else text.text, encoding="utf-8")
    return folder


def given_file(command: Command) -> tuple[str, str] | None:
    """The file that a command writes, and its text."""
    found = GIVEN.fullmatch(command.text)
    return (found["file"], found["text"]) if found else None


def _given_files(folder: Path) -> None:
    """Files that commands of the pages write."""
    for page in ("docs/start.md", "docs/coming-from.md"):
        for command in (command for one in blocks(page) if one.is_shell for command in commands(one)):
            if found := given_file(command):
                path = folder / found[0]
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(found[1], encoding="utf-8")


def _models(mine: Path) -> None:
    """The models of the pages, by the headings above their files."""
    layer = block(ROWS, "Rows are independent", "python")
    declared = block(ROWS, "Rows are independent", "toml").text
    write(mine / "tones", model_py=layer, model_toml=f"recurrent = true\n{declared}")
    write(mine / "packed", model_py=packed(), model_toml=with_lengths())
    for name, page, heading in (
        ("tagger", CELLS, "Recurrent models"),
        ("mean", ROWS, "Variable lengths"),
        ("shout", CODE, "Text, and your own formats"),
        ("boxes", CODE, "Several results a row"),
    ):
        code, table = block(page, heading, "python"), block(page, heading, "toml")
        write(mine / name, model_py=code, model_toml=table)
    real = "Made-up rows and real ones"
    write(
        mine / "numbers",
        model_py=NUMBERS, model_toml=block(ROWS, real, "toml"), sample_json=block(ROWS, real, "json"),
    )  # fmt: skip
    labels = {0: "NEGATIVE", 1: "POSITIVE"}
    (mine.parent / "weights").symlink_to(mine / "mood" / "weights")
    tiny.save_bert(mine / "mood" / "weights", id2label=labels)
    toml = block(TASKS, "Tasks of transformers", "toml").text.replace("256", str(tiny.MOST))
    (mine / "mood" / "model.toml").write_text(toml, encoding="utf-8")
    _texts(mine)
    _writer(mine / "writer")
    for version in "12":
        code = block(CODE, "Parameters of a request", "python")
        write(mine / "scaled" / version, model_py=code, model_toml=SCALED)


def _texts(mine: Path) -> None:
    """Models of several texts; small weights stand in for those that the page names."""
    for name, told, kind, labels in TEXTS:
        toml = f'source = "hf:weights"\ntask = "{told}"\n'
        if told[0].isupper():
            toml = block(TASKS, told, "toml").text
        write(mine / name, model_toml=toml)
        tiny.save_bert(mine / name / toml.split('"')[1].removeprefix("hf:"), kind, id2label=dict(enumerate(labels)))


def _writer(folder: Path) -> None:
    """The model that writes, whose weights are tiny and know no text."""
    toml = block(TASKS, "Models that write", "toml").text.replace("128", "60")
    write(folder, model_toml=toml)
    tiny_decoders.model("gpt2").save_pretrained(folder / "weights")
    tiny_decoders.tokenizer().save_pretrained(folder / "weights")


def packed() -> str:
    """The recurrent layer of docs/rows.md with the method that the page puts in place of its own."""
    whole, part = (block(ROWS, "Rows are independent", "python", number).text for number in (0, 1))
    imported, method = part.split("...\n")
    head, _, tail = whole.partition("    def forward")
    return imported + head + method + "\n\n" + tail[tail.index("def build") :]


def with_lengths() -> str:
    """Its model.toml with the second input, as the page's prose declares it."""
    text = (ROOT / ROWS).read_text(encoding="utf-8")
    declared = re.search(r'`(\{ name = "lengths", .*? \})`', text)
    assert declared, "no input of lengths is declared"
    return block(ROWS, "Rows are independent", "toml").text.replace(" }]", f" }}, {declared[1]}]", 1)
