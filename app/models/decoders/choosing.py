"""Chooses the next token of each row: the likeliest, or a sample. Penalties and bans are transformers' own processors.

A sample is drawn with a number that depends on the row's seed and on how many tokens it has, and on nothing else: so a
text does not depend on what runs beside it, and a step that is made again chooses as before.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import torch

from app.models.decoders.parameters import Defaults, Parameters

#: (ids of the row so far [1, length], logits [1, words]) -> logits.
Processor = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


class Choice:
    """How the tokens of one row are chosen. `ids`: all that its decoder has read and written."""

    def __init__(self, parameters: Parameters, defaults: Defaults, prompt: Sequence[int], most: int) -> None:
        """`prompt`: what the decoder begins with; `most`: tokens that it may write behind that."""
        self.ids = list(prompt)
        self._first = len(prompt)
        samples = parameters.samples
        self._samples = defaults.do_sample if samples is None else samples
        wanted = {**defaults.values, **parameters.given}
        self._processors = _processors(wanted, sorted(defaults.ends), len(prompt), most)
        self._shares = Shares.of(wanted)
        seed = secrets.randbits(63) if parameters.seed is None else parameters.seed
        self._seed = seed % (1 << 64)

    @property
    def plain(self) -> bool:
        """Whether the likeliest token is taken as it is."""
        return not self._samples and not self._processors

    @property
    def written(self) -> list[int]:
        """The tokens behind the prompt."""
        return self.ids[self._first :]

    @property
    def count(self) -> int:
        """Tokens that it has written."""
        return len(self.ids) - self._first

    def choose(self, logits: torch.Tensor) -> int:
        """The next token, from `logits` [words]."""
        scores = logits[None].float()
        if self._processors:
            ids = torch.tensor([self.ids], device=logits.device)
            for process in self._processors:
                scores = process(ids, scores)
        if not self._samples:
            return int(scores.argmax())
        shares = self._shares(scores[0]).cumsum(0)
        number = np.random.Generator(np.random.Philox(key=[self._seed, len(self.ids)])).random()
        return int(torch.searchsorted(shares, number * float(shares[-1]), right=True).clamp(max=len(shares) - 1))


def choose(logits: torch.Tensor, choices: Sequence[Choice]) -> list[int]:
    """The next token of each row, from `logits` [rows, words]."""
    tokens: list[int] = logits.argmax(-1).tolist()
    for row, choice in enumerate(choices):
        if not choice.plain:
            tokens[row] = choice.choose(logits[row])
    return tokens


def _processors(values: Mapping[str, Any], ends: list[int], prompt: int, most: int) -> list[Processor]:
    """What changes logits whether or not a token is sampled, in the order of transformers' `generate`."""
    from transformers.generation import logits_process as processors  # imported with the model

    found: list[Any] = []
    if (penalty := values.get("repetition_penalty")) not in (None, 1.0):
        found.append(processors.RepetitionPenaltyLogitsProcessor(penalty))
    if size := values.get("no_repeat_ngram_size"):
        found.append(processors.NoRepeatNGramLogitsProcessor(size))
    if bad := values.get("bad_words_ids"):
        found.append(processors.NoBadWordsLogitsProcessor(bad, ends))
    least = values.get("min_new_tokens")  # which takes the place of min_length
    if ends and least:
        found.append(processors.MinNewTokensLengthLogitsProcessor(prompt, least, ends))
    elif ends and least is None and (least := values.get("min_length")):
        found.append(processors.MinLengthLogitsProcessor(least, ends))
    if (forced := values.get("forced_bos_token_id")) is not None:
        found.append(processors.ForcedBOSTokenLogitsProcessor(forced))
    if (forced := values.get("forced_eos_token_id")) is not None:
        found.append(processors.ForcedEOSTokenLogitsProcessor(prompt + most, forced))
    if suppressed := values.get("suppress_tokens"):
        found.append(processors.SuppressTokensLogitsProcessor(suppressed))
    if first := values.get("begin_suppress_tokens"):
        begin = prompt + 1 if prompt == 1 and values.get("forced_bos_token_id") is not None else prompt
        found.append(processors.SuppressTokensAtBeginLogitsProcessor(first, begin))
    return found


@dataclass(frozen=True, slots=True)
class Shares:
    """How likely each token is in a sample: temperature, top_k and top_p, in the order of transformers' `generate`.

    `top_k` 0 and `top_p` 1 leave all tokens.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0

    @classmethod
    def of(cls, wanted: Mapping[str, Any]) -> Self:
        """By their names in generation_config."""
        return cls(**{name: wanted[name] for name in ("temperature", "top_k", "top_p") if wanted.get(name) is not None})

    def __call__(self, scores: torch.Tensor) -> torch.Tensor:
        """`scores` [words] -> [words], 0 for tokens that are out. Those that are left need not add up to 1."""
        if self.temperature != 1.0:
            scores = scores / self.temperature
        if 0 < self.top_k < len(scores):
            scores = scores.masked_fill(scores < scores.topk(self.top_k).values[-1], -torch.inf)
        shares = torch.softmax(scores.double(), 0)
        return shares if self.top_p >= 1.0 else _likeliest(shares, self.top_p)


def _likeliest(shares: torch.Tensor, top_p: float) -> torch.Tensor:
    """The likeliest tokens that together have a share of `top_p`; the others 0.

    Tokens with at most (1 - top_p) / words each have no more than 1 - top_p together, so they are out, and need not be
    sorted: that takes most of the time where the vocabulary is large.
    """
    places = (shares > (1.0 - top_p) / len(shares)).nonzero()[:, 0]
    ordered, order = shares[places].sort(descending=True)
    before = ordered.cumsum(0) - ordered
    before[0] = 0.0  # one is left, however small `top_p`
    kept = places[order[before < top_p]]
    return torch.zeros_like(shares).index_copy_(0, kept, shares[kept])
