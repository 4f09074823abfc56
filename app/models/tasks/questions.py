"""question-answering: finds the part of a context that answers a question.

A context that is too long for the model is split into overlapping windows, each a row of the model. The best answer of
all windows is returned.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from app.contract import Answers, Array, SampleRow, Translated
from app.errors import BadRequest
from app.models.tasks import task_specs
from app.models.tasks.task_answers import Outputs
from app.models.tasks.text_readers import CallTexts, refuse_long
from app.models.tasks.tokenizing import WindowPlaces
from app.models.tasks.windows import InWindows, WindowReader, stride_of
from app.values.tensors import shown

_LONGEST_ANSWER = 15  # tokens, as in transformers' pipeline
_HIDDEN = -10_000.0  # the logit of tokens outside the context
_OPTION = "handle_impossible_answer"  # transformers' name
#: Scripts without spaces between words: Thai, Lao, Tibetan, Burmese, Khmer, kana, and Chinese characters.
_UNSPACED = re.compile(
    "[\u0e00-\u109f\u1780-\u17ff\u2e80-\u31ff\u3400-\u9fff\uf900-\ufaff\uff66-\uff9f\U00020000-\U0003ffff]"
)


class QuestionReader(WindowReader):
    """Questions and contexts to windows. All of a context is read: no cuts."""

    cuts = False

    def __init__(self, tokenizer: Any, *given: Any) -> None:
        super().__init__(tokenizer, *given)
        most = self.reading.most
        #: The most tokens of a question, so that each window adds at least one token of the context.
        self._most_asked = most - stride_of(most) - tokenizer.num_special_tokens_to_add(True) - 1

    def call_texts(self, arrays: Sequence[Array]) -> CallTexts:
        questions, contexts = self.texts(arrays[0], "question"), self.texts(arrays[1], "context")
        asked = CallTexts(questions, "question")
        refuse_long(asked, self._most_asked)
        return CallTexts(list(zip(questions, contexts, strict=True)), "context", asked)

    def call_rows(self, call: CallTexts, found: Sequence[Any]) -> Translated:
        for row, one in enumerate(found):
            numbers = one.sequence_ids
            if (count := numbers.count(0)) > self._most_asked:
                raise call.note.too_long(row, f"{self._most_asked} tokens, got {count}")
            if 1 not in numbers:
                raise call.wrong(row, "expected at least one token, got 0")
        return super().call_rows(call, found)

    def example_of(self, text: str) -> SampleRow:
        return SampleRow((np.array(b"What day?", object), np.array(text.encode(), object)))


class SpanAnswers(Answers):
    """Logits [rows, tokens, 2] of where an answer begins and ends to the best answer. `cls`: the CLS token.

    Models that were trained with unanswerable questions (SQuAD 2) point to CLS if there is no answer. If `impossible`,
    the answer is empty where in all windows that is likelier than the best answer of any; its score is the least of
    theirs. Models without such training hardly ever point there.
    """

    quick = False

    def __init__(self, cls: int | None, impossible: bool = True) -> None:
        super().__init__(task_specs.SPAN)
        self._cls = cls
        self._impossible = impossible

    def with_parameters(self, note: InWindows, parameters: Mapping[str, Any]) -> InWindows:
        value = parameters.get(_OPTION)
        if value is None:
            return note
        if type(value) is not bool:
            raise BadRequest(f"parameters.{_OPTION}: expected true or false, got {shown(value)}")
        return note._replace(option=value)

    def answer(self, outputs: Sequence[Array], note: InWindows) -> Outputs:
        rows = iter(outputs[0])
        found = []
        impossible = self._impossible if note.option is None else note.option
        for asked in note.texts:
            own = np.array([number == 1 for number in asked.encoding.sequence_ids])  # tokens of the context
            cls = np.array(asked.encoding.ids) == self._cls
            spans = [self._best(next(rows)[: len(each)], own[each], cls[each], each) for each in asked.windows]
            scores, tokens, nones = zip(*spans, strict=True)
            best, none = max(scores), min(nones)
            if np.isnan(scores).any():
                found.append((b"", np.nan, 0, 0))
            elif impossible and none > best:
                found.append((b"", none, 0, 0))
            else:
                start, end = _characters(asked.text, asked.encoding, *tokens[scores.index(best)])
                found.append((asked.text[start:end].encode(), best, start, end))
        columns = zip(zip(*found, strict=True), (object, np.float32, np.int64, np.int64), strict=True)
        return [np.array(values, kind) for values, kind in columns], None

    @staticmethod
    def _best(logits: Array, own: Array, cls: Array, window: WindowPlaces) -> tuple[float, tuple[int, int], float]:
        """The best answer of a window: its score, its first and last token in the encoding, and the score of none.

        The CLS token takes part in the softmax, but is never part of an answer.
        """
        raised = np.exp(np.where((own | cls)[:, None], logits, _HIDDEN) - logits[own | cls].max(axis=0))
        likely = raised / raised.sum(axis=0)
        if np.isnan(likely).any():
            return np.nan, (0, 0), np.nan
        none = float(likely[cls].prod(axis=1).max(initial=0))
        starts, ends = np.where(own[:, None], likely, 0).T
        best = (-1.0, 0, 0)  # score, and the first and last token of the window
        for length in range(min(_LONGEST_ANSWER, len(starts))):
            scores = starts[: len(starts) - length] * ends[length:]
            first = int(scores.argmax())
            best = max(best, (float(scores[first]), first, first + length))
        score, first, last = best
        return score, (window[first], window[last]), none


def _characters(context: str, encoding: Any, first: int, last: int) -> tuple[int, int]:
    """Where the words of these tokens begin and end in the context, without blanks around them.

    A piece of a script without spaces between words is no part of a word: it is not widened.
    """
    start, end = encoding.offsets[first][0], encoding.offsets[last][1]
    begin, stop = _word(encoding, first)[0], _word(encoding, last)[1]
    while start > begin and not _UNSPACED.search(context[start - 1 : start + 1]):
        start -= 1
    while end < stop and not _UNSPACED.search(context[end - 1 : end + 1]):
        end += 1
    start = end - len(context[start:end].lstrip())
    return start, start + len(context[start:end].rstrip())


def _word(encoding: Any, token: int) -> tuple[int, int]:
    """Where a token's word begins and ends, as the pre-tokenizer cut it."""
    word = encoding.token_to_word(token)
    start, end = encoding.offsets[token] if word is None else encoding.word_to_chars(word, 1) or encoding.offsets[token]
    return start, end
