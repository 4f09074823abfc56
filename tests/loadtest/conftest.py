"""The benchmarks are not installed with the package: they are imported from the checkout, and helpers from tests/."""

import sys
from pathlib import Path

sys.path += [str(Path(__file__).parents[2]), str(Path(__file__).parents[1])]
