"""`starling optimum`: the least mean latency of any policy for one device, or for two workers at once."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from app.errors import as_config_error
from app.scheduler.estimates.profile import Profile
from planner.commands.options import BatchOption, JsonOption, LoadOption, ProfileOption, RateOption
from planner.commands.output import print_json, tabulated
from planner.profile_times import at_length, occupied_ns

_MS = 1e6
_LARGEST = 256  # rows of a batch; the solver's number of states
_OF_WORKERS = (
    ("load", "load", ".2f"), ("rate/s", "rate", ".1f"), ("optimum ms", "mean_ms", ".3f"),
    ("adaptive ms", "adaptive_ms", ".3f"), ("above", "adaptive_above", "+.2%"),
    ("no_wait ms", "no_wait_ms", ".3f"), ("above", "no_wait_above", "+.2%"),
)  # fmt: skip


def optimum(
    profile: ProfileOption,
    rate: RateOption = "",
    load: LoadOption = "",
    max_batch: BatchOption = 0,
    length: Annotated[
        int, typer.Option(min=0, help="Length of the rows, for a profile by length. \\[any]", show_default=False)
    ] = 0,
    workers: Annotated[
        int, typer.Option(min=1, max=2, help="Batches that run at once, as slowly as the profile's concurrency says.")
    ] = 1,
    as_json: JsonOption = False,
) -> None:
    """The least mean latency of any policy, and the policy: one device, one batch at a time, Poisson arrivals.

    Exact: the average-cost solution of the semi-Markov decision process. With --workers 2: also the means of adaptive
    and of no_wait, within 1 %.
    """
    with as_config_error():
        measured = _profile(profile, max_batch, length)
        cells = (_of_two_workers if workers > 1 else _of_one_piece)(measured, rate, load)
    if as_json:
        print_json(cells)
    elif workers > 1:
        print("\n".join(tabulated(_OF_WORKERS, cells)))
    else:
        print("\n\n".join(_as_text(cell, 2 * measured.max_batch) for cell in cells))


def _profile(text: str, max_batch: int, length: int) -> Profile:
    """Raises ValueError, OSError for a wrong option."""
    from planner import option_values

    measured = option_values.profile(text, max_batch)
    if measured.max_batch > _LARGEST:
        raise ValueError(f"max_batch: expected at most {_LARGEST}, which can be solved, got {measured.max_batch}")
    return at_length(measured, length) if length else measured


def _of_two_workers(profile: Profile, rate: str, load: str) -> list[dict[str, Any]]:
    """A cell for each rate. Raises ValueError for a wrong option."""
    from planner import option_values
    from planner.two_worker_optimum import compared, peak

    cells = []
    for one_rate in option_values.rates(rate, load, peak(profile)):
        best, adaptive_ns, no_wait_ns, columns = compared(profile, one_rate)
        cell: dict[str, Any] = {"rate": one_rate, "load": one_rate / peak(profile), "mean_ms": best.mean_ns / _MS}
        for name, mean_ns in (("adaptive", adaptive_ns), ("no_wait", no_wait_ns)):
            cell[f"{name}_ms"] = mean_ns and mean_ns / _MS
            cell[f"{name}_above"] = mean_ns and mean_ns / best.mean_ns - 1
        cells.append({**cell, "columns": columns, "table": best.table})
    return cells


def _of_one_piece(profile: Profile, rate: str, load: str) -> list[dict[str, Any]]:
    """A cell for each rate. Raises ValueError for a wrong option."""
    from app.scheduler.optimal.solver import solve
    from planner import option_values
    from planner.one_worker_optimum import use_of
    from planner.serve_all import bound_ns

    times = occupied_ns(profile)
    cells = []
    for one_rate in option_values.rates(rate, load, profile.peak):
        best = solve(times, one_rate)
        busy = solve(times, one_rate, idling=False)
        mean_batch, utilisation = use_of(times, best)
        bound = bound_ns(times, one_rate)
        cells.append(
            {
                "rate": one_rate, "load": one_rate / profile.peak,
                "mean_ms": best.mean_ns / _MS, "mean_batch": mean_batch, "utilisation": utilisation,
                "non_idling_mean_ms": busy.mean_ns / _MS,
                "serve_all_bound_ms": None if bound is None else bound / _MS,
                "table": {str(waiting): rows for waiting, rows in enumerate(best.table)},
            }
        )  # fmt: skip
    return cells


def _as_text(cell: dict[str, Any], most: int) -> str:
    """One solution as text, its table up to `most` rows waiting."""
    bound = cell["serve_all_bound_ms"]
    lines = [
        f"load {cell['load']:.2f}, {cell['rate']:.1f} rows/s: mean {cell['mean_ms']:.3f} ms, mean batch "
        f"{cell['mean_batch']:.2f}, busy {cell['utilisation']:.1%}",
        f"never idle while rows wait: mean {cell['non_idling_mean_ms']:.3f} ms",
        *([] if bound is None else [f"run all that waits, in batches of any size: at most {bound:.3f} ms"]),
        "rows waiting -> rows served:",
    ]
    runs: list[tuple[int, int, str]] = []
    for waiting, rows in list(enumerate(cell["table"].values()))[1 : most + 1]:
        what = "wait" if not rows else "all" if rows == waiting else str(rows)
        if runs and runs[-1][2] == what:
            runs[-1] = (runs[-1][0], waiting, what)
        else:
            runs.append((waiting, waiting, what))
    lines += [f"  {f'{low}-{high}' if high > low else low:>7}  {what}" for low, high, what in runs]
    return "\n".join(lines)
