"""The benchmarks are not installed with the package: they are imported from the checkout, and helpers from tests/.

Both come last on the path: tests/http must not hide the standard library's http.
"""

import sys
from pathlib import Path

TESTS = Path(__file__).parents[1]
sys.path[:] = [path for path in sys.path if path != str(TESTS)] + [str(TESTS.parent), str(TESTS)]
