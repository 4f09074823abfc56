"""What a pickled file holds, read without unpickling it: opening a pickle runs whatever code its maker chose."""

from __future__ import annotations

import io
import pickletools
import zipfile
import zlib
from pathlib import Path

#: What the pickle of a state dict names: containers, and how a tensor is put together from its memory.
_PLAIN = ("torch._utils._rebuild_", "torch.serialization._", "collections.OrderedDict", "torch.Size", "torch.storage.")
_HEAD = 1 << 24  # bytes read of a pickle: the classes stand at its beginning


def pickled_class(path: Path) -> str:
    """The first class that a file of `torch.save` names and that no state dict has, as `package.module.Class`.

    "" where there is none: a state dict, or no pickle that can be read. Reads the pickle's opcodes alone. What is not
    printable is escaped: a pickle may name anything.
    """
    try:
        data = _pickle_in(path)
    except (OSError, zipfile.BadZipFile, zlib.error, EOFError, RuntimeError, ValueError):  # broken, or encrypted
        return ""
    for name in _names(data):
        storage = name.startswith("torch.") and name.endswith("Storage")
        if not storage and not name.startswith(_PLAIN):
            return name if name.isprintable() else repr(name)
    return ""


def _pickle_in(path: Path) -> bytes:
    """The pickle inside the archive that torch.save writes, or the file itself."""
    if not zipfile.is_zipfile(path):
        with path.open("rb") as file:
            return file.read(_HEAD)
    with zipfile.ZipFile(path) as archive:
        for name in archive.namelist():
            if name.endswith("/data.pkl"):
                with archive.open(name) as member:
                    return member.read(_HEAD)
    return b""


def _names(data: bytes) -> list[str]:
    names: list[str] = []
    strings: list[str] = []  # STACK_GLOBAL takes the last two
    stream = io.BytesIO(data)
    try:
        while stream.tell() < len(data):  # torch's older format is several pickles, one behind the other
            for opcode, argument, _ in pickletools.genops(stream):
                if opcode.name == "GLOBAL":
                    names.append(str(argument).replace(" ", "."))
                elif opcode.name == "STACK_GLOBAL":
                    names.append(".".join(strings[-2:]))
                elif isinstance(argument, str):
                    strings.append(argument)
    except ValueError:  # no pickle from here on
        pass
    return names
