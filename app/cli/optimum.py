"""`starling optimum`: the best that any policy could do for one device."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from app.cli.options import JsonOption
from app.cli.output import print_json
from app.cli.simulate import BatchOption, LoadOption, ProfileOption, RateOption
from app.errors import ConfigError, as_config_error

_MS = 1e6


def register(cli: typer.Typer) -> None:
    """Add the command to the command line."""
    cli.command()(optimum)


def optimum(
    profile: ProfileOption,
    rate: RateOption = "",
    load: LoadOption = "",
    max_batch: BatchOption = 0,
    length: Annotated[
        int, typer.Option(min=0, help="Length of the rows, for a profile by length. \\[any]", show_default=False)
    ] = 0,
    objective: Annotated[
        str, typer.Option(help="What is least: latency, balanced, energy, or the weight of power, 0 to below 1.")
    ] = "latency",
    as_json: JsonOption = False,
) -> None:
    """The least mean latency of any policy, and the policy: one device, one batch at a time, Poisson arrivals.

    Exact: the average-cost solution of the semi-Markov decision process. Without power_w in the profile a busy device
    counts as one watt and an idle one as none.
    """
    if objective == "deadline":
        raise ConfigError(
            "objective: expected latency, balanced, energy or a weight, got 'deadline': the optimum is that of a mean; "
            "starling simulate --objective deadline --deadline-ms 40 counts the requests in time"
        )
    with as_config_error():
        largest, cells = _solved(profile, rate, load, max_batch, length, objective)
    if as_json:
        print_json(cells)
    else:
        print("\n\n".join(_as_text(cell, 2 * largest) for cell in cells))


def _solved(
    profile: str, rate: str, load: str, max_batch: int, length: int, objective: str
) -> tuple[int, list[dict[str, Any]]]:
    """The largest batch, and a cell for each rate. Raises ValueError for a bad option, as all of these."""
    from app.scheduler.optimal.serve_all import bound_ns
    from app.scheduler.optimal.solver import solve
    from app.scheduler.optimal.tables import price_of, weight_of
    from app.sim import options

    measured = options.profile(profile, max_batch)
    if length:
        measured = measured.at(length)
    weight = weight_of(objective)
    times = measured.occupied_ns
    price = price_of(weight, times[0], measured.watts)
    cells = []
    for one_rate in options.rates(rate, load, measured.peak, "poisson"):
        assert one_rate is not None
        best = solve(times, one_rate, weight=price, power=measured.watts)
        busy = solve(times, one_rate, weight=price, power=measured.watts, idling=False)
        bound = bound_ns(times, one_rate)
        cells.append(
            {
                "rate": one_rate, "load": one_rate / measured.peak, "objective": objective, "weight": weight,
                "mean_ms": best.mean_ns / _MS, "mean_batch": best.mean_batch, "utilisation": best.utilisation,
                "power_w": best.power_w if measured.power else None, "non_idling_mean_ms": busy.mean_ns / _MS,
                "serve_all_bound_ms": None if bound is None else bound / _MS,
                "table": {str(waiting): rows for waiting, rows in enumerate(best.table)},
            }
        )  # fmt: skip
    return measured.max_batch, cells


def _as_text(cell: dict[str, Any], most: int) -> str:
    """One solution as text, its table up to `most` rows waiting."""
    bound = cell["serve_all_bound_ms"]
    watts = "" if cell["power_w"] is None else f", {cell['power_w']:.1f} W"
    lines = [
        f"load {cell['load']:.2f}, {cell['rate']:.1f} rows/s: mean {cell['mean_ms']:.3f} ms, mean batch "
        f"{cell['mean_batch']:.2f}, busy {cell['utilisation']:.1%}{watts}",
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
