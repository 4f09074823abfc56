"""All settings with their units, defaults, ranges and help. `cli/commands.py` makes flags and variables of them.

None means not given: then model.toml decides, and after it the default that the help shows in brackets. Other modules
never see Settings: `main.py` passes values to them.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from app.errors import ConfigError, explain
from app.machine import cpu_cores

MIB = 1 << 20

Precision = Literal["fp32", "bf16", "fp16"]

_LONE_CAPACITY = 32  # the default of --max-batch
_MOST_WORKERS = 1024
_MOST = 1e9  # of any number: 30 years of seconds; far more of them are no nanoseconds any more, but infinite
_VARIABLE = "STARLING_"
_PREFIX = re.compile(r"(/[A-Za-z0-9_.~-]+)+")
_ORIGIN = re.compile(r"\*|null|[a-z][a-z0-9+.-]*://[^/?#@\s,]+")
#: First parts of the server's own paths. A prefix may not begin with one: the two could not be told apart.
_OWN = frozenset({"v1", "v2", "predict", "docs", "ui"})


class Settings(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    # what is served
    models: str = Field(
        "demo", description="A repository, a model's folder or file, or a set: demo, bench; none if a model is named."
    )
    model: tuple[str, ...] = Field((), description="NAME=SOURCE: one more model; SOURCE is its folder or file.")
    watch: bool = Field(
        False, description="For development: each second, load models that are new or edited, unload removed ones."
    )

    # where
    host: str = Field("127.0.0.1", description="Address to listen on; 0.0.0.0 for every interface.")
    port: int = Field(8000, ge=0, le=65535, description="Port to listen on; 0 takes a free one.")
    tls_cert: Path | None = Field(
        None, description="Certificate, with its chain, to serve HTTPS by; PEM, read again when it changes."
    )
    tls_key: Path | None = Field(None, description="The certificate's key, where its own file does not have it; PEM.")

    # who may do what
    api_key: str | None = Field(None, description="Key that requests must carry (X-API-Key, or a bearer token).")
    api_key_file: Path | None = Field(
        None, description="More such keys, one a line; read again when the file changes. # begins a comment."
    )
    model_control: bool = Field(False, description="Let clients load and unload models; else they are answered 403.")
    admin_key: str | None = Field(
        None, description="Key to load and unload models by, and no other then; --model-control is not needed."
    )
    admin_key_file: Path | None = Field(None, description="More such keys, as --api-key-file.")
    root_path: str = Field("", description="Prefix under which an ingress offers the server, as /models. [none]")
    cors_origins: tuple[str, ...] = Field(
        (), description="Origins whose pages may call the server, as https://app.example.com, or *."
    )
    pages: bool = Field(True, description="The live page, /ui; the page /docs and /openapi.json, which need no key.")

    # how requests are batched: beats model.toml
    policy: str | None = Field(None, description="When to form a batch. [adaptive]")
    max_batch: int | None = Field(None, ge=1, le=4096, description="Largest batch, rows. [32]")
    max_delay_ms: float | None = Field(
        None, ge=0, description="window, static, preferred: longest wait of the oldest row. [5]"
    )
    max_queue: int | None = Field(
        None,
        ge=1,
        description="Rows of each class that may wait per model; more are refused (429). "
        "[32 x max_batch, at least 1024]",
    )

    # how real-time and best-effort requests share the device
    preempt_budget_ms: float = Field(
        10, gt=0, description="Most predicted best-effort work on the device: what a real-time request may wait for."
    )
    rt_slowdown: float = Field(
        0.02, ge=0, description="Largest slowdown that best-effort batches may cause real-time ones beside them."
    )

    # the device
    device: str = Field(
        "auto", description="Where models run: auto (the first GPU, if there is one), cpu, cuda or cuda:N."
    )
    precision: Precision = Field("fp32", description="fp32 leaves models as they are; bf16 and fp16 compute in that.")
    compile: bool = Field(False, description="Compile models with torch.compile; on a CPU it needs a C++ compiler.")
    cuda_graphs: bool = Field(True, description="Capture CUDA graphs at load, of models that can be captured.")
    threads: int | None = Field(None, ge=1, description="Compute threads per worker. [cores - 1, at least 1]")
    workers: tuple[Annotated[int, Field(ge=1)], ...] = Field(
        (), description="Capacities in rows: 4x32 for four of 32, or 1,2,4. [one of any size]"
    )
    max_alive: int | None = Field(None, ge=1, description="Rows on the device at once. [no bound]")
    pool_mib: int = Field(
        512, ge=1, description="Input slots per model, MiB; a larger queue is cut to fit. As much again between stages."
    )
    profile_dir: Path | None = Field(None, description="Where measured batch times are kept. [the user's cache folder]")
    profile_budget_s: float = Field(
        5, ge=0, description="Seconds to measure a model that has no profile, while idle; 0: never."
    )

    # bounds on what a client may send or hold
    max_body_mib: float = Field(64, gt=0, description="Largest request body, MiB, also after decompression.")
    max_json_mib: float = Field(1, gt=0, description="Largest JSON body, MiB: parsing it holds up other requests.")
    max_inflight_mib: float = Field(512, gt=0, description="Bodies and unread answers, MiB; more are refused (429).")
    max_connections: int = Field(4096, ge=1, description="Open connections; beyond it requests are answered 503.")
    body_timeout_s: float = Field(30, gt=0, description="Time a body may take to arrive, seconds.")

    # lifecycle
    keep_alive_s: int = Field(
        75, ge=1, description="Idle or unread connections stay so long; keep above the ingress's."
    )
    drain_grace_s: float = Field(
        3, ge=0, description="After SIGTERM: seconds of normal service while load balancers notice."
    )
    drain_limit_s: float = Field(30, ge=0, description="After the grace: seconds for accepted requests to finish.")
    hang_floor_s: float = Field(3, gt=0, description="No batch counts as hung before so many seconds.")

    # what it says
    log_level: Literal["debug", "info", "warning", "error"] = Field("info", description="Least severe line printed.")
    log_format: Literal["text", "json"] = Field("text", description="One line per event, as text or as JSON.")
    access_log: bool = Field(False, description="One line per HTTP request, probes left out.")
    record: Path | None = Field(None, description="Write the scheduler's inputs and steps here, for replay.")
    otlp_endpoint: str | None = Field(
        None, description="Send traces to this OpenTelemetry collector (OTLP over HTTP), as http://127.0.0.1:4318."
    )

    @field_validator("*")
    @classmethod
    def _finite(cls, value: object) -> object:
        if isinstance(value, int | float) and value > _MOST:
            raise ValueError(f"expected at most {_MOST:g}, got {value:g}")
        return value

    @field_validator("workers", mode="before")
    @classmethod
    def _capacities(cls, value: object) -> object:
        return capacities(value) if isinstance(value, str) else value

    @field_validator("root_path")
    @classmethod
    def _prefix_is_one(cls, value: str) -> str:
        prefix = value.rstrip("/")
        if prefix and not _PREFIX.fullmatch(prefix):
            raise ValueError(f"expected a path such as /models, got {value!r}")
        if prefix.split("/")[1:2] and prefix.split("/")[1] in _OWN:
            raise ValueError(f"expected a prefix that none of the server's own paths begins with, got {value!r}")
        return prefix

    @field_validator("cors_origins", mode="before")
    @classmethod
    def _origins(cls, value: str | Iterable[str]) -> list[str]:
        given = [value] if isinstance(value, str) else value
        origins = [part.lower() for one in given for part in re.split(r"[,\s]+", one) if part]  # as browsers send them
        wrong = next((origin for origin in origins if not _ORIGIN.fullmatch(origin)), None)
        if wrong is not None:
            raise ValueError(f"expected * or origins such as https://app.example.com, without a path, not {wrong!r}")
        return origins

    @field_validator("log_level", "log_format", mode="before")
    @classmethod
    def _any_case(cls, value: object) -> object:
        return value.lower() if isinstance(value, str) else value  # INFO is how logging itself writes a level

    @field_validator("device")
    @classmethod
    def _device_known(cls, value: str) -> str:
        if not re.fullmatch(r"auto|cpu|cuda(:\d+)?", value):
            raise ValueError(f"expected auto, cpu, cuda or cuda:N, got {value!r}")
        return value

    @model_validator(mode="after")
    def _fits_together(self) -> Settings:
        if self.threads is not None and self.threads > (cores := cpu_cores()):
            raise ValueError(f"threads: expected at most the {cores} cores of this machine, got {self.threads}")
        if self.tls_key is not None and self.tls_cert is None:
            raise ValueError("tls_cert: expected a certificate beside tls_key")
        return self

    @property
    def loads_later(self) -> bool:
        """Whether models can be loaded while the server runs; it may then start without one."""
        return self.watch or self.model_control or self.admin_key is not None or self.admin_key_file is not None

    @property
    def repository(self) -> str | None:
        """The folder or set to serve; None if only single models are named."""
        return self.models if "models" in self.model_fields_set or not self.model else None

    @property
    def compute_threads(self) -> int:
        """Threads of one worker. By default all cores but one, which serves HTTP."""
        return self.threads if self.threads is not None else max(1, cpu_cores() - 1)


def capacities(text: str) -> list[str]:
    """Parse `--workers`: `4x32` means four workers of 32 rows. Raises ValueError.

    A small number alone is refused: it would be one worker of so many rows, but probably means so many workers.
    """
    parts = [part.strip() for part in text.split(",")]
    if len(parts) == 1 and parts[0].isdigit() and 0 < int(parts[0]) < _LONE_CAPACITY:
        one = parts[0]
        raise ValueError(
            f"alone it is one worker with batches of at most {one}: expected {one}x32 for batches of up to 32, "
            f"{one} at a time, or 1x{one}"
        )
    found = []
    for part in parts:
        count, times, rows = part.rpartition("x")
        if not rows.isdigit() or (times and not (count.isdigit() and 0 < int(count) <= _MOST_WORKERS)):
            raise ValueError(f"expected capacities such as 32,32 or 2x32, got {text!r}")
        found += [rows] * int(count or 1)
    return found


def settings_from(given: dict[str, Any]) -> Settings:
    """Settings from flags and variables; others have their defaults. Raises ConfigError, one line."""
    values = {name: value for name, value in given.items() if value is not None and value != []}
    try:
        return Settings(**values)
    except ValidationError as exc:
        raise ConfigError(explain(exc, Settings)) from None


def unknown_variables(environment: Iterable[str]) -> list[str]:
    """A warning for each STARLING_ variable that is not a setting, with the most similar one."""
    known = {name.upper() for name in Settings.model_fields}
    given = {name.removeprefix(_VARIABLE) for name in environment if name.startswith(_VARIABLE)}
    lines = []
    for name in sorted(given - known):
        near = difflib.get_close_matches(name, known, 1)
        meant = f"; did you mean {_VARIABLE}{near[0]}?" if near else ""
        lines.append(f"warning: the variable {_VARIABLE}{name} is no setting and does nothing{meant}")
    return lines


def repeated_models(arguments: Iterable[str]) -> list[str]:
    """A warning if --models is given more than once: only the last counts."""
    if [argument.partition("=")[0] for argument in arguments].count("--models") < 2:
        return []
    return ["warning: the last --models alone is served; --model NAME=FOLDER serves one more model"]
