"""Starling under Ray Serve: `starling_app` for code, `build` for `serve run` and configuration files."""

from starling_ray.deployment import build, starling_app

__all__ = ["build", "starling_app"]
