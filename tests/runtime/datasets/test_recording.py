"""Recorded episodes are what the environment and the policy did, and an interruption changes nothing."""

from __future__ import annotations

import json
import os
import random
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium as gym
import minari
import numpy as np
import pytest

from dataset_parts import assert_same_episode
from harness import tiny_config
from off_policy_runs import train_tiny
from processes import Launcher
from rl_training.data.datasets.dataset import Dataset, Episode, open_dataset
from rl_training.data.datasets.inspection import check
from rl_training.errors import AxiomError, DatasetError, EnvironmentFailure
from rl_training.runtime.acting.policy import load_policy
from rl_training.runtime.datasets import recording, rounds
from rl_training.runtime.datasets.behaviour import Behaviour
from rl_training.runtime.datasets.recording import RecordRequest, record
from rl_training.runtime.datasets.unfinished import UnfinishedRecording
from rl_training.runtime.workflows import train


def _train(directory: Path, env_id: str, algo: str = "ppo", **changes: Any) -> Path:
    if algo == "ppo":
        return train(tiny_config(directory, env_id=env_id, **changes)).run_dir
    return train_tiny(directory, algo, env_id, **changes).run_dir


@pytest.fixture(scope="module")
def cartpole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return _train(tmp_path_factory.mktemp("cartpole"), "CartPole-v1")


def _record(run: Path, name: str = "tests/some-v0", **request: Any) -> Dataset:
    if "steps" not in request:
        request.setdefault("episodes", 3)
    return open_dataset(record(RecordRequest(run, name=name, **request), quiet=True).path)


def _replayed(env: gym.Env[Any, Any], dataset: Dataset) -> Iterator[tuple[Any, Any]]:
    """Play the recorded actions again from the recorded seeds; return both sides of everything that must agree."""
    for episode in dataset.episodes():
        observation, _ = env.reset(seed=episode.seed)
        for step in range(episode.steps):
            yield observation, _row(episode.observations, step)
            observation, reward, terminated, truncated, _ = env.step(episode.actions[step])
            yield reward, episode.rewards[step]
            yield terminated, episode.terminations[step]
            yield truncated, episode.truncations[step]
        yield observation, _row(episode.observations, -1)


def _row(observations: Any, step: int) -> Any:
    if isinstance(observations, dict):
        return {key: part[step] for key, part in observations.items()}
    return observations[step]


def _before(episode: Episode) -> np.ndarray:
    """Return the observations before the actions."""
    assert isinstance(episode.observations, np.ndarray)
    return episode.observations[:-1]


# -- what is recorded ------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["deterministic", "stochastic", "random"])
def test_the_environment_repeats_every_recorded_step(cartpole: Path, kind: Any) -> None:
    dataset = _record(cartpole, behaviour=Behaviour(kind))
    for played, recorded in _replayed(gym.make("CartPole-v1"), dataset):
        np.testing.assert_array_equal(played, recorded)
    assert dataset.env_id == "CartPole-v1"
    assert check(dataset).faults == check(dataset).oddities == []


def test_observations_are_raw_and_actions_are_the_environments_own(tmp_path: Path) -> None:
    settings = {"env_kwargs": {"normalize_observation": True, "max_episode_steps": 20}}
    run = _train(tmp_path, "Pendulum-v1", "sac", **settings)
    dataset = _record(run)
    for played, recorded in _replayed(gym.make("Pendulum-v1", max_episode_steps=20), dataset):
        np.testing.assert_allclose(played, recorded, rtol=1e-6)
    policy = load_policy(run)
    for episode in dataset.episodes():
        np.testing.assert_allclose(policy.predict(_before(episode)), episode.actions, atol=1e-5)


@pytest.mark.parametrize("kind", ["discrete", "multi_discrete", "multi_binary"])
def test_masks_are_kept_and_obeyed(tmp_path: Path, kind: str) -> None:
    title = "".join(word.capitalize() for word in kind.split("_"))
    run = _train(tmp_path, f"toy_envs:Toy/Masked{title}-v0")
    # The environment raises for an action that the mask forbids.
    for behaviour in (Behaviour("random"), Behaviour("epsilon", 0.5), Behaviour("stochastic"), Behaviour()):
        dataset = _record(run, name=f"tests/{behaviour.label}-v0", behaviour=behaviour)
        for episode in dataset.episodes():
            masks, log_probs = episode.infos["action_mask"], episode.infos["log_prob"]
            assert masks.dtype == bool
            assert len(masks) == episode.steps + 1
            assert (log_probs <= 1e-6).all()
            if behaviour.kind == "deterministic":
                assert (log_probs == 0).all()
            if behaviour.kind == "random" and kind == "discrete":
                np.testing.assert_allclose(log_probs, -np.log(masks[:-1].sum(axis=1)), rtol=1e-6)


def test_sampled_actions_have_the_log_probabilities_of_the_policy(cartpole: Path) -> None:
    policy = load_policy(cartpole)
    for episode in _record(cartpole, behaviour=Behaviour("stochastic")).episodes():
        expected = policy.log_probs(_before(episode), episode.actions)
        assert expected is not None
        np.testing.assert_allclose(episode.infos["log_prob"], expected, atol=1e-5)


def test_epsilon_is_the_share_of_random_actions_and_in_the_probabilities(cartpole: Path) -> None:
    policy = load_policy(cartpole)
    dataset = _record(cartpole, behaviour=Behaviour("epsilon", 0.4), episodes=None, steps=2000)
    best = taken = 0
    for episode in dataset.episodes():
        is_best = policy.predict(_before(episode)) == episode.actions
        np.testing.assert_allclose(episode.infos["log_prob"], np.log(np.where(is_best, 0.8, 0.2)), rtol=1e-5)
        best, taken = best + is_best.sum(), taken + episode.steps
    assert best / taken == pytest.approx(0.8, abs=0.04)


@pytest.mark.parametrize("view", ["Image", "Dict", "DictWithImage"])
def test_images_and_dicts_are_recorded_without_loss(tmp_path: Path, view: str) -> None:
    run = _train(tmp_path, f"toy_envs:Toy/{view}-v0")
    dataset = _record(run, episodes=2, num_envs=1)
    env = gym.make(f"Toy/{view}-v0").unwrapped
    for played, recorded in _replayed(env, dataset):
        if isinstance(played, dict):
            for key, part in played.items():
                np.testing.assert_array_equal(part, recorded[key])
        else:
            np.testing.assert_array_equal(played, recorded)
    assert dataset.env_id == f"Toy/{view}-v0"


def test_minari_opens_a_recording_and_makes_its_environment(cartpole: Path) -> None:
    _record(cartpole)
    theirs = minari.load_dataset("tests/some-v0")
    env = theirs.recover_environment()
    episode = next(iter(theirs.iterate_episodes()))
    assert env.observation_space == theirs.observation_space
    assert len(episode.observations) == len(episode.actions) + 1


def test_the_metadata_name_run_checkpoint_environment_and_versions(cartpole: Path) -> None:
    dataset = _record(cartpole, behaviour=Behaviour("epsilon", 0.25), seed=9)
    origin = dataset.origin
    assert origin["run"] == cartpole.name
    assert origin["checkpoint"].startswith("step_")
    assert len(origin["checkpoint_sha256"]) == 64
    assert (origin["behaviour"], origin["epsilon"], origin["seed"]) == ("epsilon", 0.25, 9)
    assert origin["versions"]["gymnasium"] == gym.__version__
    assert origin["fingerprint"] == dataset.fingerprint
    assert dataset.metadata["algorithm_name"] == "ppo"
    assert str(cartpole.parent) not in json.dumps(dict(dataset.metadata)), "paths of a machine are nobody's business"


# -- how much --------------------------------------------------------------------------------------


def test_episodes_of_all_rounds_differ_in_seeds_and_draws(cartpole: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recording, "ROUND_STEPS", 1)  # a round for every three episodes
    dataset = _record(cartpole, episodes=7, num_envs=3, behaviour=Behaviour("random"))
    episodes = list(dataset.episodes())
    assert len({episode.seed for episode in episodes}) == len(episodes) == 7
    assert len({tuple(episode.actions[:8]) for episode in episodes}) == 7


def test_an_environment_that_reuses_its_arrays_is_recorded_as_it_was(tmp_path: Path) -> None:
    run = _train(tmp_path, "env_samples:Sample/Diary-v0")
    for episode in _record(run, episodes=9, num_envs=2, behaviour=Behaviour("random")).episodes():
        assert isinstance(episode.observations, np.ndarray)
        assert episode.observations[:, 1].tolist() == list(range(episode.steps + 1))
        np.testing.assert_array_equal(episode.rewards, episode.observations[1:, 1] * 10 + episode.actions)


def test_whole_episodes_are_recorded_until_they_have_the_steps(cartpole: Path) -> None:
    dataset = _record(cartpole, steps=100)
    lengths = [episode.steps for episode in dataset.episodes()]
    assert sum(lengths) >= 100 > sum(lengths[:-1])
    assert all(episode.terminations[-1] or episode.truncations[-1] for episode in dataset.episodes())


def test_a_longer_recording_begins_with_the_shorter_one(cartpole: Path) -> None:
    short, long = (_record(cartpole, name=f"tests/to{steps}-v0", steps=steps) for steps in (60, 400))
    for one, other in zip(short.episodes(), long.episodes(), strict=False):
        assert_same_episode(one, other)


def test_another_seed_gives_other_episodes(cartpole: Path) -> None:
    one, other = (_record(cartpole, name=f"tests/seed{seed}-v0", seed=seed, episodes=1) for seed in (1, 2))
    first, second = (_before(next(dataset.episodes()))[0] for dataset in (one, other))
    assert not np.array_equal(first, second)


def test_default_names_are_free_versions(cartpole: Path) -> None:
    names = [
        record(RecordRequest(cartpole, episodes=1, behaviour=behaviour), quiet=True).name
        for behaviour in (Behaviour("random"), Behaviour("random"), Behaviour("epsilon", 0.3))
    ]
    assert names == ["CartPole-v1/ppo-random-v0", "CartPole-v1/ppo-random-v1", "CartPole-v1/ppo-epsilon0_3-v0"]


@pytest.mark.parametrize(
    ("request_", "pattern"),
    [
        ({}, "--steps or --episodes"),
        ({"steps": 1, "episodes": 1}, "--steps or --episodes"),
        ({"steps": 0}, "--steps: must be"),
        ({"episodes": 2, "seed": -1}, "--seed: must be"),
        ({"episodes": 2, "behaviour": Behaviour("epsilon", 1.5)}, "--epsilon: must be"),
        ({"episodes": 2, "name": "nameless"}, "is no id"),
    ],
)
def test_requests_that_make_no_sense_are_refused(cartpole: Path, request_: Any, pattern: str) -> None:
    with pytest.raises(AxiomError, match=pattern):
        record(RecordRequest(cartpole, **request_), quiet=True)


def test_an_environment_that_fails_leaves_no_dataset(tmp_path: Path, root: Path) -> None:
    run = _train(tmp_path, "env_samples:Sample/Diary-v0")
    broken = RecordRequest(run, episodes=50, name="tests/some-v0")
    from rl_training.envs.slot import EnvSlot

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(EnvSlot, "step", lambda slot, action: (_ for _ in ()).throw(EnvironmentFailure("it broke")))
        with pytest.raises(EnvironmentFailure):
            record(broken, quiet=True)
    assert not (root / "tests").exists()
    assert record(broken, quiet=True).episodes == 50


# -- interruptions ---------------------------------------------------------------------------------


def _content(dataset: Dataset) -> tuple[bytes, dict[str, Any]]:
    metadata = dict(dataset.metadata)
    return dataset.data_file.read_bytes(), {key: value for key, value in metadata.items() if key != "dataset_id"}


@pytest.mark.parametrize("kind", ["stochastic", "random"])
def test_an_interrupted_recording_goes_on_and_ends_as_if_nothing_had_happened(
    tmp_path: Path, root: Path, monkeypatch: pytest.MonkeyPatch, kind: Any
) -> None:
    # This one remembers more than its seed says: by turns it terminates and truncates.
    run = _train(tmp_path, "toy_envs:Toy/Box-v0")
    monkeypatch.setattr(recording, "ROUND_STEPS", 40)
    request: dict[str, Any] = {"steps": 600, "num_envs": 3, "behaviour": Behaviour(kind)}
    whole = _record(run, name="tests/whole-v0", **request)
    played, real = [], rounds.play_round

    def stopping(*arguments: Any, **settings: Any) -> None:
        played.append(settings["number"])
        if len(played) in (3, 4, 9):
            on_episode = settings["on_episode"]

            def stop(index: int, episode: Any) -> None:
                on_episode(index, episode)
                raise KeyboardInterrupt

            settings["on_episode"] = stop
        real(*arguments, **settings)

    monkeypatch.setattr(recording, "play_round", stopping)
    for _ in range(3):
        with pytest.raises(KeyboardInterrupt):
            _record(run, name="tests/parts-v0", **request)
        assert not (root / "tests" / "parts-v0").exists()
    parts = _record(run, name="tests/parts-v0", **request)
    assert played[:6] == [0, 1, 2, 2, 2, 3]
    assert _content(whole) == _content(parts)
    assert not (root / ".recording").exists()


def test_a_damaged_round_is_played_again(cartpole: Path, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recording, "ROUND_STEPS", 40)
    whole = _record(cartpole, name="tests/whole-v0", steps=400, num_envs=2)
    real = UnfinishedRecording.publish

    def killed(*arguments: Any, **settings: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(UnfinishedRecording, "publish", killed)
    with pytest.raises(KeyboardInterrupt):
        _record(cartpole, name="tests/parts-v0", steps=400, num_envs=2)
    files = sorted((root / ".recording").rglob("round_*.hdf5"))
    files[1].write_bytes(files[1].read_bytes()[:-1] + b"?")
    monkeypatch.setattr(UnfinishedRecording, "publish", real)
    assert _content(whole) == _content(_record(cartpole, name="tests/parts-v0", steps=400, num_envs=2))


def test_another_command_does_not_go_on_with_a_recording(
    cartpole: Path, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(*arguments: Any, **settings: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(UnfinishedRecording, "publish", killed)
        with pytest.raises(KeyboardInterrupt):
            _record(cartpole, episodes=2, num_envs=2)
    with pytest.raises(DatasetError, match="differs in episodes, seed; finish it"):
        _record(cartpole, episodes=3, num_envs=2, seed=8)
    assert _record(cartpole, episodes=2, num_envs=2).total_episodes == 2


def test_two_processes_do_not_record_the_same_dataset(cartpole: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = rounds.play_round

    def meanwhile(*arguments: Any, **settings: Any) -> None:
        monkeypatch.setattr(recording, "play_round", real)
        with pytest.raises(AxiomError, match="another process is recording"):
            _record(cartpole)
        real(*arguments, **settings)

    monkeypatch.setattr(recording, "play_round", meanwhile)
    assert _record(cartpole).total_episodes == 3


def test_a_killed_process_loses_at_most_a_round(cartpole: Path, tmp_path: Path, root: Path) -> None:
    launcher = Launcher(tmp_path / "launcher")
    wanted = [
        "dataset",
        "record",
        "--checkpoint",
        str(cartpole),
        "--steps",
        "1400",
        "--num-envs",
        "4",
        "--stochastic",
        "--quiet",
    ]
    child = launcher.start([*wanted, "--name", "tests/whole-v0"], "dataset_parts")
    assert child.wait() == 0, child.output.read_text()
    moments = random.Random(1)
    entries = root / ".recording" / "tests" / "parts-v0" / "rounds.json"
    for target in (0, 2, 5):  # rounds that are complete before the process is killed at any moment of the next
        child = launcher.start([*wanted, "--name", "tests/parts-v0"], "dataset_parts")
        while not entries.parent.is_dir() or (target and _count(entries) < target):
            assert child.poll() is None, child.output.read_text()
            time.sleep(0.001)
        moment = time.monotonic() + 0.03 * moments.random()
        while time.monotonic() < moment and _count(entries) <= target:
            time.sleep(0.001)
        child.kill()
        assert not (root / "tests" / "parts-v0").exists()
    child = launcher.start([*wanted, "--name", "tests/parts-v0"], "dataset_parts")
    assert child.wait() == 0, child.output.read_text()
    whole, parts = open_dataset("tests/whole-v0"), open_dataset("tests/parts-v0")
    assert _content(whole) == _content(parts)
    assert [path.name for path in root.iterdir()] == ["tests"]


def test_ctrl_c_says_how_to_go_on(cartpole: Path, tmp_path: Path, root: Path) -> None:
    wanted = ["dataset", "record", "--checkpoint", str(cartpole), "--steps", "1e6", "--name", "tests/some-v0"]
    child = Launcher(tmp_path / "launcher").start(wanted, "dataset_parts")
    entries = root / ".recording" / "tests" / "some-v0" / "rounds.json"
    while not _count(entries):
        assert child.poll() is None, child.output.read_text()
        time.sleep(0.002)
    os.kill(child.pid, signal.SIGINT)
    assert child.wait() == 130
    assert "the same command goes on there" in child.output.read_text()
    assert "Traceback" not in child.output.read_text()


def _count(entries: Path) -> int:
    return len(json.loads(entries.read_text())) if entries.exists() else 0
