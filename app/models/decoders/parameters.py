"""Parameters of a request to a decoder: how many tokens, how they are chosen, and where the text ends.

A `TokenChooser` chooses: the likeliest token, or a sample. Penalties and bans are transformers' own processors. The
random number of a sample depends only on the row's seed and its number of tokens. So a text does not depend on other
rows, and a repeated step chooses the same token.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Self

import numpy as np
import torch
from pydantic import ConfigDict, Field, ValidationError, field_validator

from app.errors import BadRequest, ConfigError, explain
from app.models.description.config_tables import Table, expects
from app.values.tensors import shown
from app.values.text_fields import BY_NAME, is_neutral

#: (ids of the row so far [1, length], logits [1, vocabulary]) -> logits.
Processor = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]

MOST_STOPS = 16
_ONE_BEAM = "1: beam search is not offered, since its rows do not move on one by one"

#: Settings of generation_config.json that are not supported and would change a text, with the value that does not.
_NOT_OFFERED: Mapping[str, object] = {
    "encoder_no_repeat_ngram_size": 0, "encoder_repetition_penalty": 1, "epsilon_cutoff": 0, "eta_cutoff": 0,
    "exponential_decay_length_penalty": None, "guidance_scale": 1, "max_time": None, "min_p": 0,
    "penalty_alpha": 0, "sequence_bias": None, "stop_strings": None, "token_healing": False, "top_h": None,
    "typical_p": 1, "watermarking_config": None,
}  # fmt: skip


class Parameters(Table):
    """Named as in transformers' `generate`, or as in vLLM; None: the value of the model's generation_config.json.

    Tokens are sampled where `do_sample` says so, or where it is not given and one of `temperature`, `top_k` and `top_p`
    asks for it. A temperature of 0 is no sampling. With `seed` the text is the same whatever it runs with.

    `max_new_tokens` is an upper bound: a text ends earlier where the model has no room for more.
    """

    model_config = ConfigDict(allow_inf_nan=False)

    max_new_tokens: int | None = Field(default=None, ge=1)
    min_new_tokens: int | None = Field(default=None, ge=0)
    do_sample: bool | None = None
    temperature: float | None = Field(default=None, ge=0, le=100)
    top_k: int | None = Field(default=None, ge=-1)
    top_p: float | None = Field(default=None, ge=0, le=1)
    repetition_penalty: float | None = Field(default=None, gt=0)
    no_repeat_ngram_size: int | None = Field(default=None, ge=0)
    seed: int | None = Field(default=None, ge=-(1 << 63), lt=1 << 64)
    stop: tuple[str, ...] = ()
    stop_token_ids: frozenset[int] = frozenset()
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    skip_special_tokens: bool = True
    num_beams: Annotated[int, expects(_ONE_BEAM, lambda value: value == 1)] = 1

    @field_validator("stop", mode="before")
    @classmethod
    def _one_or_several(cls, value: Any) -> Any:
        texts = [value] if isinstance(value, str) else value
        if isinstance(texts, list | tuple):  # Triton's clients send a list for each prompt
            texts = [text for each in texts for text in (each if isinstance(each, list) else [each]) if text != ""]
        fits = isinstance(texts, list) and all(isinstance(text, str) for text in texts)
        if not fits or len(texts) > MOST_STOPS:
            raise ValueError(f"expected a text, or at most {MOST_STOPS} of them, got {shown(value)}")
        return tuple(texts)

    @field_validator("stop_token_ids", mode="before")
    @classmethod
    def _ids(cls, value: Any) -> Any:
        ids = [value] if type(value) is int else value
        if not isinstance(ids, list) or not all(type(one) is int for one in ids):
            raise ValueError(f"expected a list of ids of tokens, got {shown(value)}")
        return frozenset(ids)

    @classmethod
    def read(cls, given: Mapping[str, Any]) -> Self:
        """The parameters of a request, also by their names in other servers (`values.text_fields`).

        Raises BadRequest naming the first that does not fit.
        """
        names: dict[str, str] = {}  # as the request has them, by our own
        asked: dict[str, Any] = {}
        unknown = False
        for name, value in given.items():
            try:
                if is_neutral(name, value):
                    continue
            except BadRequest as error:
                raise BadRequest(f"parameters.{error.message}") from None
            own = BY_NAME[name].sets if name in BY_NAME else name
            if own not in cls.model_fields:
                if unknown:  # one is enough to be refused, and each costs 4 us
                    continue
                unknown = True
            if own in asked and asked[own] != value:
                raise BadRequest(f"parameters.{name}: expected the value of {names[own]}, got {shown(value)}")
            names[own], asked[own] = name, value
        try:
            found = cls.model_validate(asked)
        except ValidationError as error:
            first, _, rest = explain(error, cls).partition(":")
            raise BadRequest(f"parameters.{names.get(first, first)}:{rest}") from None
        least, most = found.min_new_tokens or 0, found.max_new_tokens
        if most is not None and least > most:
            low, high = names["min_new_tokens"], names["max_new_tokens"]
            raise BadRequest(f"parameters.{low}: expected at most the {most} of {high}, got {least}")
        return found

    @property
    def samples(self) -> bool | None:
        """Whether tokens are sampled; None: as the model's default."""
        if self.temperature == 0:
            return False
        if self.do_sample is None and (self.temperature is not None or (self.top_k or 0) > 0 or (self.top_p or 1) < 1):
            return True
        return self.do_sample


@dataclass(frozen=True, slots=True)
class Bounds:
    """How many tokens a row may have: `prompt`, of what is read; `text`, of what is written; `both` together.

    An encoder reads into places of their own: `both` is None. `usual`: of a text if a request does not say.
    """

    prompt: int
    text: int
    both: int | None
    usual: int

    def room(self, read: int) -> int:
        """The most tokens of a text behind a prompt of `read` tokens."""
        return self.text if self.both is None else min(self.text, self.both - read)


class Defaults:
    """The values of generation_config.json, for requests that give none. `ends`: tokens that end a text. `values`: of
    the processors, by their names there.
    """

    def __init__(self, config: Any) -> None:
        """`config`: transformers' GenerationConfig. Raises ConfigError for a setting that is not supported."""
        self.values: Mapping[str, Any] = config.to_dict()
        for name, unset in _NOT_OFFERED.items():
            if (value := self.values.get(name)) not in (None, unset):
                raise ConfigError(f"generation_config.json: {name} is not offered, got {value!r}; remove it there")
        self.do_sample = bool(config.do_sample)
        ends = config.eos_token_id
        self.ends = frozenset(() if ends is None else (ends,) if isinstance(ends, int) else ends)


def usual_length(config: Any, *, encodes: bool) -> int | None:
    """The most tokens of a text by a GenerationConfig; None if it does not say."""
    if config.max_new_tokens is None and config.max_length is not None and encodes:
        return int(config.max_length) - 1  # the token that it begins with is counted there
    return config.max_new_tokens  # type: ignore[no-any-return]  # transformers has no types


# choosing tokens


class TokenChooser:
    """Chooses the tokens of one row."""

    def __init__(self, parameters: Parameters, defaults: Defaults, prompt: int, most: int) -> None:
        """`prompt`: how many tokens the decoder begins with; `most`: how many it may add."""
        samples = parameters.samples
        self._samples = defaults.do_sample if samples is None else samples
        wanted = {**defaults.values, **parameters.model_dump(exclude_none=True)}
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
        number = np.random.Generator(np.random.Philox(key=len(ids) << 64 | self._seed)).random()
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
