"""Repositories: which folders are models, and which of them have changed."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from app.errors import BadRequest, ConfigError
from app.models.folder_watch import FolderWatch
from app.models.registry import Registry
from app.models.repository import Repository
from planner.commands.checked_models import check
from planner.commands.scaffold.bare import with_model_toml

from .folders import CODE, LINEAR, TOML, refused, write_model
from .hosts import FakeHost

# Invariant: what `scan` finds is what `sources` finds, and nothing else than folders with a model.toml.


def found(repository):
    scan = repository.scan()
    for name, sources in scan.items():
        assert repository.sources(name) == sources
    return {name: [source.version for source in sources] for name, sources in scan.items()}


def test_flat_and_numbered_folders(tmp_path):
    write_model(tmp_path / "flat")
    for version in ("10", "2"):
        write_model(tmp_path / "numbered" / version)
    assert found(Repository(tmp_path)) == {"flat": [1], "numbered": [2, 10]}
    assert list(Repository(str(tmp_path)).scan()) == ["flat", "numbered"]


def test_what_is_not_a_model_is_ignored_with_a_line(tmp_path, caplog):
    for name in ("good", "bad name", "good2/1"):
        write_model(tmp_path / name)
    for name in ("good2/2", "good2/03", "empty"):
        (tmp_path / name).mkdir()
    (tmp_path / "file.txt").write_text("")
    with caplog.at_level(logging.WARNING, "starling.models"):
        assert found(Repository(tmp_path)) == {"good": [1], "good2": [1]}
    for text in ("bad name", "empty", "2: ignored: no model.toml"):
        assert text in caplog.text


def test_a_named_model_that_hides_one_is_told(tmp_path, caplog):
    folder, other = write_model(tmp_path / "repo" / "m"), write_model(tmp_path / "other")
    for models, hidden in ((folder.parent, folder), (folder, folder), ("demo", None)):
        caplog.clear()
        assert Repository(models, [f"m={other}"]).sources("m")[0].folder == other
        told = f"model m: {other} is served, as --model says, and hides {hidden}"
        assert caplog.messages == ([told] if hidden else [])


def test_sources_of_what_is_not_there(tmp_path):
    repository = Repository(tmp_path / ".")
    write_model(tmp_path.parent / "outside")
    for name in ("none", "..", "../outside", "", ".", "a" * 300, "a\0b"):
        assert repository.sources(name) == []


def test_a_folder_that_is_a_model_is_that_model(tmp_path):
    folder = write_model(tmp_path / "flat")
    write_model(folder / "7")  # model.toml beats numbered folders beside it
    assert found(Repository(folder)) == {"flat": [1]}
    for version in ("2", "10"):
        folder = write_model(tmp_path / "numbered" / version).parent
    (folder / "notes").mkdir()
    assert found(Repository(str(folder))) == {"numbered": [2, 10]}


def test_extra_models_beat_the_folder(tmp_path):
    write_model(tmp_path / "repo" / "a")
    other = write_model(tmp_path / "other" / "7").parent
    repository = Repository(tmp_path / "repo", [f"a={other}", f"b={other / '7'}"])
    assert found(repository) == {"a": [7], "b": [1]}
    assert found(Repository(None, [f"b={other}"])) == {"b": [7]}


def test_a_place_that_cannot_be_read_is_not_said_to_be_missing(tmp_path):
    (tmp_path / "loop").symlink_to("loop")
    for given in ((tmp_path / "loop", ()), (None, (f"loop={tmp_path / 'loop'}",))):
        with pytest.raises(ConfigError, match=r"^models?( loop)?: .*/loop: cannot be read: Too many levels"):
            Repository(*given)


@pytest.mark.parametrize("extra", ["a", "a=", "=x", "a b=x", "..=x", "a=missing", "a=" + 300 * "x", "a=x\0"])
def test_a_wrong_extra_model(extra):
    with pytest.raises(ConfigError, match="model"):
        Repository(None, [extra])


def test_an_extra_model_named_twice(tmp_path):
    write_model(tmp_path)
    with pytest.raises(ConfigError, match="'a' is named twice"):
        Repository(None, [f"a={tmp_path}"] * 2)


# Invariant: what cannot be read is a version that says why, and no other model misses anything.


def deny(monkeypatch, owner, method, folder, code=errno.EACCES):
    """Tests run as root, whom nothing is denied."""
    real = getattr(owner, method)

    def denied(path, *args, **options):
        if Path(path) == folder:
            raise OSError(code, os.strerror(code), str(path))
        return real(path, *args, **options)

    monkeypatch.setattr(owner, method, denied)


def in_folder(make):
    """`make` is called with the path of the folder's model.toml."""
    return lambda folder, patch: (folder.mkdir(), make(folder / "model.toml"))


#: How a folder is made that cannot be read, and what is said of it.
ODD = {
    "loop": (lambda folder, patch: folder.symlink_to(folder), "cannot be read: Too many levels"),
    "dangling": (lambda folder, patch: folder.symlink_to("/not/there"), "cannot be read: it is a link to /not/there"),
    "mode 000": (lambda folder, patch: deny(patch, Path, "stat", write_model(folder) / "model.toml"),
                 "model.toml: cannot be read: Permission denied"),
    "long": (lambda folder, patch: deny(patch, Path, "stat", write_model(folder), errno.ENAMETOOLONG),
             "cannot be read: File name too long"),
    "unlisted": (lambda folder, patch: (folder.mkdir(), deny(patch, Path, "iterdir", folder, errno.EIO)),
                 "cannot be read: Input/output error"),
    "link": (in_folder(lambda toml: toml.symlink_to("gone.toml")),
             "model.toml: cannot be read: it is a link to gone.toml, which is not there"),
    "pipe": (in_folder(os.mkfifo), "model.toml: expected a file, got a pipe or device"),
    "device": (in_folder(lambda toml: toml.symlink_to("/dev/zero")),
               "model.toml: expected a file, got a pipe or device"),
    "folder": (in_folder(Path.mkdir), "model.toml: expected a file, got a folder"),
}  # fmt: skip


PLACES = [(kind, place) for kind in ODD for place in ("bad", "bad/2")]
PLACES.remove(("unlisted", "bad/2"))  # a version is not listed


@pytest.mark.parametrize(("kind", "place"), PLACES)
async def test_what_cannot_be_read_is_unavailable_and_the_others_serve(tmp_path, monkeypatch, caplog, kind, place):
    write_model(tmp_path / "good")
    write_model(tmp_path / "bad" / "1") if place == "bad/2" else None
    make, said = ODD[kind]
    make(tmp_path / place, monkeypatch)
    repository, host = Repository(tmp_path), FakeHost()
    version = place.partition("/")[2] or "1"
    async with Registry(host.start, host.stop, repository, repository.scan()) as registry:
        await registry.load_all()
        assert registry.serving["good", None].info.name == "good"
        (entry,) = (entry for entry in registry.index() if (entry.name, entry.version) == ("bad", version))
        assert (entry.state, entry.awaited) == ("UNAVAILABLE", True)
        assert said in entry.reason
        assert entry.reason in caplog.text
        with pytest.raises(BadRequest, match=f"model 'bad' cannot be loaded: version {version}: ") as caught:
            await registry.load("bad")
        assert said in str(caught.value)
    assert [one.error for one in check(repository) if one.error] == [entry.reason]


def test_folders_that_are_no_models_are_not_spoken_of(tmp_path, caplog):
    write_model(tmp_path / "good")
    for name in (".Trash-0", ".git", "..data"):
        write_model(tmp_path / name)
    with caplog.at_level(logging.WARNING, "starling.models"):
        assert found(Repository(tmp_path)) == {"good": [1]}
    assert caplog.messages == []
    for name in ("lost+found", "@eaDir", "__MACOSX"):
        (tmp_path / name).mkdir()
    assert list(Repository(tmp_path).scan()) == ["good"]


def test_what_vanishes_meanwhile_is_not_there(tmp_path, monkeypatch):
    write_model(tmp_path / "good")
    write_model(tmp_path / "numbered" / "1")
    real = Path.iterdir
    monkeypatch.setattr(Path, "iterdir", lambda folder: [*real(folder), folder / "7", folder / "gone"])
    assert found(Repository(tmp_path)) == {"good": [1], "numbered": [1]}


@pytest.mark.parametrize(
    "toml",
    [
        TOML + 'labels = "pipe.json"\n',
        f'weights = "pipe.json"\n{TOML}',
        TOML + '[warmup]\nfile = "pipe.json"\n',
    ],
)
def test_no_file_of_a_model_is_waited_for(tmp_path, toml):
    folder = write_model(tmp_path / "m", toml, LINEAR)
    os.mkfifo(folder / "pipe.json")
    assert "pipe.json: expected a file, got a pipe or device" in refused(folder)


# Invariant: what was written and then left alone is loaded, once; what is still being written is not.


class Loads(list):
    """The registry's `load`, which refuses `bad`, does not expect `odd` and never ends for `hangs`; and `unload`."""

    async def load(self, name):
        self.append(name)
        if name == "bad":
            raise BadRequest("it cannot be loaded")
        if name == "odd":
            raise KeyError(name)
        if name == "hangs":
            await asyncio.Event().wait()

    async def unload(self, name):
        self.append(f"not {name}")


@pytest.fixture
def loads():
    return Loads()


@pytest.fixture
def watch(tmp_path, loads):
    write_model(tmp_path / "a")
    write_model(tmp_path / "b" / "1")
    return FolderWatch(Repository(tmp_path), loads)


async def looks(watch, times=3):
    for _ in range(times):
        await watch.look()


def edit(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(path.read_text() + text if path.exists() else text)


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("a/model.toml", "a"),
        ("a/weights/deep.bin", "a"),
        ("b/1/model.py", "b"),
        ("b/2/model.toml", "b"),
        ("new/model.toml", "new"),
        ("bad/model.toml", "bad"),
        ("a/.model.py.swp", None),
        ("a/__pycache__/model.pyc", None),
        ("none/model.py", None),
        ("not a name/model.toml", None),
    ],
)
async def test_what_has_changed_is_loaded_once(tmp_path, watch, loads, path, name, caplog):
    await watch.look()
    edit(tmp_path / path, CODE)
    await watch.look()
    assert loads == [], "it may be half written"
    await looks(watch)
    assert loads == ([] if name is None else [name])
    told = [line for line in caplog.messages if "ignored" in line]
    assert [tmp_path / "not a name" == Path(line.partition(":")[0]) for line in told] == [True] * ("not" in path)


async def test_a_model_that_hangs_in_its_load_holds_up_no_other(tmp_path, watch, loads, monkeypatch):
    monkeypatch.setattr("app.models.folder_watch._PATIENCE_S", 0.01)
    for name in ("hangs", "new"):
        write_model(tmp_path / name)
    async with asyncio.timeout(30):
        await looks(watch)
    assert loads == ["hangs", "new"]


@pytest.mark.parametrize("removed", ["a", "a/model.toml"])
async def test_what_is_removed_is_unloaded_once(tmp_path, watch, loads, removed):
    path = tmp_path / removed
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    await watch.look()
    assert loads == [], "it may be about to be replaced"
    await looks(watch)
    assert loads == ["not a"]
    write_model(tmp_path / "a")
    await looks(watch)
    assert loads == ["not a", "a"]


async def test_nothing_is_unloaded_where_a_folder_cannot_be_read(tmp_path, watch, loads, monkeypatch):
    with monkeypatch.context() as patch:
        deny(patch, os, "scandir", tmp_path / "a", errno.ESTALE)
        await looks(watch)
    await looks(watch)
    shutil.rmtree(tmp_path)
    await looks(watch)
    assert loads == []


def config_map(folder, number, files):
    """The files of a mounted ConfigMap, as the kubelet writes them, and replaces them at an update."""
    data = folder / f"..2024_{number}"
    for path, text in files.items():
        edit(data / path, text)
    (folder / "..data_tmp").symlink_to(data.name)
    (folder / "..data_tmp").rename(folder / "..data")
    for path in files:
        top = path.partition("/")[0]
        if not (folder / top).exists():
            (folder / top).symlink_to(f"..data/{top}")
    for old in folder.glob("..2024_*"):
        if old != data:
            shutil.rmtree(old)


@pytest.mark.parametrize(("place", "below"), [("", "c/"), ("c", ""), ("c", "1/")])
async def test_a_config_map_is_watched_through_its_links(tmp_path, loads, place, below):
    files = {f"{below}model.toml": TOML, f"{below}model.py": CODE}
    (tmp_path / place).mkdir(exist_ok=True)
    config_map(tmp_path / place, 1, files)
    repository = Repository(tmp_path)
    assert found(repository) == {"c": [1]}
    watch = FolderWatch(repository, loads)
    config_map(tmp_path / place, 2, {**files, f"{below}model.py": LINEAR})
    await looks(watch)
    assert loads == ["c"]


async def test_a_folder_in_itself_is_looked_at_once(tmp_path, watch, loads):
    (tmp_path / "a" / "again").symlink_to(tmp_path / "a")
    await looks(watch, 2)
    assert loads == []


async def test_an_unexpected_error_is_logged_and_the_folder_is_still_watched(tmp_path, watch, loads, caplog):
    edit(tmp_path / "odd" / "model.toml", CODE)
    edit(tmp_path / "other" / "model.toml", CODE)
    await looks(watch, 2)
    told = [record.message for record in caplog.records if record.exc_info]
    assert told == ["the models' folders could not be watched"]
    await watch.look()
    assert loads == ["odd", "other"]


# Invariant: paths are used as given. A link into another process's root has a target with another path here.


IN_ITS_ROOT = """
import os, subprocess, sys
subprocess.run(["mount", "-t", "tmpfs", "image", sys.argv[1]], check=True)
os.chroot(sys.argv[1])
print("there", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def other_root(tmp_path):
    """The path to the root of a process that has mounts of its own, as one in another container."""
    if shutil.which("unshare") is None:
        pytest.skip("needs unshare")
    image = tmp_path / "image"
    image.mkdir()
    command = ["unshare", "-m", sys.executable, "-c", IN_ITS_ROOT, str(image)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        if process.stdout.readline() != b"there\n":
            pytest.skip("needs the right to mount")
        yield Path(f"/proc/{process.pid}/root")
        process.stdin.close()


def test_a_model_in_another_processs_root(tmp_path, other_root, monkeypatch):
    for folder in (other_root / "models" / "m", other_root / "models" / "v" / "1"):
        write_model(folder, code="import helper\nfrom torch import nn\ndef build():\n    return nn.Identity()\n")
        (folder / "helper.py").write_text("")
    (tmp_path / "links").mkdir()
    for name, target in (("mnt", "models"), ("called", "models/v"), ("links/one", "models/m")):
        (tmp_path / name).symlink_to(other_root / target)
    assert not (tmp_path / "mnt").resolve().exists()
    monkeypatch.chdir(tmp_path)
    for place, names in (("mnt", ("m", "v")), ("called", ("called",)), ("links", ("one",))):
        assert found(Repository(place)) == found(Repository(tmp_path / place)) == {name: [1] for name in names}
        assert [one.error for one in check(tmp_path / place)] == [""] * len(names)


def test_a_file_in_another_processs_root(tmp_path, other_root):
    batch = ({0: torch.export.Dim("n")},)
    program = torch.export.export(torch.nn.Linear(3, 2), (torch.ones(2, 3),), dynamic_shapes=batch)
    torch.export.save(program, other_root / "blob.pt2")
    (tmp_path / "net.pt2").symlink_to(other_root / "blob.pt2")
    with with_model_toml(str(tmp_path / "net.pt2"), ()) as changed:
        (one,) = check(str(changed["models"]))
        assert (one.source.name, one.error) == ("net", "")
