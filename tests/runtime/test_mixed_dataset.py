"""Learning online with a part of each batch from a dataset: what batches contain, mistakes, exact resume, kernels."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from dataset_parts import VECTOR, random_episode, write_with_minari
from harness import train_with_stops
from off_policy_runs import tiny_run, train_checked
from offline_runs import offline_config
from processes import uninterrupted
from replays import assert_same_run_and_replay
from rl_training.data.datasets.columns import DatasetColumns, load_columns
from rl_training.data.datasets.dataset import open_dataset
from rl_training.data.datasets.dataset_mix import DatasetMix
from rl_training.data.datasets.offline_replay import OfflineReplay
from rl_training.data.replay import Replay
from rl_training.data.samplers import UniformSampler
from rl_training.errors import AxiomError, CheckpointError, ConfigError
from rl_training.experiment.runs import METADATA
from rl_training.kernels import requires
from rl_training.runtime.acting.policy import load_policy
from rl_training.runtime.callbacks import Callback
from rl_training.runtime.workflows import resume, train

PENDULUM, OTHER = "pendulum/mixed-v0", "pendulum/other-v0"
TORQUE = spaces.Box(-2.0, 2.0, (1,), np.float32)
STATE = spaces.Box(np.array([-1, -1, -8], np.float32), np.array([1, 1, 8], np.float32))
MIX = {"dataset": PENDULUM, "algo_kwargs": {"dataset_fraction": 0.5}}


@pytest.fixture(autouse=True)
def datasets(tmp_path, monkeypatch):
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "datasets"))
    write(PENDULUM)


def write(name: str, seed: int = 0, observations: Any = STATE, actions: Any = TORQUE) -> None:
    draws = np.random.default_rng(seed)
    episodes = [random_episode(draws, observations, actions, steps) for steps in (12, 9, 1)]
    write_with_minari(name, episodes, observations, actions)


def mixed(output_dir: Path, algo: str = "sac", env_id: str = "Pendulum-v1", **changes: Any) -> Any:
    return tiny_run(output_dir, algo, env_id, **{**MIX, **changes})


def columns_of(episodes: int, masks: bool = False) -> DatasetColumns:
    """Return transitions whose observation, action and reward are 100 + their number."""
    rows = np.arange(4 * episodes, dtype=np.float32)
    numbers = 100 + np.arange(3 * episodes, dtype=np.float32)
    place = np.flatnonzero(rows % 4 < 3)
    observation = np.zeros((len(rows), 1), np.float32)
    observation[place, 0] = numbers
    return DatasetColumns(
        observation=observation,
        place=place,
        action=(numbers % 2).astype(np.int64),
        reward=numbers,
        terminated=np.arange(3 * episodes) % 3 == 2,
        truncated=np.zeros(3 * episodes, bool),
        episode=np.repeat(np.arange(episodes, dtype=np.int32), 3),
        episode_returns=np.zeros(episodes),
        first=np.arange(episodes) * 4,
        observation_infos={"action_mask": np.eye(2, dtype=bool)[rows.astype(int) % 2]} if masks else {},
    )


def replay_of(transitions: int, mask: np.ndarray | None = None) -> Replay:
    """Return a replay whose observations and rewards are the transitions' numbers, below 100."""
    space = spaces.Box(-1e6, 1e6, (1,), np.float32)
    replay = Replay(space, np.zeros(1, np.int64), UniformSampler(64), capacity=64, num_envs=1, n_step=1, gamma=0.5)
    replay.begin(np.zeros((1, 1), np.float32), mask)
    for number in range(transitions):
        successor = np.full((1, 1), number + 1, np.float32)
        replay.add(
            np.array([number % 2]), np.array([number], np.float32), np.zeros(1, bool), np.zeros(1, bool),
            successor, successor, mask, mask,
        )  # fmt: skip
    return replay


def draw(mix: DatasetMix, batch_size: int, count: int, seed: int = 0) -> list[Any]:
    return mix.sample(batch_size, np.random.default_rng(seed), torch.device("cpu"), count=count)


def test_every_batch_has_the_same_number_of_transitions_of_the_dataset():
    mix = DatasetMix(replay_of(20), OfflineReplay(columns_of(4), lambda action: action, gamma=0.5), 3)
    for batch in draw(mix, 8, count=5):
        assert (batch.reward >= 100).tolist() == [False] * 5 + [True] * 3
        assert torch.equal(batch.observation[:, 0], batch.reward)  # each row is one transition
        assert torch.equal(batch.action, batch.reward.long() % 2)
        assert batch.mask is None
        assert batch.weight is None


def test_ends_of_a_datasets_episodes_have_no_bootstrap():
    mix = DatasetMix(replay_of(20), OfflineReplay(columns_of(4), lambda action: action, gamma=0.5), 40)
    (batch,) = draw(mix, 41, count=1)
    ended = (batch.reward - 100) % 3 == 2
    assert torch.equal(batch.discount[1:], torch.where(ended, 0.0, 0.5)[1:])


def test_the_next_draw_uses_the_memory_again():
    """Compiled code keeps the addresses of batches."""
    mix = DatasetMix(replay_of(20), OfflineReplay(columns_of(4), lambda action: action, gamma=0.5), 4)
    first = draw(mix, 8, count=2)
    places = [batch.observation.data_ptr() for batch in first]
    kept = first[0].reward.clone()
    second = draw(mix, 8, count=2, seed=1)
    assert [batch.observation.data_ptr() for batch in second] == places
    assert not torch.equal(second[0].reward, kept)
    assert len(draw(mix, 8, count=3)) == 3


@pytest.mark.parametrize(("recorded", "shown"), [(True, False), (False, True), (True, True)])
def test_without_masks_all_actions_are_legal(recorded, shown):
    mask = np.array([[True, False]]) if shown else None
    mix = DatasetMix(
        replay_of(20, mask), OfflineReplay(columns_of(4, masks=recorded), lambda action: action, gamma=0.5), 4
    )
    (batch,) = draw(mix, 8, count=1)
    assert batch.mask[:4].all() == (not shown)
    assert batch.mask[4:].all() == (not recorded)
    assert batch.next_mask.shape == (8, 2)


@pytest.mark.parametrize("algo", ["sac", "td3", "tqc", "crossq"])
def test_algorithms_with_a_replay_learn_from_mixed_batches(algo, tmp_path):
    result = train_checked(mixed(tmp_path / "runs", algo))
    record = json.loads((result.run_dir / METADATA).read_text())["dataset"]
    assert record["name"] == PENDULUM
    assert record["fingerprint"] == open_dataset(PENDULUM).fingerprint


@pytest.mark.parametrize("algo", ["dqn", "discrete_sac"])
def test_discrete_algorithms_learn_from_mixed_batches(algo, tmp_path):
    state = spaces.Box(-np.inf, np.inf, (4,), np.float32)
    write("cartpole/mixed-v0", observations=state, actions=spaces.Discrete(2))
    train_checked(mixed(tmp_path / "runs", algo, "CartPole-v1", dataset="cartpole/mixed-v0"))


def test_recorded_actions_are_scaled_like_those_of_the_policy(tmp_path, monkeypatch):
    seen: list[Any] = []
    monkeypatch.setattr(DatasetMix, "sample", recording(DatasetMix.sample, seen))
    train_checked(mixed(tmp_path / "runs", acceleration="off"))
    recorded = np.unique(np.clip(load_columns(open_dataset(PENDULUM)).action / 2.0, -1, 1).round(5))
    drawn = np.unique(np.concatenate([batch.action[4:].numpy() for batch in seen]).round(5))
    assert set(drawn) <= set(recorded)
    assert len(drawn) > 5


def test_recorded_data_is_scaled_by_the_statistics_of_the_environments(tmp_path, monkeypatch):
    seen: list[Any] = []
    monkeypatch.setattr(DatasetMix, "sample", recording(DatasetMix.sample, seen))
    scaled = {"normalize_observation": True, "clip_observation": 0.5, "reward_sign": True}
    train_checked(mixed(tmp_path / "runs", env_kwargs=scaled))
    assert max(batch.observation.abs().max() for batch in seen) == 0.5
    assert set(torch.cat([batch.reward[4:] for batch in seen]).tolist()) == {-1.0, 1.0}


def recording(sample: Any, seen: list[Any]) -> Any:
    def wrapped(self: DatasetMix, *arguments: Any, **options: Any) -> Any:
        batches = sample(self, *arguments, **options)
        seen.extend(batch._replace(action=batch.action.clone(), reward=batch.reward.clone()) for batch in batches)
        return batches

    return wrapped


@pytest.mark.parametrize("env_kwargs", [{}, {"normalize_observation": True, "normalize_reward": True}])
def test_a_stopped_run_ends_as_one_that_was_not(env_kwargs, tmp_path):
    stopped = train_with_stops(mixed(tmp_path / "stopped", env_kwargs=env_kwargs), [3, 14, 1, 9])
    straight = uninterrupted(mixed(tmp_path / "straight", env_kwargs=env_kwargs))
    assert_same_run_and_replay(stopped, straight)


def test_a_changed_dataset_is_not_gone_on_with(tmp_path):
    run = train(mixed(tmp_path / "runs")).run_dir
    write(OTHER, seed=1)
    root = tmp_path / "datasets"
    (root / PENDULUM).rename(root / "away")
    with pytest.raises(AxiomError, match="there is no dataset"):
        resume(run, total_timesteps=80)
    (root / OTHER).rename(root / PENDULUM)
    with pytest.raises(CheckpointError, match="has changed since"):
        resume(run, total_timesteps=80)


def test_compiled_updates_learn_from_mixed_batches_as_autograd_does(tmp_path, monkeypatch):
    monkeypatch.setattr(requires, "enough_updates", lambda *arguments: None)
    changes = {"total_timesteps": 40, "algo_kwargs": {**MIX["algo_kwargs"], "hidden_sizes": [16, 16]}}
    results = {way: train_checked(mixed(tmp_path / way, acceleration=way, **changes)) for way in ("auto", "off")}
    acceleration = json.loads((results["auto"].run_dir / METADATA).read_text())["acceleration"]
    assert acceleration == {"kernel": "sac", "reason": None}
    losses = [result.metrics["loss_critic"] for result in results.values()]
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)


OFFLINE_FORMS = [("cql", "sac"), ("td3_bc", "td3"), ("rebrac", "td3")]


@pytest.mark.parametrize(("offline", "online"), OFFLINE_FORMS)
def test_weights_of_an_offline_run_start_the_online_algorithm(offline, online, tmp_path):
    sizes = {"hidden_sizes": [8], "critic_layer_norm": offline == "rebrac"}
    plain = {**sizes, "normalize_observation": False}  # statistics would include the first observations of the child
    parent = train(offline_run(offline, tmp_path / "offline", algo_kwargs=plain)).run_dir
    settings = {"algo_kwargs": {**MIX["algo_kwargs"], **sizes}}
    child = train(mixed(tmp_path / "online", online, init=str(parent), **settings), callbacks=[StopAtOnce()]).run_dir
    batch = np.linspace([-1, -1, -8], [1, 1, 8], 7, dtype=np.float32)
    ours, theirs = (load_policy(path).predict(batch) for path in (child / "checkpoints" / "step_0", parent))
    np.testing.assert_array_equal(ours, theirs)


def test_networks_of_an_offline_run_must_fit(tmp_path):
    parent = train(offline_run("cql", tmp_path / "offline", algo_kwargs={"hidden_sizes": [8, 8]})).run_dir
    with pytest.raises(ConfigError, match=r"algo_kwargs\.hidden_sizes \(.*8, 8.* there, .*8.* here\)"):
        train(mixed(tmp_path / "online", init=str(parent), env_kwargs={"normalize_observation": True}))
    with pytest.raises(ConfigError, match="holds weights of cql, and this run trains td3"):
        train(mixed(tmp_path / "online", "td3", init=str(parent)))


def offline_run(algo: str, output_dir: Path, **changes: Any) -> Any:
    return offline_config(algo, output_dir, total_timesteps=20, eval_episodes=0, dataset=PENDULUM, **changes)


class StopAtOnce(Callback):
    """Ends a run when it has saved how it starts."""

    def on_train_start(self, event: Any) -> None:
        event.request_stop("the start was saved")


def test_critics_with_layer_normalisation_learn_by_autograd(tmp_path):
    changes = {"algo_kwargs": {**MIX["algo_kwargs"], "critic_layer_norm": True}}
    result = train_checked(mixed(tmp_path / "runs", **changes))
    acceleration = json.loads((result.run_dir / METADATA).read_text())["acceleration"]
    assert acceleration["kernel"] is None
    assert acceleration["reason"] == "the critics' layers have no written-out gradient"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"algo_kwargs": {}}, r"dataset: .*set algo_kwargs\.dataset_fraction"),
        ({"dataset": None}, r"algo_kwargs\.dataset_fraction: there is no dataset"),
        ({"dataset": "pendulum/mixd-v0"}, r"dataset: there is no dataset.*did you mean"),
        ({"algo_kwargs": {"dataset_fraction": 0.01}}, r"dataset_fraction: 0\.01 of a batch of 8"),
        ({"algo_kwargs": {"dataset_fraction": 1.0}}, r"algo_kwargs\.dataset_fraction: must be a number >= 0 and < 1"),
        ({"algo_kwargs": {"dataset_fraction": 0.5, "n_step": 3}}, r"n_step: a dataset is mixed in as single steps"),
        ({"env_id": "MountainCarContinuous-v0"}, r"dataset: the observation space of pendulum/mixed-v0"),
    ],
)
def test_mistakes_are_refused_before_a_run_exists(changes, message, tmp_path):
    with pytest.raises(ConfigError, match=message):
        train(mixed(tmp_path / "runs", **changes))
    assert not (tmp_path / "runs").exists()


def test_other_action_bounds_are_refused(tmp_path):
    write(OTHER, actions=spaces.Box(-1.0, 1.0, (1,), np.float32))
    with pytest.raises(ConfigError, match="dataset: the action space of pendulum/other-v0"):
        train(mixed(tmp_path / "runs", dataset=OTHER))


def test_priorities_and_a_dataset_exclude_each_other(tmp_path):
    write("cartpole/mixed-v0", observations=VECTOR, actions=spaces.Discrete(2))
    with pytest.raises(ConfigError, match=r"prioritized: a dataset has no priorities"):
        train(mixed(tmp_path, "rainbow", "CartPole-v1", dataset="cartpole/mixed-v0", algo_kwargs={
            "dataset_fraction": 0.5, "n_step": 1}))  # fmt: skip
