"""One side's training, measured from the end of the updates that compile: the script of a process of its own.

    PYTHONPATH=benchmarks python benchmarks/speed_cases/training_side.py ppo sbx 1 --output measured.json

measures a case, a side and a seed.

Ours trains as a user's would: files, metrics and checkpoints included. What is imported of this package are its stable
names, so that the script also trains with an older checkout (`PYTHONPATH`).
"""

from __future__ import annotations

import argparse
import json
import logging
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from records import OURS
from rl_training import Callback, TrainConfig, TrainingEvent, evaluate, train
from speed_cases.speed_parts import Effort
from speed_cases.training_cases import BEFORE, CASES, SBX, Case, Side


@dataclass
class Marks:
    """How far a training was, and when."""

    steps: list[int] = field(default_factory=list)
    processor: list[float] = field(default_factory=list)
    clock: list[float] = field(default_factory=list)

    def note(self, step: int) -> None:
        """Take the time at a step."""
        self.steps.append(step)
        self.processor.append(time.process_time())
        self.clock.append(time.perf_counter())

    def first(self, left_out: int) -> int:
        """Return the index of the first mark after the steps that are left out."""
        return next(index for index, step in enumerate(self.steps) if step > left_out)

    def rates(self, left_out: int) -> tuple[float, float]:
        """Return steps per second of the processor's and of the clock's time, from the first mark after `left_out`."""
        first = self.first(left_out)
        steps = self.steps[-1] - self.steps[first]
        return steps / (self.processor[-1] - self.processor[first]), steps / (self.clock[-1] - self.clock[first])

    def preparation(self, warm_up: int, left_out: int) -> float:
        """Return the processor's seconds before the first counted step that its updates would not take later.

        They are those of making environments and networks, of compiling, and of the random steps of the warm-up.
        """
        first = self.first(left_out)
        learned = self.steps[first] - warm_up
        return max(0.0, self.processor[first] - self.processor[0] - learned / self.rates(left_out)[0])


class MarkUpdates(Callback):
    """Notes when each iteration of ours ends."""

    def __init__(self) -> None:
        self.marks = Marks()

    def on_update_end(self, event: TrainingEvent) -> None:
        """Note the end of an iteration."""
        self.marks.note(event.step)


def train_ours(config: TrainConfig, *, episodes: int = 0) -> tuple[Marks, float | None]:
    """Train with this package and return its marks and the mean return of an evaluation."""
    callback = MarkUpdates()
    callback.marks.note(0)
    result = train(config, callbacks=[callback])
    score = evaluate(result.run_dir, num_episodes=episodes).metrics["eval_return_mean"] if episodes else None
    return callback.marks, score


def train_peer(model: Any, config: TrainConfig, marks: Marks, *, episodes: int = 0) -> tuple[Marks, float | None]:
    """Train a model of stable-baselines3 or SBX and return as `train_ours`."""
    import numpy as np
    from stable_baselines3.common.callbacks import BaseCallback
    from stable_baselines3.common.evaluation import evaluate_policy

    class MarkRollouts(BaseCallback):
        def _on_step(self) -> bool:
            return True

        def _on_rollout_start(self) -> None:
            marks.note(self.num_timesteps)

    model.learn(config.total_timesteps, callback=MarkRollouts())
    marks.note(model.num_timesteps)
    if not episodes:
        return marks, None
    returns, _ = evaluate_policy(model, model.get_env(), n_eval_episodes=episodes, return_episode_rewards=True)
    return marks, float(np.mean(returns))


def measure(case: Case, side: Side, seed: int, effort: Effort) -> dict[str, float]:
    """Train one side in this process and return what is stored of it."""
    episodes = effort.choose(case.episodes, min(case.episodes, 1))
    with tempfile.TemporaryDirectory() as directory:
        config = case.config(side, seed, effort, directory)
        if side.who in (OURS, BEFORE):
            marks, score = train_ours(config, episodes=episodes)
        else:
            make = _maker(side)
            marks = Marks()
            marks.note(0)
            marks, score = train_peer(make(config), config, marks, episodes=episodes)
    processor, clock = marks.rates(case.left_out)
    measured = {
        "steps_per_second": processor,
        "steps_per_second_of_the_clock": clock,
        "preparation_seconds": marks.preparation(case.warm_up, case.left_out),
    }
    return measured if score is None else {**measured, "eval_return": score}


def _maker(side: Side) -> Any:
    """Return what makes a peer's model, with its libraries imported and its threads set."""
    import torch

    if side.one_thread:
        torch.set_num_threads(1)
    if side.who == SBX:
        import sbx  # noqa: F401 - its import is no part of what is measured

        from peers.sbx_models import make_sbx

        return make_sbx
    import stable_baselines3  # noqa: F401

    from peers.stable_baselines3_models import make_peer

    return make_peer


def main() -> None:
    """Parse arguments, train, write what was measured."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("case", choices=tuple(CASES))
    parser.add_argument("side", help="a side of the case")
    parser.add_argument("seed", type=int)
    parser.add_argument("--quick", action="store_true", help="few steps")
    parser.add_argument("--output", type=Path, required=True, help="where the JSON goes")
    options = parser.parse_args()
    logging.getLogger("rl_training").setLevel(logging.ERROR)
    case = CASES[options.case]
    measured = measure(case, case.sides[options.side], options.seed, Effort(1, options.quick))
    options.output.write_text(json.dumps(measured), encoding="utf-8")


if __name__ == "__main__":
    main()
