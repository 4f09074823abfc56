"""A session of a Ray of this machine alone, which ends with it: `python session.py FOLDER PORT`.

Its input is a JSON object: `arguments` of an application with two replicas, requests that are `asked` of it, and the
`wrong` arguments of another one. It prints the `answers`, the `replicas` that Ray's metrics say have answered, and why
the other one was `refused`. All files are in FOLDER, whose path must be short: Unix sockets have 107 characters.
Everything listens on loopback.
"""

from __future__ import annotations

import importlib
import json
import re
import sys
from typing import Any

import httpx
from background import eventually

from loadtest.common.paths import LOOPBACK

PATIENCE_S = 120.0  # a replica has come in 6 s, on a machine with six times the work that it has cores for in 60
_STORE_BYTES = 80 << 20  # about the least that Ray takes; requests travel beside it


def main(folder: str, port: int) -> None:
    told = json.load(sys.stdin)
    ray, serve, starling_ray = (importlib.import_module(name) for name in ("ray", "ray.serve", "starling_ray"))
    ray.init(
        num_cpus=2,  # of which replicas take shares
        include_dashboard=False,
        object_store_memory=_STORE_BYTES,
        log_to_driver=False,
        runtime_env={"env_vars": {"PYTHONPATH": ":".join(sys.path)}},  # replicas run this checkout
        _node_ip_address=LOOPBACK,
        _temp_dir=folder,
        _system_config={"metrics_report_interval_ms": 500},
    )
    try:
        serve.start(http_options={"host": LOOPBACK, "port": port})
        serve.run(starling_ray.build(told["arguments"]), name="two", route_prefix="/")
        seen: dict[str, Any] = {"answers": [ask(port, *one) for one in told["asked"]]}
        metrics = f"http://{LOOPBACK}:{ray.nodes()[0]['MetricsExportPort']}/metrics"
        seen["replicas"] = eventually(lambda: both(metrics, port, told["asked"][0]), PATIENCE_S)
        seen["refused"] = refused(serve, starling_ray.build(told["wrong"]))
    finally:
        serve.shutdown()
        ray.shutdown()
    print(json.dumps(seen), flush=True)


def ask(port: int, path: str, body: str, kind: str) -> tuple[int, str]:
    """`body` is Latin-1, as the text of the answer is."""
    url = f"http://{LOOPBACK}:{port}{path}"
    answer = httpx.post(url, content=body.encode("latin-1"), headers={"content-type": kind}, timeout=PATIENCE_S)
    return answer.status_code, answer.content.decode("latin-1")


def both(metrics: str, port: int, request: list[str]) -> list[str]:
    """The replicas that have answered, when there are two; else one more request."""
    ask(port, *request)
    text = httpx.get(metrics, timeout=PATIENCE_S).text
    lines = [line for line in text.splitlines() if line.startswith("ray_starling_requests_total{")]
    mine = [line for line in lines if 'model="echo"' in line and 'outcome="ok"' in line]
    found = sorted({match[1] for line in mine if (match := re.search('replica="([^"]+)"', line))})
    return found if len(found) > 1 else []


def refused(serve: Any, application: Any) -> str:
    """What the status says of an application that does not come up: the replicas' words."""
    try:
        serve.run(application, name="wrong", route_prefix="/wrong")
    except RuntimeError:
        return " ".join(one.message for one in serve.status().applications["wrong"].deployments.values())
    return ""


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
