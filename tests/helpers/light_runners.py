"""Runners that take no time and import no torch, to be sent to processes of their own."""

from __future__ import annotations

import dataclasses
import logging
import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path

from rl_training.runtime.callbacks import Callback, TrainingEvent
from rl_training.runtime.recording.result import TrainResult
from rl_training.runtime.signals import SignalGuard


@dataclass(frozen=True)
class LightRunner:
    """Pretends to train: leaves a file named after its seed and does what `fault` says."""

    seed: int
    directory: Path
    fault: str = "none"
    callbacks: tuple[Callback, ...] = ()

    def watched_by(self, *callbacks: Callback) -> LightRunner:
        return dataclasses.replace(self, callbacks=(*self.callbacks, *callbacks))

    def run(self) -> TrainResult:
        (self.directory / f"seed{self.seed}-{os.getpid()}").touch()
        if self.fault == "never starts":
            time.sleep(600)
        guard = SignalGuard()
        guard.install()
        event = TrainingEvent(self.directory, 0, 10, 0, lambda reason: None)
        for callback in self.callbacks:
            callback.on_train_start(event)
        if self.fault == "dies":
            os.kill(os.getpid(), signal.SIGKILL)
        if self.fault == "raises":
            raise ValueError("the floor gave way")
        if self.fault == "warns":
            logging.getLogger("rl_training").warning("the floor creaks")
        while self.fault == "waits" and guard.received is None:
            time.sleep(0.01)
        guard.restore()
        return TrainResult(
            self.directory,
            None,
            {"eval_return_mean": float(self.seed)},
            status="completed" if guard.received is None else "interrupted",
            signal=guard.received,
        )
