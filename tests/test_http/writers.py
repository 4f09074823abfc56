"""A model that writes what its test has it write."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from app.contract import Answers, Array, Front, GeneratedText, ModelCall, Reader, TextCut, Translated
from app.errors import BadText
from app.models.decoders.parameters import Parameters
from app.models.tasks.task_specs import TEXT, WRITTEN

from .catalog import served, spec
from .echo import Echo, EchoLease


class Words(Reader):
    """Its tokens are words."""

    sent = (TEXT,)
    cuts = True
    cut: TextCut | None = None  # of the last call that had one

    def read(self, calls: Sequence[Sequence[Array]], cut: TextCut | None = None) -> list[Translated]:
        self.cut = cut or self.cut
        return [self._read([text.decode() for text in texts]) for (texts,) in calls]

    def _read(self, texts: Sequence[str]) -> Translated:
        counts = [len(text.split()) for text in texts]
        for row, count in enumerate(counts):
            if not count:
                raise BadText("text", row if len(texts) > 1 else None, "expected at least one token, got 0")
        return Translated([np.array(counts, np.int64)])


class WritingLease(EchoLease):
    def piece(self, text: str, tokens: int, row: int = 0, reason: str = "") -> None:
        self.give(row, GeneratedText(text, reason, 2, tokens))

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

    def lease(self, asked: ModelCall, arrived_ns: int | None = None) -> EchoLease:
        read_parameters(asked.parameters or {})
        return super().lease(asked, arrived_ns)


def read_parameters(given: Mapping[str, Any]) -> None:
    Parameters.read(given)


def writer() -> Writer:
    front = Front(Words(), Answers(WRITTEN))
    plain = served("echo", (spec("lengths", "INT64"),), WRITTEN)
    model = replace(plain.model, front=front, writes=True, read_parameters=read_parameters)
    return Writer(front.client_info(plain.info), model, lease_type=WritingLease, opened=False)
