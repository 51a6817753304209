"""The other ranks of a run on this machine: processes that rank 0 starts, and that end with it."""

from __future__ import annotations

import logging
import os
import pickle
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from multiprocessing import util
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from typing import Any

from rl_training.envs.families.sdl import silence_sdl
from rl_training.envs.workers.processes import CLOSE_SECONDS, cause_of_death, fresh_processes
from rl_training.envs.workers.serving import end_with_parent
from rl_training.errors import AxiomError, ConfigError
from rl_training.experiment.checkpoints import ResumePoint
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.registry import admit_algorithm, get_algorithm_spec
from rl_training.runtime.ranks.group import RankLost
from rl_training.runtime.ranks.placement import Placement
from rl_training.runtime.setup.run_setup import code_origin
from rl_training.runtime.signals import STOPPING
from rl_training.runtime.sweep.server import IMPORTED_BY_RANKS, signals_held_back

logger = logging.getLogger("rl_training")

_SECONDS_TO_NOTICE = 60.0  # that another rank has ended
_LOST_ANOTHER = 75  # exit status of a rank that ends because another one has


class RankProcesses:
    """The processes of all ranks but the first."""

    def __init__(self, config: TrainConfig, resume_point: ResumePoint | None, places: Sequence[Placement]) -> None:
        self._processes: list[BaseProcess] = []
        self._closing = threading.Event()
        # Also runs when the object is deleted or the interpreter exits.
        self._stop = util.Finalize(self, _end, args=(self._processes, self._closing), exitpriority=100)
        context = fresh_processes(*IMPORTED_BY_RANKS)
        for place in places:
            # Not a daemon: its environments may need processes.
            process = context.Process(
                target=run_rank, args=(config, resume_point, place), name=f"rank-{place.share.rank}"
            )
            try:
                with signals_held_back():
                    process.start()
            except (pickle.PicklingError, AttributeError, TypeError) as error:
                self._stop()
                raise ConfigError(f"devices: the run cannot be sent to another process ({error})") from error
            self._processes.append(process)
        watched = [process.sentinel for process in self._processes]
        threading.Thread(target=_leave_with, args=(watched, self._closing, self.ended), daemon=True).start()

    def ended(self) -> dict[int, str]:
        """Return the ranks that have ended, and how, without those that ended because another one has."""
        return {
            rank: cause_of_death(process)
            for rank, process in enumerate(self._processes, start=1)
            if not process.is_alive() and process.exitcode != _LOST_ANOTHER
        }

    def close(self, failed: bool) -> None:
        """End all processes; unless the run has failed, they may end by themselves."""
        self._closing.set()
        deadline = time.monotonic() + (0.0 if failed else CLOSE_SECONDS)
        for process in self._processes:
            process.join(max(0.0, deadline - time.monotonic()))
        self._stop()


def _leave_with(
    sentinels: Sequence[int],
    closing: threading.Event,
    ended: Callable[[], dict[int, str]],
    leave: Callable[[int], Any] = os._exit,
) -> None:
    """End this process when another rank has ended, unless it notices by itself: GPUs wait for each other for ever."""
    wait(sentinels)
    if closing.wait(_SECONDS_TO_NOTICE):
        return
    for rank, cause in ended().items():
        logger.critical("rank %d %s, and rank 0 did not notice; the last checkpoint is kept", rank, cause)
    leave(1)


def _end(processes: list[BaseProcess], closing: threading.Event) -> None:
    closing.set()
    for process in processes:
        if process.is_alive():
            process.kill()
    for process in processes:
        process.join()
        process.close()
    processes.clear()


def run_rank(config: TrainConfig, resume_point: ResumePoint | None, place: Placement) -> None:
    """Train as a rank that rank 0 has started."""
    for number in STOPPING:
        signal.signal(number, signal.SIG_IGN)  # rank 0 tells the others to stop
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPPING)
    end_with_parent()
    silence_sdl()
    logging.getLogger("rl_training").setLevel(logging.CRITICAL)  # rank 0 speaks for all
    os.environ.update(place.variables())
    try:
        admit_algorithm(config.algo, code_origin(resume_point))
        train: Any = get_algorithm_spec(config.algo).load_train()
        train(config, checkpoint=resume_point)
    except RankLost:
        sys.exit(_LOST_ANOTHER)
    except AxiomError:
        sys.exit(1)  # rank 0 was told
