"""A simple model of a GPU with 72 SMs for Ebird's experiments: batch times, units that share SMs, copies.

Assumptions, which the page lists
    1. One image needs a fixed amount of SM time. With all SMs busy an image takes `image_ms`.
    2. `fill` images at once keep all SMs busy. Fewer images leave SMs idle and take as long.
    3. Each layer costs `LAYER_MS` in which the unit computes nothing: launches and the ends of kernels. So a unit of b
       images alone takes T(b) = layers x LAYER_MS + image_ms x max(b, fill).
    4. A unit alone keeps 72 x b x image_ms / T(b) SMs busy on average. Units that run at once do not slow one another
       while these add up to at most 72. Above that all slow down by the same factor, and no SM time is lost: in the
       paper's Figure 6 N workers of 256 / N images are as fast as one worker for N up to 64.
    5. Inputs are copied at `copy_gb_s`, one after another, beside the layers.
    6. A server that joins its batches on the CPU runs batches one after another: it joins the rows, which takes `join`
       copies per row, copies, computes, and needs `gap_ms` for scheduling, while the GPU does nothing else. If
       `joined_overlap` is above 0, that part of each copy takes place while another batch computes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from app.scheduler.estimates.profile import Profile
from experiments.common.slowed import EquallySlowed

SMS = 72
MAX_BATCH = 32
QOS_MS = 200.0
LAYER_MS = 0.04  # about four kernels (convolution, norm, activation, addition) of 10 us each
_MS = 1e6


@dataclass(frozen=True, slots=True)
class Network:
    """A network on this GPU. `pixels`: height and width of the input, three channels of float32.

    The fields from `copy_gb_s` on are the assumptions 5 and 6.
    """

    name: str
    layers: int
    image_ms: float
    pixels: int = 224
    fill: float = 4.0
    copy_gb_s: float = 3.0  # pageable memory over PCIe 3 x 16
    join: float = 1.0
    joined_overlap: float = 0.0
    gap_ms: float = 1.0

    def alone_ms(self, size: int) -> float:
        """T(b): the time of a unit alone on a server that does not join."""
        return self.layers * LAYER_MS + self.image_ms * max(float(size), self.fill)

    def busy_sms(self, size: int) -> float:
        """The SMs that a unit alone keeps from others, on average over its time."""
        return SMS * size * self.image_ms / self.alone_ms(size)

    def slowdown(self, busy: list[float]) -> float:
        """The factor by which units slow down that run at once and alone would keep so many SMs busy each."""
        return max(1.0, sum(busy) / SMS)

    @property
    def copy_ms(self) -> float:
        """The time to copy one input to the GPU."""
        return self.pixels * self.pixels * 3 * 4 / self.copy_gb_s / _MS

    def profile(self, units: int = 6) -> Profile:
        """Batch times alone, and with up to `units` equal units at once."""
        sizes = range(1, MAX_BATCH + 1)
        alone = [self.alone_ms(size) * _MS for size in sizes]
        together = {
            count: tuple(
                round(time * self.slowdown([self.busy_sms(size)] * count))
                for size, time in zip(sizes, alone, strict=True)
            )
            for count in range(2, units + 1)
        }
        return Profile(tuple(map(round, alone)), together, model=self.name, device=f"{SMS} SMs, modelled")

    def joined(self) -> Profile:
        """Batch times of a server that joins batches on the CPU, with join, copy and gap."""
        times = tuple(round(self._joined_ms(size) * _MS) for size in range(1, MAX_BATCH + 1))
        return replace(self.profile(), batch_ns=times, concurrency_ns={})

    def _joined_ms(self, size: int) -> float:
        copies = size * self.copy_ms
        hidden = self.joined_overlap * copies  # behind the computing of another batch
        return max(self.alone_ms(size), hidden) + (copies - hidden) + self.join * copies + self.gap_ms


#: `image_ms` is a third of the published time per image of FP32 training on a Titan RTX with TensorFlow (ResNet-50 330
#: images/s, ResNet-152 129, Inception v4 96), because a training step is about three forward passes. ResNet-101 is
#: interpolated by operations; VGG is computed by operations at 1.7 times a ResNet's rate, because dense 3 x 3
#: convolutions are faster. A VGG's early layers are large, so that two images fill the GPU.
NETWORKS = (
    Network("Inception v4", 150, 3.5, pixels=299),
    Network("ResNet-50", 50, 1.0),
    Network("ResNet-101", 101, 1.75),
    Network("ResNet-152", 152, 2.6),
    Network("VGG-16", 16, 2.0, fill=2.0),
    Network("VGG-19", 19, 2.5, fill=2.0),
)


class SharedSms(EquallySlowed):
    """A simulator's Device whose units share the SMs as assumed."""

    def __init__(self, network: Network) -> None:
        alone = [network.alone_ms(size) * _MS for size in range(1, MAX_BATCH + 1)]
        busy = [network.busy_sms(size) for size in range(1, MAX_BATCH + 1)]
        super().__init__(
            lambda unit: alone[unit.size - 1],
            lambda units: network.slowdown([busy[unit.size - 1] for unit in units]),
        )
