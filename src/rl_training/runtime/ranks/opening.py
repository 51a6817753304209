"""Opens the session of a run: in this process alone, or as one of several ranks."""

from __future__ import annotations

import itertools
import logging
import os
from collections.abc import Sequence
from datetime import timedelta

from torch.distributed import TCPStore  # type: ignore[attr-defined]
from torch.distributed.distributed_c10d import PrefixStore

from rl_training.errors import MeetingError
from rl_training.experiment.checkpoints import ResumePoint
from rl_training.experiment.config import TrainConfig
from rl_training.runtime.callbacks import Callback
from rl_training.runtime.ranks.group import Ranks
from rl_training.runtime.ranks.launching import RankProcesses
from rl_training.runtime.ranks.placement import Placement, placed_config, placement
from rl_training.runtime.ranks.session import RankSession
from rl_training.runtime.ranks.share import Share
from rl_training.runtime.session import TrainingSession

_HERE = "127.0.0.1"
_STORE_SECONDS = timedelta(seconds=300)
# All ranks open the same sessions one after the other, and must not read what was written for an earlier one.
_opened = itertools.count()


def open_session(
    config: TrainConfig, *, callbacks: Sequence[Callback] = (), checkpoint: ResumePoint | None = None
) -> TrainingSession:
    """Return the session of a run, of this rank if the run has several."""
    config = placed_config(config, checkpoint)
    place = placement()
    if (config.devices or 1) == 1:
        return TrainingSession(config, callbacks=callbacks, checkpoint=checkpoint)
    if place is None:
        return RankSession(
            config, Share(0, config.devices or 1), _start_others, callbacks=callbacks, checkpoint=checkpoint
        )
    if place.share.rank > 0:
        logging.getLogger("rl_training").setLevel(logging.CRITICAL)
    ranks = _join(place)
    try:
        return RankSession(
            config,
            place.share,
            lambda session: ranks,
            callbacks=callbacks if ranks.leads else (),
            checkpoint=checkpoint,
            deaf=place.started_by_rank_0,
        )
    except BaseException as error:
        ranks.fail(error)
        raise


def _start_others(session: RankSession) -> Ranks:
    """Start the other ranks of a run whose rank 0 is this process."""
    share = session.setup.share
    store = TCPStore(_HERE, 0, is_master=True, wait_for_workers=False, timeout=_STORE_SECONDS)
    places = [
        Placement(Share(rank, share.count, rank), _HERE, store.port, hosts=False) for rank in range(1, share.count)
    ]
    processes = RankProcesses(session.config, session.setup.resume_point, places)
    return Ranks(share, PrefixStore("axiomrl/0/0", store), ended=processes.ended, close=processes.close)


def _join(place: Placement) -> Ranks:
    """Find the others of a run whose ranks were started from outside."""
    place.check_address()
    number = next(_opened)
    try:
        store = TCPStore(
            place.address, place.port, is_master=place.hosts, wait_for_workers=False, timeout=_STORE_SECONDS
        )
    except RuntimeError as error:
        raise MeetingError(
            f"MASTER_ADDR: the ranks cannot meet at {place.address}, port {place.port} "
            f"({str(error).splitlines()[0][:200]}); name an address of this machine and a free port"
        ) from error
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    return Ranks(place.share, PrefixStore(f"axiomrl/{attempt}/{number}", store))
