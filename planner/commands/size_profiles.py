"""The inputs of `starling size`: a model's profile, the cost of requests beside their batches, how it is served."""

from __future__ import annotations

import json
import shlex
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from app.errors import ConfigError
from app.machine import cpu_cores, helper_threads
from app.scheduler.estimates.profile import Profile
from planner.commands.options import load_model
from planner.simulated_front import FrontCosts

if TYPE_CHECKING:
    from app.contract import Batching, Model, ModelSource
    from app.engine.profiling.cache import ProfileCache, ProfileKey

FORMATS = ("json", "binary", "file")  # of requests: V2's two, and a file for /predict
#: Costs to assume without a measurement. A request as JSON costs the event loop from 60 us (four floats) to 200 (a
#: thousand each way), a file about 400, and a helper thread from 300 us (a small picture) to several thousand.
_ASSUMED = {
    "json": FrontCosts(call_ns=200_000, batch_ns=400_000),
    "binary": FrontCosts(call_ns=80_000, batch_ns=400_000),
    "file": FrontCosts(call_ns=400_000, decode_ns=1_500_000),
}


@dataclass(frozen=True, slots=True)
class HttpCost:
    """The cost of requests of one format beside their batches. `source`: measured, assumed or given."""

    format: str
    costs: FrontCosts
    source: str

    @property
    def service(self) -> str:
        """The variation of batch times, for `Setup.service`; "" if it was not measured."""
        return f"gamma:{self.costs.spread:.3f}" if self.costs.spread else ""


@dataclass(frozen=True, slots=True)
class SizedModel:
    """The model to size.

    `serve`: the command that serves the model. `batching`: fields of `planner.fleet.Setup` from its `[batching]`.
    """

    name: str
    profile: Profile
    serve: str
    batching: Mapping[str, Any] = field(default_factory=dict)


def from_file(text: str) -> SizedModel:
    """The profile of a file, or of a made-up device. Raises ValueError, OSError."""
    from planner import option_values

    profile = option_values.profile(text)
    return SizedModel(profile.model, profile, "starling serve MODEL_FOLDER")


@dataclass(frozen=True, slots=True)
class ToMeasure:
    """What --measure measures: batches, for `budget_s`; then the cost of requests of a format, or those of `data`."""

    budget_s: float
    format: str = ""
    data: Path | None = None


def stored(
    found: tuple[ModelSource, str], named: Sequence[str], device: str, precision: str, folder: Path | None,
    measure: ToMeasure | None,
) -> SizedModel:  # fmt: skip
    """A version and its place with its profile on this machine, which is measured first if asked for. `named`: the
    words by which `starling profile` finds it.

    Raises ConfigError if there is no profile of it.
    """
    from app.engine.profiling.cache import ProfileCache, default_folder
    from planner.commands import profile_measure

    source, place = found
    loaded = load_model(source)
    cache = ProfileCache(folder or default_folder())
    key = _key(loaded, device, precision)
    if measure is not None:
        settings = profile_measure.settings_of(0, measure.budget_s, cache.folder, device=device, precision=precision)
        profile_measure.measure(loaded, settings)
    usual = max(1, cpu_cores() - 1)  # a server's default; else the nearest number
    by_threads = sorted(range(1, cpu_cores() + 1), key=lambda threads: abs(threads - usual))
    keys = [replace(key, threads=threads) for threads in by_threads]
    kept = ((one, cache.load(one, loaded.info.batching.max_batch)) for one in keys)
    key, profile = next((found for found in kept if found[1] is not None), (key, None))
    if profile is None:
        asked = {"--device": device, "--precision": precision, "--profile-dir": str(folder or "")}
        flags = [word for pair in asked.items() if pair[1] not in ("auto", "fp32", "") for word in pair]
        raise ConfigError(
            f"model {loaded.info.name!r}: no profile of it on this {key.device!r} in {cache.folder}; measure it with "
            f"`starling profile {shlex.join([*named, *flags])}`, or here with --measure"
        )
    if measure is not None:
        profile = _with_front(cache, key, profile, loaded, source, device, measure)
    command = f"starling serve --model {shlex.quote(f'{loaded.info.name}={place}')}"
    if precision != "fp32":
        command += f" --precision {precision}"
    return SizedModel(loaded.info.name, profile, command, _batching(loaded.info.batching))


def _key(model: Model, device: str, precision: str) -> ProfileKey:
    """Where the model's profile is kept, for one thread."""
    from app.engine.profiling.cache import ProfileKey, architecture_of, cpu_name
    from app.engine.streams.cuda import device_index, name_of
    from app.models.placement import Placement, place

    gpu = device_index(device)
    placed = place(model, Placement(precision=precision))
    return ProfileKey(model.info.name, architecture_of(placed), cpu_name() if gpu is None else name_of(gpu), 1)


def _with_front(
    cache: ProfileCache, key: ProfileKey, profile: Profile, model: Model, source: ModelSource, device: str,
    asked: ToMeasure,
) -> Profile:  # fmt: skip
    """Measure the cost of requests, and store it in the profile, as the last of the formats."""
    from app.engine.profiling.cache import FRONT
    from loadtest.generator.front_loads import measure_front
    from planner.fit import fit

    flags = ["--model", f"{model.info.name}={source.folder.absolute()}", "--device", device, "--profile-budget-s", "0"]
    flags += ["--profile-dir", str(cache.folder.absolute()), "--threads", str(key.threads)]
    payload = "binary" if asked.format == "binary" else "json"
    with tempfile.TemporaryDirectory(prefix="starling-") as own:
        data = asked.data or _own_request(model, Path(own))
        measured, loads = measure_front(
            model.info.name, flags, profile.batch_ns, profile.handover_ns or 0, payload, data
        )
    front = fit(profile, replace(measured, threads=helper_threads()), loads).to_dict()
    chosen = asked.format or format_of(asked.data)
    others = {name: costs for name, costs in _fronts(profile).items() if name != chosen}
    profile = replace(profile, extra={**profile.extra, FRONT: {**others, chosen: front}})
    cache.store(key, profile)
    return profile


def _own_request(model: Model, folder: Path) -> Path | None:
    """A file with a request of a task's example; None for a model without one."""
    from app.values.tensors import v2_request  # numpy is slow to import

    row = None if model.front is None else model.front.example
    if model.front is None or row is None:
        return None
    path = folder / "request.json"
    path.write_text(json.dumps(v2_request(model.front.client_info(model.info).client_inputs, row)), encoding="utf-8")
    return path


def format_of(data: Path | None) -> str:
    """The format in which `starling bench` sends a file; JSON without one."""
    from loadtest.generator.payload import holds_v2

    return "json" if data is None or holds_v2(data) else "file"


def http_cost(profile: Profile, chosen: str) -> HttpCost:
    """The cost of this format; "": of the last one measured, else of JSON."""
    fronts = _fronts(profile)
    chosen = chosen or next(reversed(fronts), FORMATS[0])
    costs = fronts.get(chosen)
    front, source = (_ASSUMED[chosen], "assumed") if costs is None else (FrontCosts.parse(costs), "measured")
    return HttpCost(chosen, replace(front, threads=helper_threads()), source)


def _fronts(profile: Profile) -> dict[str, Mapping[str, Any]]:
    """The stored costs, by format. Malformed ones are left out, because files may be edited."""
    found = profile.extra.get("front")
    costs = found if isinstance(found, dict) else {}
    return {name: one for name, one in costs.items() if name in FORMATS and isinstance(one, dict)}


def _batching(batching: Batching) -> dict[str, Any]:
    return {
        "policy": batching.policy,
        "objective": batching.objective,
        "max_queue": batching.max_queue,
        "max_delay_ns": round(batching.max_delay_ms * 1e6),
        "length_buckets": batching.length_buckets,
        "reorder": batching.reorder,
        "complete_wait": batching.complete_wait,
    }
