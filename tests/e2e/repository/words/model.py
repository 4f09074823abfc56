"""Strings: upper case and length. Takes text/plain on the friendly route."""

from collections.abc import Mapping
from typing import Any

import numpy as np


class Words:
    def __call__(self, text: np.ndarray) -> dict[str, np.ndarray]:
        shout = np.empty(text.shape, object)
        shout[:] = [[word.upper() for word in row] for row in text]
        return {"shout": shout, "size": np.array([len(row[0]) for row in text], np.int32)}

    def decode(self, content_type: str, body: bytes) -> dict[str, Any]:
        if not content_type.startswith("text/plain"):
            raise ValueError(f"expected text/plain, got {content_type}")
        return {"text": np.array([body], object)}

    def present(self, outputs: Mapping[str, Any]) -> dict[str, Any]:
        return {"shout": outputs["shout"][0].decode(), "size": int(outputs["size"])}
