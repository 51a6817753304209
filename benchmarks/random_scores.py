"""Measure what uniformly random actions score, for the lower references of the zoo's manifests.

    python benchmarks/random_scores.py

Published tables give random scores of Atari only. Episode `k` resets the environment with seed `k`; the actions come
from the action space, seeded once with 0.
"""

from __future__ import annotations

import argparse
import statistics
from typing import Any

import gymnasium

from records import RESULTS, machine
from rl_training.envs.lookup import find_spec
from rl_training.experiment.runs import dependency_versions
from rl_training.experiment.storage.files import write_json_atomically
from rl_training.zoo.manifests import load_manifests


def random_returns(env_id: str, episodes: int) -> list[float]:
    """Return the returns of complete episodes of uniformly random actions."""
    env = gymnasium.make(find_spec(env_id))
    env.action_space.seed(0)
    returns = []
    for episode in range(episodes):
        env.reset(seed=episode)
        total, ended = 0.0, False
        while not ended:
            _, reward, terminated, truncated, _ = env.step(env.action_space.sample())
            total, ended = total + float(reward), terminated or truncated
        returns.append(total)
    env.close()
    return returns


def main() -> None:
    """Measure every environment of the suites but Atari's and store the means."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--episodes", type=int, default=1000, help="episodes per environment")
    arguments = parser.parse_args()
    scores: dict[str, Any] = {}
    for manifest in load_manifests():
        if manifest.extra == "atari":
            continue
        for env_id in manifest.environments:
            returns = random_returns(env_id, arguments.episodes)
            scores[env_id] = {"mean": statistics.fmean(returns), "std": statistics.pstdev(returns)}
            print(f"{env_id}: {scores[env_id]['mean']:.2f}", flush=True)
    content = {
        "benchmark": "random_scores",
        "episodes": arguments.episodes,
        "scores": scores,
        "versions": dependency_versions(),
        "machine": machine(),
    }
    write_json_atomically(RESULTS / "random-scores.json", content)


if __name__ == "__main__":
    main()
