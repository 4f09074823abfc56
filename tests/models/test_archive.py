"""Invariant: an exported model is served as it was exported, and an archive that holds a pickle is never opened."""

from __future__ import annotations

import io
import json
import zipfile

import pytest
import torch
from torch import nn

from app.errors import ConfigError
from app.models.sources.archive import check_archive
from app.models.sources.loaders import load

from .folders import TOML, source_of, try_out, write_model
from .test_loaders import Bomb


class Tiny(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 3)
        self.constant = torch.ones(3)

    def forward(self, x):
        return self.linear(x) + self.constant


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    folder = tmp_path_factory.mktemp("exported")
    module = Tiny().eval()
    program = torch.export.export(module, (torch.ones(2, 3),), dynamic_shapes=({0: torch.export.Dim.DYNAMIC},))
    torch.export.save(program, folder / "model.pt2")
    return folder / "model.pt2", module


def folder_with(tmp_path, data):
    folder = write_model(tmp_path / "m", TOML.replace("model.py:build", "model.pt2"), None)
    (folder / "model.pt2").write_bytes(data)
    return folder


def rewritten(path, change):
    """The archive's bytes with each (name, content) passed through `change`, which may return None to leave it out."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(path) as old, zipfile.ZipFile(buffer, "w") as new:
        for name in old.namelist():
            content = change(name, old.read(name))
            if content is not None:
                new.writestr(name, content)
        extra = change("", b"")
        if extra is not None and extra != b"":
            new.writestr(*extra)
    return buffer.getvalue()


def test_an_exported_model_serves_any_batch(tmp_path, exported):
    path, module = exported
    model = load(source_of(folder_with(tmp_path, path.read_bytes())))
    assert not model.takes_parameters
    assert try_out(model) == []
    for rows in (1, 2, 5):
        x = torch.randn(rows, 3)
        with torch.inference_mode():
            assert torch.allclose(model.call(x), module(x))


@pytest.mark.parametrize("rows", [1, 2])
def test_a_fixed_batch_is_refused_and_says_why(tmp_path, exported, rows):
    torch.export.save(torch.export.export(exported[1], (torch.zeros(rows, 3),)), tmp_path / "fixed.pt2")
    model = load(source_of(folder_with(tmp_path, (tmp_path / "fixed.pt2").read_bytes())))
    failed = 3 - rows
    with pytest.raises(
        ConfigError, match=rf"model 'm' version 1: a batch of {failed} rows?: .*; a batch of {rows} "
    ) as e:
        try_out(model)
    assert "was it exported, or written, for one batch size? Export it with a dynamic batch dimension" in str(e.value)


def test_kwargs_make_no_sense(tmp_path, exported):
    folder = folder_with(tmp_path, exported[0].read_bytes())
    toml = folder / "model.toml"
    toml.write_text("kwargs = { a = 1 }\n" + toml.read_text())
    with pytest.raises(ConfigError, match="expected no kwargs"):
        load(source_of(folder))


@pytest.mark.parametrize("data", [b"", b"garbage", b"PK\x03\x04 and then nothing"])
def test_what_is_no_archive(tmp_path, data):
    with pytest.raises(ConfigError, match=r"model\.pt2: expected an archive"):
        load(source_of(folder_with(tmp_path, data)))


def test_a_missing_archive(tmp_path):
    with pytest.raises(ConfigError, match="No such file"):
        check_archive(tmp_path / "model.pt2")


def pickled_samples(bomb):
    buffer = io.BytesIO()
    torch.save((bomb,), buffer)
    return lambda name, content: buffer.getvalue() if name.endswith("sample_inputs/model.pt") else content


def pickled_weight(bomb):
    def change(name, content):
        if not name.endswith("weights_config.json"):
            return content
        config = json.loads(content)
        next(iter(config["config"].values()))["use_pickle"] = True
        return json.dumps(config).encode()

    return change


def script_object(bomb):
    def change(name, content):
        if not name.endswith("constants_config.json"):
            return content
        config = json.loads(content)
        next(iter(config["config"].values()))["path_name"] = "opaque_obj_0"
        return json.dumps(config).encode()

    return change


def compiled(bomb):
    return lambda name, content: content if name else ("model/data/aotinductor/model/code.so", b"\x7fELF")


def legacy_weights(bomb):
    return lambda name, content: content if name else ("model/data/weights/model.pt", b"pickle")


@pytest.mark.parametrize("attack", [pickled_samples, pickled_weight, script_object, compiled, legacy_weights])
def test_an_archive_that_may_run_code_is_refused_and_never_opened(tmp_path, exported, attack):
    data = rewritten(exported[0], attack(Bomb(tmp_path / "exploded")))
    with pytest.raises(ConfigError, match=r"expected (sample inputs of plain|an archive of plain|a plain) tensor"):
        load(source_of(folder_with(tmp_path, data)))
    assert not (tmp_path / "exploded").exists()


def of_two_archives(old):
    """torch's parser reads the directory where the end says it is, the pickled archive's; Python's reads what lies
    before the end, the plain one's."""
    plain, pickled = (rewritten(old, lambda name, content: content), rewritten(old, pickled_at_once))
    assert len(plain) == len(pickled)
    return pickled[:-22] + plain


def of_equal_names(old):
    """Python reads the last member of a name, torch any."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(old) as archive, zipfile.ZipFile(buffer, "w") as new:
        for name in archive.namelist():
            for change in (pickled_at_once, pickled_at_once, lambda name, content: content):
                new.writestr(name, change(name, archive.read(name)))
    return buffer.getvalue()


def pickled_at_once(name, content):
    """As `pickled_weight`, and no longer than it was."""
    wanted = name.endswith("weights_config.json")
    return content.replace(b'"use_pickle": false', b'"use_pickle": true ', 1) if wanted else content


@pytest.mark.filterwarnings("ignore:Duplicate name")
@pytest.mark.parametrize("attack", [of_two_archives, of_equal_names])
def test_what_torch_would_read_is_what_is_checked(tmp_path, exported, attack):
    with pytest.raises(ConfigError, match=r"expected (an archive with one member of each name|a plain tensor)"):
        load(source_of(folder_with(tmp_path, attack(exported[0]))))
