"""Chooses the next token of a row: the likeliest, or a sample. Penalties and bans are transformers' own processors.

The random number of a sample depends only on the row's seed and its number of tokens. So a text does not depend on
other rows, and a repeated step chooses the same token.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from app.models.decoders.parameters import Defaults, Parameters

#: (ids of the row so far [1, length], logits [1, vocabulary]) -> logits.
Processor = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


class TokenChooser:
    """Chooses the tokens of one row."""

    def __init__(self, parameters: Parameters, defaults: Defaults, prompt: int, most: int) -> None:
        """`prompt`: how many tokens the decoder begins with; `most`: how many it may add."""
        samples = parameters.samples
        self._samples = defaults.do_sample if samples is None else samples
        wanted = {**defaults.values, **parameters.given}
        self._processors = _processors(wanted, sorted(defaults.ends), prompt, most)
        self._filters = {
            name: wanted[name] for name in ("temperature", "top_k", "top_p") if wanted.get(name) is not None
        }
        seed = secrets.randbits(63) if parameters.seed is None else parameters.seed
        self._seed = seed % (1 << 64)

    @property
    def plain(self) -> bool:
        """Whether the next token is simply the one of the largest logit."""
        return not self._samples and not self._processors

    def choose(self, ids: Sequence[int], logits: torch.Tensor) -> int:
        """The next token, from `logits` [vocabulary]. `ids`: all that the decoder has read and written."""
        scores = logits[None].float()
        if self._processors:
            before = torch.tensor([ids], device=logits.device)
            for process in self._processors:
                scores = process(before, scores)
        if not self._samples:
            return int(scores.argmax())
        sums = probabilities(scores[0], **self._filters).cumsum(0)
        number = np.random.Generator(np.random.Philox(key=[self._seed, len(ids)])).random()
        return int(torch.searchsorted(sums, number * float(sums[-1]), right=True).clamp(max=len(sums) - 1))


def _processors(values: Mapping[str, Any], ends: list[int], prompt: int, most: int) -> list[Processor]:
    """The processors that apply with and without sampling, in the order of transformers' `generate`."""
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


def probabilities(scores: torch.Tensor, temperature: float = 1.0, top_k: int = 0, top_p: float = 1.0) -> torch.Tensor:
    """How likely each token is in a sample: `scores` [vocabulary] -> [vocabulary], not normalised.

    Excluded tokens have 0; `top_k` of at most 0 and `top_p` 1 exclude none. The order is that of transformers'
    `generate`.
    """
    scores = scores.double()
    if temperature != 1.0:
        # the largest becomes 0, so that no score overflows at a tiny temperature: only the likeliest token is left
        scores = (scores - scores.max()) / temperature
    if 0 < top_k < len(scores):
        scores = scores.masked_fill(scores < scores.topk(top_k).values[-1], -torch.inf)
    found = torch.softmax(scores, 0)
    return found if top_p >= 1.0 else _likeliest(found, top_p)


def _likeliest(probabilities: torch.Tensor, top_p: float) -> torch.Tensor:
    """The likeliest tokens, whose probabilities add up to `top_p`; the others 0.

    Tokens of at most (1 - top_p) / vocabulary each add up to no more than 1 - top_p, so they are excluded before the
    sort, which takes most of the time for a large vocabulary.
    """
    likeliest = probabilities.argmax()
    if probabilities[likeliest] >= top_p:  # one token is always kept, however small `top_p` is
        return torch.zeros_like(probabilities).index_fill_(0, likeliest, 1.0)
    places = (probabilities > (1.0 - top_p) / len(probabilities)).nonzero()[:, 0]
    ordered, order = probabilities[places].sort(descending=True)
    before = ordered.cumsum(0) - ordered
    kept = places[order[before < top_p]]
    return torch.zeros_like(probabilities).index_copy_(0, kept, probabilities[kept])
