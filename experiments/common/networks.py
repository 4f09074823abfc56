"""Six networks in stages on a modelled GPU, as in DVABatch's experiments. A Bert is as slow as its longest row."""

from __future__ import annotations

from dataclasses import dataclass, replace

from app.scheduler.estimates.profile import Profile
from planner.drawn_lengths import mean

MAX_BATCH = 64
RTE = "lognormal:60:0.5:10:289"
BUCKETS = (32, 48, 64, 80, 96, 128, 192)
LENGTHS = (8, 16, 32, 48, 64, 96, 128, 192, 289)  # at which batch times are known
TOKENS = 128  # length that `row_ms` is for


@dataclass(frozen=True)
class Network:
    """Stage i takes `launch_ms` + `row_ms` x shares[i] x max(b, fills[i]) for b rows.

    `row_ms`: a row of the whole, with the GPU full, at length 128 if it has lengths. `fills`: rows that fill the GPU.
    """

    name: str
    row_ms: float
    fills: tuple[float, ...]
    launch_ms: float = 0.3
    lengths: str = ""
    policy: str = "dva_load"

    def time_ms(self, stage: int, size: int, length: int = TOKENS) -> float:
        rows = size * length / TOKENS
        return self.launch_ms + self.row_ms / len(self.fills) * max(rows, self.fills[stage])

    def profile(self) -> Profile:
        """In stages, and with the sum of their times for the whole."""
        sizes = range(1, MAX_BATCH + 1)
        typical = round(mean(self.lengths)) if self.lengths else TOKENS

        def times(stage: int, length: int) -> tuple[int, ...]:
            return tuple(round(self.time_ms(stage, size, length) * 1e6) for size in sizes)

        stages = tuple(
            Profile(
                times(stage, typical),
                by_length=tuple((length, times(stage, length)) for length in LENGTHS) if self.lengths else (),
            )
            for stage in range(len(self.fills))
        )
        return replace(_sum(stages), model=self.name, stages=stages)


def _sum(stages: tuple[Profile, ...]) -> Profile:
    def add(tables: list[tuple[int, ...]]) -> tuple[int, ...]:
        return tuple(map(sum, zip(*tables, strict=True)))

    lengths = [length for length, _ in stages[0].by_length]
    return Profile(
        add([stage.batch_ns for stage in stages]),
        by_length=tuple(
            (length, add([stage.by_length[at][1] for stage in stages])) for at, length in enumerate(lengths)
        ),
    )


#: Row times follow from operations at 14 TFLOP/s; which stages prefer large batches is the paper's Figure 6 for Unet.
NETWORKS = (
    Network("Unet", 4.0, (24.0, 24.0, 2.0, 2.0)),
    Network("LinkNet", 0.8, (24.0, 24.0, 2.0, 2.0)),
    Network("BertBase", 1.6, (2.0, 2.0), lengths=RTE, policy="dva_input"),
    Network("BertLarge", 5.6, (1.0, 1.0), 0.6, lengths=RTE, policy="dva_input"),
    Network("VGG19", 2.8, (4.0,) * 4, 0.2),
    Network("ResNet152", 1.7, (8.0,) * 4, 0.6),
)

#: The same with operations at 60 TFLOP/s, half of what the GPU's tensor cores do at best: with 14, as without them,
#: only LinkNet would reach the middle of the paper's stepping load.
FAST = tuple(replace(network, row_ms=network.row_ms * 14 / 60) for network in NETWORKS)
