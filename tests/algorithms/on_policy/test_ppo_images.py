"""PPO on images: the convolutions see a rollout once when acting, and every batch in the layout that they want."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

import numpy as np
import pytest
import torch
from gymnasium import Space, spaces
from torch import nn

from rl_training.algorithms.params.ppo_params import PPOParams
from rl_training.algorithms.ppo import PPO
from rl_training.data.observations import index_observation, to_tensor
from rl_training.data.rollout import Rollout, RolloutStorage
from rl_training.models.encoders import arranged

CPU = torch.device("cpu")
IMAGE = spaces.Box(0, 255, (2, 40, 44), np.uint8)
BOTH = spaces.Dict({"image": IMAGE, "vector": spaces.Box(-1.0, 1.0, (3,), np.float32)})
CONTROLS = {"learning_rate": 1e-3, "clip_coef": 0.2, "ent_coef": 0.01}
STEPS, ENVS = 6, 3


def make(space: Space[Any] = IMAGE, learner: type[PPO] = PPO, **params: Any) -> PPO:
    settings = PPOParams(num_steps=STEPS, minibatch_size=5, update_epochs=2, **params)
    action_space = spaces.Box(-1.0, 1.0, (2,), np.float32) if params.get("use_sde") else spaces.Discrete(4)
    generator = torch.Generator().manual_seed(0)
    return learner(settings, space, action_space, device=CPU, generator=generator)


def collect(algorithm: PPO, space: Space[Any] = IMAGE) -> Rollout:
    """Act on random observations."""
    rng, generator = np.random.default_rng(1), torch.Generator().manual_seed(2)

    def observe() -> Any:
        image = rng.integers(0, 256, (ENVS, *IMAGE.shape), dtype=np.uint8)
        return {"image": image, "vector": rng.random((ENVS, 3), np.float32)} if space is BOTH else image

    storage: RolloutStorage | None = None
    no = np.zeros(ENVS, bool)
    for _ in range(STEPS):
        seen = observe()
        chosen = algorithm.act_on_host(seen, None, CONTROLS, generator)
        storage = storage or RolloutStorage(STEPS, ENVS, space, chosen.action)
        storage.add(seen, chosen.action, None, rng.random(ENVS, np.float32), no, no, chosen.log_prob, chosen.value)
    assert storage is not None
    return storage.on_device(observe(), CPU)


@pytest.mark.parametrize("space", [IMAGE, BOTH], ids=["image", "dict"])
def test_what_is_remembered_when_acting_is_what_an_evaluation_would_give(space: Space[Any]) -> None:
    algorithm = make(space)
    rollout = collect(algorithm, space)
    assert rollout.log_prob is not None
    assert rollout.value is not None
    evaluated = algorithm.prepare(replace(rollout, log_prob=None, value=None))
    remembered = algorithm.prepare(rollout)
    assert torch.equal(remembered.log_prob, rollout.log_prob.flatten())
    for name in ("log_prob", "value", "advantage", "target_value"):
        torch.testing.assert_close(getattr(remembered, name), getattr(evaluated, name), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("space", [IMAGE, BOTH], ids=["image", "dict"])
def test_actions_are_those_of_act(space: Space[Any]) -> None:
    algorithm = make(space)
    rollout = collect(algorithm, space)
    generator = torch.Generator().manual_seed(2)
    for step in range(STEPS):
        seen: Any = rollout.observation
        row = {key: part[step] for key, part in seen.items()} if isinstance(seen, dict) else seen[step]
        assert torch.equal(rollout.action[step], algorithm.act(row, None, CONTROLS, generator))


class OwnEvaluation(PPO):
    def evaluate_actions(self, *arguments: Any) -> Any:
        return super().evaluate_actions(*arguments)


class OwnEncoder(PPO):
    def make_model(self, *arguments: Any) -> nn.Module:
        model: Any = super().make_model(*arguments)
        model.encoder = nn.Sequential(model.encoder)  # as if it normalised by the batch
        return cast("nn.Module", model)


OTHERS: dict[str, dict[str, Any]] = {
    "vector": {"space": spaces.Box(-1.0, 1.0, (3,), np.float32)},
    "own evaluation": {"learner": OwnEvaluation},
    "own encoder": {"learner": OwnEncoder},
    "sde": {"use_sde": True},
}


@pytest.mark.parametrize("other", OTHERS)
def test_other_networks_and_formulas_are_evaluated_by_the_update(other: str) -> None:
    assert make().remembers
    assert not make(**OTHERS[other]).remembers


def test_an_update_in_the_convolutions_layout_is_the_same_bit_for_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    weights = []
    for layout in ("arranged", "as it is"):
        algorithm = make()
        if layout == "as it is":
            monkeypatch.setattr("rl_training.algorithms.ppo.arranged", lambda encoder, observation: observation)
        algorithm.update(collect(algorithm), CONTROLS, torch.Generator().manual_seed(3))
        weights.append(algorithm.optimizer.values.clone())
    assert torch.equal(*weights)


def test_rows_of_arranged_images_keep_their_layout_and_content() -> None:
    encoder = make().model.encoder
    images = to_tensor(np.random.default_rng(0).integers(0, 256, (9, *IMAGE.shape), dtype=np.uint8), CPU)
    found = index_observation(arranged(encoder, images), torch.tensor([7, 0, 3]))
    assert isinstance(found, torch.Tensor)
    assert isinstance(images, torch.Tensor)
    assert found.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(found, images[[7, 0, 3]])


def test_images_with_channels_last_and_other_observations_stay_as_they_are() -> None:
    last = spaces.Box(0, 255, (40, 44, 3), np.uint8)
    images = torch.zeros(2, 40, 44, 3, dtype=torch.uint8)
    assert arranged(make(last).model.encoder, images) is images
    vector = torch.zeros(2, 3)
    assert (
        arranged(make(BOTH).model.encoder, {"image": torch.zeros(2, 2, 40, 44), "vector": vector})["vector"] is vector
    )
    assert arranged(None, vector) is vector


def test_a_rollout_whose_first_steps_were_not_remembered_is_evaluated_as_a_whole() -> None:
    """Such as one that an earlier release left in the middle."""
    space, action, row = spaces.Box(-1.0, 1.0, (3,), np.float32), np.zeros(ENVS, np.int64), np.zeros(ENVS, np.float32)
    storage, continued = (RolloutStorage(3, ENVS, space, action) for _ in range(2))
    seen, no = np.zeros((ENVS, 3), np.float32), np.zeros(ENVS, bool)
    storage.add(seen, action, None, row, no, no, row + 1, row + 2)
    state = storage.state_dict()
    assert np.array_equal(state["log_prob"], [row + 1])
    continued.load_state_dict({name: part for name, part in state.items() if name not in ("log_prob", "value")})
    for _ in range(2):
        continued.add(seen, action, None, row, no, no, row + 1, row + 2)
    assert continued.on_device(seen, CPU).log_prob is None
    continued.clear()
    for _ in range(3):
        continued.add(seen, action, None, row, no, no, row + 1, row + 2)
    assert continued.on_device(seen, CPU).value is not None
    restored = RolloutStorage(3, ENVS, space, action)
    restored.load_state_dict(state)
    assert restored.value is not None
    assert np.array_equal(restored.value[0], row + 2)
