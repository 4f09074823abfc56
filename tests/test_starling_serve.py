"""A user's package called `app` meets ours: one line says which shadows which, on either side."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from background import ended
from models.folders import TOML, source_of, write_model

from app.contract import ModelSource
from app.errors import ConfigError
from app.models.loading import load

ROOT = Path(__file__).resolve().parent.parent


def model(folder: Path, source: str, code: str | None = None) -> ModelSource:
    return source_of(write_model(folder, TOML.replace("model.py:build", source), code))


def command(folder: Path, *path: Path) -> subprocess.CompletedProcess[str]:
    """`starling --version` with these folders first on the path, as the installed script runs it."""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, path))}
    code = "import sys; sys.path.remove(''); sys.argv = ['starling', '--version']; import starling_serve as s; s.main()"
    return ended(sys.executable, "-c", code, cwd=folder, env=env)


@pytest.mark.parametrize("name", ["app.py", "app/__init__.py"])
def test_theirs_in_our_place_is_one_line(tmp_path: Path, name: str) -> None:
    theirs = tmp_path / name
    theirs.parent.mkdir(exist_ok=True)
    theirs.write_text("raise RuntimeError('imported')")
    done = command(tmp_path, tmp_path, ROOT)
    place = theirs if name == "app.py" else theirs.parent
    assert done.returncode == 2
    assert done.stderr == (
        f"starling: {place} shadows Starling's own package app, {ROOT / 'app'}: rename yours, or take its folder off "
        "PYTHONPATH and start elsewhere\n"
    )


def test_ctrl_c_during_an_import_ends_quietly() -> None:
    """Even one whose exception is lost, as in native code."""
    code = (
        "import signal, sys, starling_serve\n"
        "class Interrupting:\n"
        "    def find_spec(self, name, *of):\n"
        "        try:\n"
        "            name == 'typer' and signal.raise_signal(signal.SIGINT)\n"
        "        except KeyboardInterrupt:\n"
        "            pass\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "sys.argv = ['starling', '--version']\n"
        "sys.meta_path.insert(0, Interrupting())\n"
        "starling_serve.main()\n"
    )
    done = ended(sys.executable, "-c", code, cwd=ROOT)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


@pytest.mark.parametrize(
    ("source", "code"),
    [
        ("app.net:build", None),
        ("app:build", None),
        ("model.py:build", "from app.net import Net\n"),
        ("model.py:build", "from app.errors import Mine\n"),
    ],
)
def test_ours_in_their_place_is_one_line(tmp_path: Path, source: str, code: str | None) -> None:
    (tmp_path / "app").mkdir()
    (tmp_path / "app" / "net.py").write_text("class Net: ...")
    with pytest.raises(ConfigError) as caught:
        load(model(tmp_path / "mine" / "m", source, code))
    told = f"; app is Starling's own package, {ROOT / 'app'}: rename yours"
    assert str(caught.value).endswith(told)
    assert "\n" not in str(caught.value)


def test_a_package_that_is_not_there_says_what_to_do(tmp_path: Path) -> None:
    missing = "No module named 'nosuchpackage'"
    with pytest.raises(ConfigError, match=f"{missing}; install the package where the server runs"):
        load(model(tmp_path / "m", "nosuchpackage.net:build"))
    with pytest.raises(ConfigError, match=rf"{missing} at \S+model\.py:1 in <module>$"):
        load(model(tmp_path / "n", "model.py:build", "import nosuchpackage\n"))
