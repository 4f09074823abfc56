"""The page of `streaming`: the same texts with and without streams."""

from __future__ import annotations

from statistics import median

from loadtest.common.page import Data, Page, table

MOST = 0.05  # of the rows a second without streams


def cost(found: Data) -> float:
    """The share of rows a second that streams cost: the median of the rounds, each of both ways in turn."""
    rounds = zip(found["generate_stream"], found["generate"], strict=True)
    return 1 - median(stream["rows_per_s"] / whole["rows_per_s"] for stream, whole in rounds)


def missed(data: Data) -> list[str]:
    return [
        f"{kind}: streams cost {cost(found):.1%} of the rows a second, target {MOST:.0%}"
        for kind, found in data["kinds"].items()
        if cost(found) > MOST
    ]


def row(kind: str, found: Data) -> dict[str, str]:
    shown = {way: ", ".join(f"{one['rows_per_s']:.2f}" for one in found[way]) for way in found}
    events = median(one["events_per_row"] for one in found["generate_stream"])
    whole, stream = (median(one["cpu_s_per_row"] for one in found[way]) for way in ("generate", "generate_stream"))
    cpu = f"{whole:.3f}, {stream:.3f}"
    return {"kind": kind, **shown, "events": f"{events:.1f}", "cost": f"{cost(found):+.1%}", "cpu": cpu}


PAGE = Page(
    "writing-streaming",
    __file__,
    fill=lambda data: {
        "costs": table(
            {
                "model": "{kind}",
                "rows/s, whole": "{generate}",
                "rows/s, streams": "{generate_stream}",
                "events a row": "{events}",
                "streams cost": "{cost}",
                "processor s a row, whole and streams": "{cpu}",
            },
            [row(kind, found) for kind, found in data["kinds"].items()],
        )
    },
    missed=missed,
)
