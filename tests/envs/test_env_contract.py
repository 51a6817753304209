"""What environments return against Gymnasium's rules: each fault is a sentence with the place and the repair."""

from __future__ import annotations

import logging
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from rl_training.envs import checks
from rl_training.envs.arrays import holds_dtype
from rl_training.envs.slot import EnvSlot
from rl_training.envs.vector import SyncVectorEnv
from rl_training.errors import EnvironmentFailure

BOX = gym.spaces.Box(-1, 1, (2,), np.float32)
GOOD = np.zeros(2, np.float32)
PARTS = gym.spaces.Dict({"a": BOX, "b": gym.spaces.Discrete(3)})
GOOD_PARTS = {"a": GOOD, "b": 1}


class Odd(gym.Env[Any, Any]):
    """Resets to `resets` and returns `results` from one step after the other."""

    def __init__(
        self,
        *results: Any,
        resets: Any = (GOOD, {}),
        space: gym.Space[Any] = BOX,
        actions: gym.Space[Any] | None = None,
    ) -> None:
        self.observation_space = space
        self.action_space = gym.spaces.Discrete(3) if actions is None else actions
        self._resets = resets
        self._results = list(results)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return self._resets

    def step(self, action: Any) -> Any:
        return self._results.pop(0)


def fault_of(env: gym.Env[Any, Any], steps: int = 1) -> str:
    """Return the message of the fault in the last of so many steps."""
    slot = EnvSlot(lambda: env, 2)
    slot.reset(7)
    for _ in range(steps - 1):
        slot.step(0)
    with pytest.raises(EnvironmentFailure) as caught:
        slot.step(0)
    assert "Traceback" not in str(caught.value)
    return str(caught.value)


def good(obs: Any = GOOD, reward: Any = 1.0, terminated: Any = False, truncated: Any = False, info: Any = None) -> Any:
    return obs, reward, terminated, truncated, {} if info is None else info


@pytest.mark.parametrize(
    ("space", "obs", "fault"),
    [
        (BOX, np.float32(0.5), "an observation of shape (); its observation space says (2,)"),
        (BOX, np.zeros((1, 2), np.float32), "an observation of shape (1, 2); its observation space says (2,)"),
        (BOX, None, "an observation of shape (); its observation space says (2,)"),
        (BOX, [[1.0], [1.0, 2.0]], "an observation that is no array"),
        (BOX, np.array(["a", "b"]), "an observation of <U1; its observation space says float32"),
        (
            gym.spaces.Box(0, 255, (2,), np.uint8),
            np.array([0.2, 0.9]),
            "an observation of float64; its observation space says uint8, which would lose what it means",
        ),
        (gym.spaces.Discrete(3), 3, "the observation 3; its observation space says Discrete(3)"),
        (gym.spaces.Discrete(3), 1.5, "an observation of float64; its observation space says int64"),
        (gym.spaces.MultiDiscrete([2, 2]), np.array([0, 2]), "the observation [0, 2]; its observation space says"),
        (PARTS, {"a": GOOD}, "an observation with the keys a; its observation space has the keys a, b"),
        (PARTS, {**GOOD_PARTS, "c": 0}, "an observation with the keys a, b, c; its observation space has the keys"),
        (PARTS, {"a": np.zeros(1), "b": 1}, "an observation `a` of shape (1,); its observation space says (2,)"),
    ],
)
def test_an_observation_that_does_not_fit_its_space_is_refused_at_any_step(
    space: gym.Space[Any], obs: Any, fault: str
) -> None:
    first: Any = GOOD_PARTS if space is PARTS else np.zeros(space.shape or (), space.dtype)
    env = Odd(good(first), good(obs), resets=(first, {}), space=space)
    message = fault_of(env, steps=2)
    assert message.startswith(f"environment 2 (seed 7), at step 2 of its episode, gave {fault}")
    assert message.endswith(("repair one of the two", "repair what it returns"))


def test_the_observation_of_every_reset_is_looked_at() -> None:
    env = Odd(good(terminated=True))
    slots = SyncVectorEnv([EnvSlot(lambda: env, 0)])
    slots.reset([7])
    env._resets = (np.float32(1), {})
    with pytest.raises(
        EnvironmentFailure, match=r"^environment 0 \(seed 7\), in reset, gave an observation of shape \(\); its"
    ):
        slots.step(np.zeros(1, int))


@pytest.mark.parametrize(
    ("wanted", "given", "kept"),
    [
        (np.float32, np.float64, True),
        (np.float32, np.int64, True),
        (np.uint8, np.int64, True),
        (np.int8, np.bool_, True),
        (np.uint8, np.float32, False),
        (np.float32, np.object_, False),
    ],
)
def test_numbers_of_another_type_are_taken_where_they_keep_their_meaning(wanted: Any, given: Any, kept: bool) -> None:
    assert holds_dtype(np.dtype(wanted), np.dtype(given)) is kept


@pytest.mark.parametrize(
    ("result", "fault"),
    [
        (good(reward=np.zeros(2)), "gave a reward of shape (2,); let step return a single number"),
        (good(reward=None), "gave None as reward; let step return a single number"),
        (good(reward="1"), "gave '1' as reward; let step return a single number"),
        (good(terminated=np.zeros(2, bool)), "gave array([False, False]) as terminated; let step return True or False"),
        (good(truncated=None), "gave None as truncated; let step return True or False"),
        ((GOOD, 1.0, False, False, None), "gave None as info; return a dict"),
        ((GOOD, 1.0, False, {}), "did not return five values from step"),
        (None, "returned no tuple from step"),
    ],
)
@pytest.mark.parametrize("limited", [False, True])
def test_a_step_that_returns_something_else_is_refused(result: Any, fault: str, limited: bool) -> None:
    env: gym.Env[Any, Any] = Odd(result)
    message = fault_of(gym.wrappers.TimeLimit(env, 9) if limited else env)
    assert message.startswith(f"environment 2 (seed 7), at step 1 of its episode, {fault}")


@pytest.mark.parametrize(
    ("resets", "fault"),
    [
        (GOOD, "returned a lone ndarray from reset; write `def reset(self, *, seed=None, options=None)` that returns"),
        (GOOD_PARTS, "returned a lone dict from reset; write"),
        ((GOOD, {}, 1), "returned 3 values from reset; write"),
        ((GOOD, None), "gave None as info; return a dict"),
    ],
)
def test_a_reset_of_the_old_gym_is_refused_with_the_repair(resets: Any, fault: str) -> None:
    slot = EnvSlot(lambda: Odd(resets=resets), 0)
    with pytest.raises(EnvironmentFailure) as caught:
        slot.reset(7)
    assert str(caught.value).startswith(f"environment 0 (seed 7), in reset, {fault}")
    assert "Traceback" not in str(caught.value)


def test_a_reset_without_a_seed_is_refused_with_the_repair() -> None:
    class Seedless(Odd):
        def reset(self) -> Any:  # type: ignore[override]
            return GOOD

    with pytest.raises(EnvironmentFailure, match=r"seed=None, options=None\)` that returns \(observation, info\)"):
        EnvSlot(lambda: Seedless(), 0).reset(7)


def test_an_error_of_the_environment_itself_keeps_its_traceback() -> None:
    class Broken(Odd):
        def step(self, action: Any) -> Any:
            return [one for one, two, three, four, five in [(1, 2)]]  # type: ignore[misc]

    slot = EnvSlot(lambda: Broken(), 0)
    slot.reset(7)
    with pytest.raises(EnvironmentFailure, match=r"(?s)failed in step with ValueError.*Traceback"):
        slot.step(0)


@pytest.mark.parametrize("reward", [np.array([0.5]), [0.5], np.array([[0.5]], np.float32)])
def test_a_reward_in_an_array_is_the_number_it_holds_and_said_once(reward: Any, caplog: Any) -> None:
    checks._warn_once.cache_clear()
    env = SyncVectorEnv([EnvSlot(lambda: Odd(*[good(reward=reward)] * 2, good(terminated=True)), i) for i in range(2)])
    env.reset([1, 2])
    with caplog.at_level(logging.WARNING, "rl_training"):
        for _ in range(2):
            assert env.step(np.zeros(2, int)).reward.tolist() == [0.5, 0.5]
    assert [record.getMessage() for record in caplog.records] == [
        f"the environment gives its reward as an array of shape {np.shape(reward)}, which is taken as the number it "
        "holds; let step return a number"
    ]
    assert env.step(np.zeros(2, int)).episodes[0].episode_return == 2.0


def test_flags_in_arrays_are_the_booleans_they_hold() -> None:
    slot = EnvSlot(lambda: Odd(good(terminated=np.bool_(False), truncated=np.array([True]))), 0)
    slot.reset(7)
    step = slot.step(0)
    assert (step.terminated, step.truncated) == (False, True)


NOTHING = {"action_mask": np.zeros(3, np.int8)}


@pytest.mark.parametrize(
    ("actions", "mask"),
    [(None, np.zeros(3)), (gym.spaces.MultiDiscrete([2, 3]), np.array([1, 1, 0, 0, 0]))],
)
def test_a_mask_that_allows_nothing_is_refused_while_the_episode_goes_on(actions: Any, mask: np.ndarray) -> None:
    message = fault_of(Odd(good(info={"action_mask": mask}), actions=actions))
    assert message == (
        "environment 2 (seed 7), at step 1 of its episode, gave an action mask that allows nothing; "
        "allow at least one action, or end the episode with terminated or truncated"
    )
    slot = EnvSlot(lambda: Odd(resets=(GOOD, {"action_mask": mask}), actions=actions), 0)
    with pytest.raises(EnvironmentFailure, match="in reset, gave an action mask that allows nothing; allow at least"):
        slot.reset(1)


def test_no_bit_allowed_is_still_an_action_of_a_multibinary() -> None:
    slot = EnvSlot(lambda: Odd(good(info=NOTHING), actions=gym.spaces.MultiBinary(3)), 0)
    slot.reset(1)
    mask = slot.step(np.zeros(3, np.int8)).action_mask
    assert mask is not None
    assert not mask.any()


@pytest.mark.parametrize("flag", ["terminated", "truncated"])
def test_at_the_end_of_an_episode_a_mask_that_allows_nothing_says_nothing(flag: str) -> None:
    env = SyncVectorEnv([EnvSlot(lambda: Odd(good(info=NOTHING, **{flag: True})), 0)])
    env.reset([1])
    assert env.step(np.zeros(1, int)).final_mask is None
