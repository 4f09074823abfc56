"""The script for a GPU where there is none: its page, and that figures of a CPU stay out of docs/bench."""

from pathlib import Path
from typing import Any

import pytest
import torch

from experiments import gpu


def of_a_model() -> dict[str, Any]:
    runs = [{"rate": rate, "mean_ms": 2.0, "p99_ms": 4.0} for rate in (300.0, 700.0)]
    return {
        "bare": 2000.0, "rows_per_s": {"adaptive": 1000.0, "no_wait": 1500.0},
        "memory_mib": {"adaptive": None, "no_wait": 100.0}, "latency": {"adaptive": runs},
        "classes": {"rate": 300.0, "mean_ms": 3.0, "p99_ms": 8.0, "bulk_per_s": 50.0},
        "failed": {"ebird": "it did not start"},
    }  # fmt: skip


def test_the_page_has_all_figures_and_names_what_failed() -> None:
    data = {"device": "one", "seconds": 2.0, "models": {"mlp": of_a_model()}, "left_out": ["mlp, window"], "facts": {}}
    page = gpu.PAGE.text(data)
    assert "| adaptive | 1,000 | 0.50 |  |" in page
    assert "| no_wait | 1,500 | 0.75 | 100 |" in page
    assert "mean 1.50 and 99th percentile 2.00 times" in page
    assert "- ebird failed: it did not start" in page
    assert "the time was up: mlp, window." in page


def test_figures_of_a_cpu_stay_out_of_the_documentation(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        gpu.EXPERIMENT.parse(["--device", "cpu"])
    assert "must not enter docs/bench" in capsys.readouterr().err


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_without_a_device_nothing_is_measured(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert gpu.EXPERIMENT.main(["--out", str(tmp_path)]) == 1
    assert "no CUDA device" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
