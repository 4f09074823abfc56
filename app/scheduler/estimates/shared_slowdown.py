"""How much units that run at once slow each other, learnt from the batches of a server that serves."""

from __future__ import annotations

_OLDER = 0.005  # of the batches seen, that each takes the place of: about the last 200 count
_EVIDENCE = 10.0  # squares of shares that count: of 100 batches where some are alone and some are not
_RECENT = 0.06  # of one batch in the means: about the last 16
_ALONE = 0.99  # of the mean share: batches hardly ever run beside others, and say nothing of them
_PARTLY = 0.3  # of a batch's time, alone for so much of it says how fast batches are alone
_CROWDED, _MOST_CROWDED = 32, 1024  # batches in a row that are not, doubled each time: then one is to run alone
_KNOWN = 0.5  # what the profile counts as: squares of shares of five to fifty batches
_SLOWEST, _FASTEST = 0.05, 2.0  # speeds, over the profile's
_FORGOTTEN = 1 / 3600  # of the way back to the profile, for each window without batches beside others


class SharedSlowdown:
    """By what factor units that run at once slow each other more than the profile says (1 at first).

    A batch runs at one speed while it is alone and at another beside others, so that its mean speed is a line over the
    share of its time in which it was alone. The slope is that of least squares over the latest evidence, as distances
    to the means of the last batches: at high load batches are slower whatever runs beside them, because of the
    requests, and only batches of about one time are compared. The profile's slope counts as a few batches. Where all
    batches have about the same share, nothing can be learnt: `crowded` then asks the policy to let one run alone for a
    while, more and more seldom, because that costs a worker's time.
    """

    __slots__ = ("_gap", "_in_a_row", "_of_both", "_of_share", "_share", "_speed", "_tried", "factor", "seen")

    def __init__(self) -> None:
        self.factor = 1.0
        self.seen = 0.0  # batches beside others that count
        self._share, self._speed = -1.0, 1.0  # means of the last batches; -1: there was none
        self._of_share = self._of_both = 0.0  # of distances: squares of shares, products with speeds
        self._in_a_row = 0  # batches that were beside others for most of their time
        self._gap = _CROWDED
        self._tried = False

    @property
    def crowded(self) -> bool:
        """Whether the last batches were all beside others, so that they say nothing of the speed alone."""
        return self._in_a_row >= self._gap

    def observe(self, alone: float, beside: float, speed: float) -> None:
        """A batch was alone for so much of its time, and ran at `speed`. By the profile it would have been `alone` plus
        `beside`. Speeds are in multiples of that alone by the profile. O(1).
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
            profiled = (1 - alone) / beside  # times as long beside others
            mean = 1 - self._share + self._share * profiled  # of the speed, times that
            slope = (self._of_both + _KNOWN * (profiled - 1) / mean) / (self._of_share + _KNOWN)
            slowest = max(_SLOWEST, 1 - slope * self._share)  # beside others
            self.factor = max(1.0, (1 + slope * (1 - self._share)) / slowest) / profiled

    def tick(self) -> None:
        """A window has closed. One without batches beside others moves the factor a little back towards the profile.

        Otherwise units that once slowed each other too much to be run at once would never be tried again.
        """
        if not self._tried:
            self.factor += _FORGOTTEN * (1 - self.factor)
        self._tried = False
