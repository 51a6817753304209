"""Wrappers by name, texts that are left out, and observations that are flattened or refused with their repair."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

from harness import tiny_config
from rl_training.envs.make import check_environment, make_slots, make_vector_env
from rl_training.envs.wrapping import ignored_texts
from rl_training.errors import ConfigError
from rl_training.experiment.configuration.env_params import check_env_kwargs
from rl_training.experiment.own_code.user_code import admit
from rl_training.experiment.runs import read_metadata
from rl_training.runtime.workflows import evaluate, train

HERE = "test_env_wrapping"
NUMBERS = spaces.Box(-1.0, 1.0, (2,), np.float32)
CHOICE = spaces.Discrete(3)


class Mixed(gym.Env[Any, Any]):
    """Shows whatever space it is made with, at random, and ends after five steps."""

    def __init__(self, kind: str = "text") -> None:
        entries: dict[str, gym.Space[Any]] = {"numbers": NUMBERS, "choice": CHOICE}
        added: dict[str, gym.Space[Any]] = {
            "text": spaces.Text(8),
            "sequence": spaces.Sequence(NUMBERS),
            "nested": spaces.Dict({"inner": NUMBERS}),
        }
        if kind == "tuple":
            self.observation_space: gym.Space[Any] = spaces.Tuple((NUMBERS, CHOICE))
        elif kind == "only text":
            self.observation_space = spaces.Dict({"text": spaces.Text(8)})
        else:
            self.observation_space = spaces.Dict({**entries, kind: added[kind]})
        self.action_space = spaces.Discrete(2)
        self.steps = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.steps = 0
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        return self.observation_space.sample(), 1.0, self.steps == 5, False, {}


class Doubled(gym.RewardWrapper[Any, Any]):
    """Multiplies the reward."""

    def __init__(self, env: gym.Env[Any, Any], factor: float = 2.0) -> None:
        super().__init__(env)
        self.factor = factor

    def reward(self, reward: Any) -> float:
        return float(reward) * self.factor


class NoWrapper:
    """A class that wraps nothing."""


def test_a_text_is_left_out_of_a_dict_observation() -> None:
    (slot,) = make_slots(f"{HERE}:Mixed", {}, mode="training", count=1)
    assert ignored_texts(slot.env) == ("text",)
    assert isinstance(slot.observation_space, spaces.Dict)
    assert set(slot.observation_space.spaces) == {"numbers", "choice"}
    assert slot.reset(1)[0].keys() == {"numbers", "choice"}
    assert slot.step(0).obs.keys() == {"numbers", "choice"}


def test_a_run_records_that_a_text_was_left_out(tmp_path: Path) -> None:
    result = train(tiny_config(tmp_path, env_id=f"{HERE}:Mixed", total_timesteps=64))
    (notice,) = [text for text in read_metadata(result.run_dir)["notices"] if "is a text" in text]
    assert "`text`" in notice
    assert "left out" in notice


@pytest.mark.parametrize(
    ("kind", "repair"),
    [
        ("sequence", "filter_keys: [choice, numbers]"),
        ("nested", "flatten_observation"),
        ("tuple", "flatten_observation"),
        ("only text", "flatten_observation"),
    ],
)
def test_an_observation_that_no_network_reads_is_refused_with_the_wrapper_that_repairs_it(
    kind: str, repair: str
) -> None:
    with pytest.raises(ConfigError, match="is not supported") as caught:
        check_environment(f"{HERE}:Mixed", {"kind": kind})
    assert repair in str(caught.value)


def test_the_named_repair_of_a_sequence_works() -> None:
    wrapper = {"use": "gymnasium.wrappers:FilterObservation", "filter_keys": ["choice", "numbers"]}
    space, _ = check_environment(f"{HERE}:Mixed", {"kind": "sequence", "wrappers": [wrapper]})
    assert isinstance(space, spaces.Dict)
    assert set(space.spaces) == {"numbers", "choice"}


@pytest.mark.parametrize(("kind", "size"), [("text", 5), ("nested", 7), ("tuple", 5)])
def test_a_flattened_observation_is_one_vector_without_texts(kind: str, size: int) -> None:
    space, _ = check_environment(f"{HERE}:Mixed", {"kind": kind, "flatten_observation": True})
    assert space.shape == (size,)


def test_returns_are_counted_above_the_wrappers() -> None:
    wrappers = [f"{HERE}:Doubled", {"use": f"{HERE}:Doubled", "factor": 10.0}]
    (slot,) = make_slots(f"{HERE}:Mixed", {"wrappers": wrappers}, mode="training", count=1)
    slot.reset(1)
    steps = [slot.step(0) for _ in range(5)]
    assert steps[0].reward == 20.0
    assert [episode.episode_return for episode in steps[-1].episodes] == [100.0]


def test_evaluation_may_have_other_wrappers() -> None:
    kwargs = {"training": {"wrappers": [f"{HERE}:Doubled"]}}
    for mode, reward in (("training", 2.0), ("evaluation", 1.0)):
        (slot,) = make_slots(f"{HERE}:Mixed", kwargs, mode=mode, count=1)  # type: ignore[arg-type]
        slot.reset(1)
        assert slot.step(0).reward == reward


@pytest.mark.parametrize(
    ("wrappers", "message"),
    [
        ([f"{HERE}:NoWrapper"], "wraps no environment; name a subclass of gymnasium.Wrapper"),
        ([f"{HERE}:Missing"], "has no `Missing`"),
        ([{"use": f"{HERE}:Doubled", "facter": 1}], "does not take these arguments"),
        (["no_such_module:Wrapper"], "cannot import `no_such_module`"),
        (["gymnasium.wrappers:FlattenObservation", "gymnasium.wrappers:GrayscaleObservation"], "cannot wrap this"),
    ],
)
def test_a_wrapper_that_does_not_work_is_named_with_its_key(wrappers: list[Any], message: str) -> None:
    if wrappers == [f"{HERE}:NoWrapper"]:
        admit(f"{HERE}:NoWrapper", place="env_kwargs.wrappers.0")  # as written by a user
    with pytest.raises(ConfigError, match=r"env_kwargs\.wrappers\.[01]") as caught:
        check_environment(f"{HERE}:Mixed", {"wrappers": wrappers})
    assert message in str(caught.value)


@pytest.mark.parametrize("entry", ["NoModule", {"factor": 2}, {"use": 3}])
def test_an_entry_that_names_no_class_is_a_problem_of_the_configuration(entry: Any) -> None:
    _, problems = check_env_kwargs({"wrappers": [entry]})
    assert [problem.path[:3] for problem in problems] == [("env_kwargs", "wrappers", "0")]


@pytest.mark.parametrize("key", ["wrappers", "flatten_observation"])
def test_the_vector_form_of_cartpole_does_not_replace_a_wrapped_one(key: str) -> None:
    kwargs = {"wrappers": ["gymnasium.wrappers:FlattenObservation"]} if key == "wrappers" else {key: True}
    with pytest.raises(ConfigError, match=f"does not take {key}"):
        make_vector_env("CartPole-v1", kwargs, mode="training", num_envs=8, backend="vector")
    env = make_vector_env("CartPole-v1", kwargs, mode="training", num_envs=8, backend="auto")
    assert type(env).__name__ == "SyncVectorEnv"
    env.close()


def test_a_wrapper_in_a_file_of_the_user_serves_training_workers_and_evaluation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    code = ["import gymnasium", "class Halved(gymnasium.RewardWrapper):", "    def reward(self, r): return r / 2"]
    (tmp_path / "halving.py").write_text("\n".join(code), encoding="utf-8")
    config = tiny_config(
        tmp_path / "runs",
        total_timesteps=64,
        execution_backend="local_async",
        env_kwargs={"wrappers": ["halving.py:Halved"], "max_episode_steps": 8},
    )
    result = train(config)
    assert [record["name"] for record in read_metadata(result.run_dir)["user_code"]] == ["halving.py:Halved"]
    assert evaluate(result.run_dir, num_episodes=2).metrics["eval_return_max"] <= 4.0
