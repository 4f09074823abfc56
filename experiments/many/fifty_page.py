"""The page of `fifty`: many small models in one server."""

from __future__ import annotations

from collections.abc import Mapping

from loadtest.common.page import Data, Page, table

_SAME = 1.02  # function calls of a batch with 50 models over those with one


def missed(data: Data) -> list[str]:
    one, fifty = (
        next(cost["calls"] for cost in data["costs"] if (cost["programs"], cost["waiting"]) == (number, 1))
        for number in (1, 50)
    )
    return [f"a batch makes {fifty:g} calls beside 49 idle models, {one:g} alone"] if fifty > _SAME * one else []


def fill(data: Data) -> Mapping[str, object]:
    first, last = data["servers"][0], data["servers"][-1]
    more = last["models"] - first["models"]
    started = {"models": "{models}", "ready, s": "{ready_s:.2f}", "CPU time, s": "{cpu_s:.2f}",
               "memory, MiB": "{resident_mib:.0f}"}  # fmt: skip
    costs = {"models": "{programs}", "of them with rows waiting": "{waiting}", "function calls": "{calls:g}",
             "us": "{us:.1f}"}  # fmt: skip
    return {
        "started": table(started, data["servers"]),
        "stepped": table(costs, data["costs"]),
        "each_mib": (last["resident_mib"] - first["resident_mib"]) / more,
        "each_s": (last["cpu_s"] - first["cpu_s"]) / more,
    }


PAGE = Page("many-fifty", __file__, fill, missed)
