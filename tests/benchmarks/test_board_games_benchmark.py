"""Games of a policy against opponents: as many from each side, counted from the agent's view."""

from __future__ import annotations

import argparse
import itertools
import json
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from board_games import command, main, play, settings, training_config
from board_parts import CONNECT_FOUR, TICTACTOE
from harness import stopped_after
from learning import differences
from records import RESULTS
from rl_training.experiment.configuration.config_files import load_config

pytest.importorskip("pettingzoo")


class FirstLegal:
    """Plays the first legal move, and remembers how many games it played at once."""

    memory_size = 0

    def __init__(self) -> None:
        self.at_once: list[int] = []

    def act(self, observation: np.ndarray, mask: np.ndarray, generator: None, memory: None) -> tuple[np.ndarray, None]:
        self.at_once.append(len(observation))
        return mask.argmax(axis=1), None


def played(env_id: str, opponent: str, games: int = 20) -> tuple[dict[str, Any], FirstLegal]:
    policy = FirstLegal()
    result = play(policy, env_id, {"opening_moves": 2}, opponent, games)  # type: ignore[arg-type]
    return result, policy


def test_each_side_plays_as_many_games_and_nobody_beats_a_perfect_player() -> None:
    result, policy = played(TICTACTOE, "perfect")
    assert result["games_per_side"] == 20
    for side in ("first", "second"):
        assert sum(result[side].values()) == 20
        assert result[side]["wins"] == 0
        assert result[side]["losses"] > 0
    assert max(policy.at_once) == 32
    assert policy.at_once[-1] < 32


def test_an_opponent_s_depth_is_part_of_its_name() -> None:
    # A stack in the first column wins unless it is seen coming, three moves ahead.
    shallow, _ = played(CONNECT_FOUR, "random", 10)
    deep, _ = played(CONNECT_FOUR, "depth-limited:3", 10)
    assert shallow["first"]["wins"] > 5
    assert deep["first"]["wins"] == 0
    assert deep["opponent"] == "depth-limited:3"


def test_games_from_random_openings_differ() -> None:
    def winners(opening_moves: int) -> dict[str, int]:
        result = play(FirstLegal(), TICTACTOE, {}, "perfect", 20, opening_moves)  # type: ignore[arg-type]
        return dict(result["first"])

    assert winners(0) == {"wins": 0, "draws": 0, "losses": 20}
    # Some random positions are lost even for a perfect player.
    assert winners(6)["losses"] < 20


def test_what_a_run_keeps_does_not_decide_what_it_learns() -> None:
    preset = "gumbel_muzero-connectfour"
    plain, kept = (load_config(preset=preset, set_values=values) for values in ((), ("keep_checkpoints=null",)))
    other = load_config(preset=preset, set_values=("algo_kwargs.n_step=7",))
    assert settings(plain) == settings(kept) != settings(other)


def test_checkpoints_that_are_to_play_are_kept() -> None:
    names = {"preset": "gumbel_muzero-connectfour", "seed": 3, "output_dir": Path("runs"), "set": []}
    options = argparse.Namespace(**names, checkpoints=10)
    config = training_config(options)
    assert (config.seed, config.keep_checkpoints, config.checkpoint_interval) == (3, None, config.total_timesteps // 10)
    options.checkpoints = 0
    assert training_config(options) == load_config(preset=options.preset, set_values=("seed=3", "output_dir=runs"))
    options.set = ["algo_kwargs.grid=null"]
    assert training_config(options).algo_kwargs["grid"] is None


def test_the_stored_command_repeats_the_games() -> None:
    class Options:
        preset, seed, games, opponents, simulations, checkpoints = "p", 1, 5, ("random",), (8, 16), 10
        opening_moves = 4
        set: tuple[str, ...] = ()
        variant: str | None = None

    words = (
        "python benchmarks/board_games.py --preset p --seed 1 --games 5 --opponents random --simulations 8,16 "
        "--checkpoints 10 --opening-moves 4"
    )
    assert command(Options) == words  # type: ignore[arg-type]
    Options.set, Options.variant = ("a={type: linear}", "b=1"), "old"
    assert command(Options) == f"{words} --set 'a={{type: linear}}' --set b=1 --variant old"  # type: ignore[arg-type]


@pytest.mark.parametrize("path", sorted(RESULTS.glob("games-*.json")), ids=lambda path: path.stem)
def test_a_stored_command_trains_by_the_stored_settings(path: Path) -> None:
    stored = json.loads(path.read_text(encoding="utf-8"))
    words = shlex.split(stored["command"])
    given = {option: value for option, value in itertools.pairwise(words) if option.startswith("--")}
    changes = [value for option, value in itertools.pairwise(words) if option == "--set"]
    assert (given["--preset"], given.get("--variant")) == (stored["preset"], stored.get("variant"))
    trained = load_config(preset=stored["preset"], set_values=(*changes, f"seed={given['--seed']}"))
    assert not list(differences(stored["config"], json.loads(json.dumps(settings(trained)))))


def test_games_of_a_changed_preset_are_stored_by_another_name(capsys: pytest.CaptureFixture[str]) -> None:
    for half in (["--set", "algo_kwargs.grid=null"], ["--variant", "perceptrons"]):
        with pytest.raises(SystemExit):
            main(["--preset", "gumbel_muzero-connectfour", *half])
        assert "give both or neither" in capsys.readouterr().err


def test_a_training_that_stopped_before_its_end_plays_no_games(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("board_games.RESULTS", tmp_path)
    settings = ["--set", "total_timesteps=400", "--set", "num_envs=2", "--set", "algo_kwargs.num_simulations=2"]
    arguments = ["--preset", "gumbel_muzero-tictactoe", *settings, "--variant", "short", "--games", "1"]
    with stopped_after(20), pytest.raises(KeyboardInterrupt):
        main([*arguments, "--output-dir", str(tmp_path / "runs")])
    (run_dir,) = (tmp_path / "runs").iterdir()
    with pytest.raises(SystemExit):
        main([*arguments, "--run", str(run_dir)])
    assert f"{run_dir} is interrupted: resume it first" in capsys.readouterr().err
    assert not list(tmp_path.glob("*.json"))
