"""An nn.Module as a graph of operators with a dynamic batch, and the graph cut into stages.

A cut is a place in the order of the operators. Values that later stages need cross it as tensors with their rows first.
Values that depend on the inputs alone, without weights (masks, positions), do not cross: they are the stages' context,
computed once for a batch, and again when the batch has changed. Each stage computes sizes and views itself.
"""

from __future__ import annotations

import inspect
import operator
import warnings
from collections.abc import Sequence
from typing import Any

import torch
from torch import fx, nn
from torch.export import Dim
from torch.fx.experimental.symbolic_shapes import free_symbols
from torch.utils import _pytree as pytree

from app.contract import TensorSpec
from app.models.recurrent.rnn_graph import copy_needed, needed
from app.models.sources.imports import PATCHING

#: Parts of names of operators that a stage never computes again.
_HEAVY = ("linear", "mm", "matmul", "conv", "attention", "lstm", "gru", "rnn", "einsum", "fft")
#: Of operators that only check, and have no result.
_CHECKS = ("_assert", "sym_constrain_range", "_guards_fn")


class CannotCut(Exception):
    """Nothing can be cut here; the message says why."""


def export(module: nn.Module, inputs: Sequence[TensorSpec], arguments: Sequence[Any]) -> Graph:
    """The module as a graph for any number of rows, and any length along variable axes.

    `arguments` are an example: at least two rows and lengths of at least two. Raises whatever torch.export raises.
    """
    shapes: list[Any] = [
        {0: Dim.DYNAMIC, **{dim: Dim.DYNAMIC for dim, axis in enumerate(spec.axes, 1) if axis}} for spec in inputs
    ]
    for place, parameter in enumerate(inspect.signature(module.forward).parameters.values()):
        if parameter.kind is inspect.Parameter.VAR_POSITIONAL:
            shapes[place:] = [tuple(shapes[place:])]
            break
    with PATCHING, torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # torch's, of its own code
        program = torch.export.export(module, tuple(arguments), dynamic_shapes=tuple(shapes))
        if any(map(_writes_shared, program.graph.nodes)):
            program = program.run_decompositions({})  # which writes nothing in place
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

    def crossing(self, place: int) -> list[fx.Node]:
        """The values that cross a cut here, in order. Raises CannotCut."""
        crossing: set[fx.Node] = set()

        def crosses(node: fx.Node) -> bool:
            if self._place.get(node, place) >= place or self._made_anew(node):
                return False
            crossing.add(node)
            return True

        needed(self.outputs(), crosses)
        if not crossing:
            raise CannotCut("all that comes before it follows from the inputs without weights")
        return sorted(crossing, key=self._place.__getitem__)

    def cut(self, places: Sequence[int]) -> tuple[list[nn.Module], list[tuple[int, ...]], nn.Module | None]:
        """The stages, the inputs that each takes again, and the context: see `Staged`.

        `places` must rise. Raises CannotCut.
        """
        crossing = [[], *map(self.crossing, places)]
        built = [self._stage(*both) for both in zip(crossing, [*crossing[1:], None], strict=True)]
        context = fx.GraphModule(self.module, self._contexts()) if self.context else None
        return [fx.GraphModule(self.module, graph) for graph, _ in built], [again for _, again in built], context

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

    def _made_anew(self, node: fx.Node) -> bool:
        """Whether later stages compute this value again; else it crosses the cut. Raises CannotCut for neither."""
        if not _is_tensor(node) or node in self.derived:
            return True
        if self.row_dim(node) is not None:
            return False
        if _is_heavy(node):
            rule = "rows must come first, and only the next axis may vary"
            raise CannotCut(f"{node.name} of shape {[*node.meta['val'].shape]} would have to go over it: {rule}")
        return True

    def _stage(
        self, arriving: Sequence[fx.Node], leaving: Sequence[fx.Node] | None
    ) -> tuple[fx.Graph, tuple[int, ...]]:
        """A stage's graph, and the positions of inputs and context that it takes behind the values that arrive.

        `leaving`: the values for the next stage; None: the result of the whole module.
        """
        part = fx.Graph()
        passed = {node: part.placeholder(node.name) for node in arriving}  # with their rows first
        given = {node: part.placeholder(node.name) for node in (*self.inputs, *self.context)}
        copies = given | {node: _moved(copy, 0, self.row_dim(node) or 0) for node, copy in passed.items()}
        self._copy(self.outputs() if leaving is None else leaving, part, copies)
        if leaving is None:
            values: Any = tuple(copies[node] for node in self.outputs())
            values = values if self.out_spec is None else pytree.tree_unflatten(values, self.out_spec)
        else:
            values = tuple(passed.get(node) or _moved(copies[node], self.row_dim(node) or 0, 0) for node in leaving)
        part.output(values)
        part.eliminate_dead_code()
        first = 0 if arriving else len(self.inputs)  # the first stage takes them all
        again = tuple(place for place, copy in enumerate(given.values()) if copy.users and place >= first)
        for place, copy in enumerate(given.values()):
            if place >= first and place not in again:
                part.erase_node(copy)
        part.lint()
        return part, again

    def _contexts(self) -> fx.Graph:
        """The graph that computes the context from the inputs."""
        part = fx.Graph()
        copies = {node: part.placeholder(node.name) for node in self.inputs}
        self._copy(self.context, part, copies)
        part.output(tuple(copies[node] for node in self.context))
        part.lint()
        return part

    def _copy(self, wanted: Sequence[fx.Node], part: fx.Graph, copies: dict[fx.Node, fx.Node]) -> None:
        """Copy all that these nodes need to the part, behind the nodes that it has copies of."""
        for node in copy_needed(wanted, self.module.graph, part, copies):
            if node.target is torch.ops.aten.view.default:
                copies[node].target = torch.ops.aten.reshape.default  # gathered rows may have other strides


def _moved(copy: fx.Node, dim: int, to: int) -> fx.Node:
    return copy if dim == to else copy.graph.call_function(torch.movedim, (copy, dim, to))


def _is_tensor(node: fx.Node) -> bool:
    return isinstance(node.meta.get("val"), torch.Tensor)


def _writes_shared(node: fx.Node) -> bool:
    """Whether an operator writes into memory that other ones may read: stages have copies of what crosses a cut."""
    if not getattr(getattr(node.target, "_schema", None), "is_mutable", False):
        return False
    source: Any = node.args[0]  # no node for out=, and for operators of lists
    made = getattr(getattr(source, "target", None), "_schema", None)
    fresh = made is not None and not any(value.alias_info for value in made.returns)  # no input, weight or view
    return not (fresh and node.users and len(source.users) == 1)


def _is_heavy(node: fx.Node) -> bool:
    return any(part in str(node.target) for part in _HEAVY)


def _computes(node: fx.Node) -> bool:
    return node.op == "call_function" and not any(part in str(node.target) for part in _CHECKS)


def _modules(node: fx.Node) -> set[str]:
    """The names of the submodules that an operator belongs to."""
    stack = node.meta.get("nn_module_stack") or {}
    return {str(name).removeprefix("L['self'].") for name, _ in stack.values()}


def _weighs(module: fx.GraphModule, node: fx.Node) -> bool:
    """Whether a constant is a weight. Integers (positions, flags) are not: masks are made of them."""
    value = operator.attrgetter(str(node.target))(module)
    return not isinstance(value, torch.Tensor) or value.is_floating_point()
