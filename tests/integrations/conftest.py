"""The local Ray of the benchmarks is that of the tests; it is imported from the checkout."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2]))
