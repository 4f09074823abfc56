"""Keeps what torch.fx traces in a model's code, as quantize_fx does, to the thread that traces.

A trace replaces `nn.Module.__call__` and `__getattr__` for the whole process, in which workers run other models: it
would record or refuse their calls. And two at once would restore the wrong methods, for good.
"""

from __future__ import annotations

import threading
from functools import wraps
from typing import Any

from torch import fx

_TRACING = threading.RLock()  # a trace may trace a part
_trace = fx.Tracer.trace


@wraps(_trace)
def _own_thread_alone(self: fx.Tracer, *args: Any, **kwargs: Any) -> fx.Graph:
    own = threading.get_ident()
    record_call, record_attribute = self.call_module, self.getattr

    def call_module(m: Any, forward: Any, args: Any, kwargs: Any) -> Any:
        return record_call(m, forward, args, kwargs) if threading.get_ident() == own else forward(*args, **kwargs)

    def attribute(attr: str, attr_val: Any, parameter_proxy_cache: Any) -> Any:
        return record_attribute(attr, attr_val, parameter_proxy_cache) if threading.get_ident() == own else attr_val

    with _TRACING:
        vars(self).update(call_module=call_module, getattr=attribute)
        try:
            return _trace(self, *args, **kwargs)
        finally:
            for name in ("call_module", "getattr"):
                vars(self).pop(name, None)


def keep_to_own_thread() -> None:
    """From now on traces of every tracer reach no other thread, and run one at a time."""
    fx.Tracer.trace = _own_thread_alone  # type: ignore[method-assign]
