"""Invariant: what torch has exported or scripted serves, weights are loaded, and a pickle is never opened."""

from __future__ import annotations

import gc
import io
import json
import re
import shutil
import weakref
import zipfile
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from threading import Barrier

import pytest
import torch
from safetensors.torch import save_file, save_model
from torch import nn

from app.errors import ConfigError
from app.models.placement import Placement, place
from app.models.sources.torch_files import exported_module

from .folders import LINEAR, TOML, Bomb, loaded, refused, table, toml_of, try_out, write_model


class Tiny(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 3)
        self.dropout = nn.Dropout(0.5)
        self.constant = torch.ones(3)

    def forward(self, x):
        return self.dropout(self.linear(x)) + self.constant


def folder_with(tmp_path, name, save):
    """A model of the file `name`, which `save` writes to the path that it is given."""
    folder = write_model(tmp_path / "m", TOML.replace("model.py:build", name), None)
    save(str(folder / name))
    return folder


def answers_as(model, module):
    assert not model.takes_parameters
    assert try_out(model) == []
    for rows in (1, 2, 5):
        x = torch.randn(rows, 3)
        with torch.inference_mode():
            assert torch.allclose(model.call(x), module.eval()(x))


# archives of torch.export


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    module = Tiny().eval()
    program = torch.export.export(module, (torch.ones(2, 3),), dynamic_shapes=({0: torch.export.Dim.DYNAMIC},))
    path = tmp_path_factory.mktemp("exported") / "model.pt2"
    torch.export.save(program, path)
    return path, module


def archive(tmp_path, data):
    return folder_with(tmp_path, "model.pt2", lambda path: Path(path).write_bytes(data))


def rewritten(path, change):
    """The archive's bytes with each (name, content) passed through `change`; for no name it may give one more."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(path) as old, zipfile.ZipFile(buffer, "w") as new:
        for name in old.namelist():
            new.writestr(name, change(name, old.read(name)))
        if more := change("", b""):
            new.writestr(*more)
    return buffer.getvalue()


def test_an_exported_model_serves_any_batch(tmp_path, exported):
    path, module = exported
    folder = archive(tmp_path, path.read_bytes())
    answers_as(loaded(folder), module)
    (folder / "model.toml").write_text("kwargs = { a = 1 }\n" + (folder / "model.toml").read_text())
    assert "kwargs.a: expected none" in refused(folder)


def test_exported_models_load_at_the_same_time(tmp_path, exported):
    """A repository of slow ones does so: a load keeps its turn for some seconds only."""
    folders = [archive(tmp_path / str(number), exported[0].read_bytes()) for number in range(4)]
    together = Barrier(len(folders))

    def at_once(folder):
        together.wait()
        return loaded(folder)

    with ThreadPoolExecutor(len(folders)) as threads:
        for model in threads.map(at_once, folders):
            assert model.call(torch.ones(3, 3)).shape == (3, 3)


class Apart(nn.Module):
    def forward(self, given, pair, *, x, scale):
        return given["a"] - x * scale + pair[0] * pair[1]


class Options(nn.Module):
    def forward(self, x, mask=None, power=1, *, scale, shift=None):
        return x**power * scale


class Scaled(nn.Module):
    def forward(self, x, scale):
        return x * scale


def two_inputs(tmp_path, file, first, second):
    inputs = (table("inputs", name, "FP32", "[3]") for name in (first, second))
    toml = toml_of(*inputs, table("outputs", "y", "FP32", "[3]"), head=f'source = "{file}"')
    return write_model(tmp_path / first, toml, None)


def test_what_a_program_was_exported_with_besides_tensors_is_no_input(tmp_path):
    batch = {0: torch.export.Dim.DYNAMIC}
    given = (torch.ones(2, 3), None, 2), {"scale": torch.zeros(2, 3), "shift": None}
    shapes = {"x": batch, "mask": None, "power": None, "scale": batch, "shift": None}
    program = torch.export.export(Options(), *given, dynamic_shapes=shapes)
    folders = two_inputs(tmp_path, "model.pt2", "x", "scale"), two_inputs(tmp_path, "model.pt2", "scale", "x")
    for folder in folders:
        torch.export.save(program, folder / "model.pt2")
    model = loaded(folders[0])
    assert try_out(model) == []
    assert torch.equal(model.call(torch.full((4, 3), 3.0), torch.full((4, 3), 5.0)), torch.full((4, 3), 45.0))
    assert "inputs: expected them in the order of the arguments of 'model.pt2', " in refused(folders[1])


def test_inputs_of_what_code_has_traced_are_in_the_order_of_its_arguments(tmp_path):
    code = """
import torch
class Net(torch.nn.Module):
    def forward(self, x, scale):
        return x * scale
def build():
    return torch.jit.trace(Net(), (torch.ones(2, 3), torch.ones(2, 3)))
"""
    folder = two_inputs(tmp_path, "model.py:build", "scale", "x")
    (folder / "model.py").write_text(code)
    assert "without gaps: x, scale, got scale, x" in refused(folder)


@pytest.mark.parametrize("how", ["scripted", "traced"])
def test_inputs_of_torchscript_are_in_the_order_of_its_arguments(tmp_path, how):
    pair = torch.ones(2, 3), torch.ones(2, 3)
    module = torch.jit.script(Scaled()) if how == "scripted" else torch.jit.trace(Scaled(), pair)
    folders = two_inputs(tmp_path, "model.pt", "x", "scale"), two_inputs(tmp_path, "model.pt", "scale", "x")
    for folder in folders:
        module.save(str(folder / "model.pt"))
    assert try_out(loaded(folders[0])) == []
    assert "arguments of 'model.pt', without gaps: x, scale, got scale, x" in refused(folders[1])


class WithParameters(nn.Module):
    def forward(self, x, parameters: torch.Tensor | None = None):
        return x if parameters is None else x * parameters


def test_torchscript_is_given_no_parameters_of_requests(tmp_path):
    answers_as(loaded(folder_with(tmp_path, "model.pt", torch.jit.script(WithParameters()).save)), nn.Identity())


def test_an_exported_model_takes_keywords_dicts_and_lists_in_their_order(tmp_path):
    a, b, c, scale, x = torch.ones(5, 2, 3).unbind()  # of one tensor given twice torch makes one input
    batch = {0: torch.export.Dim.DYNAMIC}
    shapes = {"given": {"a": batch}, "pair": [batch, batch], "scale": batch, "x": batch}
    program = torch.export.export(Apart(), ({"a": a}, [b, c]), {"scale": scale, "x": x}, dynamic_shapes=shapes)
    inputs = [table("inputs", name, "FP32", "[3]") for name in ("a", "b", "c", "scale", "x")]
    toml = toml_of(*inputs, table("outputs", "y", "FP32", "[3]"), head='source = "model.pt2"')
    folder = write_model(tmp_path / "m", toml, None)
    torch.export.save(program, folder / "model.pt2")
    model = loaded(folder)
    assert try_out(model) == []
    given = [torch.full((4, 3), float(value)) for value in (1, 2, 3, 5, 7)]
    assert model.call(*given).tolist() == [[1 - 7 * 5 + 2 * 3] * 3] * 4


class First(nn.Module):
    def forward(self, given, shift=None):
        return next(iter(given.values())) if isinstance(given, dict) else given[0]


@pytest.mark.parametrize("given", [({"a": torch.ones(2, 3)},), ([torch.ones(2, 3)],)])
def test_an_exported_model_takes_a_dict_or_list_of_one(given):
    module = exported_module(torch.export.export(First(), given))
    assert torch.equal(module(torch.full((2, 3), 5.0)), torch.full((2, 3), 5.0))


@pytest.mark.parametrize("returned", ["net", "nn.Sequential(net)"])
def test_a_factory_may_return_an_exported_model_or_what_contains_one(tmp_path, exported, returned):
    code = "import torch\nfrom torch import nn\n\ndef build(path):\n    net = torch.export.load(path).module()\n"
    code += f"    return {returned}\n"
    toml = f"kwargs = {{ path = {str(exported[0])!r} }}\n{TOML}"
    answers_as(loaded(write_model(tmp_path / "m", toml, code)), exported[1])


def test_an_exported_model_is_freed_without_a_garbage_collection(tmp_path, exported):
    model = loaded(archive(tmp_path, exported[0].read_bytes()))
    gc.collect()
    gc.disable()
    try:
        weight = weakref.ref(next(model.call.parameters()))
        del model
        assert weight() is None
    finally:
        gc.enable()


@pytest.mark.parametrize(
    ("rows", "told"),
    [
        (1, "a batch of 2 rows: .*; a batch of 1 .* Export it with a dynamic batch dimension"),
        (2, "a batch of 1 row: .*; a batch of 2 .* Export it with a dynamic batch dimension"),
        (3, r"a batch of 1 row: .*: was it exported, or written, for one batch size\?"),  # which is never tried
    ],
)
def test_a_fixed_batch_is_refused_and_says_why(tmp_path, exported, rows, told):
    program = torch.export.export(exported[1], (torch.zeros(rows, 3),))
    model = loaded(folder_with(tmp_path, "model.pt2", partial(torch.export.save, program)))
    with pytest.raises(ConfigError, match=told):
        try_out(model)


@pytest.mark.parametrize("data", [b"", b"garbage", b"PK\x03\x04 and then nothing"])
def test_what_is_no_archive(tmp_path, data):
    assert "model.pt2: expected an archive" in refused(archive(tmp_path, data))


def with_config(name, **change):
    """Change the first entry of the archive's configuration of this name."""

    def changed(member, content):
        if not member.endswith(f"{name}_config.json"):
            return content
        config = json.loads(content)
        next(iter(config["config"].values())).update(change)
        return json.dumps(config).encode()

    return lambda bomb: changed


def pickled_samples(bomb):
    buffer = io.BytesIO()
    torch.save((bomb,), buffer)
    return lambda name, content: buffer.getvalue() if name.endswith("sample_inputs/model.pt") else content


def with_member(name, data):
    return lambda bomb: lambda member, content: content if member else (name, data)


ATTACKS = {
    "samples": pickled_samples,
    "weight": with_config("weights", use_pickle=True),
    "script object": with_config("constants", path_name="opaque_obj_0"),
    "compiled": with_member("model/data/aotinductor/model/code.so", b"\x7fELF"),
    "legacy": with_member("model/data/weights/model.pt", b"pickle"),
}


@pytest.mark.parametrize("attack", ATTACKS.values(), ids=ATTACKS)
def test_an_archive_that_may_run_code_is_refused_and_never_opened(tmp_path, exported, attack):
    data = rewritten(exported[0], attack(Bomb(tmp_path / "exploded")))
    text = refused(archive(tmp_path, data))
    assert re.search("expected (sample inputs of plain|an archive of plain|a plain) tensor", text)
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
    """No longer than it was."""
    wanted = name.endswith("weights_config.json")
    return content.replace(b'"use_pickle": false', b'"use_pickle": true ', 1) if wanted else content


@pytest.mark.filterwarnings("ignore:Duplicate name")
@pytest.mark.parametrize("attack", [of_two_archives, of_equal_names])
def test_what_torch_would_read_is_what_is_checked(tmp_path, exported, attack):
    text = refused(archive(tmp_path, attack(exported[0])))
    assert "expected an archive with one member of each name" in text or "expected a plain tensor" in text


# TorchScript


def script(how):
    if how == "traced":
        return torch.jit.trace(Tiny().eval(), torch.ones(2, 3))
    scripted = torch.jit.script(Tiny().eval() if how == "frozen" else Tiny().train())
    return torch.jit.freeze(scripted) if how == "frozen" else scripted


@pytest.mark.parametrize(("how", "name"), [("scripted", "model.pt"), ("traced", "model.pth"), ("frozen", "model.pt")])
def test_torchscript_serves_in_eval_mode(tmp_path, how, name):
    scripted = script(how)
    model = loaded(folder_with(tmp_path, name, scripted.save))
    assert model.info.platform == "pytorch_libtorch"
    answers_as(model, scripted if how == "frozen" else scripted.eval())


def test_torchscript_is_cast_and_never_compiled(tmp_path, caplog):
    model = loaded(folder_with(tmp_path, "model.pt", script("scripted").save))
    placed = place(model, Placement(precision="bf16", compile=True))
    assert "TorchScript is not compiled" in caplog.text
    assert try_out(placed) == []
    assert next(placed.call.parameters()).dtype == torch.bfloat16


def exported_as_pt(path):
    torch.export.save(torch.export.export(nn.Linear(3, 3), (torch.ones(2, 3),)), f"{path}2")
    shutil.move(f"{path}2", path)


NO_SCRIPTS = {
    "module": partial(torch.save, nn.Linear(3, 3)),
    "state dict": partial(torch.save, nn.Linear(3, 3).state_dict()),
    "exported": exported_as_pt,
    "empty": lambda path: Path(path).touch(),
}
LFS_POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:abc\nsize 123\n"


@pytest.mark.parametrize("save", NO_SCRIPTS.values(), ids=NO_SCRIPTS)
def test_what_is_no_torchscript_says_what_to_do(tmp_path, save):
    message = refused(folder_with(tmp_path, "model.pt", save))
    assert "expected TorchScript, as torch.jit.save writes it" in message
    assert "save model.state_dict(), unless that is what it holds, name that file by weights" in message


@pytest.mark.parametrize("name", ["model.pt", "model.pt2", "model.onnx"])
def test_a_pointer_of_git_lfs_is_no_model(tmp_path, name):
    message = refused(folder_with(tmp_path, name, lambda path: Path(path).write_text(LFS_POINTER)))
    assert f"{name}: expected a file, got a pointer of git-lfs to it" in message


@pytest.mark.parametrize("options", [{}, {"_use_new_zipfile_serialization": False}, {"pickle_protocol": 4}])
def test_a_pickle_is_never_opened(tmp_path, options):
    bomb = tmp_path / "exploded"
    folder = folder_with(tmp_path, "model.pt", lambda path: torch.save({"model": Bomb(bomb)}, path, **options))
    assert "a pickle, which is not opened" in refused(folder)
    assert not bomb.exists()


# weights


def with_weights(tmp_path, name, save=None):
    folder = write_model(tmp_path / "m", f'weights = "{name}"\n' + TOML, LINEAR)
    if save is not None:
        save(folder / name)
    return folder


@pytest.mark.parametrize("name", ["w.safetensors", "w.pt"])
@pytest.mark.parametrize("save", [save_model, lambda net, path: torch.save(net.state_dict(), path)])
def test_weights_are_loaded_by_what_the_file_holds_not_by_its_name(tmp_path, name, save):
    saved = nn.Linear(3, 3)
    assert torch.equal(loaded(with_weights(tmp_path, name, partial(save, saved))).call.weight, saved.weight)


def plain(**shapes):
    return partial(save_file, {name: torch.ones(shape) for name, shape in shapes.items()})


def of_wrapper(prefix):
    return {f"{prefix}.{name}": value for name, value in nn.Linear(3, 3).state_dict().items()}


UNFIT = "w.safetensors: expected weights that fit the model"
WRAPPED = "its names begin with {0!r}: save model.{0}.state_dict(), that part alone"
CHECKPOINT = {"epoch": 3, "optimizer": {"state": {}}, "net": nn.Linear(3, 3).state_dict()}


@pytest.mark.parametrize(
    ("name", "save", "told"),
    [
        ("w.safetensors", lambda path: path.write_bytes(b"garbage"), "expected safetensors or a state dict of plain"),
        ("w.pt", lambda path: path.write_bytes(b""), "expected safetensors or a state dict of plain tensors, got"),
        ("w.safetensors", plain(weight=(3, 3)), UNFIT),
        ("w.safetensors", plain(weight=(3, 3), bias=3, more=1), UNFIT),
        ("w.safetensors", plain(weight=(4, 3), bias=3), UNFIT),
        ("w.safetensors", partial(save_file, of_wrapper("module")), WRAPPED.format("module")),
        ("w.pt", partial(torch.save, of_wrapper("_orig_mod.net")), WRAPPED.format("_orig_mod.net")),
        ("w.pt", None, "w.pt: expected a file, got nothing"),
        (
            "w.pt",
            lambda path: torch.jit.script(nn.Linear(3, 3)).save(path),
            "got TorchScript, a whole model: name it by source",
        ),
        (
            "w.pt",
            partial(torch.save, CHECKPOINT),
            "it is a checkpoint that has them below 'net': save that state dict alone",
        ),
        ("w.pt", partial(torch.save, [torch.ones(3)]), "ValueError: expected a state dict, got list"),
        ("w.pt", lambda path: path.write_text(LFS_POINTER), "got a pointer of git-lfs to it: `git lfs pull` fetches"),
    ],
    ids=[
        "garbage",
        "empty",
        "few",
        "many",
        "shape",
        "wrapper",
        "compiled",
        "missing",
        "script",
        "checkpoint",
        "list",
        "lfs",
    ],
)
def test_weights_that_do_not_fit_name_their_file_and_say_what_it_is(tmp_path, name, save, told):
    found = refused(with_weights(tmp_path, name, save))
    assert found.startswith(f"{tmp_path / 'm' / name}: ")
    assert told in found


@pytest.mark.parametrize("renamed", [False, True], ids=["", "a name that only torch reads"])
def test_weights_with_code_are_refused_and_never_opened(tmp_path, renamed):
    bomb = tmp_path / "exploded"
    folder = with_weights(tmp_path, "w.pt", lambda path: torch.save({"weight": Bomb(bomb)}, path))
    if renamed:  # and not in the member's own header
        data = (folder / "w.pt").read_bytes()
        (folder / "w.pt").write_bytes(data.replace(b"w/data.pkl", b"w/beta.pkl", 1))
    assert "w.pt: expected safetensors or a state dict of plain tensors" in refused(folder)
    assert not bomb.exists()
