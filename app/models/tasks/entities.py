"""token-classification: the label of each token, and entities of tokens that belong together.

The strategies are those of transformers' pipeline. `none`: each token by itself. `simple`: neighbours of one label are
one entity. `first`, `average`, `max`: before that each word gets one label: that of its first token, of the mean of its
tokens' scores, or of its surest token.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from app.contract import Answers, Array, Translated
from app.errors import BadRequest
from app.models.tasks.task_answers import Outputs, padded
from app.models.tasks.task_specs import AGGREGATIONS, TOKENS
from app.models.tasks.text_readers import CallTexts
from app.models.tasks.windows import InWindows, LongText, WindowReader, joined
from app.values.tensors import shown

_OUTSIDE = "O"
#: Tokens of a call, each text padded to the longest as outputs are: 160 MiB of them.
_MOST_PADDED = 1 << 22


class TokenReader(WindowReader):
    """Texts of any length, in windows, unless they are to be cut."""

    def call_rows(self, call: CallTexts, found: Sequence[Any]) -> Translated:
        found = self.not_empty(call, found)
        most = _MOST_PADDED // len(found)
        for row, one in enumerate(found):
            if len(one) > most:
                raise call.too_long(row, f"{most} tokens in a request of {len(found)} texts, got {len(one)}")
        return super().call_rows(call, found)


class Tags(Answers):
    """Scores [rows, tokens, labels] to the best label of each token or, by the strategy, to entities.

    `strategy`: of requests that name none. "": tokens, which `present` also groups as `simple`. An entity is in the
    outputs as a token is: its piece is its text, and its label has no B- or I-.
    """

    quick = False

    def __init__(self, labels: Sequence[str], tokenizer: Any, strategy: str = "") -> None:
        super().__init__(TOKENS)
        self._labels = labels
        self._strategy = strategy
        self._unknown = tokenizer.unk_token_id
        self._marks = bool(getattr(tokenizer.backend_tokenizer.model, "continuing_subword_prefix", None))

    def with_parameters(self, note: InWindows, parameters: Mapping[str, Any]) -> InWindows:
        """Raises BadRequest for a strategy that does not exist."""
        for name in filter(parameters.__contains__, ("aggregation", "aggregation_strategy")):  # ours, theirs
            if (value := parameters[name]) not in AGGREGATIONS:
                raise BadRequest(f"parameters.{name}: expected one of {', '.join(AGGREGATIONS)}, got {shown(value)}")
            return note._replace(option=value)
        return note

    def answer(self, outputs: Sequence[Array], note: InWindows) -> Outputs:
        strategy = self._strategy if note.option is None else note.option
        scores = joined(outputs[0], [each.windows for each in note.texts])
        found = [self._found(each, own, strategy) for each, own in zip(note.texts, scores, strict=True)]
        texts = [padded([[one[key].encode() for one in each] for each in found], b"") for key in ("piece", "label")]
        numbers = [
            padded([[one[key] for one in each] for each in found], 0, dtype)
            for key, dtype in (("score", np.float32), ("start", np.int64), ("end", np.int64))
        ]
        return [*texts, *numbers], [len(each) for each in found]

    def presenter(self, note: InWindows) -> Callable[[Mapping[str, Array]], Any]:
        return lambda outputs: self.present(outputs, note.option)

    def present(self, outputs: Mapping[str, Array], asked: str | None = None) -> Any:
        strategy = self._strategy if asked is None else asked
        found = [
            {"label": label.decode(), "score": score, "start": int(start), "end": int(end), "piece": piece.decode()}
            for piece, label, score, start, end in zip(*(outputs[spec.name] for spec in self.outputs), strict=True)
        ]
        if strategy not in ("", "none"):
            return {"entities": found}
        grouped = entities(found) if not strategy else [one for one in found if one["label"] != _OUTSIDE]
        return {"entities": grouped, "tokens": found}

    def _found(self, read: LongText, scores: Array, strategy: str) -> list[dict[str, Any]]:
        """The tokens or entities of one text. Special tokens are in none."""
        one, by_word = read.encoding, strategy not in ("", "none", "simple")
        special, pieces, spans, ids = one.special_tokens_mask, one.tokens, one.offsets, one.ids  # each is made anew
        words: list[list[int]] = []  # or tokens, each by itself
        for place in (at for at, not_own in enumerate(special) if not not_own):
            if by_word and words and ids[place] != self._unknown and self._within(read, pieces[place], spans[place]):
                words[-1].append(place)
            else:
                words.append([place])
        each = []
        for word in words:
            likely = _of_word(scores, word, strategy)
            best, first = int(likely.argmax()), word[0]
            label = _OUTSIDE if np.isnan(likely[best]) else self._labels[best]
            span = {"start": spans[first][0], "end": spans[word[-1]][1]}
            each.append({"label": label, "score": likely[best], **span, "piece": pieces[first]})
        if strategy in ("", "none"):
            return each
        return [{**one, "piece": read.text[one["start"] : one["end"]]} for one in entities(each)]

    def _within(self, read: LongText, piece: str, span: tuple[int, int]) -> bool:
        """Whether a token continues the word of the token before it. As in transformers a tokenizer that marks such
        pieces (WordPiece) says so; with others a word ends at a space.
        """
        start, end = span
        return len(piece) != end - start if self._marks else start > 0 and " " not in read.text[start - 1 : start + 1]


def _of_word(scores: Array, word: Sequence[int], strategy: str) -> Array:
    """The scores of a word from those of its tokens; `scores` [tokens, labels]."""
    if strategy == "first" or len(word) == 1:
        return np.asarray(scores[word[0]])
    own = scores[word]
    return np.asarray(own.mean(axis=0) if strategy == "average" else own[own.max(axis=1).argmax()])


def entities(each: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Neighbours with the labels `B-X`, `I-X`, `I-X` (or `X`, `X`) as one entity `X`; its score is their mean.

    What is labelled `O` is in none.
    """
    groups: list[tuple[str, list[Mapping[str, Any]]]] = []
    for one in each:
        name = one["label"][2:] if one["label"].startswith(("B-", "I-")) else one["label"]
        if groups and groups[-1][0] == name and not one["label"].startswith("B-"):
            groups[-1][1].append(one)
        else:
            groups.append((name, [one]))
    return [
        {
            "label": group[0]["label"].split("-", 1)[-1],
            "score": np.float32(np.mean([one["score"] for one in group])),
            "start": group[0]["start"],
            "end": group[-1]["end"],
        }
        for name, group in groups
        if name != _OUTSIDE
    ]
