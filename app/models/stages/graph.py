"""An nn.Module as a graph of operators with a dynamic batch, and the graph cut into stages.

A cut is a place in the order of the operators. Values that later stages need cross it as tensors with their rows first.
Values that depend on the inputs alone, without weights (masks, positions), do not cross: they are the stages' context,
computed once for a batch, and again when the batch has changed. Each stage computes sizes and views itself.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import fx, nn
from torch.export import Dim
from torch.fx.experimental.symbolic_shapes import free_symbols
from torch.utils import _pytree as pytree

from app.contract import TensorSpec
from app.models.sources.imports import PATCHING

#: Parts of names of operators that a stage never computes again.
_HEAVY = ("linear", "mm", "matmul", "conv", "attention", "lstm", "gru", "rnn", "einsum", "fft")
#: Of operators that only check, and have no result.
_CHECKS = ("_assert", "sym_constrain_range", "_guards_fn")


class CannotCut(Exception):
    """Nothing can be cut here; the message says why."""


def export(module: nn.Module, inputs: Sequence[TensorSpec], arguments: Sequence[torch.Tensor]) -> Graph:
    """The module as a graph for any number of rows, and any length along variable axes.

    `arguments` are an example: at least two rows and lengths of at least two. Raises whatever torch.export raises.
    """
    shapes: list[Any] = [
        {0: Dim.DYNAMIC, **{dim: Dim.DYNAMIC for dim, axis in enumerate(spec.axes, 1) if axis}} for spec in inputs
    ]
    names = inspect.signature(module.forward).parameters.values()
    for place, parameter in enumerate(names):
        if parameter.kind is inspect.Parameter.VAR_POSITIONAL:
            shapes[place:] = [tuple(shapes[place:])]
            break
    with PATCHING, torch.no_grad():
        program = torch.export.export(module, tuple(arguments), dynamic_shapes=tuple(shapes))
    return Graph(program.module())


class Graph:
    """An exported module. Places count the operators from 0; a cut at place p is before operator p."""

    def __init__(self, module: fx.GraphModule) -> None:
        self.module = module
        nodes = list(module.graph.nodes)
        self.inputs = [node for node in nodes if node.op == "placeholder"]
        self._output = next(node for node in nodes if node.op == "output")
        self.nodes = [node for node in nodes if _computes(node)]
        self._place = {node: place for place, node in enumerate(self.nodes)}
        self._rows = {symbol for node in self.inputs for symbol in free_symbols(node.meta["val"].shape[0])}
        self.derived = self._from_inputs_alone()
        wanted = [source for node in self.nodes if node not in self.derived for source in node.all_input_nodes]
        tensors = {node for node in (*wanted, *self.outputs()) if node in self.derived and _is_tensor(node)}
        #: The derived tensors that other operators read, in order.
        self.context = [node for node in self.nodes if node in tensors]
        info = getattr(module.graph._codegen, "pytree_info", None)
        #: The model's own kind of result: a tensor, a tuple, a mapping.
        self.out_spec = None if info is None else info.out_spec

    def after(self, name: str) -> int | None:
        """The place behind the last operator of the submodule of this name; None where it has none."""
        places = [place for place, node in enumerate(self.nodes) if name in _modules(node)]
        return max(places) + 1 if places else None

    def crossing(self, place: int) -> int:
        """How many tensors cross a cut here. Raises CannotCut."""
        crossing = len(self._live([0, place, len(self.nodes)])[1])
        if not crossing:
            raise CannotCut("all that comes before it follows from the inputs without weights")
        return crossing

    def cut(self, places: Sequence[int]) -> tuple[list[nn.Module], list[tuple[int, ...]], nn.Module | None]:
        """The stages, the inputs that each takes again, and the context: see `Staged`.

        `places` must rise. Raises CannotCut.
        """
        ends = [0, *places, len(self.nodes)]
        live = self._live(ends)
        stages: list[nn.Module] = []
        again: list[tuple[int, ...]] = []
        for stage in range(len(ends) - 1):
            last = stage + 2 == len(ends)
            build = _Build(self, ends[stage], ends[stage + 1], live[stage])
            graph, used = build.graph(None if last else live[stage + 1])
            stages.append(fx.GraphModule(self.module, graph))
            again.append(used)
        context = fx.GraphModule(self.module, _Build(self, 0, 0, ()).context()) if self.context else None
        return stages, again, context

    def outputs(self) -> list[fx.Node]:
        return [node for node in pytree.tree_leaves(self._output.args[0]) if isinstance(node, fx.Node)]

    def row_dim(self, node: fx.Node) -> int | None:
        """The dimension of the rows of a value that may cross a cut: only one more dimension, the next, may vary.

        None if it may not cross.
        """
        value = node.meta.get("val")
        if not isinstance(value, torch.Tensor):
            return None
        varying = [dim for dim, length in enumerate(value.shape) if free_symbols(length)]
        rows = [dim for dim in varying if free_symbols(value.shape[dim]) <= self._rows]
        if len(rows) != 1 or str(value.shape[rows[0]]) not in map(str, self._rows):
            return None
        others = [dim + (dim < rows[0]) for dim in varying if dim != rows[0]]  # once the rows come first
        return rows[0] if all(dim == 1 for dim in others) else None

    def _from_inputs_alone(self) -> set[fx.Node]:
        found = set(self.inputs)
        for node in self.nodes:
            constant = all(
                not _weighs(self.module, source) if source.op == "get_attr" else source in found
                for source in node.all_input_nodes
            )
            if constant and not _is_heavy(node):
                found.add(node)
        return found

    def _live(self, ends: Sequence[int]) -> list[list[fx.Node]]:
        """For each stage, the values of earlier stages that it or a later one needs, in order."""
        live: list[set[fx.Node]] = [set() for _ in pairwise(ends)]
        needed: set[fx.Node] = set()
        for stage in range(len(live) - 1, -1, -1):
            begin, end = ends[stage], ends[stage + 1]
            needed = {node for node in needed if self._place[node] < begin}
            wanted = [source for node in self.nodes[begin:end] for source in node.all_input_nodes]
            if stage == len(live) - 1:
                wanted += self.outputs()
            seen: set[fx.Node] = set()
            while wanted:
                node = wanted.pop()
                if node in seen or node.op != "call_function" or self._place.get(node, end) >= begin:
                    continue
                seen.add(node)
                if self.made_anew(node):
                    wanted += node.all_input_nodes
                else:
                    needed.add(node)
            live[stage] = set(needed)
        return [sorted(nodes, key=self._place.__getitem__) for nodes in live]

    def made_anew(self, node: fx.Node) -> bool:
        """Whether later stages compute this value again; else it crosses the cut. Raises CannotCut for neither."""
        if not _is_tensor(node) or node in self.derived:
            return True
        if self.row_dim(node) is not None:
            return False
        if _is_heavy(node):
            shape = list(node.meta["val"].shape)
            raise CannotCut(
                f"{node.name} of shape {shape} would have to go over it, which does not have the rows first"
            )
        return True


class _Build:
    """Builds one stage of a graph: operators from `begin` to `end`, and what they need of earlier ones."""

    def __init__(self, whole: Graph, begin: int, end: int, live: Sequence[fx.Node]) -> None:
        self._whole = whole
        self._own = [node for node in whole.nodes[begin:end] if node not in whole.derived]
        self._graph = fx.Graph()
        #: As they cross the cut, with their rows first.
        self._passed = {node: self._graph.placeholder(node.name) for node in live}
        self._copies: dict[fx.Node, fx.Node] = {}
        self._first = begin == 0

    def graph(self, outgoing: Sequence[fx.Node] | None) -> tuple[fx.Graph, tuple[int, ...]]:
        """The stage's graph, and the positions of inputs and context that it takes behind the values that cross.

        `outgoing`: the values for the next stage; None: the result of the whole module.
        """
        given = [*self._whole.inputs, *self._whole.context]
        placeholders = [self._graph.placeholder(node.name) for node in given]
        self._copies.update(zip(given, placeholders, strict=True))
        self._copies.update((node, self._moved(copy, 0, self._rows(node))) for node, copy in self._passed.items())
        for node in self._own:
            self._copy(node)
        if outgoing is None:
            values, kind = tuple(self._of(node) for node in self._whole.outputs()), self._whole.out_spec
            self._graph.output(values if kind is None else pytree.tree_unflatten(values, kind))
        else:
            self._graph.output(tuple(self._passed_on(node) for node in outgoing))
        self._graph.eliminate_dead_code()
        inputs = len(self._whole.inputs) if self._first else 0  # the first stage takes them all
        used = tuple(place for place, copy in enumerate(placeholders) if copy.users and place >= inputs)
        for place, copy in enumerate(placeholders):
            if place >= inputs and place not in used:
                self._graph.erase_node(copy)
        self._graph.lint()
        return self._graph, used

    def context(self) -> fx.Graph:
        """The graph that computes the context from the inputs."""
        self._copies.update((node, self._graph.placeholder(node.name)) for node in self._whole.inputs)
        self._graph.output(tuple(self._of(node) for node in self._whole.context))
        self._graph.lint()
        return self._graph

    def _of(self, node: fx.Node) -> fx.Node:
        """The value of this node in the stage."""
        return self._copies.get(node) or self._copy(node)

    def _copy(self, node: fx.Node) -> fx.Node:
        for source in node.all_input_nodes:  # the sources of a value that is computed again come first
            self._of(source)
        copy = self._graph.node_copy(node, self._of)
        if copy.target is torch.ops.aten.view.default:
            copy.target = torch.ops.aten.reshape.default  # gathered rows may have other strides
        self._copies[node] = copy
        return copy

    def _passed_on(self, node: fx.Node) -> fx.Node:
        return self._passed.get(node) or self._moved(self._of(node), self._rows(node), 0)

    def _rows(self, node: fx.Node) -> int:
        return self._whole.row_dim(node) or 0

    def _moved(self, copy: fx.Node, dim: int, to: int) -> fx.Node:
        return copy if dim == to else self._graph.call_function(torch.movedim, (copy, dim, to))


def _is_tensor(node: fx.Node) -> bool:
    return isinstance(node.meta.get("val"), torch.Tensor)


def _is_heavy(node: fx.Node) -> bool:
    return any(part in str(node.target) for part in _HEAVY)


def _computes(node: fx.Node) -> bool:
    return node.op == "call_function" and not any(part in str(node.target) for part in _CHECKS)


def _modules(node: fx.Node) -> set[str]:
    """The names of the submodules that an operator belongs to."""
    stack = node.meta.get("nn_module_stack") or {}
    return {str(name).removeprefix("L['self'].") for name, _ in stack.values()}


def _weighs(module: fx.GraphModule, node: fx.Node) -> bool:
    """Whether this is a weight. Integer constants (positions, flags) are not: masks are made of them."""
    if node.op != "get_attr":
        return False
    value: Any = module
    for part in str(node.target).split("."):
        value = getattr(value, part)
    return not isinstance(value, torch.Tensor) or value.is_floating_point()
