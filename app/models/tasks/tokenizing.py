"""Tokenizers behind one set of methods: those of the tokenizers library, or transformers' in Python for models without
a fast one, such as Marian, which uses sentencepiece. And texts that a request wants cut, to other lengths than the
tokenizer itself is set to, which is shared.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from app.contract import TextCut
from app.errors import BadRequest

#: From texts, and whether to add special tokens, to encodings.
Encode = Callable[..., Sequence[Any]]
#: Places of an encoding that a row of the model shows, in order.
WindowPlaces = Sequence[int]


class TokenIds(NamedTuple):
    """A text as tokens, where little more is known of them: with fields of the tokenizers library's encodings."""

    ids: list[int]
    type_ids: Sequence[int]
    special_tokens_mask: Sequence[int] = ()
    tokens: Sequence[str] = ()
    offsets: Sequence[tuple[int, int]] = ()

    def __len__(self) -> int:
        return len(self.ids)


class SlowTokenizer:
    """A Python tokenizer with the methods of the tokenizers library that are used here. Threads may share it."""

    def __init__(self, tokenizer: Any) -> None:
        """`tokenizer`: transformers' own."""
        self._tokenizer = tokenizer

    def encode_batch(self, texts: Sequence[Any], add_special_tokens: bool = True) -> list[TokenIds]:
        """Encode single texts: tasks that read pairs do not use slow tokenizers."""
        found = (self._tokenizer(text, add_special_tokens=add_special_tokens, verbose=False) for text in texts)
        return [TokenIds(one["input_ids"], one.get("token_type_ids") or [0] * len(one["input_ids"])) for one in found]

    def num_special_tokens_to_add(self, pair: bool) -> int:
        return int(self._tokenizer.num_special_tokens_to_add(pair))

    def cut(self, text: str, most: int, left: bool, special: bool) -> TokenIds:
        """Encode a text and cut it to so many tokens; `special`: then add the special ones."""
        ids = self._tokenizer.encode(text, add_special_tokens=False, verbose=False)
        ids = ids[-most:] if left else ids[:most]
        if special:
            ids = self._tokenizer.build_inputs_with_special_tokens(ids)
        return TokenIds(ids, [0] * len(ids))

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """The text of tokens, before spaces are removed (`Detokenizer.cleans`)."""
        text: str = self._tokenizer.decode(
            ids, skip_special_tokens=skip_special_tokens, clean_up_tokenization_spaces=False
        )
        return text


def backend_of(tokenizer: Any) -> Any:
    """The backend of transformers' tokenizer, which neither pads nor cuts: the tokenizers library's, or a
    SlowTokenizer."""
    if not tokenizer.is_fast:
        return SlowTokenizer(tokenizer)
    backend = tokenizer.backend_tokenizer
    backend.no_padding()
    backend.no_truncation()
    return backend


def encode_cut(
    backend: Any, encode: Encode, texts: Sequence[Any], cut: TextCut, most: int, left: bool, *, special: bool = True
) -> list[Any]:
    """The encodings of texts or pairs, cut to `most` tokens, `special` ones included; of a pair the longer text is cut.

    `encode`: a method of `backend`. `left`: at the beginning. With `cut.last` only the last text is cut, to `cut.most`
    tokens without special ones. Raises BadRequest naming `cut.name` if not even the special tokens fit.
    """
    pairs = bool(texts) and isinstance(texts[0], tuple)
    added = backend.num_special_tokens_to_add(pairs) if special else 0
    room = most - added
    if room < 1:
        wrong = f"expected at least {added + 1} tokens, as special ones count, got {most}"
        raise BadRequest(f"{cut.name}: {wrong}", param=cut.name)
    if isinstance(backend, SlowTokenizer):
        return [backend.cut(text, room, left, special) for text in texts]
    return [_cut(one, 1 + pairs, cut, room, left) for one in encode(texts, add_special_tokens=special)]


def _cut(one: Any, texts: int, cut: TextCut, room: int, left: bool) -> Any:
    """The encoding without the tokens that are too many of its texts. Not by `truncate`: it keeps all that it cuts off,
    and of a pair each piece of the one is then joined with each of the other.
    """
    numbers = one.sequence_ids  # of the text that a token is of; None: a special token
    own = [[at for at, number in enumerate(numbers) if number == text] for text in range(texts)]
    lengths = [len(places) for places in own]
    if cut.last:
        kept = [*lengths[:-1], min(lengths[-1], cut.most or room)]
    else:
        kept = _shortened(lengths, room)
    if kept == lengths:
        return one
    gone = [places[: len(places) - most] if left else places[most:] for places, most in zip(own, kept, strict=True)]
    others = sorted(set(range(len(numbers))).difference(*gone))
    return shown(one, [others], TokenIds._fields)[0]


def shown(one: Any, windows: Sequence[WindowPlaces], fields: Sequence[str] = ("ids", "type_ids")) -> list[TokenIds]:
    """What each window shows of these `fields` of an encoding."""
    columns = [getattr(one, name) for name in fields]  # an encoding makes such a list whenever it is asked
    return [TokenIds(*([column[at] for at in window] for column in columns if column)) for window in windows]


def _shortened(lengths: list[int], room: int) -> list[int]:
    """The lengths, the longer one shortened until they fit."""
    if sum(lengths) <= room:
        return lengths
    if len(lengths) == 1:
        return [room]
    shorter = min(*lengths, room // 2)
    longer = room - shorter
    return [shorter, longer] if lengths[0] <= lengths[1] else [longer, shorter]
