"""`starling new` on the command line: what it made, how to serve it, and what is wrong in one line."""

from __future__ import annotations

from pathlib import Path

import pytest

from .running import assert_refused, invoke, succeeds


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_it_prints_what_it_made_and_how_to_serve_it() -> None:
    """What can be pasted into a shell."""
    shown = succeeds("new", "my models/net")
    for name in ("model.py", "model.toml", "request.json"):
        assert f"my models/net/{name}\n" in shown
        assert Path("my models/net", name).is_file()
    assert "\nstarling serve 'my models/net'\n" in shown
    assert shown.endswith(" -d @'my models/net'/request.json\n")
    assert "\nstarling serve ./demo\n" in succeeds("new", "demo")  # not the set of that name


def test_what_is_wrong_is_one_line() -> None:
    assert_refused("from: expected package.module:Class", "new", "net", "--from", "nosuch")
    assert_refused("source: expected UTF-8, as model.toml is, got 'a\\udcff:b'", "new", "net", "--from", "a\udcff:b")
    Path("bag").mkdir()
    Path("bag/model.py").touch()
    Path("bag/weights").symlink_to("gone")
    assert_refused("bag: cannot be copied: [Errno 2] No such file", "new", "net", "--from", "bag")
    assert not Path("net").exists()


def test_a_model_that_is_refused_leaves_nothing_but_what_was_tried() -> None:
    Path("bag").mkdir()
    Path("bag/model.py").write_text(
        "import torch\nclass Bag:\n    def __call__(self, x):\n        return x - x.mean(0)\nbuild = Bag\n"
    )
    result = invoke("new", "net", "--from", "bag", "--input", "x:FP32[3]")
    assert result.exit_code == 1
    assert "a row's answer depends on the other rows of its batch" in result.stderr
    assert '[[inputs]]\nname = "x"' in result.stderr
    assert not Path("net").exists()
