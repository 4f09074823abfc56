"""The results of Ebird's experiments."""

from __future__ import annotations

from typing import Any, NotRequired, TypedDict

#: One server's means by seed at the low and at the high rate, its tail, and one run as an example.
Run = dict[str, Any]


class Settings(TypedDict):
    """The assumptions, and the rates as shares of the baseline's best throughput."""

    sms: int
    max_batch: int
    qos_ms: float
    layer_ms: float
    copy_gb_s: float
    gap_ms: float
    threads: int  # of "no_wait, 12 threads": batches handed over before one returns
    low: float
    high: float
    steps: list[float]
    delays_ms: list[float]  # the tuned delay is one of them


class Study(TypedDict):
    """One network. `capacity`: the baseline's best throughput, rows/s. `throughput`: under QoS, by server."""

    network: str
    capacity: float
    gpu_peak: float
    delays_ms: dict[str, float]
    times_ms: dict[str, float]
    burst: dict[str, Run]
    climb: dict[str, Run]
    throughput: NotRequired[dict[str, float]]
    near_qos: NotRequired[dict[str, Run]]
    variants: NotRequired[dict[str, Run]]


class Doubt(TypedDict):
    """Reductions of the mean latency under another assumption, a value for each network."""

    doubt: str
    low: list[float]
    high: list[float]
    adaptive_low: list[float]
    adaptive_high: list[float]


# Assumptions that the headlines name.
ALL_ALIKE = "all alike"
ALL_AGAINST = "all against Ebird"


class Corner(TypedDict):
    """Throughput under QoS with an assumption at an extreme, by server, a value for each network."""

    assumption: str
    corner: str
    throughput: dict[str, list[float]]


class EbirdData(TypedDict):
    facts: dict[str, str]
    settings: Settings
    studies: list[Study]
    doubts: list[Doubt]
    corners: list[Corner]
