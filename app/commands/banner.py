"""What `starling serve` tells the person who started it."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence

from app import __version__
from app.contract import Catalog, Served
from app.settings import Settings, cpu_cores

_began = time.monotonic()


def starting(settings: Settings, port: int) -> None:
    """One line at once, and the settings that are not the default: where a surprise comes from."""
    changed = {name: value for name, value in settings.model_dump().items() if value != _default(name)}
    changed.pop("port", None)
    if settings.api_key:
        changed["api_key"] = "(set)"
    print(f"starling {__version__}: loading models, listening on {_url(settings, port)} when ready", file=sys.stderr)
    for name, value in changed.items():
        print(f"  {name} = {value}", file=sys.stderr)


def announce(settings: Settings, port: int, catalog: Catalog) -> None:
    """Models, device, URL and a curl to try, once every model has been tried."""
    url = _url(settings, port)
    lines = [f"device  cpu, {cpu_cores()} cores, {settings.compute_threads} compute thread(s) per worker"]
    for served in catalog.ready():
        batching = served.info.batching
        lines.append(
            f"model   {served.info.name}:{served.info.version}  {batching.policy}, batches up to {batching.max_batch}"
        )
    lines += [f"FAILED  {e.name}:{e.version}  {e.state} {e.reason}" for e in catalog.index() if e.state != "READY"]
    lines.append(f"url     {url}  (docs at {url}/docs)")
    ready = catalog.ready()
    if ready:
        lines.append(f"try     {_curl(ready, url)}")
    lines.append(f"ready in {time.monotonic() - _began:.1f} s; Ctrl-C stops")
    print("\n".join(lines), file=sys.stderr, flush=True)


def _default(name: str) -> object:
    return Settings.model_fields[name].default


def _url(settings: Settings, port: int) -> str:
    host = "127.0.0.1" if settings.host == "0.0.0.0" else settings.host
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _curl(served: Sequence[Served], url: str) -> str:
    easy = next((s for s in served if len(s.info.inputs) == 1 and s.info.inputs[0].shape == (4,)), served[0])
    spec = easy.info.inputs[0]
    if spec.shape == (4,):
        return f"curl {url}/predict/{easy.info.name} --json '{json.dumps([1, 2, 3, 4])}'"
    return f"curl {url}/v2/models/{easy.info.name}"
