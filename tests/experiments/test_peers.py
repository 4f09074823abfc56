"""The comparison with other servers: what its page says of them, and what is sent to whom."""

from typing import Any

import numpy as np

from experiments.peers import page
from experiments.peers.__main__ import values_of
from experiments.peers.contenders import CONTENDERS


def a_run(per_s: float, requests: int, mean_ms: float) -> dict[str, Any]:
    figures = {"mean_ms": mean_ms, "p50_ms": mean_ms, "p99_ms": 2 * mean_ms}
    return {"per_s": per_s, "requests": requests, "failed": 0, **figures}


def test_a_server_that_cannot_keep_up_has_no_latency() -> None:
    loads = {"closed": [a_run(80.0, 800, 700.0)], "60": [a_run(60.0, 600, 20.0)], "90": [a_run(80.0, 900, 900.0)]}
    settings = {"seconds": 10.0, "rounds": 1, "connections": 64, "largest": 32}
    data = {"capacity": 100.0, "shares": [0.6, 0.9], "settings": settings, "versions": {"A": "1"}, "facts": {}}
    text = page.PAGE.text({**data, "runs": {"A": loads}})
    (line,) = [line for line in text.splitlines() if line.startswith("| A ")]
    cells = [cell.strip() for cell in line.strip("|").split("|")]
    assert cells == ["A", "80 (80 to 80)", "20.0 (20.0 to 20.0)", "40.0 (40.0 to 40.0)", "-", "-"]


def test_answers_of_both_forms_are_read() -> None:
    by_name = {contender.name: contender for contender in CONTENDERS}
    assert np.array_equal(values_of(by_name["BentoML"], b"[[1.5, 2]]"), [1.5, 2.0])
    assert np.array_equal(values_of(by_name["mosec"], b'{"y": [1.5, 2]}'), [1.5, 2.0])
