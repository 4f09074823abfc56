"""Where and how a model computes: its device, its precision, and what is compiled."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import pytest
import torch
from specs import info_of, spec
from torch import nn

from app.contract import Model
from app.models import Recurrent
from app.models.base import device_of
from app.models.checks.samples import example_row
from app.models.compiled import Compiled, batches_of_size_one
from app.models.placement import Cast, Placement, movable, place, warn_of_indices
from app.models.recurrent.cells import CellModel

# Invariant: wherever and in whatever precision a model computes, it takes and gives what it declares.


META = torch.device("meta")  # a device that holds shapes and no values: what is left behind on the CPU shows


def model_of(call, inputs=(), outputs=()):
    return Model(info_of(inputs or [spec("x", "FP32", 4)], outputs or [spec("y", "FP32", 4)]), call)


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_precision_is_inside_only(precision):
    seen = []

    class Sees(nn.Linear):
        def forward(self, x):
            seen.append(x.dtype)
            return super().forward(x)

    network = Sees(4, 4)
    network.register_buffer("turns", torch.tensor([1j]))  # as of rotary positions: it would lose its imaginary part
    placed = place(model_of(network), Placement(precision=precision))
    (out,) = placed.call(torch.ones(2, 4))
    dtype = torch.bfloat16 if precision == "bf16" else torch.float16
    assert (seen, out.dtype) == ([dtype], torch.float32)
    assert {weight.dtype for weight in placed.call.state_dict().values()} == {dtype, torch.complex64}


def test_what_a_network_moves_itself_has_the_precision_too():
    class Moves(nn.Linear):
        extra = torch.ones(4)

        def to(self, *args, **kwargs):
            self.extra = self.extra.to(*args, **kwargs)
            return super().to(*args, **kwargs)

    network = Moves(4, 4)
    place(model_of(network), Placement(precision="bf16"))
    assert {network.extra.dtype, network.weight.dtype} == {torch.bfloat16}


def test_an_exported_model_is_moved_with_its_constants_and_its_graph():
    class Holds(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(4, 4)
            self.constant = torch.ones(4)

        def forward(self, x):
            made = torch.arange(4) + torch.zeros(4)
            return self.linear(x) + self.constant + made + torch.ones(4).to(torch.device("cpu"))

    exported = torch.export.export(Holds(), (torch.ones(2, 4),), dynamic_shapes=({0: torch.export.Dim("n")},))
    placed = place(model_of(exported.module()), Placement(META))
    assert placed.call(torch.ones(3, 4, device=META)).shape == (3, 4)


@pytest.mark.parametrize("held", ["register_parameter", "register_buffer"])
def test_a_model_is_where_what_it_holds_was_moved(held):
    """Or the row check would give inputs on the CPU to stages that are on a GPU."""
    module = nn.Module()
    getattr(module, held)("scale", nn.Parameter(torch.ones(())))
    assert device_of(module).type == "cpu"
    assert device_of(place(model_of(module), Placement(META)).call) == META


def test_what_cannot_be_moved_stays():
    plain = model_of(lambda x: x)
    text = model_of(nn.Identity(), (spec("t", "BYTES", 1),), (spec("y", "FP32", 1),))
    cell = model_of(CellModel(Recurrent(SimpleNamespace(step=len), ((4,),)), plain.info))
    for model in (plain, text, cell):
        assert not movable(model)
        assert place(model, Placement(META, "bf16", compile=True)) is model


@pytest.fixture
def compiled(monkeypatch):
    """With what options torch.compile has been called."""
    asked = []
    monkeypatch.setattr(torch, "compile", lambda call, **options: asked.append(options) or call)
    return asked


COMPILED = Placement(precision="bf16", compile=True)


def test_compile_is_one_graph_for_all_sizes(compiled):
    placed = place(model_of(nn.Linear(4, 4)), COMPILED)
    assert [one["dynamic"] for one in compiled] == [True]
    assert isinstance(placed.call, Cast)


class Cell(nn.GRUCell):
    def step(self, x, state):
        hidden = self(x, state[0])
        return hidden, (hidden,)


def test_a_recurrent_model_is_compiled_by_its_step_and_casts_by_itself(compiled):
    call = CellModel(Recurrent(Cell(4, 4), ((4,),)), info_of([spec("x", "FP32", 3, 4)], [spec("y", "FP32", 4)]))
    placed = place(Model(call.info, call), COMPILED)
    assert placed.call is call, "its rows are still served by the cell"
    assert [one["dynamic"] for one in compiled] == [True]
    assert call.cell.weight_ih.dtype == torch.bfloat16
    with torch.inference_mode():
        assert call(torch.ones(2, 3, 4))[0].dtype == torch.float32


@pytest.mark.parametrize(
    ("one", "warned"),
    [
        (spec("ids", "INT64", 2), True),
        (replace(spec("low", "INT32", 2), minimum=0), True),
        (replace(spec("both", "INT64", 2), minimum=0, maximum=9), False),
        (spec("pixels", "UINT8", 2), False),
        (spec("x", "FP32", 2), False),
        (spec("lengths", "INT64", lengths_of="tokens"), False),  # no client can send it
    ],
)
def test_indices_without_bounds_are_warned_of(caplog, one, warned):
    warn_of_indices(model_of(nn.Identity(), (one,)))
    assert [one.name in record.getMessage() for record in caplog.records] == [True] * warned


# Invariant: what is compiled depends on whether there is one row or value, or more, and on nothing else.


@pytest.fixture
def graphs(monkeypatch):
    """What has been compiled: torch's front end alone, the graphs run as they are."""
    made = []

    def backend(graph, example):
        made.append(graph)
        return graph.forward

    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend=backend))
    return made


def test_tensors_of_any_origin_and_layout_are_one(graphs):
    def double(x, pair):
        return x * 2 + pair[0]

    call, slots = Compiled(double), torch.arange(80.0).view(8, 10)
    with torch.inference_mode():
        for rows in (1, 3, 7):
            made = torch.arange(5.0).repeat(rows, 1)
            ways = (slots[:rows, :5], made, made.T.contiguous().T, made[:1].expand(rows, 5), slots[::10, :5])
            for x in ways:
                for other in ways:
                    if len(x) == len(other):
                        assert torch.equal(call(x, (other,)), x * 2 + other)
    assert len(graphs) == 2, "one row, and more"


@pytest.mark.parametrize(("max_batch", "sizes"), [(8, [1, 2]), (1, [1])])
def test_rows_of_one_value_are_compiled_before_it_serves(max_batch, sizes, graphs):
    inputs = (spec("x", "FP32", ("t", 32), 2),)
    info = info_of(inputs, inputs, max_batch=max_batch)
    row = example_row(inputs)
    found = list(batches_of_size_one(Model(info, Compiled(nn.Identity())), row))
    assert [(one.lengths, size) for one, size in found] == [({"t": 1}, size) for size in sizes]
    assert found[0][0].arrays[0].shape == (1, 2)
    assert not list(batches_of_size_one(Model(info, nn.Identity()), row))
