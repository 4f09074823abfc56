"""What to do about errors of models whose own text does not say it: of threads, processes, gradients, datatypes.

A type and a pattern of the text tell them apart, because torch raises RuntimeError for nearly everything.
"""

from __future__ import annotations

import re
import threading
from concurrent.futures.process import BrokenProcessPool

from app.models.base import PADDED, message_of

_THREADS = (
    'a model is imported and built on the thread "model-load", and called on others, "warm-up" and "worker-0" among '
    "them, never on the main one: make what belongs to a thread (a connection, a loop, a threading.local) where it is "
    "used, and leave signals to the server"
)
_GRADIENTS = (
    "models are called under torch.inference_mode, which threads of their own enter themselves: where forward "
    "needs gradients, `with torch.inference_mode(False), torch.enable_grad():` and cloned inputs (docs/model-code.md)"
)
_UNSIGNED = (
    "torch has few operators for unsigned integers of more than 8 bits: cast them first in forward (x.long()), or "
    "declare INT32 or INT64 in model.toml"
)
_TRAINING = (
    "part of the model is in training mode, or has track_running_stats=False: call .eval() on the network; the server "
    "does it where the source returns an nn.Module, and for that one's submodules, not for what another object holds"
)
_DICT = "each input is a tensor, an argument of its own: none is a dict"
_BYTES = "a BYTES input holds bytes: value.decode() makes a str of each"
_TYPES = (
    "that is about the datatype, not the shape: cast in forward (x.float(), x.long()), or declare in model.toml the "
    "datatype that the model takes"
)
_PROCESSES = "spawned processes cannot import model.py: put what they run into a package on PYTHONPATH, or use threads"
_INTEROP = "torch allows that once a process, and the server's models share one: leave it out, --threads is for this"
_ARGUMENTS = "sys.argv holds the server's arguments: parse none when imported, take them from `kwargs` in model.toml"
_PICKLED = "a script has pickled it, and its classes are looked for in the server's: save model.state_dict() instead"
_REGISTERED = (
    "a process registers it once, and an earlier load has: look there first, or put it into a package on PYTHONPATH, "
    "which later loads do not import again"
)
_POINTER = "where git-lfs is missing, a clone has pointers in place of weights: `git lfs pull` fetches them"
_REMOTE = "code from a hub never runs here: build the network in a model.py, by code that you have read"

#: Type, pattern of the text, advice. The first that fits counts.
_KNOWN: tuple[tuple[type[BaseException], str, str], ...] = (
    (BrokenProcessPool, "", _PROCESSES),
    (RuntimeError, r"cannot set number of interop threads", _INTEROP),
    (Exception, r"Duplicated timeseries|Duplicate registration|already registered", _REGISTERED),
    (Exception, r"deserializing header: header too large", _POINTER),
    (ValueError, r"contains custom code", _REMOTE),
    (SystemExit, r"^2$", _ARGUMENTS),  # as argparse ends a process
    (AttributeError, r"^Can't get attribute .* on <module '__main__'", _PICKLED),
    (Exception, r"created in a thread can|main thread|no (current|running) event loop|to a different loop", _THREADS),
    (LookupError, r"<ContextVar name=", _THREADS),
    (RuntimeError, r"[Ii]nference tensor|does not require grad|InferenceMode", _GRADIENTS),
    (RuntimeError, r"types? .*\bu?int(16|32|64) types is not supported", _UNSIGNED),
    (Exception, r"\bC?P?U?UInt(16|32|64)(Type)?\b|(short|long)? ?unsigned int\b|torch\.uint(16|32|64)", _UNSIGNED),
    (NotImplementedError, r"not implemented for '(Half|BFloat16|Bool|Byte|Char|Short|Int|Long|Double)'", _TYPES),
    (RuntimeError, r"\bdtypes?\b(?!=)|scalar type|bool tensor|point or complex|output type|LongTensor", _TYPES),
    (Exception, r"nput type .* and .* type .* should be|not match weight dtype|used as indices must be", _TYPES),
    (ValueError, r"Expected more than 1 value per channel when training", _TRAINING),
    (RuntimeError, "NestedTensorImpl doesn't support sizes", f"an output is a nested tensor: {PADDED}"),
    (RuntimeError, r"^'len' is not supported in symbolic tracing", "write x.shape[0] in place of len(x)"),
    (TypeError, r"^new\(\): invalid data type 'str'", _DICT),
    (AttributeError, r"^'(Tensor|numpy\.ndarray)' object has no attribute '(get|pop|keys|items)'", _DICT),
    (TypeError, r"^(?=.*\bbytes\b)(?=.*\bstr)(?!.*bytearray|.*must be a string)", _BYTES),
    (AttributeError, r"^'bytes' object has no attribute", _BYTES),
)
_SHAPES = re.compile(
    r"shape|size|dimension|\bdims?\b|channel|unpack|broadcast|\d+-?D\b|\bindices\b|batch|length|\belements\b",
    re.IGNORECASE,
)


def advice_on(error: BaseException) -> str:
    """What to do about an error of a model; "" if only its own text can say it."""
    text = message_of(error)
    for kind, pattern, advice in _KNOWN:
        if isinstance(error, kind) and re.search(pattern, text):
            return advice
    of_thread = isinstance(error, AttributeError) and isinstance(error.obj, threading.local)
    return _THREADS if of_thread else ""


def is_of_one_size(error: BaseException) -> bool:
    """Whether an exported model refuses the size of a batch, by the error's text."""
    return re.match(r"Guard failed: .*\.size\(\)\[0\] == \d+$", message_of(error)) is not None


def is_about_shapes(error: BaseException) -> bool:
    """Whether the shapes in model.toml may be at fault, by the error's text."""
    return _SHAPES.search(message_of(error)) is not None
