"""The replay against a naive list of steps, its memory, and what real environments put into it."""

from __future__ import annotations

import itertools

import gymnasium as gym
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from naive_replay import GAMMA, NaiveWorld
from rl_training.data.replay import Replay
from rl_training.data.samplers import UniformSampler
from rl_training.envs.make import make_vector_env
from rl_training.runtime.collector import ReplayCollector

CPU = torch.device("cpu")


@settings(max_examples=40)
@given(
    num_envs=st.integers(1, 4),
    n_step=st.integers(1, 6),
    stack=st.sampled_from([1, 1, 3]),
    capacity=st.integers(3, 60),
    seed=st.integers(0, 2**32),
    end_probability=st.sampled_from([0.02, 0.1, 0.5, 1.0]),
    per=st.booleans(),
)
def test_every_transition_is_the_naive_one(num_envs, n_step, stack, capacity, seed, end_probability, per):
    world = NaiveWorld(num_envs=num_envs, n_step=n_step, stack=stack, capacity=capacity, seed=seed, per=per)
    draws = np.random.default_rng(seed)
    probability = np.full(num_envs, end_probability)
    for time in range(90):
        if time % 20 == 10:  # some environments are quiet while others are not
            probability = draws.permutation(np.linspace(0, end_probability, num_envs))
        world.step(probability)
        if time % 6:
            continue
        expected = world.expected()
        replay = world.replay
        assert replay.count == len(expected)
        assert replay.size <= capacity
        if replay.size:
            drawable = world.check(world.drawable(), expected)
            assert len(set(drawable)) == len(drawable) == replay.size
            (batch,), rows = replay.sample(16, draws, CPU)
            gathered = {name: getattr(batch, name).numpy() for name in ("observation", "action", "reward", "discount")}
            gathered["next_observation"] = batch.next_observation.numpy()
            assert set(world.check(gathered, expected)) <= set(drawable)
            assert (((rows - replay.oldest) % capacity) < replay.size).all()
    # After the last step of every episode the count is that of the real steps.
    world.step(np.ones(num_envs))
    assert world.replay.count == sum(len(episode.actions) for episode in world.finished) == 91 * num_envs


def test_the_newest_transitions_stay_drawable_where_episodes_are_not_tiny():
    world = NaiveWorld(num_envs=3, n_step=2, stack=1, capacity=100, seed=0)
    for time in range(400):
        world.step(np.full(3, float(time % 10 == 9)))
    assert world.replay.size == 100
    assert set(world.check(world.drawable(), world.expected())) <= set(sorted(world.expected())[-110:])


def test_tiny_episodes_are_forgotten_before_their_observations_are_overwritten():
    """Every step ends an episode, so that observations come twice as fast as transitions."""
    for seed in range(20):
        world = NaiveWorld(num_envs=1 + seed % 2, n_step=1 + seed % 3, stack=1, capacity=40, seed=seed, per=True)
        for _ in range(150):
            world.step(np.full(world.num_envs, 0.9))
            oldest = world.replay.observations.oldest
            rows = np.arange(world.replay.oldest, world.replay.count) % 40
            assert world.replay.columns["observation"][rows].min(initial=2**40) >= oldest
        assert 0 < world.replay.size < 40
        rows = world.replay.sample(64, world.generator, CPU)[1]
        assert (((rows - world.replay.oldest) % 40) < world.replay.size).all()  # forgotten means priority 0


def test_what_is_forgotten_while_nothing_is_completed_is_not_drawable():
    """Long returns: for many steps no transition comes, yet observations do, over those of transitions in reach."""
    for seed in range(30):
        world = NaiveWorld(num_envs=4, n_step=13, stack=1, capacity=20, seed=seed)
        for time in range(300):
            busy = np.where(np.arange(4) == 0, 0.0, 1.0)
            world.step(np.ones(4) if time % 26 == 12 else busy * float(time % 26 < 12))
            rows = np.arange(world.replay.oldest, world.replay.count) % 20
            drawable = world.replay.columns["observation"][rows]
            assert drawable.min(initial=2**40) >= world.replay.observations.oldest


def test_a_restart_keeps_pending_steps_as_truncated():
    world = NaiveWorld(num_envs=2, n_step=3, stack=1, capacity=50, seed=0)
    for _ in range(5):
        world.step(np.zeros(2))
    for episode in world.episodes:
        episode.end = "truncated"
    world.replay.begin(np.full((2, 2), 99.0, np.float32))
    assert world.replay.count == 10
    world.check(world.drawable(), world.expected())


# -- memory ------------------------------------------------------------------------------------------


def image_replay(capacity: int, stack: int) -> Replay:
    space = gym.spaces.Box(0, 255, (stack, 10, 10), np.uint8)
    sampler = UniformSampler(capacity)
    return Replay(
        space, np.zeros(2, np.int64), sampler, capacity=capacity, num_envs=2, n_step=1, gamma=0.9, stack=stack
    )


def test_stacked_frames_are_stored_once_as_bytes():
    replay = image_replay(1000, 4)
    frames = sum(column.nbytes for column in replay.observations._columns.values())
    # Observation and successor, each a stack of four, would be 8 frames per transition.
    assert 1000 * 100 <= frames <= 1.2 * 1000 * 100
    bookkeeping = sum(column.nbytes for column in replay.columns.values())
    assert bookkeeping <= 1000 * (2 * 4 * 8 + 8 + 4 + 4 + 4)


def test_each_observation_is_stored_once():
    replay = image_replay(100, 4)
    shown = np.random.default_rng(0).integers(0, 256, (41, 2, 4, 10, 10), dtype=np.uint8)
    replay.begin(shown[0])
    running, reward = np.zeros(2, bool), np.zeros(2, np.float32)
    for time in range(40):
        ended = np.array([time == 20, False])
        replay.add(np.zeros(2, np.int64), reward, running, ended, shown[time + 1], shown[time + 1])
    assert replay.observations.count == 2 * 41 + 1  # one more for the restart
    assert replay.count == 80


def test_observations_of_a_dict_come_back_by_their_keys():
    space = gym.spaces.Dict(
        {
            "picture": gym.spaces.Box(0, 255, (3, 3), np.uint8),
            "numbers": gym.spaces.Box(-1, 1, (2,), np.float64),
            "mode": gym.spaces.Discrete(7),
        }
    )
    space.seed(0)

    def show() -> dict[str, np.ndarray]:
        samples = [space.sample() for _ in range(2)]
        return {key: np.stack([np.asarray(sample[key]) for sample in samples]) for key in space.spaces}

    replay = Replay(
        space, np.zeros((2, 1), np.float32), UniformSampler(30), capacity=30, num_envs=2, n_step=1, gamma=0.9
    )
    shown = [show()]
    replay.begin(shown[0])
    running = np.zeros(2, bool)
    for time in range(10):
        shown.append(show())
        replay.add(np.full((2, 1), time, np.float32), np.zeros(2, np.float32), running, running, shown[-1], shown[-1])
    (batch,), rows = replay.sample(50, np.random.default_rng(0), CPU)
    times, envs = batch.action[:, 0].long().tolist(), rows[0] % 2
    for key in space.spaces:
        for observation, offset in ((batch.observation, 0), (batch.next_observation, 1)):
            expected = np.stack([shown[time + offset][key][env] for time, env in zip(times, envs, strict=True)])
            assert isinstance(observation, dict)
            np.testing.assert_array_equal(
                observation[key].numpy(), expected.astype(np.float32) if key == "numbers" else expected
            )
    assert isinstance(batch.observation, dict)
    assert batch.observation["picture"].dtype == torch.uint8
    assert batch.observation["numbers"].dtype == torch.float32


def test_a_memory_mapped_replay_gives_the_same_batches_and_leaves_no_files(tmp_path):
    directory = tmp_path / "mapped"
    worlds = [
        NaiveWorld(num_envs=2, n_step=2, stack=3, capacity=50, seed=4, directory=place) for place in (None, directory)
    ]
    batches = []
    for world in worlds:
        for _ in range(100):
            world.step(np.full(2, 0.1))
        batches.append(world.replay.sample(8, np.random.default_rng(0), CPU, count=3)[0])
    assert all(isinstance(column, np.memmap) for column in worlds[1].replay.columns.values())
    assert list(directory.iterdir()) == []  # the files have no names: a kill leaves nothing behind
    for one, other in zip(*batches, strict=True):
        for name in ("observation", "action", "reward", "discount", "next_observation"):
            assert torch.equal(getattr(one, name), getattr(other, name))


# -- saving and restoring ----------------------------------------------------------------------------


@pytest.mark.parametrize("steps", [(30, 0, 25), (200, 7, 100), (5, 300, 1)])
def test_rows_saved_in_parts_restore_the_replay(steps):
    settings_ = {"num_envs": 2, "n_step": 3, "stack": 3, "capacity": 64, "seed": 1}
    world = NaiveWorld(**settings_)
    saved, marks = [], (0, 0)
    for part in steps:
        for _ in range(part):
            world.step(np.full(2, 0.2))
        saved += [(ranges, world.replay.rows(ranges)) for ranges in world.replay.ranges_since(marks)]
        marks = world.replay.marks()
    restored = NaiveWorld(**settings_)
    for ranges, arrays in saved:
        if world.replay.needs(ranges):
            restored.replay.restore_rows(ranges, arrays)
    restored.replay.load_state_dict(world.replay.state_dict())
    one, other = world.drawable(), restored.drawable()
    for name in one:
        np.testing.assert_array_equal(one[name], other[name])
    # What was not needed was needed by nothing that can be drawn.
    world.check(other, world.expected())


def test_the_rows_of_a_part_are_those_that_are_new():
    world = NaiveWorld(num_envs=2, n_step=1, stack=1, capacity=500, seed=0)
    for _ in range(100):
        world.step(np.zeros(2))
    marks = world.replay.marks()
    for _ in range(10):
        world.step(np.zeros(2))
    (ranges,) = world.replay.ranges_since(marks)
    assert ranges == {"transitions": [200, 220], "observations": [202, 222]}
    assert {len(array) for array in world.replay.rows(ranges).values()} == {20}
    assert world.replay.ranges_since(world.replay.marks()) == []


def test_much_that_is_new_comes_in_parts_that_are_small_to_copy(monkeypatch):
    monkeypatch.setattr("rl_training.data.replay.SMALLEST_PART", 64)
    world = NaiveWorld(num_envs=2, n_step=1, stack=1, capacity=320, seed=0)
    for _ in range(400):
        world.step(np.full(2, 0.05))
    parts = world.replay.ranges_since((0, 0))
    assert 30 <= len(parts) <= 33
    for name, oldest, count in (
        ("transitions", world.replay.count - 320, world.replay.count),
        ("observations", world.replay.observations.oldest, world.replay.observations.count),
    ):
        edges = [part[name] for part in parts]
        assert [edges[0][0], edges[-1][1]] == [oldest, count]
        assert all(one[1] == other[0] for one, other in itertools.pairwise(edges))


# -- through the real collector ----------------------------------------------------------------------


class Scripted:
    """Stands for an algorithm: the actions are a function of the observations."""

    memory_size = 0

    def __init__(self, policy) -> None:
        self.policy = policy

    def act(self, observation, mask, controls, generator):
        return self.policy(observation)

    def random_actions(self, count, mask, generator):
        return self.policy(torch.zeros(count, 3))

    def end_episodes(self, ended):
        pass

    def env_action(self, action):
        return action.numpy()


def collect(env_id, policy, steps, *, num_envs=2, n_step=1, env_kwargs=None):
    env = make_vector_env(env_id, env_kwargs or {}, mode="training", num_envs=num_envs, backend="local_sync")
    try:
        collector = ReplayCollector(
            env,
            Scripted(policy),
            lambda action, mask: Replay(
                env.observation_space,
                action,
                UniformSampler(5000),
                capacity=5000,
                num_envs=num_envs,
                n_step=n_step,
                gamma=GAMMA,
            ),
            seed=0,
            device=CPU,
            generator=torch.Generator(),
        )
        batches = [collector.step({}, random=False) for _ in range(steps)]
    finally:
        env.close()
    return collector.replay, batches


def test_a_pendulum_transition_at_its_time_limit_bootstraps_from_the_true_final_observation():
    replay, steps = collect("Pendulum-v1", lambda shown: torch.zeros(len(shown), 1), 205)
    assert steps[199].truncated.all()
    gathered = replay.gather(np.arange(replay.count), np.random.default_rng(0))
    np.testing.assert_allclose(gathered["discount"], GAMMA)
    last = gathered["next_observation"][2 * 199 : 2 * 200]
    np.testing.assert_array_equal(last, steps[199].final_obs)
    assert not np.array_equal(last, steps[199].obs)  # which is the next episode's
    np.testing.assert_array_equal(gathered["observation"][2 * 200 : 2 * 201], steps[199].obs)


def test_the_steps_before_a_pendulum_time_limit_bootstrap_after_fewer_rewards():
    replay, _ = collect("Pendulum-v1", lambda shown: torch.zeros(len(shown), 1), 205, num_envs=1, n_step=3)
    discount = replay.gather(np.arange(replay.count), np.random.default_rng(0))["discount"]
    assert replay.count == 200 + 5 - 2
    expected = np.full(len(discount), GAMMA**3)
    np.testing.assert_allclose(np.sort(discount)[:-2], expected[2:], rtol=1e-6)
    np.testing.assert_allclose(np.sort(discount)[-2:], [GAMMA**2, GAMMA], rtol=1e-6)


def test_a_mountain_car_success_does_not_bootstrap_and_its_time_limit_does():
    def push_along(shown):
        return torch.where(shown[:, 1] >= 0, 2, 0)

    replay, steps = collect("MountainCar-v0", push_along, 200)
    ended = np.array([step.terminated for step in steps])
    assert ended.any(axis=0).all()  # both cars arrive
    discount = replay.gather(np.arange(replay.count), np.random.default_rng(0))["discount"].reshape(-1, 2)
    np.testing.assert_allclose(discount, np.where(ended, 0.0, GAMMA), rtol=1e-6)

    replay, steps = collect("MountainCar-v0", lambda shown: torch.ones(len(shown), dtype=torch.int64), 201)
    assert steps[199].truncated.all()
    assert not any(step.terminated.any() for step in steps)
    discount = replay.gather(np.arange(replay.count), np.random.default_rng(0))["discount"]
    np.testing.assert_allclose(discount, GAMMA, rtol=1e-6)
