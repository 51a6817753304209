"""Board games in runs: snapshots, random openings, self-play only where it is understood, training and evaluation."""

from __future__ import annotations

import json
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from board_parts import KINDS, TICTACTOE
from harness import assert_same_run, evaluation_rows, tiny_config, train_with_stops
from planning_runs import tiny_run
from rl_training.cli import main
from rl_training.envs.make import make_slots
from rl_training.errors import ConfigError
from rl_training.runtime.workflows import train

AGAINST_RANDOM = {"opponent": "random"}


@pytest.mark.parametrize(
    ("algo", "two_player", "env_kwargs", "complaint"),
    [
        ("ppo", None, {}, "ppo learns for one player, and two take turns in"),
        ("muzero", False, {}, "algo_kwargs.two_player: two players take turns in"),
        ("muzero", True, AGAINST_RANDOM, "algo_kwargs.two_player: a single player acts in"),
        ("muzero", True, {}, "env_kwargs.evaluation: .* would be evaluated by self-play"),
    ],
)
def test_self_play_is_for_those_who_understand_it(
    algo: str, two_player: bool | None, env_kwargs: dict[str, Any], complaint: str, tmp_path: Any
) -> None:
    settings = {} if two_player is None else {"two_player": two_player}
    make = tiny_config if algo == "ppo" else tiny_run
    arguments: dict[str, Any] = {"env_kwargs": env_kwargs, "algo_kwargs": settings, "env_id": TICTACTOE, "algo": algo}
    with pytest.raises(ConfigError, match=complaint):
        train(make(tmp_path, **arguments))
    assert not list(tmp_path.iterdir())


def test_self_play_trains_and_is_evaluated_against_an_opponent(tmp_path: Any) -> None:
    env_kwargs = {"opening_moves": 3, "evaluation": AGAINST_RANDOM}
    config = tiny_run(tmp_path, "gumbel_muzero", TICTACTOE, env_kwargs=env_kwargs, algo_kwargs={"two_player": True})
    result = train(config)
    assert result.status == "completed"
    assert -1 <= result.metrics["eval_return_mean"] <= 1


@pytest.mark.parametrize("moves_before", [3, 5])
@pytest.mark.parametrize(("env_id", "opponent"), KINDS)
def test_a_restored_game_goes_on_as_the_original_does(env_id: str, opponent: str | None, moves_before: int) -> None:
    original, fresh = make_slots(env_id, {"opponent": opponent}, mode="training", count=2)
    generator = np.random.default_rng(1)
    _, mask = original.reset(5)
    for _ in range(moves_before):
        assert mask is not None
        step = original.step(int(generator.choice(np.flatnonzero(mask))))
        mask = original.reset()[1] if step.terminated else step.action_mask
    state = original.snapshot()
    assert state is not None
    fresh.restore(json.loads(json.dumps(state)))
    ends = 0
    while ends < 3:
        assert mask is not None
        move = int(generator.choice(np.flatnonzero(mask)))
        step, twin = original.step(move), fresh.step(move)
        for ours, theirs in zip(step, twin, strict=True):
            if not isinstance(ours, list):
                np.testing.assert_array_equal(ours, theirs)
        mask = step.action_mask
        if step.terminated:
            ends += 1
            (observation, mask), (twin_observation, twin_mask) = original.reset(), fresh.reset()
            np.testing.assert_array_equal(observation, twin_observation)
            np.testing.assert_array_equal(mask, twin_mask)


def test_games_begin_with_random_moves_that_differ_and_repeat_by_seed() -> None:
    def openings(opponent: str | None) -> list[int]:
        env = gym.make(TICTACTOE, opening_moves=6, opponent=opponent)
        return [int(env.reset(seed=seed)[0].sum()) for seed in range(200)]

    stones = openings(None)
    assert set(stones) == set(range(7))  # zero to six stones, each number now and then
    assert stones == openings(None)
    assert set(openings("random")) == set(range(8))  # and an opponent's first move


@pytest.mark.parametrize("opponent", [None, "random"])
def test_an_opening_leaves_a_move_to_make(opponent: str | None) -> None:
    # Nine random moves, or the opponent's reply to fewer, fill the board or end the game: such openings are drawn anew.
    env = gym.make(TICTACTOE, opening_moves=9, opponent=opponent)
    for seed in range(300):
        observation, info = env.reset(seed=seed)
        assert info["action_mask"].sum() == 9 - observation.sum() > 0


def test_the_agent_moves_first_after_an_opening_where_it_begins() -> None:
    env = gym.make(TICTACTOE, opening_moves=4, opponent="random")
    for seed in range(100):
        _, info = env.reset(seed=seed)
        game: Any = env.unwrapped
        if info["agent_first"]:
            assert len(game._moves) <= 4
        else:
            assert 1 <= len(game._moves) <= 5


@pytest.mark.parametrize("moves", [-1, 1.5, True])
def test_an_opening_is_a_number_of_moves(moves: Any) -> None:
    with pytest.raises(ConfigError, match=r"env_kwargs\.opening_moves: must be an integer >= 0"):
        gym.make(TICTACTOE, opening_moves=moves)


def test_a_stopped_run_ends_as_one_that_was_not(tmp_path: Any) -> None:
    def config(name: str) -> Any:
        env_kwargs = {"opponent": "random", "evaluation": {"opponent": "perfect"}}
        return tiny_config(tmp_path / name, env_id=TICTACTOE, total_timesteps=160, env_kwargs=env_kwargs)

    assert_same_run(train_with_stops(config("stopped"), [13, 31]), train(config("straight")).run_dir)


def test_ppo_trains_against_one_opponent_and_is_evaluated_against_another(
    tmp_path: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "game.yaml").write_text(
        f"""
algo: ppo
env_id: {TICTACTOE}
seed: 1
total_timesteps: 2000
output_dir: {tmp_path / "runs"}
num_envs: 4
eval_episodes: 20
tracking: {{tensorboard: false}}
algo_kwargs: {{num_steps: 64, hidden_sizes: [32]}}
env_kwargs: {{opponent: random, evaluation: {{opponent: perfect}}}}
"""
    )
    assert main(["train", "--config", str(tmp_path / "game.yaml")]) == 0
    (run_dir,) = (tmp_path / "runs").iterdir()
    returns = [episode["return"] for episode in evaluation_rows(run_dir)]
    assert len(returns) == 20
    assert max(returns) <= 0.0  # so young a policy beats the random player at times, the perfect one never
    capsys.readouterr()
    assert main(["eval", "--checkpoint", str(run_dir), "--num-episodes", "40", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["metrics"]["eval_return_max"] <= 0.0
