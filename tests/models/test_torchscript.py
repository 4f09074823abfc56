"""Invariant: a TorchScript archive serves, and a pickle of the same suffix is refused without being opened."""

from __future__ import annotations

import zipfile

import pytest
import torch
from torch import nn

from app.errors import ConfigError
from app.models.placement import Placement, place
from app.models.sources.loaders import load

from .folders import TOML, source_of, try_out, write_model
from .test_loaders import LINEAR, Bomb

pytestmark = pytest.mark.filterwarnings("ignore:.torch.jit.*is deprecated:DeprecationWarning")


class Scripted(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 3)
        self.dropout = nn.Dropout(0.5)

    def forward(self, x):
        return self.dropout(self.linear(x))


def folder_with(tmp_path, save, name="model.pt"):
    folder = write_model(tmp_path / "m", TOML.replace("model.py:build", name), None)
    save(str(folder / name))
    return folder


def refused(tmp_path, save, name="model.pt") -> str:
    with pytest.raises(ConfigError) as caught:
        load(source_of(folder_with(tmp_path, save, name)))
    text = str(caught.value)
    assert "\n" not in text
    assert "\x1b" not in text
    return text


@pytest.mark.parametrize("how", ["scripted", "traced", "frozen"])
@pytest.mark.parametrize("name", ["model.pt", "model.pth"])
def test_it_serves_in_eval_mode(tmp_path, how, name):
    module = Scripted().eval()
    if how == "traced":
        script = torch.jit.trace(module, torch.ones(2, 3))
    else:
        script = torch.jit.script(module if how == "frozen" else module.train())
        script = torch.jit.freeze(script) if how == "frozen" else script
    model = load(source_of(folder_with(tmp_path, script.save, name)))
    assert model.info.platform == "pytorch_libtorch"
    assert not model.takes_parameters
    assert try_out(model) == []
    x = torch.randn(4, 3)
    with torch.inference_mode():
        assert torch.allclose(model.call(x), module.eval()(x))


def test_a_pickled_module_says_what_to_save(tmp_path):
    text = refused(tmp_path, lambda path: torch.save(nn.Linear(3, 3), path))
    assert "got a pickle (torch.nn.modules.linear.Linear), which is not opened" in text
    assert "save model.state_dict() instead" in text


@pytest.mark.parametrize("options", [{}, {"_use_new_zipfile_serialization": False}, {"pickle_protocol": 4}])
def test_a_pickle_is_never_opened(tmp_path, options):
    bomb = tmp_path / "exploded"
    text = refused(tmp_path, lambda path: torch.save({"model": Bomb(bomb)}, path, **options))
    assert "save model.state_dict() instead" in text
    assert not bomb.exists()


def test_a_state_dict_is_weights(tmp_path):
    text = refused(tmp_path, lambda path: torch.save(nn.Linear(3, 3).state_dict(), path))
    assert "got a state dict, which is weights without a network: name that file by weights" in text


def test_an_exported_program_by_that_name(tmp_path):
    program = torch.export.export(nn.Linear(3, 3), (torch.ones(2, 3),))
    text = refused(tmp_path, lambda path: torch.export.save(program, f"{path}2") or rename(f"{path}2", path))
    assert "got an archive of torch.export.save: call it model.pt2" in text


def rename(old, new):
    with open(old, "rb") as source, open(new, "wb") as target:
        target.write(source.read())


def other_archive(path):
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a/b", "c")


@pytest.mark.parametrize("write", [other_archive, lambda path: open(path, "wb").close()])
def test_what_is_something_else(tmp_path, write):
    assert "expected an archive of torch.jit.save" in refused(tmp_path, write)


def test_a_missing_file(tmp_path):
    assert "model.pt: no such file" in refused(tmp_path, lambda path: None)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("model.safetensors", "a file of weights: name it by weights"),
        ("model.ckpt", "a file of weights: name it by weights"),
        ("model.pkl", "save model.state_dict"),
        ("model.h5", "tf2onnx"),
    ],
)
def test_other_files_say_what_to_do(tmp_path, name, message):
    assert message in refused(tmp_path, lambda path: None, name)


def test_weights_of_a_whole_module_say_what_to_save(tmp_path):
    folder = write_model(tmp_path / "m", 'weights = "w.pt"\n' + TOML, LINEAR)
    torch.save(nn.Linear(3, 3), folder / "w.pt")
    with pytest.raises(ConfigError) as caught:
        load(source_of(folder))
    text = str(caught.value)
    assert text.endswith("got a pickle (torch.nn.modules.linear.Linear): save model.state_dict() instead")
    assert "\x1b" not in text


def test_it_is_cast_and_never_compiled(tmp_path, caplog):
    model = load(source_of(folder_with(tmp_path, torch.jit.script(Scripted().eval()).save)))
    placed = place(model, Placement(precision="bf16", compile=True))
    assert "TorchScript is not compiled" in caplog.text
    assert try_out(placed) == []
    assert next(placed.call.parameters()).dtype == torch.bfloat16


def test_trust_is_for_pickles_alone(tmp_path):
    folder = write_model(tmp_path / "m", "trust = true\n" + TOML)
    with pytest.raises(ConfigError, match=r"model.toml: trust: expected none but for a source FILE.joblib"):
        load(source_of(folder))


def test_a_pickle_in_an_archive_that_python_does_not_read_is_refused_as_any_other(tmp_path):
    folder = write_model(tmp_path / "m", 'weights = "w.pt"\n' + TOML, LINEAR)
    torch.save(Bomb(tmp_path / "exploded"), folder / "w.pt")
    data = (folder / "w.pt").read_bytes()
    (folder / "w.pt").write_bytes(data.replace(b"w/data.pkl", b"w/beta.pkl", 1))  # the name that its own header has
    with pytest.raises(ConfigError, match=r"w\.pt: expected safetensors or a state dict of plain tensors"):
        load(source_of(folder))
    assert not (tmp_path / "exploded").exists()


def test_what_a_pickle_names_makes_no_lines(tmp_path):
    def save(path):
        with open(path, "wb") as file:
            file.write(b"\x80\x04\x8c\x02os\x8c\x0asys\n\x1b[31mx\x93.")

    assert r"got a pickle ('os.sys\n\x1b[31mx')" in refused(tmp_path, save)
