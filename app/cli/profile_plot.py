"""The plot of `starling profile`, in the style of the others. Imported only when one is asked for."""

from __future__ import annotations

from pathlib import Path

from matplotlib import pyplot as plt

from app.cli import plots
from app.scheduler.estimates.profile import ModelProfile


def batch_times(profile: ModelProfile, path: Path) -> None:
    """Write batch time and rows per second against batch size to `path`, whose ending says the format.

    A line for one batch at a time, with the band of its quartiles where the profile has it, one for each number of
    batches at once, and the straight line of the fit. Below, where there are any, a line for each stage and for each
    length. Raises ValueError for an ending that matplotlib does not know,
    OSError when the file cannot be written.
    """
    sizes = list(range(1, profile.max_batch + 1))
    by_stage = {f"stage {number}": stage.batch_ns for number, stage in enumerate(profile.stages)}
    by_length = {f"length {length}": times for length, times in profile.by_length}
    below = [curves for curves in (by_stage, by_length) if curves]
    with plt.rc_context({**plots.STYLE, "figure.figsize": (10, 8 if below else 4)}):
        figure, panels = plt.subplots(2 if below else 1, 2, squeeze=False)
        left, right, *others = panels.flat
        try:
            for units, times in {1: profile.batch_ns, **profile.concurrency_ns}.items():
                name = "one batch" if units == 1 else f"{units} at once"
                left.plot(sizes, [ns / 1e6 for ns in times], "o-", label=name)
                right.plot(sizes, [units * b * 1e9 / ns for b, ns in enumerate(times, 1)], "o-", label=name)
            spread = profile.extra.get("spread", {})
            half = [ns * spread.get(str(b), 0.0) / 2e6 for b, ns in enumerate(profile.batch_ns, 1)]
            low = [ns / 1e6 - part for ns, part in zip(profile.batch_ns, half, strict=True)]
            high = [ns / 1e6 + part for ns, part in zip(profile.batch_ns, half, strict=True)]
            left.fill_between(sizes, low, high, color="C0", alpha=0.2)
            line = profile.fit()
            fitted = [(line.alpha_ns + line.beta_ns * size) / 1e6 for size in sizes]
            name = f"{line.alpha_ns / 1e6:.2g} + {line.beta_ns / 1e6:.2g} b ms"
            left.plot(sizes, fitted, "--", color="grey", label=name)
            left.set_ylabel("batch time, ms")
            right.set_ylabel("throughput, rows/s")
            for axes, curves in zip(others, below, strict=False):
                for name, times in curves.items():
                    axes.plot(sizes, [ns / 1e6 for ns in times], "o-", label=name)
                axes.set_ylabel("batch time, ms")
            for axes in others[len(below) :]:
                axes.remove()
            for axes in (left, right, *others[: len(below)]):
                axes.set_xlabel("batch size, rows")
                axes.set_ylim(bottom=0)
                axes.legend()
            figure.suptitle(f"{profile.model}, {profile.device}, {profile.threads} thread(s) per worker", fontsize=11)
            figure.tight_layout()
            figure.savefig(path)
        finally:
            plt.close(figure)
