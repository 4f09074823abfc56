"""The page of one model live and simulated: a table with a row for each load, and a plot of both distributions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from loadtest.common.page import Column, Data, Page, filled, joined, table

WITHIN = 0.15  # of the live mean
CONTROL_WITHIN = 0.03  # of a device whose speed does not drift

#: One load, live and simulated, times in ms. `drift`: batch times of the live run over those of the profile, at the
#: sizes that ran; `drifted_ms`: simulated with the profile times that; `others`: cores that other processes used, None
#: where the platform does not report it.
Row = dict[str, Any]
Curve = dict[str, Any]  # quantiles of one load, from 1 to 99 %

DRIFT = """\
On this machine one row of `mlp`, run back to back with nothing else running, took between {least:.2f} and {most:.2f} ms
from one second to another (`python -m experiments.policies.drift`, {seconds} seconds). A slower device at the same rate
has a higher load, and queues grow faster than batch times, above all when slow and fast seconds alternate.
"""
CONTROL = """\
## A device whose speed does not drift

The same with a model that sleeps 4 + 0.65 ms a row and needs no processor, at {shares} of a peak of {peak:.0f}
requests/s: {repeats} seeds of {seconds:g} s each. What is left of the difference is not the model's. It should be
within {within:.0%}; of {loads} loads {kept} {kept_is}.
"""


def off(row: Row) -> float:
    """Simulated over live mean latency, less one."""
    return float(row["simulated_ms"] / row["server_ms"] - 1)


def missed(data: Data) -> list[str]:
    """The loads at which simulated and live differ too much."""
    control = data["control"]["rows"] if "control" in data else []
    judged = [("", WITHIN, row) for row in data["rows"]] + [("control, ", CONTROL_WITHIN, row) for row in control]
    return [
        f"{name}{row['share']:.0%} of the peak: {off(row):+.1%}" for name, most, row in judged if abs(off(row)) > most
    ]


def loads(rows: Sequence[Row], within: float) -> str:
    columns: dict[str, Column] = {
        "of the peak": "{share:.0%}",
        "rate/s": "{rate:.0f}",
        "requests": "{requests}",
        "client": "{client_ms:.2f}",
        "HTTP": lambda row: f"{row['client_ms'] - row['server_ms']:.2f}",
        "live": "{server_ms:.2f}",
        "simulated": "{simulated_ms:.2f}",
        "off": lambda row: f"{off(row):+.1%}",
        f"within {within:.0%}": lambda row: "yes" if abs(off(row)) <= within else "NO",
        "with the live run's batch times": lambda row: (
            f"x {row['drift']:.2f}: {row['drifted_ms']:.2f} ({row['drifted_ms'] / row['server_ms'] - 1:+.1%})"
        ),
        "p99, live / sim": "{server_p99_ms:.1f} / {simulated_p99_ms:.1f}",
        "rows a batch, live / sim": "{batch:.2f} / {simulated_batch:.2f}",
        "batch time, live / sim": "{compute_ms:.2f} / {profiled_ms:.2f}",
        "hand-over, live / sim": "{handover_ms:.3f} / {profiled_handover_ms:.3f}",
        "others, cores": lambda row: "" if row["others"] is None else f"{row['others']:.2f}",
    }
    return table(columns, rows)


def shares(rows: Sequence[Row]) -> str:
    return " and ".join(f"{row['share']:.0%}" for row in rows)


def control(found: Mapping[str, Any]) -> str:
    """The section of the model that sleeps."""
    rows = found["rows"]
    kept = sum(abs(off(row)) <= CONTROL_WITHIN for row in rows)
    text = filled(
        CONTROL,
        **found["settings"],
        peak=found["peak"],
        shares=shares(rows),
        within=CONTROL_WITHIN,
        loads=len(rows),
        kept=kept,
        kept_is="is" if kept == 1 else "are",
    )
    return joined([text, loads(rows, CONTROL_WITHIN)])


def fill(data: Data) -> Mapping[str, object]:
    seconds = data.get("drift_ms")
    return {
        "shares": shares(data["rows"]),
        "drift": filled(DRIFT, least=min(seconds), most=max(seconds), seconds=len(seconds)) if seconds else "",
        "loads": loads(data["rows"], WITHIN),
        "control_section": control(data["control"]) if "control" in data else "",
    }


def draw(data: Data, folder: Path) -> None:
    """Plot quantiles live and simulated, with a colour for each load."""
    from loadtest.common.plots import saved

    with saved(folder / "live-vs-sim.png") as axes:
        for colour, curve in enumerate(data["curves"]):
            answered = range(1, len(curve["live_ms"]) + 1)
            axes.plot(curve["live_ms"], answered, f"C{colour}-", label=f"{curve['share']:.0%} of the peak, live")
            axes.plot(curve["simulated_ms"], answered, f"C{colour}--", label=f"{curve['share']:.0%}, simulated")
        axes.set_xlim(left=0)
        axes.set_ylim(0, 100)
        axes.set_xlabel("latency in the server, ms")
        axes.set_ylabel("requests answered within it, %")
        axes.legend(loc="lower right")


PAGE = Page("live-vs-sim", __file__, fill, missed, draw)
