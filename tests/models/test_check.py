"""Invariant: there is one result per version, and a fault of one model is in its own result."""

from __future__ import annotations

import pytest

from app.errors import ConfigError
from app.models.repository import Repository
from planner.commands.checked_models import check, describe

from .folders import CODE, TOML, write_model


def test_describe_reads_but_does_not_load(tmp_path):
    write_model(tmp_path / "a", 'description = "first"\n' + TOML, "raise SystemExit")
    write_model(tmp_path / "b" / "2", "source = 1")
    first, second = rows = describe(Repository(tmp_path))
    known = [(row.source.name, row.source.version, row.origin) for row in rows]
    assert known == [("a", 1, "model.py:build"), ("b", 2, "")]
    assert first.info.inputs[0].name == "x"
    assert second.info is None
    assert "source: expected a string" in second.error


def test_check_tries_each_model(tmp_path):
    write_model(tmp_path / "good")
    write_model(tmp_path / "shape", code=CODE.replace("nn.Identity()", "nn.Linear(3, 4)"))
    write_model(tmp_path / "wrong", "x = 1\n" + TOML)
    results = check(str(tmp_path))
    errors = {result.source.name: result.error for result in results}
    assert [result.trace for result in results] == ["", "", ""]  # the server's own frames help nobody
    assert errors["good"] == ""
    assert "a batch of 1 row: output 'y': expected shape [1, 3], got [1, 4]" in errors["shape"]
    assert "x: unknown key" in errors["wrong"]


@pytest.mark.parametrize(("policy", "warned"), [("ebird", True), ("deadline", False)])
def test_a_policy_that_a_server_without_flags_cannot_serve_is_a_warning(tmp_path, policy, warned):
    write_model(tmp_path / "net", TOML + f'[batching]\npolicy = "{policy}"\n')
    (net,) = check(tmp_path)
    assert not net.error
    assert any("workers: expected one of capacity 1 for the policy ebird" in one for one in net.warnings) is warned


#: A network whose methods raise, as those of a wrapper that forgets what it wraps.
GUARDED = """from torch import nn
class Guarded(nn.Identity):
    def {method}(self, *args, **keywords):
        raise RuntimeError("not me")
build = Guarded
"""


@pytest.mark.parametrize("method", ["__getattr__", "train", "named_parameters"])
def test_a_network_that_may_not_be_looked_at_is_an_error_of_its_own(tmp_path, method):
    write_model(tmp_path / "guarded", code=GUARDED.format(method=method))
    write_model(tmp_path / "other")
    guarded, other = check(str(tmp_path))
    assert "RuntimeError: not me at " in guarded.error
    assert f"model.py:4 in {method}" in guarded.error
    assert not other.error


#: Takes rows of 7 alone, which are not among those that are made up; an empty batch it takes.
PICKY = """def build():
    def call(x):
        if not (x == 7).all():
            raise ValueError("no 7")
        return x
    return call
"""
NO_ROW_FITS = "def build():\n    return lambda x: x.missing"
ALLOWED = "allow_untried = true\n" + TOML


def test_a_model_that_serves_although_it_raises_on_made_up_rows_has_a_warning(tmp_path):
    write_model(tmp_path / "raises", code=PICKY)
    (result,) = check(str(tmp_path))
    assert not result.error
    (warning,) = result.warnings
    assert "it raises on every made-up row: ValueError: no 7" in warning
    assert "it would serve as untried, and replace no version that works" in warning
    first, place, *_ = result.trace.splitlines()
    assert first == "Traceback (most recent call last):"
    assert "model.py" in place  # from the owner's first frame on
    assert '    raise ValueError("no 7")\n' in result.trace


@pytest.mark.parametrize(("toml", "ok"), [(TOML, False), (ALLOWED, True)])
def test_a_model_that_no_row_can_fit_is_an_error_unless_it_may_be_untried(tmp_path, toml, ok):
    write_model(tmp_path / "raises", toml, NO_ROW_FITS)
    (result,) = check(str(tmp_path))
    assert (not result.error) is ok
    told = result.warnings[0] if ok else result.error
    assert (
        "model.py:2 in <lambda>; an empty batch raises it, too, so no row can fit: correct the model, or the " in told
    )
    assert "inputs in model.toml: x FP32 [3]" in told, "it is not about shapes"
    assert "    return lambda x: x.missing\n" in result.trace


#: As one that asks a database or another server; rows say nothing of that.
AWAY = "def build():\n    def call(x):\n        raise {}\n    return call"


@pytest.mark.parametrize(
    ("raised", "untried"),
    [("ConnectionRefusedError(111, 'no')", True), ("TimeoutError", True), ("FileNotFoundError(2, 'no', 'a')", False)],
)
def test_a_model_that_misses_what_it_calls_would_serve_until_that_is_back(tmp_path, raised, untried):
    write_model(tmp_path / "away", code=AWAY.format(raised))
    (result,) = check(str(tmp_path))
    assert (result.untried, not result.error) == (untried, untried)
    assert ("calls are answered once that is back" in "".join(result.warnings)) is untried


def test_a_file_that_a_call_looks_for_elsewhere_than_beside_model_py(tmp_path):
    write_model(tmp_path / "opens", code='def build():\n    return lambda x: open("model.toml")')
    (result,) = check(str(tmp_path))
    assert "in <lambda>; paths begin where the server was started: of one beside model.py, Path(" in result.error


@pytest.mark.parametrize(("first", "toml", "ok"), [(CODE, TOML, False), (CODE, ALLOWED, True), (PICKY, TOML, True)])
def test_a_newer_version_that_no_made_up_row_fits_replaces_none_that_works(tmp_path, first, toml, ok):
    write_model(tmp_path / "m" / "1", code=first)
    write_model(tmp_path / "m" / "2", toml, PICKY)
    write_model(tmp_path / "other")
    results = check(str(tmp_path))
    assert (not any(result.error for result in results)) is ok
    assert results[1].error.endswith("allow_untried = true") is not ok


def test_check_takes_a_repository_a_model_folder_or_a_set(tmp_path):
    folder = write_model(tmp_path / "good")
    for place in (tmp_path, folder, str(folder), Repository(folder)):
        assert [(result.source.name, result.error) for result in check(place)] == [("good", "")]
    demo = check("demo")
    assert not any(result.error for result in demo)
    assert {result.source.name: result.parameters for result in demo} == {"digits": 42666, "echo": 0}


@pytest.mark.parametrize(
    ("in_file", "asked", "errors", "warnings"),
    [("refuse", None, 1, 0), ("refuse", "warn", 0, 1), ("off", None, 0, 0), ("off", "refuse", 1, 0)],
)
def test_rows_that_depend_on_their_batch(tmp_path, in_file, asked, errors, warnings):
    write_model(tmp_path / "m", f'row_check = "{in_file}"\n{TOML}', "def build():\n    return lambda x: x.softmax(0)")
    (result,) = check(tmp_path, asked)
    assert (bool(result.error), len(result.warnings)) == (bool(errors), warnings)
    for text in (result.error, *result.warnings):
        assert not text or "a row's answer depends on the other rows of its batch: output 'y': 1 alone" in text


def test_nothing_to_check_is_an_error(tmp_path):
    for ask in (check, lambda place: describe(Repository(place))):
        with pytest.raises(ConfigError, match="no model found in"):
            ask(tmp_path)
    with pytest.raises(ConfigError, match="expected a folder, a model's file or one of the sets"):
        check(tmp_path / "none")
