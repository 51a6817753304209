"""Normalisation statistics of several ranks that are joined now and then."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor

from rl_training.envs.normalize import Normalizers, ObservationNormalizer, RewardNormalizer
from rl_training.runtime.ranks.moments import JointMoments

SPACE = gym.spaces.Dict(
    {"place": gym.spaces.Box(-np.inf, np.inf, (2, 3), np.float32), "speed": gym.spaces.Box(-9, 9, (1,), np.float32)}
)


def _normalizers() -> Normalizers:
    return Normalizers(ObservationNormalizer(SPACE, 10.0), RewardNormalizer(2, 0.9, 10.0))


def _join(ranks: list[JointMoments]) -> None:
    """Join the statistics of ranks that all live in this process."""
    sent: list[Tensor] = []
    for rank in ranks:

        def remember(tensor: Tensor) -> Tensor:
            sent.append(tensor.clone())
            return torch.zeros_like(tensor)

        state = rank.state_dict()
        own = [moments.state_dict() for moments in rank._own]
        rank.join(remember)  # what it sends is all that counts: restore what it had
        rank.load_state_dict(state)
        for moments, saved in zip(rank._own, own, strict=True):
            moments.load_state_dict(saved)
    total = torch.stack(sent).sum(dim=0)
    for rank in ranks:
        rank.join(lambda tensor: total.clone())


def test_joined_statistics_are_those_of_the_data_of_all_ranks() -> None:
    rng = np.random.default_rng(0)
    normalizers = [_normalizers() for _ in range(3)]
    ranks = [JointMoments(each) for each in normalizers]
    seen: dict[str, list[np.ndarray]] = {"place": [], "speed": []}
    for _ in range(4):
        for number, each in enumerate(normalizers):
            for _ in range(5):
                observation = {
                    "place": 100.0 + number + rng.normal(size=(2, 2, 3)),
                    "speed": rng.uniform(-9, 9, size=(2, 1)),
                }
                each.begin(observation)
                for key, values in observation.items():
                    seen[key].append(values)
        _join(ranks)
        assert len({str(each.state_dict()["observation"]) for each in normalizers}) == 1
        for each in normalizers:
            assert each.observation is not None
            for key, moments in each.observation.moments.items():
                values = np.concatenate(seen[key])
                assert moments.count == len(values)
                np.testing.assert_allclose(moments.mean, values.mean(axis=0), rtol=1e-12)
                np.testing.assert_allclose(moments.var, values.var(axis=0), rtol=1e-9)


def test_a_restored_rank_sends_what_it_has_seen_since_the_statistics_were_joined() -> None:
    normalizers = [_normalizers() for _ in range(2)]
    ranks = [JointMoments(each) for each in normalizers]
    _join(ranks)  # nobody has seen anything yet
    for number, each in enumerate(normalizers):
        assert each.reward is not None
        each.reward.update(np.array([1.0 + number, 3.0]), None)
    again = [_normalizers() for _ in range(2)]
    restored = [JointMoments(each) for each in again]
    for old, new, kept, rank in zip(normalizers, again, ranks, restored, strict=True):
        new.load_state_dict(old.state_dict())
        rank.load_state_dict(kept.state_dict())
    _join(ranks)
    _join(restored)
    for old, new in zip(normalizers, again, strict=True):
        assert old.reward is not None
        assert new.reward is not None
        assert new.reward.moments.state_dict() == old.reward.moments.state_dict()
        assert new.reward.moments.count == 4
        np.testing.assert_allclose(new.reward.moments.mean, (1 + 3 + 2 + 3) / 4)
