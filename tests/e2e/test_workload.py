"""`starling bench --workload` as a user runs it: clients of two models against a server that runs."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from .server import PATIENCE_S, ROOT, Server

WORKLOAD = {
    "time": 60,
    "tasks": [
        {
            "id": "camera_rt",
            "load": {"type": "periodic", "frequency": 100, "priority": 0},
            "client": {"model_name": "vgg19", "batch_size": 1},
        },
        {"id": "speech_rt", "load": {"type": "poisson", "frequency": 40}, "client": {"model_name": "bert"}},
        {"id": "log_rt", "load": {"type": "trace", "trace": [0, 100, 200]}, "client": {"model_name": "bert"}},
        {"id": "fused_rt", "load": {"type": "dependent", "prev_task_ids": ["camera_rt"]}, "client": {"batch_size": 2}},
        {"id": "bulk_be", "load": {"type": "continuous"}, "client": {"model_name": "vgg19"}},
    ],
}


def test_two_models_under_five_clients(server: Server, tmp_path: Path) -> None:
    path = tmp_path / "mixed.json"
    path.write_text(json.dumps(WORKLOAD))
    models = ("--map", "vgg19=echo", "--map", "bert=digits", "--map", "fused_rt=echo")
    quick = ("--duration", "0.5", "--warmup", "0.1", "--scale", "0.5", "--max-lag-ms", "100000", "--json")
    command = [sys.executable, "-m", "app", "bench", server.host, "--workload", str(path), "--classes", "header"]
    done = subprocess.run(
        [*command, *models, *quick], cwd=ROOT, capture_output=True, text=True, timeout=3 * PATIENCE_S, check=False
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    tasks = {task["task"]: task for task in found["tasks"]}
    assert all(task["errors"] == 0 and task["completed"] == task["launched"] > 0 for task in tasks.values())
    camera = tasks["camera_rt"]
    assert camera["launched"] + camera["dropped"] == 25  # half of 100 per second for half a second
    assert tasks["log_rt"]["launched"] + tasks["log_rt"]["dropped"] == 3  # at 0, 200 and 400 ms
    assert 0 < tasks["fused_rt"]["launched"] <= camera["completed"]
    assert found["classes"]["best_effort"]["completed"] == tasks["bulk_be"]["completed"]
    assert found["classes"]["all"]["completed"] == sum(task["completed"] for task in tasks.values())
    assert {tasks["camera_rt"]["model"], tasks["log_rt"]["model"]} == {"echo", "digits"}
