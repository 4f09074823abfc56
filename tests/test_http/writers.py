"""A model that writes what its test has it write."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from app.contract import Answer, Array, ModelInfo, Translated
from app.errors import BadRequest, BadText, ClientGone
from app.models.tasks.faces import TEXT, WRITTEN

from .catalog import served, spec
from .test_inference import Echo, EchoLease

MOST = 64  # tokens of a text


class Words:
    """A front whose tokens are words."""

    reads_texts, quick, example, embedder = True, True, None, None
    chat: Any = None

    def face(self, info: ModelInfo) -> ModelInfo:
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


class WritingLease(EchoLease):
    on_piece: Callable[[int, tuple[str, str], int], None] | None = None

    def write(self, index: int, values: Any) -> None:
        self._rows = values
        self._model.leases.append(self)  # type: ignore[attr-defined]

    def submit(self, waiter: Any) -> None:
        self._waiter = waiter
        if self._model.fails is not None:
            waiter.set_exception(self._model.fails)
        self._model.ran.set()

    def piece(self, text: str, tokens: int, row: int = 0, reason: str = "") -> None:
        assert self.on_piece is not None
        self.on_piece(row, (text, reason), tokens)

    def end(self, *texts: str, reason: str = "stop") -> None:
        """All rows have ended with these texts."""
        rows = len(texts)
        columns: list[Any] = [[text.encode() for text in texts], [reason.encode()] * rows]
        arrays = [np.array([*column, None], object)[:-1] for column in columns]
        counts = [self._rows, np.array([len(text.split()) for text in texts])]
        self._waiter.set_result(Answer([*arrays, *counts], 2_000_000, (0, 3_000_000, 0), 5))

    def fail(self, error: Exception) -> None:
        self._waiter.set_exception(error)

    def cancel(self) -> None:
        self.fail(ClientGone("gone"))


@dataclass
class Writer(Echo):
    """Its leases are those that were submitted, in order."""

    def __post_init__(self) -> None:
        self.leases: list[WritingLease] = []
        self.sent: list[int] = []  # tokens of pieces; 0 of the first

    def first_piece(self, ns: int, klass: str) -> None:
        assert ns > 0
        self.sent.append(0)

    def next_piece(self, ns: int, tokens: int, klass: str) -> None:
        assert ns >= 0
        self.sent.append(tokens)

    @property
    def last(self) -> WritingLease:
        return self.leases[-1]

    def lease(self, rows: int, **fields: Any) -> EchoLease:
        read_parameters(fields["parameters"] or {})
        super().lease(rows, **fields).close()
        return WritingLease(self)


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
    return Writer(front.face(plain.info), model)
