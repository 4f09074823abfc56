"""The page of `leaving`: requests of which a third leave."""

from __future__ import annotations

from loadtest.common.page import Data, Page, table

GROWTH = 0.02  # of memory, from the first tenth of the requests to their end


def grown(data: Data) -> float:
    """The resident memory at the end over that after the first tenth of the requests, less 1."""
    samples = data["samples"]
    first = next(one for one in samples if one["requests"] * 10 >= samples[-1]["requests"])
    return samples[-1]["mib"] / first["mib"] - 1


def missed(data: Data) -> list[str]:
    lines = []
    if (lost := max(one["places"] for one in data["samples"])) or data["slots"]:
        lines.append(f"{lost} places and {data['slots']} slots are in use when no request is there, target 0")
    if (growth := grown(data)) > GROWTH:
        lines.append(f"memory grew by {growth:.1%}, target {GROWTH:.0%}")
    return lines


PAGE = Page(
    "writing-leaving",
    __file__,
    fill=lambda data: {
        "samples_table": table(
            {
                "requests": "{requests:,}",
                "answered": "{answered:,}",
                "places in use": "{places}",
                "resident MiB": "{mib:.1f}",
            },
            data["samples"],
        ),
        "answered": f"{data['samples'][-1]['answered']:,}",
        "grown": f"{grown(data):+.1%}",
    },
    missed=missed,
)
