"""What manifests must agree with: the image's variables, the settings, the routes."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

from app import server
from app.http.openapi.document import Document
from app.settings import Settings

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
DOCKERFILE = (ROOT / "Dockerfile").read_text(encoding="utf-8")


def image_variables() -> dict[str, str]:
    return dict(re.findall(r"(STARLING_\w+)=(\S+)", DOCKERFILE))


def settings_of(variables: dict[str, str]) -> Settings:
    """As the command line makes them. Raises ValidationError for one that there is not, or that is wrong."""
    given = {name: value for name, value in variables.items() if name.startswith("STARLING_")}
    return Settings(**{name.removeprefix("STARLING_").lower(): value for name, value in given.items()})  # type: ignore[arg-type]


def drain_s(settings: Settings) -> float:
    """The longest that a server takes to end: its grace, its limit, and what follows by force."""
    return settings.drain_grace_s + settings.drain_limit_s + server._FORCE_AFTER_S


@cache
def routes() -> set[str]:
    """Every route of the server, as OpenAPI has them."""
    return set(Document().make([])["paths"])
