"""Train a preset of a board game and play its final policy against an opponent, so many games from each side.

    python benchmarks/board_games.py --preset gumbel_muzero-tictactoe --seed 1 --games 200

The policy plans with the preset's number of simulations and without noise; the opponent's moves are drawn anew for
every game. A run that was trained already is given by `--run`.
"""

from __future__ import annotations

import argparse
import logging
import time
from pathlib import Path
from typing import Any

import numpy as np

from records import RESULTS, machine
from rl_training.envs.make import make_slots
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.configuration.config_files import load_config
from rl_training.experiment.runs import CONFIG, dependency_versions
from rl_training.experiment.storage.files import write_json_atomically
from rl_training.runtime.acting.policy import Policy, load_policy
from rl_training.runtime.run_utils import serialize_train_config
from rl_training.runtime.workflows import train


def play(policy: Policy, env_id: str, env_kwargs: dict[str, Any], opponent: str, games: int) -> dict[str, Any]:
    """Return wins, draws and losses of `games` games from each side."""
    kwargs = {**env_kwargs, "evaluation": {**env_kwargs.get("evaluation", {}), "opponent": opponent}}
    (slot,) = make_slots(env_id, kwargs, mode="evaluation", count=1)
    counts = {side: {"wins": 0, "draws": 0, "losses": 0} for side in ("first", "second")}
    seed = 0
    while any(sum(results.values()) < games for results in counts.values()):
        observation, mask = slot.reset(seed)
        side = "first" if slot.env.unwrapped.agent_first else "second"  # type: ignore[attr-defined]
        seed += 1
        if sum(counts[side].values()) == games:
            continue
        total, ended = 0.0, False
        while not ended:
            masks = None if mask is None else mask[np.newaxis]
            action = policy.actions(np.asarray(observation)[np.newaxis], masks, None, policy.num_simulations)[0]
            step = slot.step(action)
            observation, mask = step.obs, step.action_mask
            total, ended = total + float(step.reward), step.terminated or step.truncated
        counts[side]["wins" if total > 0 else "losses" if total < 0 else "draws"] += 1
    slot.close()
    return {"opponent": opponent, "games_per_side": games, **counts}


def settings(config: TrainConfig) -> dict[str, Any]:
    """Return all that decides what a run learns."""
    plain = serialize_train_config(config)
    return {key: value for key, value in plain.items() if key not in ("output_dir", "preset")}


def main() -> None:
    """Parse arguments, train, play, store."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--preset", required=True, help="preset of a board game")
    parser.add_argument("--seed", type=int, default=1, help="seed of the training")
    parser.add_argument("--games", type=int, default=200, help="games from each side")
    parser.add_argument("--run", type=Path, help="a finished run of the preset, instead of training one")
    parser.add_argument("--output-dir", type=Path, default=Path("runs/learning"), help="where the run directory goes")
    arguments = parser.parse_args()
    logging.getLogger("rl_training").setLevel(logging.ERROR)
    overrides = {"seed": arguments.seed, "output_dir": str(arguments.output_dir)}
    config = load_config(preset=arguments.preset, overrides=overrides)
    plain = settings(config)
    started = time.perf_counter()
    run_dir = arguments.run or train(config).run_dir
    seconds = None if arguments.run else round(time.perf_counter() - started, 1)
    if arguments.run is not None and settings(load_config(arguments.run / CONFIG)) != plain:
        parser.error(f"{arguments.run} was not trained by {arguments.preset} with seed {arguments.seed}")
    policy = load_policy(run_dir)
    opponents = dict.fromkeys(("random", config.env_kwargs["evaluation"]["opponent"]))
    games = [play(policy, config.task_name, config.env_kwargs, opponent, arguments.games) for opponent in opponents]
    for result in games:
        print(result, flush=True)
    content = {
        "benchmark": "board_games",
        "preset": arguments.preset,
        "command": f"python benchmarks/board_games.py --preset {arguments.preset} --seed {arguments.seed} "
        f"--games {arguments.games}",
        "config": plain,
        "simulations": policy.num_simulations,
        "training_seconds": seconds,
        "games": games,
        "versions": dependency_versions(),
        "machine": machine(),
    }
    write_json_atomically(RESULTS / f"games-{arguments.preset}.json", content)


if __name__ == "__main__":
    main()
