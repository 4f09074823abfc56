"""A model that writes what its test has it write."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from app.contract import Array, ModelInfo, Translated
from app.errors import BadRequest, BadText
from app.models.tasks.task_specs import TEXT, WRITTEN

from .catalog import served, spec
from .echo import Echo, EchoLease, PiecesLease

MOST = 64  # tokens of a text


class Words:
    """A front whose tokens are words."""

    reads_texts, quick, example, embedder = True, True, None, None
    chat: Any = None
    with_parameters = None

    def client_info(self, info: ModelInfo) -> ModelInfo:
        return replace(info, inputs=(TEXT,), outputs=WRITTEN)

    def read(self, calls: Sequence[Sequence[Array]]) -> list[Translated]:
        return [self._read([text.decode() for text in texts]) for (texts,) in calls]

    def _read(self, texts: Sequence[str]) -> Translated:
        counts = [len(text.split()) for text in texts]
        for row, count in enumerate(counts):
            if not count:
                raise BadText("text", row if len(texts) > 1 else None, "expected at least one token, got 0")
        return Translated([np.array(counts, np.int64)])

    def answer(self, outputs: Sequence[Array], note: Any) -> tuple[list[Array], list[int] | None]:
        return list(outputs), None


class WritingLease(PiecesLease):
    def piece(self, text: str, tokens: int, row: int = 0, reason: str = "") -> None:
        self.give(row, (text, reason), tokens)

    def end(self, *texts: str, reason: str = "stop") -> None:
        """All rows have ended with these texts."""
        columns: list[Any] = [[text.encode() for text in texts], [reason.encode()] * len(texts)]
        arrays = [np.array([*column, None], object)[:-1] for column in columns]
        self.answer([*arrays, self._rows, np.array([len(text.split()) for text in texts])])


class Writer(Echo):
    @property
    def last(self) -> WritingLease:
        found: WritingLease = self.leases[-1]
        return found

    def lease(self, rows: int, **fields: Any) -> EchoLease:
        read_parameters(fields["parameters"] or {})
        return super().lease(rows, **fields)


def read_parameters(given: Mapping[str, Any]) -> None:
    """As the decoders' own, of two parameters."""
    for name in given:
        if name not in ("max_new_tokens", "temperature", "do_sample", "seed", "stop", "top_p"):
            raise BadRequest(f"parameters.{name}: expected one of max_new_tokens")
    if given.get("max_new_tokens", 0) > MOST:
        raise BadRequest(f"parameters.max_new_tokens: expected at most {MOST}, got {given['max_new_tokens']}")


def writer() -> Writer:
    front = Words()
    plain = served("echo", (spec("lengths", "INT64"),), WRITTEN)
    model = replace(plain.model, front=front, writes=True, read_parameters=read_parameters, takes_parameters=True)
    return Writer(front.client_info(plain.info), model, lease_type=WritingLease)
