"""What `starling serve` prints at its start: lines of text, or log entries if the log is JSON."""

from __future__ import annotations

import json
import logging
import shlex
import sys
import time
from collections.abc import Sequence
from typing import Any

from app import __version__
from app.contract import Catalog, Served
from app.http.examples import example_values, friendly_example
from app.observe.logs import fields
from app.settings import Settings

log = logging.getLogger("starling")

_TYPED = 200  # the most characters of a row in the example command
_began = time.monotonic()
_SECRETS = ("api_key", "admin_key")


def starting(settings: Settings, port: int) -> None:
    """Announce at once that models are loading, and list the settings that differ from their defaults."""
    changed = settings.model_dump(mode="json", exclude_defaults=True, exclude={"port"})
    changed |= {name: "(set)" for name in _SECRETS if name in changed}
    begins = f"starling {__version__}: loading models, listening on {_url(settings, port)} when ready"
    if settings.log_format == "json":
        log.info(begins, **fields(version=__version__, settings=changed))
        return
    print(begins, file=sys.stderr)
    for name, value in changed.items():
        shown = ", ".join(map(str, value)) if isinstance(value, list) else value
        print(f"  {name} = {shown}", file=sys.stderr)


def announce(settings: Settings, port: int, catalog: Catalog, device: str, not_ready: str | None) -> None:
    """List the models, the URL, a request to try, and how many models serve. Called when all loads have ended.

    `not_ready`: the reason of the readiness probe; None if the server is ready.
    """
    url = _url(settings, port)
    ready, index = catalog.ready(), catalog.index()
    failed = [entry for entry in index if entry.awaited]
    names = [served.info.name for served in ready] + [entry.name for entry in failed]
    serving = f"{_serving(len(ready), names)} on {device}"
    took = f"{'ready in' if not_ready is None else 'NOT ready after'} {time.monotonic() - _began:.1f} s"
    if settings.log_format == "json":
        for served in ready:
            log.info("model %s:%s serves", *(who := (served.info.name, served.info.version)), **_of(*who))
        for entry in failed:  # the reason has been logged as an error
            log.warning("model %s:%s does not serve", entry.name, entry.version, **_of(entry.name, entry.version))
        log.info("%s: %s", took, serving, **fields(url=url, serving=len(ready), models=len(names), device=device))
        return
    lines = [
        f"model   {info.name}:{info.version}  {info.batching.policy}, batches up to {info.batching.max_batch}"
        for info in (served.info for served in ready)
    ]
    # the reason, with the line of code, has been logged as an error
    untried = [entry for entry in index if entry.state == "UNTRIED"]
    for state, entries in (("UNTRIED", untried), ("FAILED ", failed)):
        lines += [f"{state} {entry.name}:{entry.version}  see the error above" for entry in entries]
    lines.append(f"url     {url}" + (f"  (docs at {url}/docs)" if settings.pages else ""))
    if settings.pages:
        lines.append(f"page    {url}/ui")
    if settings.watch:
        lines.append("watch   models that are new or edited are loaded, removed ones unloaded, for development")
    if ready:
        keyed = settings.api_key is not None or settings.api_key_file is not None
        lines.append(f"try     {_curl(ready, url, keyed=keyed)}")
    lines.append(f"{took}; Ctrl-C stops")
    lines.append(serving)
    print("\n".join(lines), file=sys.stderr, flush=True)


def _of(model: str, version: str) -> dict[str, Any]:
    return fields(model=model, version=version)


def _serving(ready: int, names: Sequence[str]) -> str:
    """`2 of 3 models serve`. If a name occurs twice, versions are counted."""
    noun = "model" if len(set(names)) == len(names) else "model version"
    return f"{ready} of {len(names)} {noun}{'s' * ((ready, len(names)) != (1, 1))} serve{'s' * (ready == 1)}"


def _url(settings: Settings, port: int) -> str:
    host = "127.0.0.1" if settings.host == "0.0.0.0" else settings.host.strip("[]")
    scheme = "http" if settings.tls_cert is None else "https"
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


def _curl(served: Sequence[Served], url: str, *, keyed: bool) -> str:
    """A request to try, of the model with the shortest row. The key is not shown, because logs are kept."""
    curl = 'curl -H "X-API-Key: $STARLING_API_KEY"' if keyed else "curl"
    rows = [(json.dumps(friendly_example(values)), one) for one in served if (values := example_values(one))]
    text, one = min(rows, key=lambda row: len(row[0]), default=("", served[0]))
    if 0 < len(text) <= _TYPED:
        return f"{curl} {url}/predict/{one.info.name} -d {shlex.quote(text)}"
    return f"{curl} {url}/v2/models/{served[0].info.name}"
