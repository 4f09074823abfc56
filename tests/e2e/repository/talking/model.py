"""Identity, which says what it does: on stdout, on stderr and as a warning; and raises where nobody catches it."""

import sys
import threading
import warnings

import torch

print("loaded with print: on import")
print("half a line", end=", ", file=sys.stderr)
print("and the rest", file=sys.stderr)


def raises(*of: object) -> None:
    raise ValueError


thread = threading.Thread(target=raises, name="talker")
thread.start()
thread.join()
type("Ended", (), {"__del__": raises})()


class Talking:
    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        print("running")
        if (x == 1).all():
            warnings.warn("one is a lonely number", stacklevel=1)
        return x
