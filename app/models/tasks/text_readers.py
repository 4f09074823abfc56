"""Readers that turn texts into the tensors of a transformers model, by its tokenizer. Threads may share a reader.

The tokenizer of the tokenizers library is called directly: transformers' own call sets padding and truncation each
time, which is not thread-safe.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from typing import Any

import numpy as np

from app.contract import Array, Reader, SampleRow, TensorSpec, TextCut, Translated
from app.errors import BadRequest, BadText, ConfigError, TextTooLong
from app.models.tasks import task_specs
from app.models.tasks.heads import MASK, MOST_MASKS
from app.models.tasks.task_answers import padded
from app.models.tasks.tokenizing import Encode, TokenIds, backend_of, encode_cut

TOKENS = "tokens"  # the variable axis
#: The name of an input in messages, or a function that names each of its texts by place.
Names = str | Callable[[int], str]
#: The most characters a token, on average over a text: a longer text is refused without being tokenized, because that
#: takes time in proportion to its length.
_LONGEST_TOKEN = 256
#: The same of all texts of a call, if they are many: 1 MiB takes 1.5 s and 200 MiB, and each document that is ranked
#: brings the query along.
_USUAL_TOKEN = 32
#: How many times longer a text may be that is read in windows: some 1,000, if a token has 4 characters.
_WINDOWED = 8
_DEFAULT_MOST = 512  # tokens, if neither model nor tokenizer has a bound
_NONE = 1 << 31  # a larger bound of a tokenizer means none
_SAMPLE_LENGTH = 16  # tokens of the rows to try a model with; the last row has half
EXAMPLE = "What a fine day to sit outside and read a book."
_SAMPLE_TEXTS = (
    "The ferry was late again, so we walked along the harbour and counted 27 boats before lunch.",
    "Nobody at the office knew why; it rained in Bergen, and Anna wrote home that all was well.",
    "It would be quicker if it did not wait, and cheaper if it waited longer: that is the trade.",
    "In 1997 the old bridge was closed for a year, which nobody who lived here has forgotten yet.",
    "What a fine day to sit outside and read a book about queues, batches and other small things.",
)


@dataclass(frozen=True, slots=True)
class ReadingRules:
    """How texts are read. `pad`: the id of padding; `prompt` is put before each text, of a pair before the first;
    `template` makes a sentence of a label.

    A text of more than `most` tokens, special ones included, is refused, or cut if `truncate` is set; of a pair the
    longer text is cut. `cut`: where a request says that long texts are to be cut, and not to how many tokens; None:
    `most`. Of a model that writes: `positions` are shared by a prompt and
    its text; `bos` is the token that the tokenizer puts before a text, which may have it already.
    """

    most: int
    pad: int
    truncate: bool = False
    prompt: str = ""
    cut: int | None = None
    positions: int | None = None
    bos: int | None = None
    template: str = "{}"


@dataclass(frozen=True, slots=True)
class CallTexts:
    """The texts, or pairs of texts, of one call; their names in messages; and the note for the answer."""

    texts: Sequence[Any]
    name: Names
    note: Any = None

    def wrong(self, row: int, what: str, kind: type[BadText] = BadText) -> BadText:
        if isinstance(self.name, str):
            return kind(self.name, row if len(self.texts) > 1 else None, what)
        return kind(self.name(row), None, what)

    def too_long(self, row: int, what: str) -> BadText:
        return self.wrong(row, f"expected at most {what}", TextTooLong)

    def text(self, row: int) -> str:
        """Raises BadText for bytes that are no UTF-8."""
        value = self.texts[row]
        try:
            return value.decode() if isinstance(value, bytes) else str(value)
        except UnicodeDecodeError as error:
            raise self.wrong(row, f"expected UTF-8, got byte {error.object[error.start]:#04x} in it") from None


class TextReader(Reader):
    """Texts, one a row, to `input_ids` and, where the model takes them, `token_type_ids`; the server makes the mask.

    `sent`: the inputs of clients; two are read as a pair. `inputs`: the model's, in order. Subclasses make the texts of
    other inputs, or read more in their tokens. A client's row may become several of the model.
    """

    cuts = True
    whole = False  # the texts already have their prompt and special tokens
    alone = False  # of two inputs each text is read alone, not as a pair
    windows = False  # reads long texts, by where tokens are in them; the queue bounds the number of windows of one
    example_text = EXAMPLE

    def __init__(
        self, tokenizer: Any, vocabulary: int, reading: ReadingRules, sent: tuple[TensorSpec, ...] = (task_specs.TEXT,)
    ) -> None:
        """`tokenizer`: transformers'; `vocabulary`: how many tokens the model knows."""
        self.backend = backend = backend_of(tokenizer)
        self.reading = reading
        self.sent = sent
        left = tokenizer.truncation_side == "left"
        self._cut = TextCut(reading.most, left) if reading.truncate else None
        self._cuts_left = left or reading.positions is not None
        fast = backend.encode_batch if self.windows else getattr(backend, "encode_batch_fast", backend.encode_batch)
        self._encode: Encode = fast
        #: What is read for an empty text if the tokenizer adds nothing: the token that begins one. None: there is none.
        bos = tokenizer.bos_token_id
        self._begin = None if bos is None else TokenIds([bos], (0,), (1,))
        self._types = "token_type_ids" in tokenizer.model_input_names
        self._pad_type = int(tokenizer.pad_token_type_id)
        spec = partial(TensorSpec, datatype="INT64", shape=(-1,), axes=(TOKENS,), bounds=(reading.most,))
        ids = spec("input_ids", pad_value=reading.pad, minimum=0, maximum=vocabulary - 1)
        types = [spec("token_type_ids", pad_value=self._pad_type)] if self._types else []
        self.inputs = (ids, *types, spec(MASK, mask_of="input_ids"))

    @property
    def names(self) -> list[str]:
        """The names of the model's inputs."""
        return [spec.name for spec in self.inputs]

    def read(self, calls: Sequence[Sequence[Array]], cut: TextCut | None = None) -> list[Translated]:
        """All texts are tokenized at once. Raises BadText for bytes that are no UTF-8, and for a text without tokens or
        with too many.
        """
        asked = [self.call_texts(arrays) for arrays in calls]
        cut, whole = cut or self._cut, self.whole
        prompt = "" if whole else self.reading.prompt
        texts: list[Any] = []
        for call in asked:
            if cut is None:
                refuse_long(call, self.reading.most, windows=self.windows)
            own = call.texts if cut is None else self._near(call.texts, cut)
            texts += [_behind(prompt, text) for text in own] if prompt else own
        if cut is None:
            encoded = self._encode(texts, add_special_tokens=not whole)
        else:
            most, left = self.cutting(cut)
            encoded = encode_cut(self.backend, self._encode, texts, cut, most, left, special=not whole)
        found = iter(encoded if whole else map(self._with_one_bos, encoded))
        return [self.call_rows(call, list(islice(found, len(call.texts)))) for call in asked]

    def call_texts(self, arrays: Sequence[Array]) -> CallTexts:
        """The texts of a call. Raises BadText."""
        columns = [self.texts(array, spec.name) for array, spec in zip(arrays, self.sent, strict=True)]
        texts: Sequence[Any] = columns[0] if len(columns) == 1 else list(zip(*columns, strict=True))
        return CallTexts(texts, " and ".join(spec.name for spec in self.sent))

    def texts(self, array: Array, name: Names) -> list[str]:
        """The texts of an input. Raises BadText."""
        call, found = CallTexts([*array.reshape(-1)], name), list[str]()
        for row, value in enumerate(call.texts):
            same = row and value is call.texts[row - 1]  # a query: it stays one text
            found.append(found[-1] if same else call.text(row))
        return found

    def _near(self, texts: Sequence[Any], cut: TextCut) -> list[Any]:
        """The texts without what is far from where they are cut, which is not tokenized."""
        most = self.reading.most
        longest = max(most * _USUAL_TOKEN, most * _LONGEST_TOKEN // len(texts))
        kept = slice(-longest, None) if self.cutting(cut)[1] else slice(longest)
        return [tuple(one[kept] for one in text) if isinstance(text, tuple) else text[kept] for text in texts]

    def cutting(self, cut: TextCut) -> tuple[int, bool]:
        """How many tokens of a text are kept, and whether it is cut at the beginning."""
        reading, most = self.reading, None if cut.last else cut.most
        if most is None or most > reading.most:
            most = reading.cut or reading.most
        return most, self._cuts_left if cut.left is None else cut.left

    def _with_one_bos(self, one: Any) -> Any:
        """The encoding of a text without the BOS token that the tokenizer put before the text's own."""
        bos = self.reading.bos
        if bos is None or one.ids[:2] != [bos, bos]:
            return one
        return TokenIds(one.ids[1:], one.type_ids[1:])

    def call_rows(self, call: CallTexts, found: Sequence[Any]) -> Translated:
        """The rows of a call's encodings, with the note for its answer. Raises BadText."""
        found = self.not_empty(call, found)
        most, positions = self.reading.most, self.reading.positions
        for row, one in enumerate(found):
            if len(one) > most:
                why = f", as the model has {positions} positions for prompt and answer" if positions == most + 1 else ""
                raise call.too_long(row, f"{most} tokens{why}, got {len(one)}")
        return self.stacked(found, call.note)

    def not_empty(self, call: CallTexts, found: Sequence[Any]) -> Sequence[Any]:
        """The encodings, with the token that begins a text in place of nothing. Raises BadText if there is none."""
        if self._begin is not None:
            return [one if len(one) else self._begin for one in found]
        empty = next((row for row, one in enumerate(found) if not len(one)), None)
        if empty is not None:
            raise call.wrong(empty, "expected at least one token, got 0")
        return found

    def stacked(self, found: Sequence[Any], note: Any) -> Translated:
        """The model's rows of these encodings."""
        lengths = [len(one) for one in found]
        read = [padded([one.ids for one in found], self.reading.pad, np.int64)]
        if self._types:
            read.append(padded([one.type_ids for one in found], self._pad_type, np.int64))
        return Translated(read, {TOKENS: max(lengths)}, {TOKENS: lengths} if len(lengths) > 1 else None, note)

    def example(self) -> SampleRow | None:
        """A row of as many words of a short sentence as fit. None if not even one does."""
        words = self.example_text.split()
        for count in range(len(words), 0, -1):
            row = self.example_of(" ".join(words[:count]))
            with suppress(BadRequest):
                self.read([[array[None] for array in row.arrays]])
                return row
        return None

    def example_of(self, text: str) -> SampleRow:
        """A row of clients with this text."""
        return SampleRow((np.array(text.encode(), object),) * len(self.sent))

    def samples(self) -> tuple[SampleRow, ...]:
        """Rows to try the model with: real text, because some models look for special tokens."""
        rows, pairs = [], len(self.sent) > 1 and not self.alone
        length, added = min(_SAMPLE_LENGTH, self.reading.most), self.backend.num_special_tokens_to_add(pairs)
        for place, text in enumerate(_SAMPLE_TEXTS):
            most = length if text is not _SAMPLE_TEXTS[-1] else max(1 + added, length // 2)
            given = [(text, _SAMPLE_TEXTS[place - 1]) if pairs else text]
            (one,) = encode_cut(self.backend, self.backend.encode_batch, given, TextCut(), most, left=False)
            if len(one):
                values = [one.ids, one.type_ids] if self._types else [one.ids]
                rows.append(SampleRow(tuple(np.array(each, np.int64) for each in values), {TOKENS: len(one)}))
        return tuple(rows)


class MaskReader(TextReader):
    """Its notes are the places of each row's masks."""

    def __init__(self, tokenizer: Any, *given: Any) -> None:
        super().__init__(tokenizer, *given)
        self._mask = tokenizer.mask_token_id
        self.example_text = EXAMPLE.replace("fine", tokenizer.mask_token)

    def samples(self) -> tuple[SampleRow, ...]:
        """With a mask each: the answer of a row without one is empty, whatever the model makes of it."""
        rows = super().samples()
        for row in rows:
            row.arrays[0][len(row.arrays[0]) // 2] = self._mask
        return rows

    def call_rows(self, call: CallTexts, found: Sequence[Any]) -> Translated:
        """Raises BadText for a text without a mask, too."""
        note = [np.flatnonzero(np.array(one.ids) == self._mask) for one in found]
        read = super().call_rows(replace(call, note=note), found)
        for row, places in enumerate(note):
            if not 1 <= len(places) <= MOST_MASKS:
                raise call.wrong(row, f"expected 1 to {MOST_MASKS} masks, got {len(places)}")
        return read


def _behind(prompt: str, text: Any) -> Any:
    """The text with the prompt before it; of a pair, before the first."""
    return (prompt + text[0], *text[1:]) if isinstance(text, tuple) else prompt + text


def refuse_long(call: CallTexts, most: int, *, windows: bool = False) -> None:
    """Raises BadText for a text of far more than `most` tokens, which is not tokenized. `windows`: it may have more."""
    sizes = [max(map(len, text)) if isinstance(text, tuple) else len(text) for text in call.texts]
    size, total = max(sizes), sum(sizes)
    longest = most * _LONGEST_TOKEN * (_WINDOWED if windows else 1)
    bound = max(longest, len(sizes) * most * _USUAL_TOKEN)
    if size > longest or total > bound:
        wrong = f"{bound} characters in all, got {total}" if windows else f"{most} tokens, got {size} characters"
        raise call.too_long(sizes.index(size), wrong)


def most_tokens(positions: int | None, tokenizer: Any, own: int | None, asked: int | None, pairs: bool = False) -> int:
    """The most tokens of a text: `asked`, or the least of the model's `positions`, the tokenizer's bound, and that of
    sentence-transformers' files, `own`. Raises ConfigError if more are asked for than there are positions.
    """
    if asked is not None:
        special = tokenizer.num_special_tokens_to_add(pairs)
        if asked <= special:
            wanted = f"more than the {special} special tokens of a text"
        elif positions is not None and asked > positions:
            wanted = f"at most the model's {positions} positions"
        else:
            return asked
        raise ConfigError(f"task_options.max_tokens: expected {wanted}, got {asked}")
    bounds = [bound for bound in (positions, own, tokenizer.model_max_length) if bound is not None and bound < _NONE]
    return min(bounds, default=_DEFAULT_MOST)
