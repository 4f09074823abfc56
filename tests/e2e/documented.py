"""What a page of the documentation shows: its fenced blocks, the commands in them, and the answers to these.

A command stands on a line of a block marked `sh`, or behind `$ ` in a block without a language. Its answer is the
comment behind it that begins like JSON, the lines below it in a block of the second kind, or the plain or `json` block
that follows without a word between. A block marked `python` has its answer there, too.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import chain, zip_longest
from pathlib import Path

import pytest
from background import ended

from .server import ROOT

RECIPES = "docs/recipes.md"  # whose every block test_recipes.py runs
_FENCED = re.compile(r"^(?P<indent> *)```(?P<language>\w*)\n(?P<text>.*?)^(?P=indent)```$", re.MULTILINE | re.DOTALL)
_HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
_COMMENT = re.compile(r"\s{2,}# ")
_HEREDOC = re.compile(r"<<\s*'?(\w+)'?")
#: A text that a command is given: one that writes a file, or Python.
GIVEN = re.compile(r"(cat > (?P<file>\S+)|python) <<'?END'?\n(?P<text>.*?)^END\n?", re.MULTILINE | re.DOTALL)
_VARIES = re.compile(r"(\.\.\.|-?\d+\.\d+(?:e-?\d+)?)")
_NUMBER = r"(-?\d+(?:\.\d+)?(?:e-?\d+)?)"


@dataclass(frozen=True)
class Command:
    """One command, which may be of several lines; `answer` is what the page says it prints, if it says that."""

    page: str
    line: int
    text: str
    answer: str | None = None

    def __str__(self) -> str:
        return f"{self.page.removeprefix('docs/')}:{self.line}"

    @property
    def words(self) -> list[str]:
        return shlex.split(self.text)


@dataclass(frozen=True)
class Block(Command):
    """A fenced block, whose `answer` is the block behind it. `line`: its first; `heading`: the nearest above."""

    heading: str = ""
    language: str = ""

    @property
    def is_shell(self) -> bool:
        return self.language == "sh" or (self.language == "" and self.text.startswith("$ "))


def pages() -> list[str]:
    """The pages whose commands are run here: the README, and docs/ without the pages of figures."""
    docs = ROOT / "docs"
    found = sorted(str(path.relative_to(ROOT)) for path in (*docs.glob("*.md"), *docs.glob("papers/*.md")))
    return ["README.md", *(page for page in found if page != RECIPES)]


def blocks(page: str) -> list[Block]:
    """A page's blocks in their order. One that is another's answer stands in that one alone."""
    text = (ROOT / page).read_text(encoding="utf-8")
    found: list[Block] = []
    ends = 0
    for match in _FENCED.finditer(text):
        inner = re.sub(f"^{match['indent']}", "", match["text"], flags=re.MULTILINE)
        headings = _HEADING.findall(_FENCED.sub("", text[: match.start()]))
        line = text.count("\n", 0, match.start()) + 2
        block = Block(page, line, inner, None, headings[-1], match["language"])
        asks = found and found[-1].answer is None and (found[-1].is_shell or found[-1].language == "python")
        behind = asks and not text[ends : match.start()].strip()
        if behind and block.language in ("", "json") and not block.is_shell:
            found[-1] = replace(found[-1], answer=inner)
        else:
            found.append(block)
        ends = match.end()
    return found


def commands(block: Block) -> list[Command]:
    """The commands of a shell block."""
    return list(_printed(block) if block.language == "" else _typed(block))


def _printed(block: Block) -> Iterator[Command]:
    """Commands behind `$ `, each with the lines below it."""
    line = block.line
    for part in re.split(r"^\$ ", block.text, flags=re.MULTILINE)[1:]:
        command, _, answer = part.partition("\n")
        yield Command(block.page, line, command, answer or block.answer)
        line += part.count("\n")


def _typed(block: Block) -> Iterator[Command]:
    """Commands of a script. One goes on where a quote is open, a line ends in a backslash, or a file is given here."""
    found: list[Command] = []
    text, begun = "", 0
    for number, given in enumerate(block.text.splitlines(), block.line):
        line, *comment = [given] if text else _COMMENT.split(given, maxsplit=1)
        text, begun = f"{text}{line}\n", begun or number
        if _complete(text):
            told = next((one for one in comment if one.startswith(("{", "["))), None)
            found.append(Command(block.page, begun, text.strip().replace("\\\n", ""), told))
            text, begun = "", 0
    assert not text, f"{block}: a command without an end: {text}"
    if found and block.answer:
        found[-1] = replace(found[-1], answer=block.answer)
    return iter(found)


def _complete(text: str) -> bool:
    if text.endswith("\\\n"):
        return False
    if ending := _HEREDOC.search(text):
        return text.endswith(f"\n{ending[1]}\n")
    try:
        shlex.split(text)
    except ValueError:  # no closing quotation
        return False
    return True


def quoted(page: str) -> list[str]:
    """What stands in single backticks in the prose of a page, on one line where it is broken."""
    prose = _FENCED.sub("", (ROOT / page).read_text(encoding="utf-8"))
    return [" ".join(text.split()) for text in re.findall(r"(?<!`)`([^`]+)`(?!`)", prose)]


def curl(command: str, host: str, folder: Path) -> str:
    """Run a curl of the documentation in a folder, against the server at `host`; the body of its answer, a 200."""
    command = command.replace("localhost:8000", host).replace("@app/", f"@{ROOT}/app/")
    done = ended("bash", "-c", f"{command} --silent --show-error --fail-with-body", cwd=folder)
    assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
    return done.stdout


def alike(told: str, got: str) -> bool:
    """Whether an answer is what the page shows: the same but for spaces and the last digits of a number with a point;
    "..." matches anything.
    """
    texts = _VARIES.split(_squeezed(told))  # every second one is "..." or a number
    patterns = (".*" if text == "..." else _NUMBER for text in texts[1::2])
    pattern = "".join(chain.from_iterable(zip_longest(map(re.escape, texts[::2]), patterns, fillvalue="")))
    found = re.fullmatch(pattern, _squeezed(got), re.DOTALL)
    numbers = [float(text) for text in texts[1::2] if text != "..."]
    return found is not None and [float(text) for text in found.groups()] == pytest.approx(numbers, rel=1e-3, abs=1e-6)


def _squeezed(text: str) -> str:
    return re.sub(r"\s+", "", text)


def same_lines(told: str, got: str) -> bool:
    """To the character, but for spaces at the ends of lines. `...` as the last line stands for all that follow."""
    wanted = [line.rstrip() for line in told.rstrip().splitlines()]
    printed = [line.rstrip() for line in got.rstrip().splitlines()]
    if wanted[-1:] == ["..."]:
        return printed[: len(wanted) - 1] == wanted[:-1]
    return printed == wanted
