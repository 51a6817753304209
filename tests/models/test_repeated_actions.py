"""Random actions that are kept for a while: how long, where, and when they end."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import Tensor

from harness import last_checkpoint, require, stopped_after, tiny_config
from replay_parts import CHOICE, CONTROLS, CPU, OBSERVATION, Untouched, assert_goes_on_alike, generator
from replays import OFF_POLICY_TASKS, off_policy_config, replay_rows
from rl_training.algorithms.dqn import DQN
from rl_training.algorithms.params.dqn_params import DQNParams, RainbowParams
from rl_training.errors import ConfigError
from rl_training.experiment.config import validate_config
from rl_training.models.discrete import DiscreteActions
from rl_training.models.exploration import RepeatedActions
from rl_training.runtime.workflows import resume, train

BEST = -1  # no random action has this number
ALWAYS = {**CONTROLS, "epsilon": 1.0}


def repeats(*, exponent: float = 2.0, limit: int = 10_000, actions: int = 4) -> RepeatedActions:
    return RepeatedActions(DiscreteActions(spaces.Discrete(actions)), exponent=exponent, limit=limit, device=CPU)


def steps(repeated: RepeatedActions, epsilons: list[float], *, num_envs: int, seed: int = 0) -> Tensor:
    """Return the actions [steps, num_envs]; where none is random, `BEST`."""
    draws, best = generator(seed), torch.full((num_envs,), BEST)
    return torch.stack([repeated.step(best, None, epsilon, draws) for epsilon in epsilons])


def algorithm(*, seed: int = 0, kind: type[DQNParams] = DQNParams, **params: Any) -> DQN:
    settings = kind(**{"hidden_sizes": (8,), "num_atoms": 5, "repeat_exponent": 2.0, **params})
    return DQN(settings, OBSERVATION, CHOICE, device=CPU, generator=generator(seed))


@pytest.mark.parametrize(
    ("exponent", "limit", "expected"),
    [
        (2.0, 4, [144 / 205, 36 / 205, 16 / 205, 9 / 205]),  # 1, 1/4, 1/9 and 1/16 of 205/144
        (1.0, 3, [6 / 11, 3 / 11, 2 / 11]),
        (2.0, 1, [1.0]),
    ],
)
def test_durations_follow_the_power_law_up_to_their_limit(exponent: float, limit: int, expected: list[float]) -> None:
    drawn = repeats(exponent=exponent, limit=limit).durations(100_000, generator(1))
    shares = torch.bincount(drawn - 1, minlength=limit) / len(drawn)
    assert shares.tolist() == pytest.approx(expected, abs=0.006)


def test_without_a_close_limit_durations_are_zeta_distributed() -> None:
    """With exponent 2, n has the share 6 / (pi n) ** 2, so that long ones are not rare."""
    drawn = repeats().durations(100_000, generator(2))
    for n in (1, 2, 3):
        assert (drawn == n).double().mean().item() == pytest.approx(6 / (np.pi * n) ** 2, abs=0.006)
    assert (drawn > 100).double().mean().item() == pytest.approx(
        0.00605, abs=0.0012
    )  # the tail is nearly 6 / 100 pi**2
    assert drawn.max() <= 10_000


def test_an_action_is_repeated_for_the_steps_drawn_and_then_the_best_one_is_taken() -> None:
    repeated = repeats(limit=12)
    first = steps(repeated, [1.0], num_envs=500)
    left = repeated.state_dict()["remaining"]
    assert left.unique().numel() == 12  # 0 to 11
    later = steps(repeated, [0.0] * 12, num_envs=500)
    still = torch.arange(12).unsqueeze(1) < left
    assert torch.equal(later, torch.where(still, first, BEST))


def test_epsilon_is_the_chance_to_begin_where_nothing_is_repeated() -> None:
    repeated = repeats(limit=1)
    assert (steps(repeated, [0.3] * 20, num_envs=5000) != BEST).double().mean().item() == pytest.approx(0.3, abs=0.01)
    repeated = repeats(exponent=0.01, limit=1000)
    taken = steps(repeated, [0.3] * 4, num_envs=20_000) != BEST
    assert taken.double().mean(dim=1).tolist() == pytest.approx([1 - 0.7**n for n in (1, 2, 3, 4)], abs=0.012)


def test_random_actions_are_uniform() -> None:
    taken = steps(repeats(), [1.0], num_envs=40_000)[0]
    assert (torch.bincount(taken, minlength=4) / 40_000).tolist() == pytest.approx([0.25] * 4, abs=0.01)


def test_the_end_of_an_episode_ends_what_its_environment_repeats() -> None:
    repeated = repeats(exponent=0.01)
    repeated.end(np.array([True, False]))  # before the first step
    first = steps(repeated, [1.0], num_envs=2)[0]
    repeated.end(np.array([True, False]))
    assert steps(repeated, [0.0], num_envs=2)[0].tolist() == [BEST, first[1].item()]


def test_an_action_that_becomes_illegal_is_given_up() -> None:
    repeated, rows = repeats(exponent=0.01), 2000
    first = steps(repeated, [1.0], num_envs=rows)[0]
    forbidden = torch.ones(rows, 4, dtype=torch.bool)
    forbidden[:1000].scatter_(1, first[:1000].unsqueeze(1), False)
    best = torch.full((rows,), BEST)
    taken = repeated.step(best, forbidden, 0.0, generator(3))
    assert (taken[:1000] == BEST).all()
    assert torch.equal(taken[1000:], first[1000:])
    anew = repeated.step(best, forbidden, 1.0, generator(4))
    assert forbidden.gather(1, anew.unsqueeze(1)).all()
    assert torch.equal(anew[1000:], first[1000:])


# -- as an option of DQN ---------------------------------------------------------------------------


def test_dqn_repeats_its_random_actions_and_takes_the_best_one_otherwise() -> None:
    learner = algorithm(repeat_exponent=0.01)
    observation = torch.randn(300, 3, generator=generator(1))
    taken = [learner.act(observation, None, ALWAYS, generator(seed)) for seed in range(3)]
    assert torch.equal(taken[0], taken[1])
    assert torch.equal(taken[0], taken[2])
    assert taken[0].unique().numel() == 4
    learner.end_episodes(np.ones(300, dtype=bool))
    greedy = learner.act(observation, None, {**CONTROLS, "epsilon": 0.0}, generator(9))
    assert torch.equal(greedy, learner.choose(observation, None, None))


def test_evaluating_neither_repeats_nor_changes_what_is_repeated() -> None:
    learner = algorithm(repeat_exponent=0.01)
    observation = torch.randn(64, 3, generator=generator(1))
    learner.act(observation, None, ALWAYS, generator(2))
    before = copy.deepcopy(learner.state_dict()["repeats"])
    drawn = [learner.choose(observation, None, generator(seed)) for seed in (3, 4)]
    assert not torch.equal(*drawn)
    after = learner.state_dict()["repeats"]
    assert all(torch.equal(before[name], after[name]) for name in ("action", "remaining"))


@pytest.mark.parametrize("kind", [DQNParams, RainbowParams])
def test_a_saved_state_goes_on_repeating_bit_for_bit(kind: type[DQNParams]) -> None:
    with Untouched():
        assert_goes_on_alike(algorithm(kind=kind), algorithm(kind=kind, seed=9), CHOICE)


def test_without_the_option_nothing_is_kept_or_saved() -> None:
    learner = algorithm(repeat_exponent=None)
    observation = torch.randn(300, 3, generator=generator(1))
    taken = [learner.act(observation, None, ALWAYS, generator(seed)) for seed in range(2)]
    assert (taken[0] == taken[1]).double().mean().item() == pytest.approx(0.25, abs=0.1)
    learner.end_episodes(np.ones(300, dtype=bool))
    assert set(learner.state_dict()) == {"model", "target_model", "optimizer"}


@pytest.mark.parametrize("num_envs", [1, 3])
def test_in_a_run_every_episode_has_its_own_repetition(
    num_envs: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Repetitions longer than any episode: one action from the first to the last step, and another in the next."""
    monkeypatch.setattr(RepeatedActions, "durations", lambda self, count, draws: torch.full((count,), 10_000))
    settings = {"repeat_exponent": 2.0, "epsilon_schedule": None, "buffer_size": 1000}
    config = off_policy_config("dqn", tmp_path, num_envs=num_envs, total_timesteps=420, algo_kwargs=settings)
    rows = replay_rows(last_checkpoint(train(config).run_dir))
    action, ended = (rows[f"transition/{name}"].reshape(-1, num_envs) for name in ("action", "discount"))
    for env in range(num_envs):
        ends = np.flatnonzero(ended[:, env] == 0)
        after_warm_up = [end for end in ends if end * num_envs >= 24]
        episodes = np.split(action[:, env], [end + 1 for end in after_warm_up])[1:-1]
        assert len(episodes) >= 5
        assert all(len(np.unique(episode)) == 1 for episode in episodes)
        assert len({int(episode[0]) for episode in episodes}) == 2


def test_a_resume_that_restarts_the_environments_repeats_nothing_from_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    require("LunarLander-v3")
    settings = {**OFF_POLICY_TASKS["dqn"]["algo_kwargs"], "repeat_exponent": 2.0}
    with stopped_after(31):
        result = train(tiny_config(tmp_path, algo="dqn", env_id="LunarLander-v3", algo_kwargs=settings))
    told, end_episodes = [], DQN.end_episodes

    def watched(learner: DQN, ended: np.ndarray) -> None:
        told.append(ended.tolist())
        end_episodes(learner, ended)

    monkeypatch.setattr(DQN, "end_episodes", watched)
    assert resume(result.run_dir).status == "completed"
    assert told[0] == [True, True]
    assert [True, True] not in told[1:]


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"repeat_exponent": 0.0}, "algo_kwargs.repeat_exponent"),
        ({"repeat_exponent": 2.0, "repeat_limit": 0}, "algo_kwargs.repeat_limit"),
        (
            {"repeat_exponent": 2.0, "epsilon": 0.0, "epsilon_schedule": None},
            "algo_kwargs.repeat_exponent: there is no random action to repeat; raise epsilon",
        ),
    ],
)
def test_settings_without_a_meaning_are_refused(settings: dict[str, Any], complaint: str) -> None:
    raw = {"algo": "dqn", "env_id": "CartPole-v1", "seed": 0, "total_timesteps": 5000, "output_dir": "runs"}
    with pytest.raises(ConfigError) as refused:
        validate_config({**raw, "algo_kwargs": settings})
    assert complaint in str(refused.value)
