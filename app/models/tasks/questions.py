"""question-answering: finds the part of a context that answers a question.

A context that is too long for the model is split into overlapping windows, each a row of the model. The best answer of
all windows is returned.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from app.contract import Array, SampleRow, TensorSpec, Translated
from app.errors import BadText
from app.models.tasks import task_specs
from app.models.tasks.answers import Answers, Outputs
from app.models.tasks.texts import CallTexts, Reading, TextReader

_STRIDE = 128  # tokens that two windows share at most, as in transformers' pipeline
_LONGEST_ANSWER = 15  # tokens, as there
_HIDDEN = -10_000.0  # the logit of tokens outside the context


@dataclass(frozen=True, slots=True)
class ReadContext:
    """A context and the encodings of its windows, each a row of the model."""

    context: str
    windows: list[Any]


class QuestionReader(TextReader):
    """Questions and contexts to windows; the note has a ReadContext for each row. All of a context is read: no cuts."""

    read_cut = None  # type: ignore[assignment]

    def __init__(
        self, tokenizer: Any, vocabulary: int, reading: Reading, sent: tuple[TensorSpec, ...], keep: None = None
    ) -> None:
        super().__init__(tokenizer, vocabulary, replace(reading, truncate=False), sent, keep)
        self._longest = sys.maxsize  # the queue bounds the number of windows of a context
        self._encode = tokenizer.backend_tokenizer.encode_batch
        stride = min(reading.most // 2, _STRIDE)
        tokenizer.backend_tokenizer.enable_truncation(reading.most, stride=stride, strategy="only_second")
        #: The most tokens of a question, so that each window adds at least one token of the context.
        self._most_asked = reading.most - stride - tokenizer.num_special_tokens_to_add(True) - 1

    def call_texts(self, arrays: Sequence[Array]) -> CallTexts:
        questions, contexts = self.texts(arrays[0], "question"), self.texts(arrays[1], "context")
        for row, one in enumerate(self.plain.encode_batch(questions, add_special_tokens=False)):
            if len(one) > self._most_asked:
                wrong = f"expected at most {self._most_asked} tokens, got {len(one)}"
                raise BadText("question", row if len(questions) > 1 else None, wrong)
        return CallTexts(list(zip(questions, contexts, strict=True)), "context")

    def call_rows(self, call: CallTexts, found: Sequence[Any]) -> Translated:
        asked = [ReadContext(pair[1], [one, *one.overflowing]) for pair, one in zip(call.texts, found, strict=True)]
        for row, each in enumerate(asked):
            if 1 not in each.windows[0].sequence_ids:
                raise BadText("context", row if len(asked) > 1 else None, "expected at least one token, got 0")
        return self.stacked([window for each in asked for window in each.windows], asked)

    def example(self) -> SampleRow | None:
        one = super().example()
        if one is None:
            return None
        question: Array = np.array(b"What day?", object)
        return SampleRow((question, one.arrays[1]))


class SpanAnswers(Answers):
    """Logits [rows, tokens, 2] of where an answer begins and ends to the best answer. `cls`: the CLS token."""

    quick = False

    def __init__(self, cls: int | None) -> None:
        super().__init__(task_specs.SPAN)
        self._cls = cls

    def answer(self, outputs: Sequence[Array], note: Sequence[ReadContext]) -> Outputs:
        rows = iter(outputs[0])
        found = []
        for asked in note:
            spans = [(*self._best(next(rows)[: len(window)], window), window) for window in asked.windows]
            score, first, last, window = max(spans, key=lambda span: span[0])
            start, end = _characters(window, first)[0], _characters(window, last)[1]
            found.append((asked.context[start:end].encode(), score, start, end))
        answers, scores, starts, ends = zip(*found, strict=True)
        texts: Array = np.empty(len(answers), object)
        texts[:] = answers
        return [texts, np.array(scores, np.float32), np.array(starts, np.int64), np.array(ends, np.int64)], None

    def _best(self, logits: Array, window: Any) -> tuple[float, int, int]:
        """The score, first and last token of a window's best answer.

        The CLS token takes part in the softmax, because models point to it if there is no answer, but it is never part
        of an answer.
        """
        own = np.array([sequence == 1 for sequence in window.sequence_ids])
        seen = own | (np.array(window.ids) == self._cls)
        shown = np.where(seen[:, None], logits, _HIDDEN)
        raised = np.exp(shown - shown.max(axis=0))
        starts, ends = np.where(own[:, None], raised / raised.sum(axis=0), 0).T
        best = (-1.0, 0, 0)
        for length in range(min(_LONGEST_ANSWER, len(starts))):
            scores = starts[: len(starts) - length] * ends[length:]
            first = int(scores.argmax())
            best = max(best, (float(scores[first]), first, first + length))
        return best


def _characters(window: Any, token: int) -> tuple[int, int]:
    """The characters of the context at which a token's word begins and ends."""
    word = window.token_to_word(token)
    found = None if word is None else window.word_to_chars(word, 1)
    start, end = window.offsets[token] if found is None else found
    return start, end
