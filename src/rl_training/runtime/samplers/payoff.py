"""Whether samplers pay, judged once by the times of the run's own first rollouts."""

from __future__ import annotations

from typing import NamedTuple

from rl_training.runtime.samplers.groups import SampledGroups
from rl_training.runtime.session import TrainingSession

WARM_UP = 4
"""Updates that are not judged: environments start, code is compiled, caches are empty."""
JUDGED = 10
"""Updates that are judged, at least."""
JUDGED_SECONDS = 1.0
"""Seconds that are judged, at least."""
SMALLEST_GAIN = 1.1
"""How many times as fast a run with samplers has to be for them to pay."""
_BEGINNING = "samplers: without them"


class Times(NamedTuple):
    """Seconds of some updates and of what was collected for them."""

    collect: float
    """Spent by the run on collecting, most of it waiting for samplers."""
    update: float
    alone: float
    """What the run would need to collect by itself: all steps of the environments, and the policy's part once."""

    @property
    def seconds(self) -> float:
        """Seconds of the run."""
        return self.collect + self.update

    @property
    def gain(self) -> float:
        """How many times as fast the run is as one without samplers."""
        return (self.alone + self.update) / max(self.seconds, 1e-9)

    def since(self, before: Times) -> Times:
        """Return the times from `before` on."""
        return Times(*(now - then for now, then in zip(self, before, strict=True)))

    def sentence(self, samplers: int) -> str:
        """Return what there is to say if samplers do not pay."""
        share = self.alone / max(self.alone + self.update, 1e-9)
        many = f"{samplers} samplers make" if samplers > 1 else "1 sampler makes"
        return (
            f"{_BEGINNING} collecting would take about {share:.0%} of this run, by the times of its first updates, and "
            f"{many} it about {self.gain:.2f} times as fast; leave them out, or see docs/scaling.md for where they pay"
        )


class Payoff:
    """Watches the first updates of a run with samplers and says so if they do not pay; it changes nothing else."""

    def __init__(self, session: TrainingSession, groups: SampledGroups) -> None:
        self._session, self._groups = session, groups
        self._updates = 0
        self._before: Times | None = None
        self._judged = False

    def updated(self) -> None:
        """Count an update, or a round of them."""
        if self._judged:
            return
        self._updates += 1
        now = Times(self._session.spent("collect"), self._session.spent("update"), self._groups.alone_seconds)
        if self._before is None:
            self._before = now if self._updates == WARM_UP else None
            return
        times = now.since(self._before)
        if self._updates < WARM_UP + JUDGED or times.seconds < JUDGED_SECONDS:
            return
        self._judged = True
        if times.gain < SMALLEST_GAIN and not self._session.was_told(_BEGINNING):
            self._session.notify(times.sentence(len(self._groups.rows)))
