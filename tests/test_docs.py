"""What the documentation says of the code is true: links, paths, names, commands, settings, versions."""

from __future__ import annotations

import ast
import json
import re
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from statistics import median
from xml.etree import ElementTree

from background import ended

import app
from app.contract import Batching
from app.models.description.config import ModelTable, WarmupTable
from app.models.description.config_tables import InputTable, OutputTable, TaskTable
from app.models.repository import SETS
from app.settings import Settings
from app.values.text_fields import FIELDS

ROOT = Path(__file__).resolve().parent.parent
TOPS = ("app", "clients", "docs", "experiments", "loadtest", "tests", "deploy")
FENCED = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)


@cache
def pages() -> list[str]:
    """All Markdown files that are, or could be, committed."""
    listed = ended("git", "ls-files", "--cached", "--others", "--exclude-standard", "*.md", cwd=ROOT)
    names = listed.stdout.split() or [str(path.relative_to(ROOT)) for path in ROOT.glob("[!.]*/**/*.md")]
    return sorted(name for name in {*names, "README.md"} if (ROOT / name).exists())


def read(path: str | Path) -> str:
    return (ROOT / path).read_text(encoding="utf-8")


def prose(page: str) -> str:
    """A page without its code blocks."""
    return FENCED.sub("", read(page))


def anchors(page: str) -> set[str]:
    """The anchors that a page's headings get."""
    titles = re.findall(r"^#+ (.+)$", prose(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def quoted(page: str) -> list[str]:
    """What stands in single backticks."""
    return re.findall(r"(?<!`)`([^`\n]+)`(?!`)", prose(page))


def quotes(pattern: str) -> list[tuple[str, str]]:
    """What stands in single backticks on any page and is of this pattern, behind its page."""
    return [(page, text) for page in pages() for text in quoted(page) if re.fullmatch(pattern, text)]


def ids_of_tests(path: str) -> set[str]:
    """What pytest calls the tests of a file."""
    body = ast.parse(read(path)).body
    classes = [(f"{one.name}::", one.body) for one in body if isinstance(one, ast.ClassDef)]
    return {f"{path}::{within}{getattr(one, 'name', '')}" for within, tests in [("", body), *classes] for one in tests}


def commands() -> Iterator[tuple[str, str]]:
    """Lines of shell blocks and what stands in backticks, behind their pages."""
    for page in pages():
        lines = [line for kind, text in FENCED.findall(read(page)) if kind == "sh" for line in text.splitlines()]
        yield from ((page, line) for line in [*lines, *quoted(page)])


def test_links_lead_somewhere() -> None:
    for page in pages():
        for link in re.findall(r"\]\((?![a-z]+:)([^)\s]+)\)", prose(page)):
            path, _, anchor = link.partition("#")
            target = (ROOT / page).parent / path if path else ROOT / page
            assert target.exists(), f"{page}: {link}"
            if anchor:
                assert anchor in anchors(str(target.resolve().relative_to(ROOT))), f"{page}: {link}"


def test_paths_in_backticks_exist() -> None:
    named = quotes(rf"({'|'.join(TOPS)})/[\w./-]*")
    assert [(page, path) for page, path in named if not (ROOT / path).exists()] == []


def test_promises_are_held_by_tests_and_their_figures_are_on_their_pages() -> None:
    """A promise without a test, a test that has gone, a figure that was measured again."""
    promises = read("docs/promises.md").split("\n\n**")[1:]
    assert len(promises) > 12
    for promise in promises:
        assert "::test_" in promise, promise
    for page in ("docs/promises.md", "docs/threats.md"):
        for text in (text for text in quoted(page) if "::" in text):
            assert text in ids_of_tests(text.partition("::")[0]), text
        for figure, place in re.findall(r"\[([^\]]+)\]\(((?:bench|papers)/[\w-]+\.md)\)", read(page)):
            for number in re.findall(r"[+\d][\d.,]*%?", figure):
                assert number in read(f"docs/{place}"), f"{page}: {figure}"


def test_tests_that_are_named_exist() -> None:
    files = [path for folder in ("tests", "clients") for path in (ROOT / folder).rglob("test_*.py")]
    known = {name for path in files for name in re.findall(r"def (test_\w+)", read(path))}
    assert [(page, name) for page, name in quotes(r"test_\w+") if name not in known] == []


def test_architecture_names_files_and_functions_that_there_are() -> None:
    """There, paths are below app/, and `Class.member` is a member of that class."""
    source = [read(path) for path in (ROOT / "app").rglob("*.py")]
    for text in quoted("docs/architecture.md"):
        if re.fullmatch(r"[\w/]+\.py", text):
            assert (ROOT / text).exists() or (ROOT / "app" / text).exists(), text
        elif found := re.fullmatch(r"([A-Z]\w+)\.(\w+)", text):
            homes = [code for code in source if re.search(rf"^class {found[1]}\b", code, re.MULTILINE)]
            member = re.compile(rf"^    ((async )?def {found[2]}\(|{found[2]}:)", re.MULTILINE)
            assert any(member.search(code) for code in homes), text


def test_commands_of_experiments_that_are_named_exist() -> None:
    """In documents, and in code that quotes a figure. The changelog names what there was."""
    places = [*(page for page in pages() if page != "CHANGELOG.md"), *(ROOT / "app").rglob("*.py")]
    text = "\n".join(map(read, places))
    named = set(re.findall(r"python\s+-m\s+((?:experiments|loadtest)[\w.]*\w)", text))
    assert len(named) > 10
    for name in named:
        place = ROOT / name.replace(".", "/")
        assert place.with_suffix(".py").is_file() or (place / "__main__.py").is_file(), name


def test_make_targets_exist() -> None:
    rules = read("Makefile")
    for page, command in commands():
        for target in re.findall(r"^make ([\w-]+)", command.strip()):
            assert re.search(rf"^{target}:", rules, re.MULTILINE), f"{page}: make {target}"


def test_flags_and_variables_are_settings() -> None:
    for page, command in commands():
        serve = re.search(r"starling serve(.*)", command)
        flags = re.findall(r"--(?:no-)?([a-z-]+)", serve[1]) if serve else []
        names = {flag.replace("-", "_") for flag in flags if flag != "help"}
        names |= {name.lower() for name in re.findall(r"STARLING_(\w+)", command)}
        assert names <= set(Settings.model_fields), f"{page}: {command}"


def test_every_setting_is_listed_with_its_default() -> None:
    rows = re.findall(r"^\| `--([a-z-]+)` \| ([^|]+) \| [^|]+ \|$", read("docs/settings.md"), re.MULTILINE)
    told = {flag.replace("-", "_"): default.strip() for flag, default in rows}
    assert told == {name: default_of(name) for name in Settings.model_fields}
    assert list(told) == list(Settings.model_fields)


def default_of(name: str) -> str:
    """A default in words: where Settings leaves it open, what its help says in brackets."""
    field = Settings.model_fields[name]
    if hinted := re.search(r"\[(.*)\]$", field.description or ""):
        return hinted[1]
    if field.default is None or field.default == ():
        return "none"
    return {True: "yes", False: "no"}[field.default] if isinstance(field.default, bool) else str(field.default)


def test_every_key_of_model_toml_is_listed() -> None:
    """In the tables of two pages that begin with `key`."""
    page = prose("docs/models.md") + prose("docs/tasks.md")
    tables = re.findall(r"^\| key \| meaning .*\n(?:\|.*\n)+", page, re.MULTILINE)
    rows = re.findall(r"^\| `(?:\[\[)?([a-z_]+)(?:\]\])?` \| ", "".join(tables), re.MULTILINE)
    wanted: set[str] = set(ModelTable.model_fields) - {"batching", "warmup"}
    for table in (InputTable, OutputTable, Batching, WarmupTable, TaskTable):
        wanted |= set(table.model_fields)
    assert set(rows) == wanted


def test_model_files_in_the_documentation_are_toml() -> None:
    blocks = [block for page in pages() if page.startswith("docs/") for block in FENCED.findall(read(page))]
    shown = [text for kind, text in blocks if kind == "toml"]
    assert shown
    for text in shown:
        ModelTable.model_validate(tomllib.loads(text))


def test_models_that_commands_make_have_a_model_toml() -> None:
    """A server of `mine` passes over a folder without one."""
    for page in pages():
        script = "".join(text for kind, text in FENCED.findall(read(page)) if kind == "sh")
        for folder in re.findall(r"(mine/\w+)/model\.(?:py|pt2|onnx)", script):
            assert f"> {folder}/model.toml" in script, f"{page}: {folder}"


def test_every_model_that_ships_is_listed_and_has_a_card() -> None:
    section = read("docs/models.md").partition("## Models that ship")[2].partition("\n## ")[0]
    assert re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE) == list(SETS["bench"])
    for folder in SETS["bench"].values():
        assert read(folder / "README.md").startswith(f"# {folder.name}\n")


def test_listed_metrics_are_rendered() -> None:
    source = read("app/observe/prometheus.py")
    for name in re.findall(r"`(?:starling|nv_inference)_(\w+)`", read("docs/metrics.md")):
        assert name.removesuffix("_total") in source, name


def test_every_error_status_is_documented() -> None:
    """499 is not: nobody is there to read it."""
    raised = set(re.findall(r"status, code(?:, closes)? = (\d+)", read("app/errors.py"))) - {"499"}
    assert raised == set(re.findall(r"^\| (\d{3}) \|", read("docs/protocol.md"), re.MULTILINE))


def test_changelog_begins_with_this_version() -> None:
    versions = re.findall(r"^## \[(\d[^\]]*)\]", read("CHANGELOG.md"), re.MULTILINE)
    assert versions[0] == app.__version__


def test_figures_of_the_readme_are_those_measured() -> None:
    """Of each server that is compared: its requests a second, in the best of the ways that were tried."""
    runs = json.loads(read("docs/bench/peers.json"))["runs"]
    rates: dict[str, list[float]] = {}
    for name, loads in runs.items():
        rates.setdefault(name.partition(",")[0], []).append(median(run["per_s"] for run in loads["closed"]))
    for name, tried in rates.items():
        (row,) = [line for line in read("README.md").splitlines() if line.startswith((f"| {name}", f"| **{name}"))]
        assert row.split("|")[2].strip() == f"{max(tried):,.0f}", name


def test_picture_is_well_formed_and_names_files_that_exist() -> None:
    picture = read("docs/architecture.svg")
    ElementTree.fromstring(picture)
    for name in re.findall(r"(?:\w+/)+\w+\.py", picture):
        assert (ROOT / "app" / name).exists(), name


def test_the_fields_of_other_servers_are_listed() -> None:
    """Those that set a parameter, with it, and those that have no influence."""
    page = read("docs/tasks.md").partition("### Fields of other servers")[2]
    for field in FIELDS:
        names = ", ".join(f"`{name}`" for name in field.names.split())
        if field.sets:
            assert f"| {names} | `{field.sets}` |" in page
        elif not field.why:
            assert all(f"`{name}`" in page for name in field.names.split())
