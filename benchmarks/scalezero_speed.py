"""ScaleZero's searches with and without the transformer's cache, alternating, told as ratios; and its updates.

Run `python benchmarks/scalezero_speed.py --rounds 5`: the network of preset `scalezero-classic`, one thread. With the
cache is what the package does on a CPU, the whole search compiled; `by_torch` has the cache too, as on other devices.
Without the cache, torch reads the tokens of a path's present window again in every simulation, padded to the longest in
the batch: `ratio` holds what cache and compiler gain together, `ratio_by_torch` what the cache gains alone. Times are
of the processor, so that other programs on the machine disturb less.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from records import origin
from rl_training.algorithms.planning.scalezero_models import ScaleZeroModel
from rl_training.algorithms.planning.unroll import UnrollBatch
from rl_training.algorithms.scalezero import ScaleZero
from rl_training.envs.make import check_environment
from rl_training.envs.spaces import joined_spaces
from rl_training.experiment.config import algorithm_params
from rl_training.experiment.configuration.config_files import load_config
from rl_training.experiment.tasks import tasks_of
from rl_training.kernels.scalezero import compiled_transformer
from rl_training.kernels.search.transformer_model import TransformerModel
from rl_training.models.planning.scalar_support import expected_scalar
from rl_training.models.planning.scalezero_network import ScaleZeroNetwork
from rl_training.search.model import ModelOutput
from rl_training.search.search import SearchResult, TreeSearch

PRESET = "scalezero-classic"
ROOTS = (8, 24, 64, 256)
TASK = 1  # Acrobot-v1: six numbers, three actions
COLUMNS = (
    "With the cache the package searches in compiled code; `by torch` is the same cache without the compiler, the last "
    "column what the cache alone gains"
)
CONTROLS = {"learning_rate": 0.0, "num_simulations": 16}


class ForgetfulModel:
    """Imagines without a cache: an embedding holds the tokens of the present window and their number."""

    def __init__(self, network: ScaleZeroNetwork, task: int, discount: float) -> None:
        self.network = network
        self.task = task
        self.discount = discount
        self.window = network.transformer.window

    def initial(self, observation: Tensor) -> ModelOutput:
        """Encode the roots' observations."""
        latent = self.network.encode(self.task, observation)
        tokens = latent.new_zeros(len(latent), self.window, self.network.width)
        return self._arrive(tokens, torch.zeros(len(latent), dtype=torch.int64), latent, latent.new_zeros(len(latent)))

    def recurrent(self, embedding: Tensor, action: Tensor) -> ModelOutput:
        """Imagine one action [B] in each state."""
        parts = self.network.parts(self.task)
        tokens = embedding[:, :-1].unflatten(1, (self.window, -1)).clone()
        count = embedding[:, -1].long()
        output = self._read(tokens, count, parts.embed(action))
        latent, reward = parts.imagine(output)
        count = (count + 1) % self.window  # a full window begins anew
        return self._arrive(tokens, count, latent, expected_scalar(reward))

    def _read(self, tokens: Tensor, count: Tensor, token: Tensor) -> Tensor:
        """Put one more token per row behind `count` others and return its outputs."""
        rows = torch.arange(len(tokens))
        tokens[rows, count] = token
        # What stands behind a row's last token is not seen by it.
        outputs, _ = self.network.transformer(tokens[:, : int(count.max()) + 1])
        return outputs[rows, count]

    def _arrive(self, tokens: Tensor, count: Tensor, latent: Tensor, reward: Tensor) -> ModelOutput:
        policy, value = self.network.parts(self.task).predict(self._read(tokens, count, latent))
        number = expected_scalar(value)
        embedding = torch.cat((tokens.flatten(1), ((count + 1) % self.window).unsqueeze(1).float()), 1)
        return ModelOutput(policy, number, reward, torch.full_like(number, self.discount), embedding)


def make_algorithm() -> ScaleZero:
    """Return the preset's algorithm with random heads, so that its searches go deep."""
    config = load_config(preset=PRESET)
    tasks = tasks_of(config)
    spaces = {task.name: check_environment(task.env_id, task.env_kwargs) for task in tasks}
    generator = torch.Generator().manual_seed(0)
    algorithm = ScaleZero(
        algorithm_params(config),
        joined_spaces({name: pair[0] for name, pair in spaces.items()}),
        joined_spaces({name: pair[1] for name, pair in spaces.items()}),
        device=torch.device("cpu"),
        generator=generator,
    )
    algorithm.optimizer.values.add_(0.05 * torch.randn(algorithm.optimizer.values.shape, generator=generator))
    return algorithm


def processor_time(work: Callable[[], Any], repeats: int) -> float:
    """Return the seconds of one call."""
    started = time.thread_time()
    for _ in range(repeats):
        work()
    return (time.thread_time() - started) / repeats


def measure_search(algorithm: ScaleZero, roots: int, rounds: int, repeats: int) -> dict[str, Any]:
    """Return searches per second with and without cache, and the ratios' medians and range over rounds."""
    discount = algorithm.params.discount
    by_torch = ScaleZeroModel(algorithm.network, (TASK,), discount)
    models = (
        TransformerModel(compiled_transformer(algorithm.network, discount), by_torch.tasks, by_torch.encode),
        by_torch,
        ForgetfulModel(algorithm.network, TASK, discount),
    )
    observation = torch.randn(roots, 6, generator=torch.Generator().manual_seed(1))
    search = TreeSearch(algorithm.search.rule)

    def run(model: Any) -> SearchResult:
        return search.run(
            model,
            observation,
            num_simulations=algorithm.params.num_simulations,
            exploration=1.0,
            generator=np.random.default_rng(0),
        )

    found = [run(model) for model in models]
    for other in found[1:]:
        np.testing.assert_allclose(found[0].value, other.value, atol=1e-4)
    seconds = [[processor_time(partial(run, model), repeats) for model in models] for _ in range(rounds)]
    ratios = [forgetful / cached for cached, _, forgetful in seconds]
    ratios_by_torch = [forgetful / cached for _, cached, forgetful in seconds]
    cached, cached_by_torch, forgetful = (statistics.median(side) for side in zip(*seconds, strict=True))
    return {
        "algo": "scalezero",
        "roots": roots,
        "simulations": algorithm.params.num_simulations,
        "searches_per_second_with_cache": round(roots / cached),
        "by_torch": round(roots / cached_by_torch),
        "without": round(roots / forgetful),
        "ratio": round(statistics.median(ratios), 2),
        "smallest": round(min(ratios), 2),
        "largest": round(max(ratios), 2),
        "ratio_by_torch": round(statistics.median(ratios_by_torch), 2),
    }


def unroll_batch(algorithm: ScaleZero, task: int, rows: int) -> UnrollBatch:
    """Return random windows of a task."""
    steps, actions = algorithm.params.unroll_steps, algorithm.actions[task].count
    space = algorithm.network.specs[task].observation_space
    shape = space.shape or ()
    known = torch.ones(steps + 1, rows)
    return UnrollBatch(
        observation=torch.rand(rows, *shape),
        action=torch.randint(actions, (steps, rows)),
        value=torch.randn(steps + 1, rows),
        value_mask=known,
        reward=torch.randn(steps, rows),
        reward_mask=known[1:],
        policy=torch.full((steps + 1, rows, actions), 1 / actions),
        policy_mask=known,
        weight=None,
        successor=torch.rand(steps * rows, *shape),
        successor_mask=known[1:],
    )


def measure_updates(algorithm: ScaleZero, rounds: int, repeats: int) -> dict[str, Any]:
    """Return gradient steps per second on batches that are made already."""
    share = algorithm.params.batch_size // len(algorithm.trained)
    batches = {task: unroll_batch(algorithm, task, share) for task in algorithm.trained}
    learn = partial(algorithm.update, batches, CONTROLS, torch.Generator())
    learn()
    rates = [1 / processor_time(learn, repeats) for _ in range(rounds)]
    return {
        "algo": "scalezero",
        "tasks": len(batches),
        "batch_size": share * len(batches),
        "updates_per_second": round(statistics.median(rates), 1),
        "smallest": round(min(rates), 1),
        "largest": round(max(rates), 1),
    }


def main() -> None:
    """Parse arguments, measure, store."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5, help="how often each side is measured")
    parser.add_argument("--repeats", type=int, default=10, help="searches or updates per round")
    parser.add_argument("--output", type=Path, help="write the summary as JSON")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    algorithm = make_algorithm()
    cases = [measure_search(algorithm, roots, arguments.rounds, arguments.repeats) for roots in ROOTS]
    updates = measure_updates(algorithm, arguments.rounds, arguments.repeats)
    for case in (*cases, updates):
        print(", ".join(f"{name} {value}" for name, value in case.items()), flush=True)
    if arguments.output is not None:
        summary = {
            "benchmark": "scalezero_speed",
            "settings": f"the network of {PRESET}, one thread. {COLUMNS}",
            "cases": cases,
            "updates": [updates],
            **origin(),
        }
        arguments.output.write_text(json.dumps(summary, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
