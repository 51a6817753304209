"""A fresh environment that takes over a snapshot continues exactly as the old one does."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from harness import require
from rl_training.envs.make import make_slots, make_vector_env
from rl_training.envs.slot import EnvSlot, SlotStep
from rl_training.envs.snapshots import snapshot
from rl_training.envs.vector import SyncVectorEnv
from rl_training.errors import CheckpointError, EnvironmentFailure

# (id, env_kwargs, steps afterwards): each goes through the end of an episode at least once.
FAMILIES: list[tuple[str, dict[str, Any], int]] = [
    ("CartPole-v1", {}, 60),
    ("Acrobot-v1", {"max_episode_steps": 50}, 60),
    ("MountainCar-v0", {"max_episode_steps": 50}, 60),
    ("MountainCarContinuous-v0", {"max_episode_steps": 50}, 60),
    ("Pendulum-v1", {}, 180),
    ("FrozenLake-v1", {}, 60),
    ("Taxi-v4", {"fickle_passenger": True, "is_rainy": True}, 220),
    ("CliffWalking-v1", {"is_slippery": True, "max_episode_steps": 50}, 60),
    ("HalfCheetah-v5", {"max_episode_steps": 50}, 60),
    ("Hopper-v5", {}, 60),
    ("Ant-v5", {"max_episode_steps": 50}, 60),
    ("Humanoid-v5", {}, 60),
    ("Reacher-v5", {}, 60),
    ("Pusher-v5", {"max_episode_steps": 50}, 60),
    ("InvertedDoublePendulum-v5", {}, 60),
    ("MinAtar/Asterix-v1", {"max_episode_steps": 50}, 60),
    ("MinAtar/Breakout-v1", {}, 60),
    ("MinAtar/Freeway-v1", {"max_episode_steps": 50}, 60),
    ("MinAtar/Seaquest-v1", {"max_episode_steps": 50}, 60),
    ("MinAtar/SpaceInvaders-v1", {"max_episode_steps": 50}, 60),
    ("MiniGrid-DoorKey-5x5-v0", {"max_episode_steps": 50}, 60),
    ("MiniGrid-Dynamic-Obstacles-6x6-v0", {}, 60),
    ("MiniGrid-MemoryS7-v0", {"wrappers": ["minigrid.wrappers:PositionBonus"], "max_episode_steps": 50}, 60),
    ("BabyAI-PutNextLocal-v0", {"max_episode_steps": 50}, 60),
    ("popgym-RepeatPreviousEasy-v0", {}, 60),
    ("popgym-ConcentrationEasy-v0", {"max_episode_steps": 50}, 60),
    ("popgym-AutoencodeEasy-v0", {"flatten_observation": True}, 120),
    ("popgym-NoisyPositionOnlyPendulumEasy-v0", {"max_episode_steps": 50}, 60),
    ("highway-fast-v0", {}, 30),
    ("parking-v0", {"max_episode_steps": 20}, 30),
    ("FetchPickAndPlace-v4", {}, 60),
    ("PointMaze_UMaze-v3", {"max_episode_steps": 50}, 60),
    ("AntMaze_UMaze-v5", {"max_episode_steps": 50}, 60),
    ("AdroitHandDoor-v1", {"max_episode_steps": 50}, 60),
    ("dm_control/cartpole-swingup-v0", {"max_episode_steps": 50}, 60),
    ("dm_control/reacher-easy-v0", {"max_episode_steps": 50}, 60),
    ("dm_control/humanoid-walk-v0", {"max_episode_steps": 50}, 60),
    ("env_samples:Sample/Diary-v0", {}, 60),
    ("env_samples:Sample/Cupboard-v0", {"frame_stack": 3}, 60),
]


class Counting(gym.Wrapper[Any, Any, Any, Any]):
    """A wrapper with state that nobody knows of."""

    def step(self, action: Any) -> Any:
        self.steps = getattr(self, "steps", 0) + 1
        return self.env.step(action)


def _advance(slot: EnvSlot, action: Any) -> tuple[SlotStep, Any]:
    step = slot.step(action)
    obs = slot.reset()[0] if step.terminated or step.truncated else None
    return step, obs


def _assert_same(ours: Any, theirs: Any) -> None:
    if isinstance(ours, dict):
        assert ours.keys() == theirs.keys()
        for key in ours:
            _assert_same(ours[key], theirs[key])
    elif isinstance(ours, (list, tuple)):
        assert len(ours) == len(theirs)
        for our, their in zip(ours, theirs, strict=True):
            _assert_same(our, their)
    else:
        np.testing.assert_array_equal(ours, theirs)


def _as_saved(state: Any) -> Any:
    """Put a snapshot through strict JSON, with arrays by dtype, shape and content."""

    def encode(value: Any) -> Any:
        assert isinstance(value, np.ndarray), f"{type(value)} in a snapshot"
        return {"__array__": [str(value.dtype), list(value.shape), value.ravel().tolist()]}

    def decode(value: dict[str, Any]) -> Any:
        if "__array__" not in value:
            return value
        dtype, shape, content = value["__array__"]
        return np.array(content, dtype=dtype).reshape(shape)

    return json.loads(json.dumps(state, default=encode), object_hook=decode)


def _continues_identically(env_id: str, env_kwargs: dict[str, Any], steps: int, before: int = 23) -> int:
    """Return how many episodes ended while a restored environment followed the original one."""
    original, fresh = (make_slots(env_id, env_kwargs, mode="training", count=1)[0] for _ in range(2))
    original.action_space.seed(1)
    original.reset(5)
    for _ in range(before):
        _advance(original, original.action_space.sample())
    state = original.snapshot()
    assert state is not None
    # What is saved does not follow the environment any more.
    state = _as_saved(state)
    fresh.restore(state)
    assert fresh.seed == 5
    ends = 0
    for _ in range(steps):
        action = original.action_space.sample()
        ours, theirs = _advance(original, action), _advance(fresh, action)
        _assert_same(ours, theirs)
        emulators: list[Any] = [getattr(slot.env.unwrapped, "ale", None) for slot in (original, fresh)]
        if emulators[0] is not None:
            np.testing.assert_array_equal(emulators[0].getRAM(), emulators[1].getRAM())
        ends += ours[1] is not None
    original.close()
    fresh.close()
    return ends


@pytest.mark.parametrize(("env_id", "env_kwargs", "steps"), FAMILIES, ids=[family[0] for family in FAMILIES])
def test_restored_environment_continues_identically(env_id: str, env_kwargs: dict[str, Any], steps: int) -> None:
    require(env_id, env_kwargs)
    assert _continues_identically(env_id, env_kwargs, steps) > 0


def test_blackjack_continues_identically_although_no_policy_can_observe_it() -> None:
    def trace(env: gym.Env[Any, Any]) -> Iterator[Any]:
        for action in [1, 0, 1, 1, 0, 0, 1, 0, 1, 1]:
            obs, reward, terminated, truncated, _ = env.step(action)
            yield obs, reward, terminated, truncated
            if terminated or truncated:
                yield env.reset()[0]

    original, fresh = gym.make("Blackjack-v1"), gym.make("Blackjack-v1")
    original.reset(seed=3)
    list(trace(original))
    state = snapshot.take(original)
    assert state is not None
    snapshot.put(fresh, _as_saved(state))
    assert list(trace(original)) == list(trace(fresh))


def test_pong_with_all_its_wrappers_continues_identically_down_to_the_ram() -> None:
    atari = {"atari": True, "frame_stack": 4, "episodic_life": True, "fire_reset": True, "reward_sign": True}
    env_kwargs = {**atari, "repeat_action_probability": 0.0, "max_episode_steps": 60}
    assert _continues_identically("ALE/Pong-v5", env_kwargs, 120) > 0


def test_sticky_actions_give_no_snapshot_because_the_emulator_leaves_the_last_action_out() -> None:
    (slot,) = make_slots("ALE/Pong-v5", {"repeat_action_probability": 0.25}, mode="training", count=1)
    slot.reset(0)
    assert slot.snapshot() is None


def test_a_game_with_lives_continues_identically_through_a_lost_life_and_the_real_end() -> None:
    atari = {"atari": True, "frame_stack": 4, "episodic_life": True, "fire_reset": True, "noop_max": 5}
    assert _continues_identically("BreakoutNoFrameskip-v4", atari, 250, before=60) >= 6


def test_a_snapshot_taken_at_the_start_of_an_episode_continues_identically() -> None:
    for env_id in ("CartPole-v1", "Ant-v5", "MountainCarContinuous-v0"):
        _continues_identically(env_id, {}, 30, before=0)


def test_continuous_mountain_car_can_be_restored_at_every_step_of_its_mixed_precision() -> None:
    original, fresh = (make_slots("MountainCarContinuous-v0", {}, mode="training", count=1)[0] for _ in range(2))
    original.action_space.seed(0)
    original.reset(0)
    for _ in range(60):
        state = original.snapshot()
        assert state is not None
        fresh.restore(_as_saved(state))
        action = original.action_space.sample()
        _assert_same(original.step(action), fresh.step(action))


def test_taxi_remembers_that_its_passenger_will_change_the_destination() -> None:
    env_kwargs = {"fickle_passenger": True, "fickle_probability": 1.0}
    original, fresh = (make_slots("Taxi-v4", env_kwargs, mode="training", count=1)[0] for _ in range(2))
    original.reset(0)
    state = original.snapshot()
    assert state is not None
    fresh.restore(state)
    assert fresh.env.get_wrapper_attr("fickle_step")


def test_half_seen_frames_are_restored() -> None:
    """A game that ends inside a frame skip shows what was in the buffers before."""
    original, fresh = (make_slots("PongNoFrameskip-v4", {"atari": True}, mode="training", count=1)[0] for _ in range(2))
    original.reset(0)
    original.step(2)
    state = original.snapshot()
    assert state is not None
    fresh.restore(_as_saved(state))
    _assert_same(fresh.env.get_wrapper_attr("obs_buffer"), original.env.get_wrapper_attr("obs_buffer"))


def test_vector_cartpole_continues_identically() -> None:
    def make() -> Any:
        return make_vector_env("CartPole-v1", {}, mode="training", num_envs=5, backend="vector")

    original, fresh = make(), make()
    generator = np.random.default_rng(0)
    original.reset(range(5))
    for _ in range(30):
        original.step(generator.integers(0, 2, 5))
    fresh.load_state_dict(_as_saved(original.state_dict()))
    ended = 0
    for _ in range(60):
        actions = generator.integers(0, 2, 5)
        ours, theirs = original.step(actions), fresh.step(actions)
        _assert_same(tuple(ours), tuple(theirs))
        ended += len(ours.episodes)
    assert ended > 5


def test_taking_a_snapshot_changes_nothing() -> None:
    watched, alone = (make_slots("Ant-v5", {}, mode="training", count=1)[0] for _ in range(2))
    watched.action_space.seed(0)
    _assert_same(watched.reset(0), alone.reset(0))
    for _ in range(20):
        action = watched.action_space.sample()
        watched.snapshot()
        _assert_same(watched.step(action), alone.step(action))


@pytest.mark.parametrize(
    ("env_id", "env_kwargs"),
    [
        ("LunarLander-v3", {}),  # Box2D gives its state to nobody
        ("FrozenLake-v1", {"map_name": None}),  # a map of its own, drawn without a seed
        ("env_samples:Sample/Forgetful-v0", {}),
    ],
)
def test_what_cannot_be_saved_exactly_gives_no_snapshot(env_id: str, env_kwargs: dict[str, Any]) -> None:
    slot = make_slots(env_id, env_kwargs, mode="training", count=1)[0]
    slot.reset(0)
    assert slot.snapshot() is None


def test_an_unknown_wrapper_gives_no_snapshot() -> None:
    slot = EnvSlot(lambda: Counting(gym.make("CartPole-v1")), 0)
    slot.reset(0)
    assert slot.snapshot() is None


def test_a_subclass_of_a_known_environment_is_unknown() -> None:
    class Windy(gym.envs.classic_control.CartPoleEnv):
        pass

    assert snapshot.take(Windy()) is None


def test_one_environment_without_snapshot_leaves_the_batch_without() -> None:
    known, unknown = (
        (lambda: gym.make("CartPole-v1")),
        (lambda: Counting(gym.make("CartPole-v1"))),
    )
    assert SyncVectorEnv([EnvSlot(known, 0)]).state_dict() is not None
    assert SyncVectorEnv([EnvSlot(known, 0), EnvSlot(unknown, 1)]).state_dict() is None


def test_a_snapshot_of_another_environment_is_refused() -> None:
    cartpole, acrobot = (
        make_slots(env_id, {}, mode="training", count=1)[0] for env_id in ("CartPole-v1", "Acrobot-v1")
    )
    cartpole.reset(0)
    state = cartpole.snapshot()
    assert state is not None
    with pytest.raises(CheckpointError, match="AcrobotEnv"):
        acrobot.restore(state)


def test_a_state_that_is_not_plain_data_is_named() -> None:
    slot = make_slots("env_samples:Sample/UnsavableDiary-v0", {}, mode="training", count=1)[0]
    slot.reset(0)
    with pytest.raises(EnvironmentFailure, match=r"UnsavableDiary.state_dict\(\)\['lamp'\] is a object"):
        slot.snapshot()
