"""MinAtar's games by their ids: repeatable by seed, savable at any step, learned from as images."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.envs import registration

from harness import assert_same_run, require, tiny_config, train_with_stops
from rl_training.envs.lookup import find_spec
from rl_training.envs.make import check_environment, make_slots
from rl_training.envs.slot import EnvSlot
from rl_training.envs.spaces import image_layout, observation_kind
from rl_training.errors import ConfigError, MissingExtraError
from rl_training.install_hint import install_hint
from rl_training.runtime.workflows import train

BREAKOUT = "MinAtar/Breakout-v1"
GAMES = [f"MinAtar/{game}-v1" for game in ("Asterix", "Breakout", "Freeway", "Seaquest", "SpaceInvaders")]
RIGHT = 2  # of Breakout's nothing, left, right


def test_a_missing_package_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(registration.registry, BREAKOUT, raising=False)
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "minatar" else found(name))
    with pytest.raises(MissingExtraError, match="environment `MinAtar/Breakout-v1` needs the extra") as error:
        check_environment(BREAKOUT, {})
    assert install_hint("minatar") in str(error.value)
    assert error.value.extra == "minatar"


@pytest.fixture(autouse=True)
def _with_minatar(request: pytest.FixtureRequest) -> None:
    if "missing" not in request.node.name:
        require(BREAKOUT)


def _slot(env_id: str = BREAKOUT, **env_kwargs: Any) -> EnvSlot:
    return make_slots(env_id, env_kwargs, mode="training", count=1)[0]


def _trace(slot: EnvSlot, seed: int, actions: np.ndarray) -> list[Any]:
    """Return what a slot shows after a seed, through as many episodes as there are."""
    shown = [slot.reset(seed)[0]]
    for action in actions:
        step = slot.step(action)
        shown.append((step.obs, step.reward, step.terminated))
        if step.terminated or step.truncated:
            shown.append(slot.reset()[0])
    return shown


@pytest.mark.parametrize("env_id", GAMES)
def test_every_game_shows_an_image_of_booleans(env_id: str) -> None:
    observation_space, _ = check_environment(env_id, {})
    assert observation_space.dtype == np.bool_
    assert observation_kind(observation_space) == "image"
    layout = image_layout(observation_space.shape or ())  # Seaquest has as many channels as rows
    assert (layout.height, layout.width, layout.channel_axis) == (10, 10, "last")


def test_a_version_offers_all_actions_or_the_games_own() -> None:
    assert check_environment("MinAtar/Breakout-v0", {})[1] == spaces.Discrete(6)
    assert check_environment(BREAKOUT, {})[1] == check_environment("MinAtar/Breakout", {})[1] == spaces.Discrete(3)


def test_games_that_somebody_else_has_registered_are_the_same() -> None:
    assert registration.registry[BREAKOUT].entry_point == "minatar.gym:BaseEnv"
    assert find_spec(BREAKOUT).entry_point == "rl_training.envs.families.minatar:MinAtarEnv"


def test_an_argument_that_no_game_takes_is_refused_with_the_nearest() -> None:
    with pytest.raises(ConfigError, match=r"env_kwargs.sticky_action_probability.*`sticky_action_prob`"):
        check_environment(BREAKOUT, {"sticky_action_probability": 0.0})
    with pytest.raises(ConfigError, match=r"MinAtar/Breakout-v1"):
        check_environment("MinAtar/Brekout-v1", {})


@pytest.mark.parametrize("env_id", GAMES)
def test_a_seed_decides_everything_that_follows(env_id: str) -> None:
    used, fresh, other = (_slot(env_id, max_episode_steps=40) for _ in range(3))
    actions = np.random.default_rng(0).integers(0, 3, 120)
    _trace(used, 3, actions)
    first = _trace(used, 5, actions)
    np.testing.assert_equal(first, _trace(fresh, 5, actions))
    with pytest.raises(AssertionError):
        np.testing.assert_equal(first, _trace(other, 6, actions))


def test_no_action_of_an_earlier_episode_sticks_after_a_seed() -> None:
    slot = _slot(sticky_action_prob=1.0)  # only the last action is ever played
    slot.reset(0)
    game: Any = slot.env.unwrapped
    game.game.last_action = game.action_set[RIGHT]
    assert _paddle(slot.step(0).obs) == 5
    slot.reset(0)
    assert _paddle(slot.step(RIGHT).obs) == 4


def _paddle(observation: np.ndarray) -> int:
    return int(observation[9, :, 0].argmax())


def test_the_last_action_is_part_of_a_snapshot() -> None:
    original, fresh = _slot(sticky_action_prob=0.0), _slot(sticky_action_prob=1.0)
    original.reset(0)
    assert _paddle(original.step(RIGHT).obs) == 5
    state = original.snapshot()
    assert state is not None
    fresh.restore(state)
    assert _paddle(fresh.step(0).obs) == 6


def test_a_snapshot_before_any_seed_continues_identically() -> None:
    original, fresh = _slot("MinAtar/Asterix-v1"), _slot("MinAtar/Asterix-v1")
    original.reset()
    state = original.snapshot()
    assert state is not None
    fresh.restore(state)
    for _ in range(60):
        ours, theirs = original.step(0), fresh.step(0)
        np.testing.assert_equal(ours, theirs)
        if ours.terminated:
            np.testing.assert_equal(original.reset(), fresh.reset())


def test_a_picture_is_made_of_bytes() -> None:
    (slot,) = make_slots(BREAKOUT, {}, mode="evaluation", count=1, render_mode="rgb_array")
    slot.reset(0)
    picture: Any = slot.env.render()
    assert (picture.shape, picture.dtype) == ((160, 160, 3), np.uint8)
    assert (picture[:16] == 0).all()  # nothing in the top row
    brick = picture[16:32, :16].reshape(-1, 3)
    assert (brick == brick[0]).all()
    assert brick[0].max() > 100


def test_a_run_that_is_stopped_inside_episodes_ends_as_one_that_was_not(tmp_path: Path) -> None:
    changes: dict[str, Any] = {
        "algo": "dqn",
        "env_id": BREAKOUT,
        "total_timesteps": 160,
        "eval_episodes": 20,  # some environments play more than one of them
        "env_kwargs": {"max_episode_steps": 30},
        "algo_kwargs": {"buffer_size": 64, "learning_starts": 32, "batch_size": 8, "hidden_sizes": [8]},
    }
    straight = train(tiny_config(tmp_path / "straight", **changes))
    assert straight.metrics["global_step"] == 160
    assert_same_run(train_with_stops(tiny_config(tmp_path / "stopped", **changes), [25, 9]), straight.run_dir)
