"""As much of `kustomize build` as deploy/ uses: resources, components, ConfigMaps, images, strategic merge patches.

Whatever else a kustomization says is an error here, so that nothing is passed over. Names of generated ConfigMaps get
no suffix.
"""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import yaml

Resource = dict[str, Any]
_KNOWN = {"apiVersion", "kind", "resources", "components", "configMapGenerator", "images", "patches"}
_KINDS = {"Kustomization", "Component"}
#: What tells the entries of a list apart, as Kubernetes merges them; lists not named here are replaced.
_MERGE_KEYS = {"containers": "name", "env": "name", "volumes": "name", "volumeMounts": "mountPath"}


def documents(path: Path) -> list[Resource]:
    """All documents of a YAML file. Raises OSError and yaml.YAMLError."""
    return [one for one in yaml.safe_load_all(path.read_text(encoding="utf-8")) if one is not None]


def build(folder: Path) -> list[Resource]:
    """What `kubectl kustomize` prints. Raises ValueError for what it would refuse, and for what this does not know."""
    found: list[Resource] = []
    _extend(found, folder)
    return found


def named(resources: list[Resource], kind: str, name: str) -> Resource:
    """The one resource of that kind and name. Raises ValueError if there is none, or more than one."""
    matches = [one for one in resources if (one["kind"], one["metadata"]["name"]) == (kind, name)]
    if len(matches) != 1:
        raise ValueError(f"{kind} {name}: expected one, got {len(matches)}")
    return matches[0]


def _extend(found: list[Resource], folder: Path) -> None:
    (told,) = documents(folder / "kustomization.yaml")
    if unknown := set(told) - _KNOWN:
        raise ValueError(f"{folder.name}: {', '.join(sorted(unknown))}: not known here")
    if told["kind"] not in _KINDS:
        raise ValueError(f"{folder.name}: kind {told['kind']}")
    for name in [*told.get("resources", []), *told.get("components", [])]:
        path = folder / name
        if path.is_dir():
            _extend(found, path)
        else:
            found += documents(path)
    for generator in told.get("configMapGenerator", []):
        _generate(found, generator, folder)
    for patch in told.get("patches", []):
        if set(patch) != {"path"}:
            raise ValueError(f"{folder.name}: a patch by anything but a path is not known here")
        for one in documents(folder / patch["path"]):
            target = named(found, one["kind"], one["metadata"]["name"])
            target.update(merged(target, one))
    for image in told.get("images", []):
        _set_image(found, image)


def _generate(found: list[Resource], generator: dict[str, Any], folder: Path) -> None:
    data: dict[str, str] = {}
    for name in generator.get("envs", []):
        lines = (folder / name).read_text(encoding="utf-8").splitlines()
        data |= dict(_pair(line) for line in lines if line.strip() and not line.startswith("#"))
    data |= dict(_pair(line) for line in generator.get("literals", []))
    data |= {Path(name).name: (folder / name).read_text(encoding="utf-8") for name in generator.get("files", [])}
    if generator.get("behavior") == "merge":
        named(found, "ConfigMap", generator["name"])["data"].update(data)
        return
    metadata = {"name": generator["name"]}
    if labels := generator.get("options", {}).get("labels"):
        metadata["labels"] = labels
    found.append({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data})


def _pair(line: str) -> tuple[str, str]:
    name, separator, value = line.partition("=")
    if not separator:
        raise ValueError(f"expected NAME=VALUE, got {line!r}")
    return name, value


def _set_image(found: list[Resource], image: dict[str, str]) -> None:
    containers = [
        container
        for one in found
        for container in one.get("spec", {}).get("template", {}).get("spec", {}).get("containers", [])
        if container["image"].partition(":")[0] == image["name"]
    ]
    if not containers:
        raise ValueError(f"image {image['name']}: no container has it")
    for container in containers:
        container["image"] = f"{image['newName']}:{image['newTag']}"


def merged(base: Any, patch: Any, name: str = "") -> Any:
    """A strategic merge patch: mappings key by key, lists of `_MERGE_KEYS` entry by entry, all else replaced."""
    if isinstance(base, dict) and isinstance(patch, dict):
        result = {key: copy.deepcopy(value) for key, value in base.items() if patch.get(key, value) is not None}
        for key, value in patch.items():
            if value is not None:
                result[key] = merged(base[key], value, key) if key in base else copy.deepcopy(value)
        return result
    if isinstance(base, list) and isinstance(patch, list) and name in _MERGE_KEYS:
        key = _MERGE_KEYS[name]
        by_key = {entry[key]: entry for entry in patch}
        kept = [merged(entry, by_key.pop(entry[key])) if entry[key] in by_key else entry for entry in base]
        return [*by_key.values(), *kept]  # kustomize puts what is new first
    return copy.deepcopy(patch)
