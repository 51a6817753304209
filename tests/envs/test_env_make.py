"""Which backend runs an environment, and what every mistake in naming one is told."""

from __future__ import annotations

import importlib.util
import re
import sys
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.envs import registration

from rl_training.envs.families.vector_cartpole import VectorCartPole
from rl_training.envs.lookup import find_spec
from rl_training.envs.make import check_environment, make_slots, make_vector_env
from rl_training.envs.vector import SyncVectorEnv
from rl_training.envs.workers.async_vector import AsyncVectorEnv
from rl_training.envs.workers.backend_choice import resolve_backend
from rl_training.errors import ConfigError, EnvironmentFailure, MissingExtraError
from rl_training.experiment.configuration.env_params import Mode
from rl_training.experiment.env_packages import extra_of_package
from rl_training.install_hint import install_hint


@pytest.mark.parametrize(
    ("env_id", "env_kwargs", "backend", "num_envs", "chosen", "reason"),
    [
        ("CartPole-v1", {}, "auto", 8, "vector", "its own vector entry point"),
        ("CartPole-v1", {"normalize_reward": True}, "auto", 8, "vector", "its own vector entry point"),
        ("CartPole-v1", {"sutton_barto_reward": True}, "auto", 8, "vector", "its own vector entry point"),
        ("CartPole-v1", {}, "auto", 1, "local_sync", "faster only from"),
        ("CartPole-v1", {}, "vector", 1, "vector", "asked for"),
        ("CartPole-v1", {"frame_stack": 4}, "auto", 8, "local_sync", "does not take frame_stack"),
        ("CartPole-v1", {"render_mode": "rgb_array"}, "auto", 8, "local_sync", "does not take render_mode"),
        ("CartPole-v1", {}, "local_sync", 8, "local_sync", "asked for"),
        ("CartPole-v1", {}, "local_async", 8, "local_async", "asked for"),
        ("Pendulum-v1", {}, "auto", 8, "local_sync", "no vector entry point"),
        ("ALE/Pong-v5", {}, "auto", 8, "local_sync", "no adapter"),
    ],
)
def test_backend_and_reason(
    env_id: str, env_kwargs: dict[str, Any], backend: str, num_envs: int, chosen: str, reason: str
) -> None:
    name, why = resolve_backend(env_id, env_kwargs, backend, num_envs)
    assert name == chosen
    assert reason in why


def test_backend_for_evaluation_follows_the_evaluation_block() -> None:
    env_kwargs = {"evaluation": {"render_mode": "rgb_array"}}
    assert resolve_backend("CartPole-v1", env_kwargs, "auto", 8)[0] == "vector"
    assert resolve_backend("CartPole-v1", env_kwargs, "auto", 8, mode="evaluation")[0] == "local_sync"


@pytest.mark.parametrize(
    ("backend", "kind"),
    [("auto", VectorCartPole), ("local_sync", SyncVectorEnv), ("local_async", AsyncVectorEnv)],
)
def test_every_backend_has_the_spaces_of_one_environment(backend: str, kind: type) -> None:
    env = make_vector_env("CartPole-v1", {"num_workers": 1}, mode="training", num_envs=5, backend=backend)
    assert isinstance(env, kind)
    observation_space, action_space = check_environment("CartPole-v1", {})
    assert env.num_envs == 5
    assert env.observation_space == observation_space
    assert env.action_space == action_space
    env.close()


@pytest.mark.parametrize(
    ("env_id", "env_kwargs", "words"),
    [
        ("CartPol-v1", {}, ["unknown environment `CartPol-v1`", "`CartPole-v1`"]),
        ("ALE/Pog-v5", {}, ["`ALE/Pong-v5`"]),
        ("PogNoFrameskip-v4", {}, ["`PongNoFrameskip-v4`"]),
        ("Zzyzx-v77", {}, ["`package.module:Name`", "`path/to/file.py:Name`"]),
        ("no such id!", {}, ["unknown environment"]),
        ("LunarLander-v2", {}, ["no longer available", "use `LunarLander-v3`"]),
        ("HalfCheetah-v3", {}, ["no longer available", "use `HalfCheetah-v5`"]),
        ("HalfCheetah-v9", {}, ["no such version", "use `HalfCheetah-v5`"]),
        ("no_such_module:Env-v0", {}, ["cannot import `no_such_module`", "working directory"]),
        ("CartPole-v1", {"frame_stak": 4}, ["env_kwargs.frame_stak", "`frame_stack`"]),
        ("CartPole-v1", {"suton_barto_reward": True}, ["`sutton_barto_reward`"]),
        ("HalfCheetah-v5", {"forward_weight": 1}, ["env_kwargs.forward_weight", "`forward_reward_weight`"]),
        (
            "CartPole-v1",
            {"evaluation": {"gravity": 9}},
            ["env_kwargs.gravity", "it takes render_mode, sutton_barto_reward"],
        ),
        ("FrozenLake-v1", {"map_name": "9x9"}, ["FrozenLake-v1", "map_name='9x9'"]),
        ("HalfCheetah-v5", {"xml_file": "nowhere.xml"}, ["nowhere.xml", "does not exist"]),
        ("CartPole-v1", {"atari": True}, ["not an Atari game"]),
        ("ALE/Pong-v5", {"atari": True, "frameskip": 4}, ["env_kwargs.frameskip", "`frame_skip`"]),
        ("Blackjack-v1", {}, ["observation space", "Tuple"]),
        ("env_samples:Sample/Tupled-v0", {}, ["observation space", "Tuple"]),
        ("env_samples:Sample/Nested-v0", {}, ["key `inner`", "flat Dict"]),
        ("env_samples:Sample/TupledAction-v0", {}, ["action space", "Tuple"]),
        ("CartPole-v1", {"evaluation": {"frame_stack": 4}}, ["evaluation", "training", "(4, 4)"]),
    ],
)
def test_a_mistake_is_named_with_its_repair(env_id: str, env_kwargs: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(ConfigError) as error:
        check_environment(env_id, env_kwargs)
    for word in words:
        assert word in str(error.value)


def test_unknown_backend_suggests_the_nearest() -> None:
    with pytest.raises(ConfigError, match="`local_sync`"):
        resolve_backend("CartPole-v1", {}, "local_snyc", 1)


def test_vector_backend_without_adapter_is_refused_with_its_reason() -> None:
    with pytest.raises(ConfigError, match="no vector entry point; use `auto`"):
        resolve_backend("Pendulum-v1", {}, "vector", 4)


@pytest.mark.parametrize(
    ("env_id", "missing", "extra"),
    [
        ("HalfCheetah-v5", "mujoco", "mujoco"),
        ("LunarLander-v3", "Box2D", "box2d"),
    ],
)
def test_missing_dependency_names_the_extra(
    monkeypatch: pytest.MonkeyPatch, env_id: str, missing: str, extra: str
) -> None:
    for module in list(sys.modules):
        if module.split(".")[0] == missing or module.startswith(f"gymnasium.envs.{extra}"):
            monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(MissingExtraError) as error:
        check_environment(env_id, {})
    assert error.value.extra == extra


@pytest.mark.parametrize(("module", "extra"), [("gymnasium_robotics", "robotics"), ("shimmy", "dmc")])
def test_a_missing_module_of_an_extra_names_the_extra(module: str, extra: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(MissingExtraError) as error:
        check_environment(f"{module}:Any-v0", {})
    assert error.value.extra == extra


@pytest.mark.parametrize(("module", "extra"), [("gymnasium_robotics", "robotics"), ("shimmy", "dmc")])
def test_an_environment_that_fails_with_the_installed_mujoco_names_the_range_it_needs(
    module: str, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fetch and dm_control fail in their constructors, with errors that do not say why."""

    def broken(**arguments: Any) -> gym.Env[Any, Any]:
        raise AssertionError

    broken.__module__ = f"{module}.registration"
    monkeypatch.setitem(registration.registry, "Broken-v0", registration.EnvSpec("Broken-v0", partial(broken)))
    monkeypatch.setattr("importlib.metadata.version", lambda name: "4.0.0")
    with pytest.raises(ConfigError) as error:
        check_environment("Broken-v0", {})
    assert re.search(r"it needs mujoco<\S+, 4\.0\.0 is installed", str(error.value))
    assert install_hint(extra) in str(error.value)
    monkeypatch.setattr("importlib.metadata.version", lambda name: "3.11.0")
    with pytest.raises(EnvironmentFailure, match="AssertionError"):
        check_environment("Broken-v0", {})


@pytest.mark.parametrize("env_id", ["ALE/Pong-v5", "PongNoFrameskip-v4"])
def test_missing_atari_names_the_extra(monkeypatch: pytest.MonkeyPatch, env_id: str) -> None:
    monkeypatch.delitem(registration.registry, env_id, raising=False)
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "ale_py" else found(name))
    with pytest.raises(MissingExtraError) as error:
        check_environment(env_id, {})
    assert error.value.extra == "atari"


def test_missing_opencv_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cv2", None)
    with pytest.raises(MissingExtraError) as error:
        check_environment("ALE/Pong-v5", {"atari": True})
    assert error.value.extra == "atari"


def test_module_with_a_bug_is_reported_with_its_cause(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "needs_more.py").write_text("import not_installed_anywhere\n")
    (tmp_path / "is_broken.py").write_text("raise KeyError('oops')\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigError, match="missing module `not_installed_anywhere`"):
        check_environment("needs_more:Env-v0", {})
    with pytest.raises(ConfigError, match="KeyError: 'oops'"):
        check_environment("is_broken:Env-v0", {})


def test_environment_of_a_users_module_can_be_made_by_name() -> None:
    observation_space, action_space = check_environment("env_samples:Sample/Diary-v0", {"longest": 3})
    assert observation_space.shape == (3,)
    assert action_space == gym.spaces.Discrete(3)


def test_environment_without_version_is_the_newest() -> None:
    assert make_slots("CartPole", {}, mode="training", count=1)[0].env.spec is not None
    assert check_environment("CartPole", {}) == check_environment("CartPole-v1", {})


def test_environment_that_breaks_when_made_shows_its_traceback() -> None:
    with pytest.raises(EnvironmentFailure, match="the floor gave way"):
        check_environment("env_samples:Sample/Trouble-v0", {"when": "made"})


def test_observation_that_does_not_fit_its_space_is_refused_at_the_first_reset() -> None:
    slot = make_slots("env_samples:Sample/WrongShape-v0", {}, mode="training", count=1)[0]
    with pytest.raises(EnvironmentFailure, match=r"shape \(1,\); its observation space says \(3,\)"):
        slot.reset(0)


def test_observation_that_is_no_dict_is_refused_where_the_space_says_one() -> None:
    slot = make_slots("env_samples:Sample/NotADict-v0", {}, mode="training", count=1)[0]
    with pytest.raises(EnvironmentFailure, match=r"gave a ndarray as observation; .* a Dict with the keys speed"):
        slot.reset(0)


def test_evaluation_keys_override_the_shared_ones() -> None:
    env_kwargs = {"max_episode_steps": 5, "evaluation": {"max_episode_steps": 7}}
    lengths = []
    modes: tuple[Mode, ...] = ("training", "evaluation")
    for mode in modes:
        slot = make_slots("Pendulum-v1", env_kwargs, mode=mode, count=1)[0]
        slot.reset(0)
        steps = 0
        while True:
            steps += 1
            if slot.step(np.zeros(1, np.float32)).truncated:
                break
        lengths.append(steps)
    assert lengths == [5, 7]


def test_rendered_frames_are_available_for_a_video() -> None:
    slot = make_slots("CartPole-v1", {}, mode="evaluation", count=1, render_mode="rgb_array")[0]
    slot.reset(0)
    frame = slot.env.render()
    assert isinstance(frame, np.ndarray)
    assert frame.ndim == 3
    slot.close()


def test_simulators_write_nothing_into_the_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    make_slots("HalfCheetah-v5", {}, mode="training", count=1)[0].reset(0)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("env_id", "package", "extra"),
    [
        ("dm_control/cartpole-swingup-v0", "shimmy", "dmc"),
        ("MiniGrid-Empty-8x8-v0", "minigrid", "minigrid"),
        ("BabyAI-GoToLocal-v0", "minigrid", "minigrid"),
        ("popgym-RepeatFirstEasy-v0", "popgym", "popgym"),
        ("FetchReach-v4", "gymnasium_robotics", "robotics"),
        ("PointMaze_UMaze-v3", "gymnasium_robotics", "robotics"),
        ("parking-v0", "highway_env", "highway"),
        ("pettingzoo:mpe2.simple_spread_v3", "pettingzoo", "pettingzoo"),
    ],
)
def test_an_id_of_a_package_that_is_missing_names_its_extra(
    env_id: str, package: str, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    known = {name: spec for name, spec in gym.registry.items() if name != env_id}
    monkeypatch.setattr(registration, "registry", known)
    with pytest.raises(MissingExtraError) as caught:
        find_spec(env_id)
    assert caught.value.extra == extra
    assert extra_of_package(env_id) == extra
