"""Lets one thread at a time trace, compile, export or read an exported program, also in a model's own code, and keeps
what torch.fx traces, as quantize_fx does, to the thread that traces.

torch keeps the state of each of these in globals: beside another, and beside torch.compile, they raise, or record what
the other does. A trace of torch.fx even replaces `nn.Module.__call__` and `__getattr__` for the whole process, in which
workers run other models: it would record or refuse their calls. And two at once would restore the wrong methods, for
good.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
from torch import fx
from torch.fx import _symbolic_trace as symbolic

#: Held while any of them runs. Reentrant: a trace may trace a part.
_TRACING = threading.RLock()
_trace = fx.Tracer.trace
_is_tracing = symbolic.is_fx_symbolic_tracing
_here = threading.local()  # `traces`: how many of this thread run, one within another


def _alone(function: Callable[..., Any], *, compiles: bool) -> Callable[..., Any]:
    """`compiles`: it imports torch's compiler, which takes this lock for its own then: it traces while it holds that,
    and with two locks each thread could wait for the other.
    """

    @wraps(function)
    def alone(*args: Any, **kwargs: Any) -> Any:
        if compiles:
            from torch._dynamo import convert_frame

            convert_frame.compile_lock = _TRACING
        with _TRACING:
            return function(*args, **kwargs)

    return alone


def _run(m: Any, forward: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    return forward(*args, **kwargs)


def _as_it_is(attr: str, attr_val: Any, parameter_proxy_cache: Any) -> Any:
    return attr_val


#: What a tracer has after a trace: other threads may be between its call and what it records yet.
_AFTER = {"call_module": _run, "getattr": _as_it_is}


@wraps(_trace)
def _own_thread_alone(self: fx.Tracer, *args: Any, **kwargs: Any) -> fx.Graph:
    own = threading.get_ident()
    for name, ours in _AFTER.items():
        if vars(self).get(name) is ours:
            delattr(self, name)
    record_call, record_attribute = self.call_module, self.getattr

    def call_module(m: Any, forward: Any, args: Any, kwargs: Any) -> Any:
        return (record_call if threading.get_ident() == own else _run)(m, forward, args, kwargs)

    def attribute(attr: str, attr_val: Any, parameter_proxy_cache: Any) -> Any:
        return (record_attribute if threading.get_ident() == own else _as_it_is)(attr, attr_val, parameter_proxy_cache)

    with _TRACING:
        vars(self).update(call_module=call_module, getattr=attribute)
        _here.traces = getattr(_here, "traces", 0) + 1
        try:
            return _trace(self, *args, **kwargs)
        finally:
            _here.traces -= 1
            vars(self).update(_AFTER)


@wraps(_is_tracing)
def _is_tracing_here() -> bool:
    return getattr(_here, "traces", 0) > 0 and _is_tracing()


#: Whose attribute, its name, and what it becomes.
_REPLACED: tuple[tuple[Any, str, Callable[..., Any]], ...] = (
    (fx.Tracer, "trace", _own_thread_alone),
    (symbolic, "is_fx_symbolic_tracing", _is_tracing_here),
    (torch, "compile", _alone(torch.compile, compiles=True)),
    (torch.export, "export", _alone(torch.export.export, compiles=True)),
    (torch.export, "load", _alone(torch.export.load, compiles=True)),
    (torch.jit, "trace", _alone(torch.jit.trace, compiles=False)),
    (torch.jit, "trace_module", _alone(torch.jit.trace_module, compiles=False)),
)


def trace_one_at_a_time() -> None:
    """From now on these run one at a time, and traces of every tracer reach no other thread."""
    for owner, name, function in _REPLACED:
        setattr(owner, name, function)
