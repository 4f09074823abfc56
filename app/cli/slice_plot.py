"""The plot of `starling slice`, in the style of the others. Imported only when one is asked for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from matplotlib import pyplot as plt

from app.cli import plots


def stage_times(name: str, whole: Mapping[int, float], stages: Sequence[Mapping[int, float]], path: Path) -> None:
    """Write the stages' batch times, stacked, and their rows per second against batch size to `path`.

    Times are milliseconds by size. Raises ValueError for an ending that matplotlib does not know, OSError when the file
    cannot be written.
    """
    sizes = list(whole)
    with plt.rc_context({**plots.STYLE, "figure.figsize": (10, 4)}):
        figure, (left, right) = plt.subplots(1, 2)
        try:
            parts = [[stage[size] for size in sizes] for stage in stages]
            left.stackplot(sizes, parts, alpha=0.6, labels=[f"stage {number}" for number in range(len(stages))])
            left.plot(sizes, list(whole.values()), "k--", label="whole")
            for number, part in enumerate(parts):
                rates = [size * 1e3 / time for size, time in zip(sizes, part, strict=True)]
                right.plot(sizes, rates, "o-", label=f"stage {number}")
            left.set_ylabel("batch time, ms")
            right.set_ylabel("throughput, rows/s")
            for axes in (left, right):
                axes.set_xlabel("batch size, rows")
                axes.set_ylim(bottom=0)
                axes.legend()
            figure.suptitle(f"{name} in {len(stages)} stages", fontsize=11)
            figure.tight_layout()
            figure.savefig(path)
        finally:
            plt.close(figure)
