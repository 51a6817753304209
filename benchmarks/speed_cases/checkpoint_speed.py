"""What checkpoints cost: writing one beside the peers' way of saving the same, and their share of a training.

Ours is hashed and forced to the disk, so that a power cut cannot take it; `torch.save` and stable-baselines3 leave
their file in the system's cache. Times are of the clock, because waiting for the disk is part of the cost.
"""

from __future__ import annotations

import itertools
import statistics
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch

from peers.stable_baselines3_models import make_peer
from records import OURS, SB3, why_missing
from rl_training.experiment.checkpoints import verify_checkpoint
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.storage.state_files import read_state
from rl_training.runtime.callbacks import Callback, TrainingEvent
from rl_training.runtime.run_utils import save_training_checkpoint
from rl_training.runtime.workflows import train
from speed_cases.speed_parts import Effort, Outcome, alternate, quickest, quotients
from speed_cases.training_cases import CASES

ALGORITHMS = ("ppo", "dqn")


class CheckpointTime(Callback):
    """Adds up the time from the end of an update to the checkpoint that follows it."""

    def __init__(self) -> None:
        self.saving = 0.0
        self._started = self._updated = time.perf_counter()

    def on_train_start(self, event: TrainingEvent) -> None:
        """Begin to count."""
        self._started = self._updated = time.perf_counter()

    def on_update_end(self, event: TrainingEvent) -> None:
        """What follows, if anything does, is a checkpoint."""
        self._updated = time.perf_counter()

    def on_checkpoint(self, event: TrainingEvent) -> None:
        """Add the time of a checkpoint; the first comes before any update."""
        now = time.perf_counter()
        self.saving += now - self._updated
        self._updated = now

    def rest(self) -> float:
        """Return the share of the time until now that was not spent on checkpoints."""
        return 1 - self.saving / (self._updated - self._started)


def settings(effort: Effort) -> str:
    """Return what is measured, in words."""
    return "a checkpoint per tenth of the training, the default; one without its replay beside the peers' files"


def measure(effort: Effort) -> Outcome:
    """Train as the speed benchmark does, then write the last state in every way in turn."""
    reason = why_missing(SB3)
    repeats = effort.choose(20, 5)
    ratios: dict[str, list[float]] = {}
    shares: dict[str, float] = {}
    rounds: list[dict[str, Any]] = []
    for algo in ALGORITHMS:
        with tempfile.TemporaryDirectory() as directory:
            trained = [_train(algo, effort, Path(directory) / str(seed), seed) for seed in range(1, effort.rounds + 1)]
            writers = _writers(trained[-1][1], Path(directory), with_peer=reason is None)
            rows = alternate(
                {name: partial(_seconds, write, repeats) for name, write in writers.items()}, effort.rounds
            )
        # No ratio to guard: it would fall when training becomes faster.
        shares[algo] = round(1 - statistics.median(rest for rest, _ in trained), 4)
        for name in writers:
            if name != "ours":
                ratios[f"{algo}: {name}"] = quotients(rows, name, "ours")
        rounds += [
            {"algo": algo, "share_of_training": 1 - rest, "seconds": row}
            for (rest, _), row in zip(trained, rows, strict=True)
        ]
    return Outcome(
        ratios=ratios,
        missing=[] if reason is None else [reason],
        details={"share_of_training": shares, "rounds": rounds},
    )


def _train(algo: str, effort: Effort, directory: Path, seed: int) -> tuple[float, Path]:
    """Return the share of a training's time that checkpoints left over, and its last checkpoint."""
    callback = CheckpointTime()
    result = train(CASES[algo].config(CASES[algo].sides[OURS], seed, effort, str(directory)), callbacks=[callback])
    assert result.checkpoint_path is not None
    return callback.rest(), result.checkpoint_path


def _writers(path: Path, directory: Path, *, with_peer: bool) -> dict[str, Callable[[], Any]]:
    """Return the ways to write the state of a checkpoint, or the peer's model of the same configuration."""
    checkpoint = verify_checkpoint(path)
    config = TrainConfig(**checkpoint.config)
    state, manifest, steps = read_state(path), checkpoint.manifest, itertools.count(checkpoint.step + 1)

    def ours() -> None:
        save_training_checkpoint(
            checkpoint.run_dir,
            step=next(steps),
            config=config,
            state=state,
            resume_mode=manifest["resume_mode"],
            spaces=manifest["spaces"],
            torch_threads=manifest["torch_threads"],
        )

    writers: dict[str, Callable[[], Any]] = {"ours": ours}
    writers["torch.save"] = lambda: torch.save(state, directory / "state.pt")
    if with_peer:
        model = make_peer(config)
        model.learn(1_100)  # beyond the warm-up, so that its optimizer has a state to save
        writers["stable-baselines3"] = lambda: model.save(directory / "model.zip")
    return writers


def _seconds(write: Callable[[], Any], repeats: int, _: int) -> float:
    return quickest(write, repeats)
