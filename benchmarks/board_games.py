"""Train a preset of a board game and play its policies against opponents, so many games from each side.

    python benchmarks/board_games.py --preset gumbel_muzero-tictactoe --seed 1 --games 200
    python benchmarks/board_games.py --preset gumbel_muzero-connectfour --seed 1 --games 50 \\
        --opponents random,depth-limited:4,depth-limited:6 --simulations 8,32,128,512 --checkpoints 10 \\
        --opening-moves 4

The final policy plays with each number of simulations, those of earlier checkpoints with the preset's. All plan without
noise; the opponents' moves are drawn anew for every game, and `--opening-moves` begins each with so many random moves
at the most. A run that was interrupted is continued, and one that is finished already is given by `--run`.
"""

from __future__ import annotations

import argparse
import itertools
import shlex
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from learning import only_errors, train_to_the_end
from peers.clock import SavedClock
from records import RESULTS, machine
from rl_training.envs.make import make_slots
from rl_training.envs.slot import EnvSlot
from rl_training.experiment.checkpoints import checkpoint_step, list_checkpoints
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.configuration.config_files import load_config
from rl_training.experiment.runs import CONFIG, dependency_versions, read_metadata
from rl_training.experiment.storage.files import write_json_atomically
from rl_training.runtime.acting.episodes import SlotEpisode, act_in_slots
from rl_training.runtime.acting.policy import Policy, load_policy
from rl_training.runtime.run_utils import serialize_train_config

AT_ONCE = 32  # games
SIDES = ("first", "second")
_NOT_LEARNED = ("output_dir", "preset", "checkpoint_interval", "keep_checkpoints")


def play(
    policy: Policy, env_id: str, env_kwargs: dict[str, Any], opponent: str, games: int, opening_moves: int = 0
) -> dict[str, Any]:
    """Return wins, draws and losses of `games` games from each side; many are played at the same time."""
    name, _, depth = opponent.partition(":")
    changes = {"opponent": name, "opening_moves": opening_moves, **({"opponent_depth": int(depth)} if depth else {})}
    kwargs = {**env_kwargs, "evaluation": {**env_kwargs.get("evaluation", {}), **changes}}
    slots = make_slots(env_id, kwargs, mode="evaluation", count=min(2 * games, AT_ONCE))
    seeds, begun = itertools.count(), Counter[str]()

    def begin(slot: EnvSlot) -> SlotEpisode | None:
        """Begin the next game, from a side that has not played them all."""
        while begun.total() < 2 * games:
            episode = SlotEpisode(slot, begun.total(), next(seeds), policy.memory_size)
            if begun[side_of(slot)] < games:
                begun[side_of(slot)] += 1
                return episode
        return None

    counts = {side: {"wins": 0, "draws": 0, "losses": 0} for side in SIDES}
    running = [episode for slot in slots if (episode := begin(slot))]
    while running:
        act_in_slots(policy, running, None)
        for episode in running:
            if episode.over:
                reward, _ = episode.finish()
                counts[side_of(episode.place)]["wins" if reward > 0 else "losses" if reward < 0 else "draws"] += 1
        following = [begin(episode.place) if episode.over else episode for episode in running]
        running = [episode for episode in following if episode is not None]
    for slot in slots:
        slot.close()
    return {"opponent": opponent, "games_per_side": games, **counts}


def side_of(slot: EnvSlot) -> str:
    """Return whether the agent began the game or its opponent."""
    return SIDES[not slot.env.unwrapped.agent_first]  # type: ignore[attr-defined]


def training_config(options: argparse.Namespace) -> TrainConfig:
    """Return the configuration of the training, which keeps as many checkpoints as are to play."""
    overrides = {"seed": options.seed, "output_dir": str(options.output_dir)}
    config = load_config(preset=options.preset, overrides=overrides, set_values=options.set)
    if not options.checkpoints:
        return config
    kept = (f"checkpoint_interval={config.total_timesteps // options.checkpoints}", "keep_checkpoints=null")
    return load_config(preset=options.preset, overrides=overrides, set_values=(*options.set, *kept))


def settings(config: TrainConfig) -> dict[str, Any]:
    """Return all that decides what a run learns."""
    return {key: value for key, value in serialize_train_config(config).items() if key not in _NOT_LEARNED}


def results(run_dir: Path, config: TrainConfig, options: argparse.Namespace) -> list[dict[str, Any]]:
    """Play all games and return a row for each opponent, number of simulations and checkpoint."""
    final = load_policy(run_dir)
    assert final.num_simulations is not None
    last = config.total_timesteps
    opponents = options.opponents or dict.fromkeys(("random", config.env_kwargs["evaluation"]["opponent"]))
    matches = [(run_dir, last, number) for number in options.simulations or (final.num_simulations,)]
    earlier = list_checkpoints(run_dir) if options.checkpoints else []
    matches += [(path, step, final.num_simulations) for path in earlier if (step := checkpoint_step(path) or 0) < last]
    rows = []
    for (path, step, simulations), opponent in itertools.product(matches, opponents):
        policy = load_policy(path)
        policy.num_simulations = simulations
        played = play(policy, config.task_name, config.env_kwargs, opponent, options.games, options.opening_moves)
        rows.append({"step": step, "simulations": simulations, **played})
        print(rows[-1], flush=True)
    return rows


def command(options: argparse.Namespace) -> str:
    """Return what trains and plays the same again."""
    words = [f"--preset {options.preset} --seed {options.seed} --games {options.games}"]
    words += [f"--opponents {','.join(options.opponents)}"] if options.opponents else []
    words += [f"--simulations {','.join(map(str, options.simulations))}"] if options.simulations else []
    words += [f"--checkpoints {options.checkpoints}"] if options.checkpoints else []
    words += [f"--opening-moves {options.opening_moves}"] if options.opening_moves else []
    words += [f"--set {shlex.quote(change)}" for change in options.set]
    words += [f"--variant {options.variant}"] if options.variant else []
    return " ".join(["python benchmarks/board_games.py", *words])


def main(arguments: Sequence[str] | None = None) -> None:
    """Parse arguments, train, play, store."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--preset", required=True, help="preset of a board game")
    parser.add_argument("--seed", type=int, default=1, help="seed of the training")
    parser.add_argument("--games", type=int, default=200, help="games from each side")
    parser.add_argument("--opponents", type=_names, help="NAME or NAME:DEPTH each; default: random and the preset's")
    parser.add_argument("--simulations", type=_numbers, help="of the final policy; default: the preset's")
    parser.add_argument("--checkpoints", type=int, default=0, help="keep so many of the training, and play with them")
    parser.add_argument("--opening-moves", type=int, default=0, help="random moves at the beginning, at the most")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="change the preset; repeatable")
    parser.add_argument("--variant", help="one word for the changed preset, by which its games are stored")
    parser.add_argument("--run", type=Path, help="a finished run of the preset, instead of training one")
    parser.add_argument("--output-dir", type=Path, default=Path("runs/learning"), help="where the run directory goes")
    options = parser.parse_args(arguments)
    if bool(options.set) != bool(options.variant):
        parser.error("--set changes the preset, and --variant says how its games are stored: give both or neither")
    config = training_config(options)
    plain, clock = settings(config), SavedClock()
    run_dir = options.run or train_to_the_end(config, clock).run_dir
    times = {} if options.run else clock.read()
    if options.run is not None and settings(load_config(options.run / CONFIG)) != plain:
        parser.error(f"{options.run} was not trained by {options.preset} with seed {options.seed}")
    metadata = read_metadata(run_dir)
    if metadata["status"] != "completed":
        parser.error(f"{run_dir} is {metadata['status']}: resume it first")
    content = {
        "benchmark": "board_games",
        "preset": options.preset,
        "variant": options.variant,
        "command": command(options),
        "config": plain,
        "opening_moves": options.opening_moves,
        "resumed_at_steps": metadata["resumed_at_steps"],
        **times,
        "games": results(run_dir, config, options),
        "versions": dependency_versions(),
        "machine": machine(),
    }
    name = "-".join(filter(None, ("games", options.preset, options.variant)))
    write_json_atomically(RESULTS / f"{name}.json", content)


def _names(text: str) -> tuple[str, ...]:
    return tuple(text.split(","))


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(number) for number in text.split(","))


if __name__ == "__main__":
    only_errors()
    main()
