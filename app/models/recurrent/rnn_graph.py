"""Splits a module that contains one nn.LSTM, nn.GRU or nn.RNN into the part before that layer and the part behind it.

torch.fx traces the module with the layer as one node. The first part returns the layer's input. The second part takes
the layer's result, and nothing else from before it but the numbers of rows and steps.
"""

from __future__ import annotations

import inspect
import math
import operator
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from torch import fx, nn
from torch.nn.utils import rnn as packing

from app.errors import ConfigError
from app.models.base import one_line
from app.models.checks.advice import advice_on
from app.models.sources.imports import PATCHING

LAYERS = (nn.LSTM, nn.GRU, nn.RNN)
_NAMES = "nn.LSTM, nn.GRU or nn.RNN"

#: Modules that, in eval mode, compute each step of [rows, steps, ...] from that step alone.
_STEPWISE = (
    nn.Embedding, nn.Linear, nn.Identity, nn.Dropout, nn.ReLU, nn.GELU, nn.SiLU, nn.Tanh, nn.Sigmoid, nn.LeakyReLU,
    nn.ELU,
)  # fmt: skip


#: Functions whose calls a trace records. No classes: a wrapped one would break isinstance in layers.
_PACKING = tuple(getattr(packing, name) for name in packing.__all__ if name.islower())


def holds_layer(module: object) -> bool:
    """Whether the module contains a layer at which `CutModule` cuts."""
    layers = [part for part in module.modules() if type(part) in LAYERS] if isinstance(module, nn.Module) else []
    return any(not layer.bidirectional and not layer.proj_size for layer in layers)


class CutModule(nn.Module):
    """A `module` in eval mode, which takes so many inputs, cut at its `layer`. All parts share its weights.

    `before(*inputs)` -> (x, hx), the layer's arguments; hx is None if it gets none. `behind(result, rows, steps)` ->
    the outputs, from the layer's result for so many rows of so many steps.

    `reads_steps`: `behind` reads the layer's result at each step, or their number, and not only its last state. The
    other two: whether a part computes every step from that step alone, so that padding does not change it.
    """

    def __init__(self, module: nn.Module, inputs: int, along: Sequence[tuple[int, int]]) -> None:
        """`along`: the inputs with the axis of the steps, and in which dimension.

        Raises ConfigError `recurrent: expected ..., got ...` where it cannot be taken apart.
        """
        super().__init__()
        self.module = module
        name, self.layer = _find(module)
        graph = _trace(module, inputs)
        call = _call(graph, name)
        given = [node for node in graph.nodes if node.op == "placeholder"][:inputs]
        arguments = dict(zip(("input", "hx"), call.args, strict=False)) | call.kwargs
        x = arguments["input"]
        rows, steps = (0, 1) if self.layer.batch_first else (1, 0)
        counted = {
            "rows": {(x, rows), *((node, 0) for node in given)},
            "steps": {(x, steps), *((given[place], dim) for place, dim in along)},
        }
        sizes = {node: name for node in graph.nodes for name, dims in counted.items() if _size(node) in dims}
        behind = needed(_result(graph), {call, *sizes}.__contains__)
        self.before = fx.GraphModule(module, _before(graph, given, arguments))
        self.behind = fx.GraphModule(module, _behind(graph, call, sizes))
        self.reads_steps = any(not _takes(user, 1) for user in call.users if user in behind) or any(
            sizes.get(node) == "steps" for node in behind
        )
        self.before_stepwise = _is_stepwise(x, given, module)
        self.behind_stepwise = _is_stepwise(_result(graph), [user for user in call.users if _takes(user, 0)], module)


def _find(module: nn.Module) -> tuple[str, nn.RNNBase]:
    """The layer and its name. Raises ConfigError for none, several, and an unsupported one."""
    layers = {name: part for name, part in module.named_modules() if isinstance(part, nn.RNNBase)}
    if len(layers) != 1 or "" in layers:
        got = "the layer alone" if "" in layers else ", ".join(map(repr, layers)) or "none"
        raise ConfigError(f"recurrent: expected one {_NAMES} inside an nn.Module, got {got}")
    ((name, layer),) = layers.items()
    if type(layer) not in LAYERS:
        raise ConfigError(f"recurrent: expected one {_NAMES}, got {name!r}, {type(layer).__name__}")
    if layer.bidirectional:
        raise ConfigError(f"recurrent: expected a layer of one direction, got {name!r} with bidirectional=True")
    if layer.proj_size:
        raise ConfigError(f"recurrent: expected a layer without projections, got {name!r}, proj_size={layer.proj_size}")
    return name, layer


class _Tracer(fx.Tracer):
    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return isinstance(m, nn.RNNBase) or super().is_leaf_module(m, module_qualified_name)


def _trace(module: nn.Module, inputs: int) -> fx.Graph:
    """The module's graph; arguments beyond the inputs get their defaults. Raises ConfigError."""
    parameters = list(inspect.signature(module.forward).parameters.values())
    rest = {each.name: each.default for each in parameters[inputs:] if each.default is not inspect.Parameter.empty}
    tracer = _Tracer(autowrap_modules=(math,), autowrap_functions=_PACKING)
    tracer._autowrap_search.append(packing)  # where they are called as nn.utils.rnn.pack_padded_sequence
    try:
        with PATCHING, warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch.fx warns of arguments with a default
            return tracer.trace(module, concrete_args=rest or None)
    except Exception as error:  # whatever its code raises, called with torch.fx's proxies
        hint = f"; {advice}" if (advice := advice_on(error)) else ""
        raise ConfigError(
            f"recurrent: expected a module that torch.fx can trace, got {one_line(error)}{hint}"
        ) from error


def _call(graph: fx.Graph, name: str) -> fx.Node:
    """The one call of the layer. Raises ConfigError."""
    for node in graph.nodes:
        if node.op == "call_function" and getattr(node.target, "__module__", "") == packing.__name__:
            raise ConfigError(
                f"recurrent: expected a module that calls {name!r} with the padded tensor, because rows run to "
                f"their own length anyway, got {node.target.__name__}"
            )
    calls: list[fx.Node] = [node for node in graph.nodes if node.op == "call_module" and node.target == name]
    if len(calls) != 1:
        raise ConfigError(f"recurrent: expected a module that calls {name!r} once, got {len(calls)} calls")
    return calls[0]


def _before(graph: fx.Graph, given: list[fx.Node], arguments: dict[str, Any]) -> fx.Graph:
    """The graph from the inputs to the layer's arguments."""
    part = fx.Graph()
    copies = {node: part.placeholder(f"input_{place}") for place, node in enumerate(given)}
    wanted = (arguments["input"], arguments.get("hx"))
    refused = "expected a module that reads its inputs alone, got {!r} too"
    return _filled(part, graph, copies, wanted, refused)


def _behind(graph: fx.Graph, call: fx.Node, sizes: Mapping[fx.Node, str]) -> fx.Graph:
    """The graph from the layer's result to the outputs. `sizes`: the nodes that count "rows", or "steps"."""
    part = fx.Graph()
    copies = {call: part.placeholder("result")}
    counts = {name: part.placeholder(name) for name in ("rows", "steps")}
    copies |= {node: counts[name] for node, name in sizes.items()}
    refused = f"expected nothing after {call.target!r} to read what comes before it, got {{!r}}"
    return _filled(part, graph, copies, _result(graph), refused)


def _filled(part: fx.Graph, graph: fx.Graph, copies: dict[fx.Node, fx.Node], wanted: Any, refused: str) -> fx.Graph:
    """The part with `wanted` as its output. Raises ConfigError, as `refused` says, if that needs another input."""
    inputs = [node for node in copy_needed(wanted, graph, part, copies) if node.op == "placeholder"]
    if inputs:
        raise ConfigError(f"recurrent: {refused.format(inputs[0].target)}")
    part.output(fx.map_arg(wanted, copies.__getitem__))
    return part


def copy_needed(wanted: Any, graph: fx.Graph, part: fx.Graph, copies: dict[fx.Node, fx.Node]) -> list[fx.Node]:
    """Copy what `wanted` depends on to a part of the graph, behind the nodes that it has copies of. Returns those nodes
    of the graph, in order.
    """
    nodes = needed(wanted, frozenset(copies).__contains__) - copies.keys()
    ordered = [node for node in graph.nodes if node in nodes]
    for node in ordered:
        copies[node] = part.node_copy(node, copies.__getitem__)
    return ordered


def _size(node: fx.Node) -> tuple[Any, Any]:
    """Of `x.size(0)` and `x.shape[0]`, the node x and the dimension."""
    source, dim = None, None
    if node.op == "call_method" and node.target == "size" and len(node.args) == 2:
        source, dim = node.args
    elif node.op == "call_function" and node.target is operator.getitem:
        shape, dim = node.args
        if isinstance(shape, fx.Node) and (
            (shape.op == "call_function" and shape.target is getattr and shape.args[1] == "shape")
            or (shape.op == "call_method" and shape.target == "size" and len(shape.args) == 1)
        ):
            source = shape.args[0]
    return (source, dim) if isinstance(dim, int) else (None, None)


def needed(wanted: Any, is_end: Callable[[fx.Node], bool]) -> set[fx.Node]:
    """The nodes that `wanted` depends on, not looking beyond the ends."""
    found: set[fx.Node] = set()
    ahead: list[fx.Node] = []
    fx.map_arg(wanted, ahead.append)
    while ahead:
        node = ahead.pop()
        if node not in found:
            found.add(node)
            if not is_end(node):
                ahead.extend(node.all_input_nodes)
    return found


def _result(graph: fx.Graph) -> Any:
    return next(node for node in graph.nodes if node.op == "output").args[0]


def _takes(node: fx.Node, place: int) -> bool:
    return node.op == "call_function" and node.target is operator.getitem and bool(node.args[1] == place)


def _is_stepwise(wanted: Any, sources: Iterable[fx.Node], module: nn.Module) -> bool:
    """Whether only modules that compute each step alone are between the sources and `wanted`."""
    ends = set(sources)
    return all(
        node in ends or (node.op == "call_module" and isinstance(module.get_submodule(str(node.target)), _STEPWISE))
        for node in needed(wanted, ends.__contains__)
    )
