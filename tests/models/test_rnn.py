"""Invariant: a module served by its layer's cell gives each row what the plain module gives it alone and unpadded."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from specs import info_of, spec
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from app.errors import ConfigError
from app.models.recurrent.cells import CellModel
from app.models.recurrent.rnn import by_its_layer
from tests.tiers import repeatable

from .folders import loaded, refused, table, toml_of, try_out, write_model

WORDS, HIDDEN, CLASSES = 20, 6, 3
IDS = spec("ids", "INT64", ("tokens", 12), minimum=0, maximum=WORDS - 1)
ONE = spec("y", "FP32", CLASSES)
EVERY = spec("z", "FP32", ("tokens", 12), CLASSES)
CHANNELS = spec("z", "FP32", CLASSES, ("tokens", 12))
KINDS = {
    "lstm": nn.LSTM,
    "gru": nn.GRU,
    "tanh": nn.RNN,
    "relu": lambda *given, **more: nn.RNN(*given, nonlinearity="relu", **more),
}
LENGTHS = st.lists(st.integers(1, 12), min_size=1, max_size=5)


class Net(nn.Module):
    """An embedding, a layer and a head, put together in one of several ways."""

    def __init__(self, kind="gru", layers=1, batch_first=True, bias=True):
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            self.embedding = nn.Embedding(WORDS, HIDDEN)
            self.layer = KINDS[kind](HIDDEN, HIDDEN, layers, bias=bias, dropout=0.3 if layers > 1 else 0.0,
                                     batch_first=batch_first)  # fmt: skip
            self.head = nn.Linear(HIDDEN, CLASSES)
            self.conv = nn.Sequential(*(nn.Conv1d(HIDDEN, HIDDEN, 3, padding=1) for _ in range(2)))
        self.scale = nn.Parameter(torch.tensor(2.0))
        self.batch_first = batch_first
        self.eval()

    def read(self, ids, *hx):
        x = self.embedding(ids)
        return self.layer(x if self.batch_first else x.transpose(0, 1), *hx)


class LastState(Net):
    def forward(self, ids):
        _, last = self.read(ids)
        return self.head((last[0] if isinstance(self.layer, nn.LSTM) else last)[-1])


class EveryStep(Net):
    def forward(self, ids):
        steps = self.read(ids)[0]
        return self.head(steps) if self.batch_first else self.head(steps).transpose(0, 1)


class LastStep(Net):
    def forward(self, ids):
        steps, _ = self.read(ids)
        return self.head(steps[:, -1] if self.batch_first else steps[-1])


class Pooled(Net):
    """What a padded step would change: a mean and a maximum over all of them."""

    def forward(self, ids):
        steps, _ = self.read(ids)
        dim = 1 if self.batch_first else 0
        weights = torch.softmax(self.head(steps), dim)
        return {"y": self.head(steps.mean(dim) + steps.max(dim).values) * self.scale,
                "z": weights if self.batch_first else weights.transpose(0, 1)}  # fmt: skip


class OwnStart(Net):
    """Makes its first state, as tutorials do, and counts rows behind the layer too."""

    def forward(self, ids):
        h0 = torch.ones(self.layer.num_layers, ids.size(0), HIDDEN, device=ids.device)
        hx = (h0, h0 * 0.5) if isinstance(self.layer, nn.LSTM) else h0
        _, last = self.read(ids, hx)
        last = last[1] if isinstance(self.layer, nn.LSTM) else last
        return self.head(last.sum(0).reshape(ids.shape[0], HIDDEN))


class Counted(Net):
    """Flattens rows and steps for the head, and counts both before the layer."""

    def forward(self, ids):
        rows, steps = ids.shape
        states = self.read(ids)[0]
        states = states if self.batch_first else states.transpose(0, 1)
        flat = self.head(states.reshape(rows * steps, HIDDEN)) / ids.size(1)
        return flat.view(rows, steps, CLASSES)


class Convolved(Net):
    """Two convolutions, of which the second reads what the first made of padding."""

    def forward(self, ids):
        x = self.conv(self.embedding(ids).transpose(1, 2)).transpose(1, 2)
        return self.head(self.layer(x if self.batch_first else x.transpose(0, 1))[0].sum(1 if self.batch_first else 0))


class ChannelsFirst(EveryStep):
    def forward(self, ids):
        return super().forward(ids).transpose(1, 2)


NETS = {
    LastState: [ONE], EveryStep: [EVERY], LastStep: [ONE], Pooled: [ONE, EVERY], OwnStart: [ONE], Counted: [EVERY],
    Convolved: [ONE], ChannelsFirst: [CHANNELS],
}  # fmt: skip


def cells_of(net, outputs):
    declared = info_of([IDS], outputs, max_batch=4)
    return CellModel(by_its_layer(net, declared), declared).eval()


def plain(net, *row):
    result = net(*(values[None] for values in row))
    values = result.values() if isinstance(result, dict) else [result]
    return [value[0] for value in values]


@repeatable(80)
@given(st.sampled_from(list(NETS)), st.sampled_from(list(KINDS)), st.integers(1, 3), st.booleans(), st.booleans(),
       LENGTHS, st.integers(0, 2))  # fmt: skip
def test_the_same_answers_as_the_plain_module(kind_of_net, kind, layers, batch_first, bias, lengths, more):
    net = kind_of_net(kind, layers, batch_first, bias)
    model = cells_of(net, NETS[kind_of_net])
    ids = torch.randint(1, WORDS, (len(lengths), max(lengths) + more))
    with torch.inference_mode():
        got = model(ids, torch.tensor(lengths))
        for row, length in enumerate(lengths):
            for one, values, expected in zip(NETS[kind_of_net], got, plain(net, ids[row, :length]), strict=True):
                answer = values[row][tuple(slice(length if axis else None) for axis in one.axes)]
                torch.testing.assert_close(answer, expected, rtol=1e-4, atol=1e-5)
                assert all(size == ids.shape[1] for size, axis in zip(values.shape[1:], one.axes, strict=True) if axis)


# what cannot be taken apart


def packed(self, ids):
    packed = pack_padded_sequence(self.embedding(ids), (ids > 0).sum(1), batch_first=True, enforce_sorted=False)
    return self.head(pad_packed_sequence(self.layer(packed)[0])[0])


def packed_by_module(self, ids):
    packed = nn.utils.rnn.pack_padded_sequence(self.embedding(ids), (ids > 0).sum(1).cpu(), batch_first=True)
    return self.head(self.layer(packed)[1][-1])


def net_of(forward):
    """A net of this forward."""
    return type("Own", (Net,), {"forward": forward})()


def with_layer(layer):
    net = LastState()
    net.layer = layer
    return net


@pytest.mark.parametrize(
    ("net", "message"),
    [
        (nn.Linear(2, 2), "expected one nn.LSTM, nn.GRU or nn.RNN inside an nn.Module, got none"),
        (nn.GRU(2, 2), "expected one .* inside an nn.Module, got the layer alone"),
        (
            with_layer(nn.GRU(HIDDEN, HIDDEN, bidirectional=True)),
            "expected a layer of one direction, got 'layer' with bidirectional=True",
        ),
        *(
            (
                net_of(forward),
                "expected a module that calls 'layer' with the padded tensor, .* got pack_padded_sequence",
            )
            for forward in (packed, packed_by_module)
        ),
        (
            net_of(lambda self, ids: self.layer(self.read(ids)[0])[0]),
            "expected a module that calls 'layer' once, got 2 calls",
        ),
        (
            net_of(lambda self, ids: self.read(ids)[0] + self.embedding(ids)),
            "expected nothing after 'layer' to read what comes before it, got 'ids'",
        ),
        (
            net_of(lambda self, ids: self.read(ids)[0] if ids.sum() > 0 else self.read(-ids)[0]),
            "expected a module that torch.fx can trace, got TraceError",
        ),
        (
            net_of(lambda self, ids: self.read(ids)[0] * len(ids)),
            r"expected a module that torch.fx can trace, got .*; write x\.shape\[0\] in place of len\(x\)",
        ),
    ],
)
def test_what_cannot_be_taken_apart(net, message):
    with pytest.raises(ConfigError, match=f"recurrent: {message}"):
        by_its_layer(net, info_of([IDS], [ONE]))


def test_a_part_that_changes_how_many_steps_there_are():
    model = cells_of(net_of(lambda self, ids: self.head(self.layer(self.embedding(ids)[:, ::2])[1][-1])), [ONE])
    with pytest.raises(ConfigError, match="expected as many steps as the inputs are long, 5, got 3"):
        model(torch.ones(2, 5, dtype=torch.int64), torch.tensor([5, 4]))


# from model.toml

CODE = """
import torch
from torch import nn
class Tones(nn.Module):
    def __init__(self, both):
        super().__init__()
        torch.manual_seed(0)
        self.gru = nn.GRU(4, 8, batch_first=True, bidirectional=both)
    def forward(self, samples, scale=None, *, parameters=()):
        return self.gru(samples)[1][0]
def build(both=False):
    return Tones(both)
"""
TOML = toml_of(
    table("inputs", "samples", "FP32", '["time", 4]', "max_shape = [1000, 4]"),
    table("outputs", "state", "FP32", "[8]"),
    head='recurrent = true\nsource = "model.py:build"',
)


def test_one_key_is_enough(tmp_path):
    folder = write_model(tmp_path / "m", 'weights = "w.pt"\n' + TOML, CODE)
    gru = nn.GRU(4, 8, batch_first=True)
    torch.save({f"gru.{name}": value for name, value in gru.state_dict().items()}, folder / "w.pt")
    model = loaded(folder)
    assert try_out(model) == []
    x = torch.randn(1, 7, 4)
    with torch.inference_mode():
        torch.testing.assert_close(model.call(x, torch.tensor([7]))[0], gru(x)[1][0])


def built(folder, body):
    """A folder whose network's layer is made so."""
    code = CODE.replace("bidirectional=both)\n", f"bidirectional=both)\n        {body}\n")
    return write_model(folder, TOML, code)


def test_what_the_steps_do_not_run_is_refused(tmp_path):
    folder = built(tmp_path / "m", "self.gru.register_forward_hook(lambda gru, given, made: (made[0], 2 * made[1]))")
    text = refused(folder)
    assert text.startswith(f"{folder / 'model.toml'}: expected steps that answer as the whole does, got output 'state'")
    assert text.endswith(
        "; recurrent = true runs no hooks, nor what a module changes in itself: remove them, or this key"
    )


def test_a_network_that_samples_draws_the_same_in_its_steps(tmp_path):
    """As with dropout at work: `row_check` says whether it may be served."""
    code = CODE.replace("self.gru(samples)", "self.gru(samples + torch.rand_like(samples))")
    loaded(write_model(tmp_path / "m", TOML, code))


def test_weights_that_a_hook_computes_at_each_call_are_those_of_the_steps(tmp_path):
    model = loaded(built(tmp_path / "m", "nn.utils.spectral_norm(self.gru, 'weight_hh_l0')"))
    x = torch.randn(1, 7, 4)
    with torch.inference_mode():
        torch.testing.assert_close(model.call(x, torch.tensor([7]))[0], model.call.cell.module(x))
