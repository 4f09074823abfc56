"""Learns from live batches how much units that run at once slow each other."""

from __future__ import annotations

_OLDER = 0.005  # decay of `seen` for each batch: about the last 200 count
_EVIDENCE = 10.0  # bound of `_of_share`: about 100 batches, some alone and some not
_RECENT = 0.06  # weight of one batch in the means: about the last 16 count
_ALONE = 0.99  # above this mean share batches hardly ever run beside others, and show nothing about that
_PARTLY = 0.3  # a batch that is alone for this share of its time shows how fast batches are alone
_CROWDED, _MOST_CROWDED = 32, 1024  # after so many batches in a row beside others one is to run alone; then doubled
_KNOWN = 0.5  # evidence that the profile counts as, in the unit of `_of_share`: five to fifty batches
_SLOWEST, _FASTEST = 0.05, 2.0  # bounds of speeds, relative to the profile
_FORGOTTEN = 1 / 3600  # share of the way back to the profile for each window without batches beside others


class SharedSlowdown:
    """`factor`: how much more units that run at once slow each other than the profile says; 1 at first.

    A batch has one speed while it is alone and another beside others. So its mean speed is a line over the share of its
    time in which it was alone. The slope is fitted by least squares over recent batches, as distances from the means of
    the last few: at high load all batches are slower because of the requests, so only batches close in time are
    compared. The profile's slope counts as a few batches. If all batches have about the same share, nothing can be
    learnt. Then `crowded` asks the policy to let one batch run alone, less and less often, because that costs a
    worker's time.
    """

    __slots__ = ("_gap", "_in_a_row", "_of_both", "_of_share", "_share", "_speed", "_tried", "factor", "seen")

    def __init__(self) -> None:
        self.factor = 1.0
        self.seen = 0.0  # batches beside others that count
        self._share, self._speed = -1.0, 1.0  # means of the last batches; -1: there was none
        self._of_share = self._of_both = 0.0  # sums over distances: squared shares, and shares times speeds
        self._in_a_row = 0  # consecutive batches that were beside others for most of their time
        self._gap = _CROWDED
        self._tried = False

    @property
    def crowded(self) -> bool:
        """Whether all recent batches ran beside others, so that the speed alone is unknown."""
        return self._in_a_row >= self._gap

    def observe(self, alone: float, beside: float, speed: float) -> None:
        """A batch was alone for the share `alone` of its time, and ran at `speed` on average. O(1).

        By the profile its speed would have been `alone` + `beside`. Speeds are multiples of the profile's speed alone.
        """
        speed = min(speed, _FASTEST)
        if alone < _PARTLY:
            self._in_a_row += 1
        else:
            self._gap = min(2 * self._gap, _MOST_CROWDED) if self.crowded else self._gap
            self._in_a_row = 0
        if self._share < 0:
            self._share, self._speed = alone, speed
        share_off, speed_off = alone - self._share, speed / self._speed - 1
        self._share += _RECENT * share_off
        self._speed += _RECENT * (speed - self._speed)
        if alone == 1 and self._share > _ALONE:
            return
        self._tried = True
        self.seen += 1 - alone - _OLDER * self.seen
        self._of_share += share_off * share_off
        self._of_both += share_off * speed_off
        if self._of_share > _EVIDENCE:
            self._of_both *= _EVIDENCE / self._of_share
            self._of_share = _EVIDENCE
        if beside > 0:
            profiled = (1 - alone) / beside  # slowdown beside others, by the profile
            mean = 1 - self._share + self._share * profiled  # the mean speed, times `profiled`
            slope = (self._of_both + _KNOWN * (profiled - 1) / mean) / (self._of_share + _KNOWN)
            slowest = max(_SLOWEST, 1 - slope * self._share)  # the speed beside others
            self.factor = max(1.0, (1 + slope * (1 - self._share)) / slowest) / profiled

    def tick(self) -> None:
        """A window has closed. One without batches beside others moves the factor a little back towards the profile.

        Otherwise units that once slowed each other too much to run at once would never be tried together again.
        """
        if not self._tried:
            self.factor += _FORGOTTEN * (1 - self.factor)
        self._tried = False
