"""Settings of samplers that do not fit, and networks that cannot be split."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from harness import tiny_config
from rl_training.algorithms.params.ppo_params import PPOParams
from rl_training.algorithms.ppo import PPO
from rl_training.data.observations import sample_batch
from rl_training.errors import ConfigError, MissingExtraError
from rl_training.runtime.samplers.own_rows import OwnRows, check_rows_alone, convolve_own_rows
from rl_training.runtime.sweep import ray_cluster
from rl_training.runtime.workflows import train


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        (
            {"samplers": 3},
            "samplers: 3 samplers need as many environments, and num_envs is 2; set samplers to at most 2, or raise "
            "num_envs",
        ),
        ({"samplers": 0}, "samplers: "),
        (
            {"samplers": 2, "env_id": "pettingzoo:mpe2.simple_spread_v3"},
            "samplers: the agents of pettingzoo:mpe2.simple_spread_v3 step together; leave samplers out",
        ),
        ({"samplers": 2, "algo": "scalezero"}, "samplers: scalezero has no use for samplers; leave them out"),
        (
            {"samplers": 2, "execution_backend": "vector"},
            "execution_backend: samplers step their environments one by one; set it to auto, or leave samplers out",
        ),
        (
            {"policy_lag": 1},
            "policy_lag: only samplers collect while the run learns; set samplers, or leave this out",
        ),
        ({"samplers": 2, "policy_lag": 2}, "policy_lag: "),
        ({"samplers": 2, "sampler_backend": "thread"}, "sampler_backend: "),
        (
            {"sampler_backend": "ray"},
            "sampler_backend: there are no samplers; set samplers to their number, or leave this out",
        ),
        (
            {"samplers": 2, "ray_address": "10.0.0.5:6379"},
            "ray_address: is read by sampler_backend ray only; set sampler_backend to ray, or leave the address out",
        ),
        ({"samplers": 2, "sampler_backend": "ray", "ray_address": ""}, "ray_address: "),
    ],
)
def test_a_setting_of_samplers_that_does_not_fit_is_refused(
    tmp_path: Path, changes: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(ConfigError) as raised:
        tiny_config(tmp_path, **changes)
    assert sentence in str(raised.value)


def test_samplers_on_ray_need_its_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_cluster, "find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match=r"^sampler_backend: ray needs the extra `ray`: .*install"):
        train(tiny_config(tmp_path, samplers=2, sampler_backend="ray"))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("address", ["127.0.0.1:1", "nonsense"])
@pytest.mark.parametrize("by", ["key", "variable"])
def test_samplers_on_a_cluster_that_is_not_there_are_one_sentence_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, address: str, by: str
) -> None:
    monkeypatch.setattr(ray_cluster, "find_spec", lambda name: name)
    monkeypatch.setenv("RAY_ADDRESS", address if by == "variable" else "")
    config = tiny_config(tmp_path, samplers=2, sampler_backend="ray", ray_address=address if by == "key" else None)
    sentence = f"ray_address: no Ray cluster answers at {address}; start one with `ray start --head`, or give"
    with pytest.raises(ConfigError, match=re.escape(sentence)):
        train(config)
    assert not list(tmp_path.iterdir())


def test_an_algorithm_that_learns_only_from_its_present_policy_has_no_lag(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="policy_lag: pqn learns only from its present policy; set it to 0"):
        train(tiny_config(tmp_path, algo="pqn", samplers=2, policy_lag=1, algo_kwargs={"num_steps": 64}))
    assert not list(tmp_path.iterdir())


def test_convolutions_of_a_sampler_compute_its_own_rows_with_the_same_bits() -> None:
    space = spaces.Box(0, 255, (4, 44, 44), np.uint8)
    parts: Any = {"device": torch.device("cpu"), "generator": torch.Generator()}
    algorithm = PPO(PPOParams(), space, spaces.Discrete(3), **parts)
    observation = sample_batch(space, 6, torch.device("cpu"))
    with torch.inference_mode():
        expected = algorithm.model.encoder(observation)
        for own, convolved in ((slice(0, 3), slice(0, 3)), (slice(5, 6), slice(4, 6)), (slice(0, 6), None)):
            algorithm.model.encoder.only_rows = None
            convolve_own_rows(OwnRows(algorithm, 6, own), space, 6)
            assert algorithm.model.encoder.only_rows in (convolved, None)  # None where bits would change
            assert torch.equal(algorithm.model.encoder(observation)[own], expected[own])


class _Mixing(torch.nn.Module):
    """Subtracts the mean of a batch."""

    width = 4

    def forward(self, observation: torch.Tensor) -> torch.Tensor:
        return observation - observation.mean(dim=0)


def test_a_network_that_mixes_the_rows_of_a_batch_is_refused() -> None:
    space = spaces.Box(-1.0, 1.0, (4,))

    def made(**encoder: Any) -> OwnRows:
        parts: Any = {"device": torch.device("cpu"), "generator": torch.Generator(), **encoder}
        return OwnRows(PPO(PPOParams(), space, spaces.Box(-1.0, 1.0, (2,)), **parts), 3, slice(1, 2))

    check_rows_alone(made(), space, 3, {})
    with pytest.raises(ConfigError, match="samplers: the network of PPO mixes the rows of a batch"):
        check_rows_alone(made(encoder=lambda *_, **__: _Mixing()), space, 3, {})
