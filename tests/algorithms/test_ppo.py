"""PPO's formulas against numbers worked out by hand: advantages, the loss and its parts."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from rl_training.algorithms.advantages import explained_variance, generalized_advantage
from rl_training.algorithms.params.ppo_params import PPOParams
from rl_training.algorithms.ppo import PPOBatch, policy_change, ppo_loss
from rl_training.errors import ConfigError
from rl_training.experiment.config import validate_config
from rl_training.models.distributions import Categorical

# One environment, three steps; with gamma 1/2 the temporal differences are 1, 2, 3 where nothing ends.
REWARD, VALUE, LAST_VALUE = [1.0, 2.0, 3.0], [1.0, 2.0, 4.0], 8.0
FINAL_VALUE = [100.0, 10.0, 20.0]  # counts only where an episode was truncated


def _advantage(
    *, terminated: tuple[int, ...] = (), truncated: tuple[int, ...] = (), gamma: float = 0.5, gae_lambda: float = 0.5
) -> list[float]:
    """Return the advantages of the three steps, with the given ones ending an episode."""

    def flags(steps: tuple[int, ...]) -> Tensor:
        return torch.tensor([[step in steps] for step in range(3)])

    advantage = generalized_advantage(
        torch.tensor(REWARD).unsqueeze(1),
        torch.tensor(VALUE).unsqueeze(1),
        torch.tensor(FINAL_VALUE).unsqueeze(1),
        flags(terminated),
        flags(truncated),
        torch.tensor([LAST_VALUE]),
        gamma=gamma,
        gae_lambda=gae_lambda,
    )
    return advantage.squeeze(1).tolist()


def test_advantage_sums_the_discounted_temporal_differences() -> None:
    assert _advantage() == [1 + (2 + 3 / 4) / 4, 2 + 3 / 4, 3]


def test_lambda_zero_leaves_the_temporal_differences() -> None:
    assert _advantage(gae_lambda=0.0) == [1, 2, 3]


def test_lambda_one_gives_the_discounted_return_less_the_value() -> None:
    last = 3 + 0.5 * 8
    middle = 2 + 0.5 * last
    first = 1 + 0.5 * middle
    assert _advantage(gae_lambda=1.0) == [first - 1, middle - 2, last - 4]


def test_gamma_zero_sees_only_the_reward() -> None:
    assert _advantage(gamma=0.0) == [0, 0, -1]


def test_termination_bootstraps_from_nothing_and_stops_the_sum() -> None:
    assert _advantage(terminated=(1,)) == [1 + (2 - 2) / 4, 2 - 2, 3]


def test_truncation_bootstraps_from_the_final_value_and_not_from_the_next_row() -> None:
    # The next row belongs to another episode and is worth 4; the truncated one's own end is worth 10.
    assert _advantage(truncated=(1,)) == [1 + (2 + 5 - 2) / 4, 2 + 5 - 2, 3]


def test_an_end_that_is_both_counts_as_termination() -> None:
    assert _advantage(terminated=(1,), truncated=(1,)) == _advantage(terminated=(1,))


def test_the_last_step_may_end_an_episode_too() -> None:
    assert _advantage(terminated=(2,))[2] == 3 - 4
    assert _advantage(truncated=(2,))[2] == 3 + 0.5 * 20 - 4


def test_environments_do_not_see_each_other() -> None:
    terminated = torch.tensor([[False, False], [True, False], [False, False]])
    truncated = torch.tensor([[False, False], [False, True], [False, False]])
    advantage = generalized_advantage(
        torch.tensor([REWARD, REWARD]).T,
        torch.tensor([VALUE, VALUE]).T,
        torch.tensor([FINAL_VALUE, FINAL_VALUE]).T,
        terminated,
        truncated,
        torch.tensor([LAST_VALUE, LAST_VALUE]),
        gamma=0.5,
        gae_lambda=0.5,
    )
    assert advantage[:, 0].tolist() == _advantage(terminated=(1,))
    assert advantage[:, 1].tolist() == _advantage(truncated=(1,))


def test_advantage_equals_its_definition_on_random_rollouts() -> None:
    rng = np.random.default_rng(0)
    steps, envs, gamma, gae_lambda = 30, 4, 0.9, 0.7
    reward, value, final = rng.normal(size=(3, steps, envs))
    last = rng.normal(size=envs)
    terminated, truncated = rng.random((2, steps, envs)) < 0.15
    expected = np.zeros((steps, envs))
    for env in range(envs):
        for start in range(steps):
            for step in range(start, steps):
                following = last[env] if step == steps - 1 else value[step + 1, env]
                if truncated[step, env]:
                    following = final[step, env]
                if terminated[step, env]:
                    following = 0.0
                delta = reward[step, env] + gamma * following - value[step, env]
                expected[start, env] += (gamma * gae_lambda) ** (step - start) * delta
                if terminated[step, env] or truncated[step, env]:
                    break
    arrays = (torch.from_numpy(array) for array in (reward, value, final, terminated, truncated, last))
    advantage = generalized_advantage(*arrays, gamma=gamma, gae_lambda=gae_lambda)
    np.testing.assert_allclose(advantage.numpy(), expected, rtol=1e-10, atol=1e-12)


# -- the loss ------------------------------------------------------------------------------------


class FixedModel:
    """Gives the same two-way choice and the given values whatever it observes."""

    def __init__(self, *, rows: int, logits: tuple[float, float] = (0.0, 0.0), value: list[float] | None = None):
        self.logits = torch.tensor(logits).repeat(rows, 1).requires_grad_()
        self.value = torch.tensor(value or [0.0] * rows).requires_grad_()

    def __call__(self, observation: Any, mask: Any) -> tuple[Categorical, Tensor]:
        return Categorical(self.logits), self.value


def _loss(
    model: FixedModel,
    *,
    ratio: list[float],
    advantage: list[float],
    old_value: list[float] | None = None,
    target_value: list[float] | None = None,
    clip_coef: float = 0.2,
    ent_coef: float = 0.0,
    **params: Any,
) -> tuple[Tensor, dict[str, Any]]:
    """Evaluate the loss where the first choice was taken and its probability has changed by `ratio` since."""
    rows = len(ratio)
    log_prob = Categorical(model.logits.detach()).log_probs[:, 0]
    batch = PPOBatch(
        observation=torch.zeros(rows, 1),
        action=torch.zeros(rows, dtype=torch.int64),
        action_mask=None,
        log_prob=log_prob - torch.tensor(ratio).log(),
        value=torch.tensor(old_value or [0.0] * rows),
        advantage=torch.tensor(advantage),
        target_value=torch.tensor(target_value or [0.0] * rows),
    )
    untyped: Any = model
    settings = PPOParams(**{"normalize_advantage": False, "vf_coef": 0.5, **params})
    loss, parts = ppo_loss(untyped, batch, {"clip_coef": clip_coef, "ent_coef": ent_coef}, settings)
    assert loss.item() == parts["loss_total"].item()
    return loss, {name: float(part) if part.dim() == 0 else part for name, part in parts.items()}


@pytest.mark.parametrize(
    ("ratio", "advantage", "objective", "learns"),
    [
        (1.5, 2.0, 1.2 * 2.0, False),  # a good action is likely enough already
        (1.5, -2.0, 1.5 * -2.0, True),  # a bad one became more likely: no limit to undoing that
        (0.5, 2.0, 0.5 * 2.0, True),  # a good one became less likely
        (0.5, -2.0, 0.8 * -2.0, False),  # a bad one is unlikely enough already
        (1.1, 2.0, 1.1 * 2.0, True),
        (0.9, -2.0, 0.9 * -2.0, True),
    ],
)
def test_policy_loss_takes_the_pessimistic_side_of_the_clip(
    ratio: float, advantage: float, objective: float, learns: bool
) -> None:
    model = FixedModel(rows=1)
    loss, parts = _loss(model, ratio=[ratio], advantage=[advantage])
    assert parts["loss_policy"] == pytest.approx(-objective, rel=1e-6)
    loss.backward()
    assert model.logits.grad is not None
    # The probability is 1/2, so that the log probability's slope along its own logit is 1/2.
    slope = -advantage * ratio * 0.5 if learns else 0.0
    assert model.logits.grad[0].tolist() == pytest.approx([slope, -slope], rel=1e-6)


def test_policy_loss_is_the_mean_over_the_minibatch() -> None:
    _, parts = _loss(FixedModel(rows=3), ratio=[1.5, 1.0, 0.5], advantage=[1.0, 4.0, -1.0])
    assert parts["loss_policy"] == pytest.approx(-(1.2 + 4.0 - 0.8) / 3, rel=1e-6)


def test_kl_and_clip_fraction_describe_the_change_of_the_policy() -> None:
    _, parts = _loss(FixedModel(rows=2), ratio=[1.5, 1.0], advantage=[1.0, 1.0])
    approx_kl, clip_fraction = policy_change(parts["log_ratio"], 0.2)
    assert approx_kl == pytest.approx((0.5 - math.log(1.5)) / 2, rel=1e-5)
    assert clip_fraction == 0.5


def test_value_loss_is_the_mean_squared_error_weighted_by_its_coefficient() -> None:
    model = FixedModel(rows=2, value=[1.0, 3.0])
    loss, parts = _loss(model, ratio=[1.0, 1.0], advantage=[0.0, 0.0], target_value=[2.0, 1.0], vf_coef=0.25)
    assert parts["loss_value"] == 2.5
    assert loss.item() == 0.25 * 2.5
    loss.backward()
    assert model.value.grad is not None
    assert model.value.grad.tolist() == [0.25 * 2 * -1.0 / 2, 0.25 * 2 * 2.0 / 2]


@pytest.mark.parametrize(
    ("target", "error", "learns"),
    [
        (3.0, (0.2 - 3.0) ** 2, False),  # it moved from 0 to 1 already: far enough for one update
        (0.0, 1.0, True),  # it moved the wrong way
    ],
)
def test_clipped_value_loss_takes_the_larger_error(target: float, error: float, learns: bool) -> None:
    model = FixedModel(rows=1, value=[1.0])
    loss, parts = _loss(
        model, ratio=[1.0], advantage=[0.0], old_value=[0.0], target_value=[target], clip_value_loss=True
    )
    assert parts["loss_value"] == pytest.approx(error)
    loss.backward()
    assert model.value.grad is not None
    assert bool(model.value.grad.abs().sum() > 0) is learns


def test_entropy_is_rewarded() -> None:
    uniform = FixedModel(rows=1)
    loss, parts = _loss(uniform, ratio=[1.0], advantage=[0.0], ent_coef=0.1)
    assert parts["entropy"] == pytest.approx(math.log(2))
    assert loss.item() == pytest.approx(-0.1 * math.log(2))
    decided = FixedModel(rows=1, logits=(1.0, 0.0))
    loss, _ = _loss(decided, ratio=[1.0], advantage=[0.0], ent_coef=0.1)
    loss.backward()
    assert decided.logits.grad is not None
    assert decided.logits.grad[0, 0] > 0 > decided.logits.grad[0, 1]  # descending evens the odds


def test_advantages_are_normalised_per_minibatch_where_asked() -> None:
    arguments: dict[str, Any] = {"ratio": [1.5, 1.0, 0.5], "advantage": [10.0, 20.0, 30.0], "clip_coef": 0.9}
    _, plain = _loss(FixedModel(rows=3), **arguments)
    assert plain["loss_policy"] == pytest.approx(-(15 + 20 + 15) / 3, rel=1e-6)
    _, normalised = _loss(FixedModel(rows=3), **arguments, normalize_advantage=True)
    assert normalised["loss_policy"] == pytest.approx(-(-1.5 + 0.0 + 0.5) / 3, rel=1e-5)


def test_explained_variance_is_one_for_a_perfect_critic_and_zero_for_a_constant_one() -> None:
    target = torch.tensor([1.0, 2.0, 6.0])
    assert explained_variance(target, target).item() == 1.0
    assert explained_variance(torch.full((3,), 5.0), target).item() == 0.0
    assert explained_variance(-target, target).item() == pytest.approx(-3.0)


# -- parameters ----------------------------------------------------------------------------------


@pytest.mark.parametrize(("key", "value"), [("update_epochs", 2), ("minibatch_size", 4)])
def test_a2c_refuses_to_be_more_than_one_step_over_the_whole_rollout(tmp_path: Path, key: str, value: int) -> None:
    raw = {"algo": "a2c", "env_id": "CartPole-v1", "seed": 0, "total_timesteps": 10, "output_dir": str(tmp_path)}
    with pytest.raises(ConfigError, match=f"algo_kwargs.{key}"):
        validate_config({**raw, "algo_kwargs": {key: value}})
    config = validate_config(raw)
    assert (config.algo_kwargs["update_epochs"], config.algo_kwargs["minibatch_size"]) == (1, None)
