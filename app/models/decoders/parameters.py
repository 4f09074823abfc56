"""Parameters of a request to a decoder: how many tokens, how they are chosen, and where the text ends."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from pydantic import Field, ValidationError, field_validator

from app.errors import BadRequest, ConfigError
from app.models.description.tables import Table, explain

MOST_STOPS = 16
_ONE_BEAM = "expected 1: beam search is not offered, since its rows do not move on one by one"

#: Settings of generation_config.json that are not supported and would change a text, with the value that does not.
_NOT_OFFERED: Mapping[str, object] = {
    "encoder_no_repeat_ngram_size": 0, "encoder_repetition_penalty": 1, "epsilon_cutoff": 0, "eta_cutoff": 0,
    "exponential_decay_length_penalty": None, "guidance_scale": 1, "max_time": None, "min_p": 0,
    "penalty_alpha": 0, "sequence_bias": None, "stop_strings": None, "token_healing": False, "top_h": None,
    "typical_p": 1, "watermarking_config": None,
}  # fmt: skip


class Parameters(Table):
    """Named as in transformers' `generate`; None: the value of the model's generation_config.json.

    Tokens are sampled where `do_sample` says so, or where it is not given and one of `temperature`, `top_k` and `top_p`
    is. A temperature of 0 is no sampling. With `seed` the text is the same whatever it runs with.
    """

    max_new_tokens: int | None = Field(default=None, ge=1)
    min_new_tokens: int | None = Field(default=None, ge=0)
    do_sample: bool | None = None
    temperature: float | None = Field(default=None, ge=0, le=100)
    top_k: int | None = Field(default=None, ge=0)
    top_p: float | None = Field(default=None, gt=0, le=1)
    repetition_penalty: float | None = Field(default=None, gt=0)
    no_repeat_ngram_size: int | None = Field(default=None, ge=0)
    seed: int | None = Field(default=None, ge=-(1 << 63), lt=1 << 63)
    stop: tuple[str, ...] = ()
    num_beams: int = 1

    @field_validator("stop", mode="before")
    @classmethod
    def _one_or_several(cls, value: Any) -> Any:
        texts = (value,) if isinstance(value, str) else value
        fits = isinstance(texts, (list, tuple)) and all(isinstance(text, str) and text for text in texts)
        if not fits or len(texts) > MOST_STOPS:
            raise ValueError(f"expected a text, or at most {MOST_STOPS} of them, none empty, got {value!r}")
        return tuple(texts)

    @field_validator("num_beams")
    @classmethod
    def _no_beams(cls, value: int) -> int:
        if value != 1:
            raise ValueError(f"{_ONE_BEAM}, got {value}")
        return value

    @classmethod
    def read(cls, given: Mapping[str, Any] | None, most: int) -> Self:
        """Raises BadRequest naming the first parameter that does not fit. `most`: tokens that the model may write."""
        try:
            read = cls.model_validate(dict(given or {}))
        except ValidationError as error:
            raise BadRequest(f"parameters.{explain(error, cls)}") from None
        for name in ("max_new_tokens", "min_new_tokens"):
            value = getattr(read, name)
            if value is not None and value > most:
                raise BadRequest(f"parameters.{name}: expected at most {most}, got {value}")
        return read

    @property
    def given(self) -> dict[str, Any]:
        """The parameters that the request has, by name."""
        return {name: value for name, value in self if value is not None}

    @property
    def samples(self) -> bool | None:
        """Whether tokens are sampled; None: as the model's default."""
        if self.temperature == 0:
            return False
        if self.do_sample is None and any(each is not None for each in (self.temperature, self.top_k, self.top_p)):
            return True
        return self.do_sample


@dataclass(frozen=True, slots=True)
class Defaults:
    """The values of generation_config.json, for requests that give none. `ends`: tokens that end a text."""

    ends: frozenset[int]
    max_new_tokens: int
    do_sample: bool
    values: Mapping[str, Any]  # of the processors, by their names in generation_config

    @classmethod
    def of(cls, config: Any, most: int, *, encodes: bool) -> Self:
        """`config`: transformers' GenerationConfig; `most`: tokens that the model may write. Raises ConfigError for a
        setting that is not supported."""
        values = config.to_dict()
        for name, unset in _NOT_OFFERED.items():
            if values.get(name) not in (None, unset):
                raise ConfigError(
                    f"generation_config.json: {name} is not offered, got {values[name]!r}; remove it there"
                )
        ends = config.eos_token_id
        ends = frozenset(() if ends is None else (ends,) if isinstance(ends, int) else ends)
        length = usual_length(config, encodes=encodes) or most
        return cls(ends, min(length, most), bool(config.do_sample), values)


def usual_length(config: Any, *, encodes: bool) -> int | None:
    """The most tokens of a text by a GenerationConfig; None if it does not say."""
    if config.max_new_tokens is None and config.max_length is not None and encodes:
        return int(config.max_length) - 1  # the token that it begins with is counted there
    return config.max_new_tokens  # type: ignore[no-any-return]  # transformers has no types
