"""Networks: initial weights, stacked perceptrons, encoders for every kind of observation."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import Space, spaces
from torch import Tensor, nn

from rl_training.data.observations import to_tensor
from rl_training.errors import ConfigError
from rl_training.models.actor_critic import ActorCritic
from rl_training.models.augmentation import shift_images
from rl_training.models.encoders import make_encoder
from rl_training.models.layers import ACTIVATIONS, StackedMLP, convolution, linear

VECTOR = spaces.Box(-np.inf, np.inf, (5,), np.float32)
PICTURE = spaces.Box(0, 255, (40, 36, 3), np.uint8)


def _generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def _actor_critic(observation: Space[Any], action: Space[Any], *, seed: int = 0, **settings: Any) -> ActorCritic:
    defaults: dict[str, Any] = {
        "hidden_sizes": None,
        "activation": "tanh",
        "orthogonal_init": True,
        "log_std": "state_independent",
        "log_std_init": 0.0,
        "use_sde": False,
    }
    values = {**defaults, **settings}
    generator = _generator(seed)
    encoder = make_encoder(observation, orthogonal=values["orthogonal_init"], generator=generator)
    return ActorCritic(encoder, action, generator=generator, **values)


def _assert_orthogonal(weight: Tensor, gain: float) -> None:
    """Assert that the shorter side of a matrix [out, in] is orthogonal, every vector as long as the gain."""
    matrix = weight.detach().flatten(1)
    product = matrix @ matrix.T if matrix.shape[0] <= matrix.shape[1] else matrix.T @ matrix
    torch.testing.assert_close(product, gain**2 * torch.eye(len(product)), rtol=1e-4, atol=1e-5)


# -- initial weights -----------------------------------------------------------------------------


def test_hidden_layers_policy_and_value_start_orthogonal_with_their_gains() -> None:
    model = _actor_critic(VECTOR, spaces.Discrete(3))
    hidden = [parameter for parameter in model.stacks.parameters() if parameter.shape[1] > 1]
    assert [tuple(weight.shape) for weight in hidden] == [(2, 5, 64), (2, 64, 64)]
    for weight in hidden:
        for network in weight:
            _assert_orthogonal(network.T, math.sqrt(2))
    _assert_orthogonal(model.head.linear.weight, 0.01)
    _assert_orthogonal(model.value_head.weight, 1.0)
    biases = [parameter for name, parameter in model.named_parameters() if "bias" in name]
    assert len(biases) == 4
    assert all(bias.abs().max() == 0 for bias in biases)


def test_convolutions_start_orthogonal() -> None:
    layer = convolution(3, 16, 4, 2, orthogonal=True, generator=_generator())
    _assert_orthogonal(layer.weight, math.sqrt(2))
    assert layer.stride == (2, 2)


def test_without_orthogonal_weights_the_bound_is_that_of_torch() -> None:
    for layer, fan_in in (
        (linear(25, 400, orthogonal=False, generator=_generator()), 25),
        (convolution(3, 100, 4, 2, orthogonal=False, generator=_generator()), 48),
    ):
        assert layer.bias is not None
        for parameter in (layer.weight, layer.bias):
            largest = parameter.abs().max().item()
            assert 0.95 / math.sqrt(fan_in) < largest <= 1 / math.sqrt(fan_in)


@pytest.mark.parametrize("orthogonal", [True, False])
@pytest.mark.parametrize("space", [VECTOR, PICTURE, spaces.Dict(a=VECTOR, b=PICTURE)], ids=["vector", "image", "dict"])
def test_initial_weights_come_from_the_given_generator_alone(space: Space[Any], orthogonal: bool) -> None:
    action = spaces.Box(-1, 1, (2,), np.float32)
    weights = []
    for global_seed, seed in ((0, 0), (1, 0), (0, 1)):
        torch.manual_seed(global_seed)
        before = torch.get_rng_state()
        model = _actor_critic(space, action, seed=seed, orthogonal_init=orthogonal)
        assert torch.get_rng_state().equal(before)
        weights.append(nn.utils.parameters_to_vector(model.parameters()))
    assert weights[0].equal(weights[1])
    assert not weights[0].equal(weights[2])


# -- stacked perceptrons -------------------------------------------------------------------------


def _separate(stack: StackedMLP, activation: str) -> Iterator[tuple[nn.Sequential, list[tuple[Tensor, ...]]]]:
    """Return each network of a stack as plain layers, with its stacked weights and biases."""
    parameters = list(stack.named_parameters())
    weights = [parameter for name, parameter in parameters if "weight" in name]
    biases = [parameter for name, parameter in parameters if "bias" in name]
    assert len(weights) == len(biases) == len(parameters) / 2
    for network in range(stack.count):
        layers: list[nn.Module] = []
        for weight, bias in zip(weights, biases, strict=True):
            layer = nn.Linear(weight.shape[1], weight.shape[2])
            with torch.no_grad():
                layer.weight.copy_(weight[network].T)
                layer.bias.copy_(bias[network].squeeze(0))
            layers += [layer, _Activation(activation)]
        yield nn.Sequential(*layers), list(zip(weights, biases, strict=True))


class _Activation(nn.Module):
    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name

    def forward(self, features: Tensor) -> Tensor:
        function: Any = getattr(torch, self.name, None) or getattr(nn.functional, self.name)
        result: Tensor = function(features)
        return result


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_stacked_perceptrons_equal_separate_ones_in_values_and_gradients(activation: str) -> None:
    stack = StackedMLP(3, 4, (6, 5), activation, orthogonal=False, generator=_generator())
    features = torch.randn(7, 4, generator=_generator(1))
    direction = torch.randn(3, 7, 5, generator=_generator(2))
    together = stack(features)
    (together * direction).sum().backward()
    for network, (separate, parameters) in enumerate(_separate(stack, activation)):
        alone = separate(features)
        torch.testing.assert_close(together[network], alone)
        torch.testing.assert_close(stack.one(network, features), alone)
        (alone * direction[network]).sum().backward()
        layers = [module for module in separate if isinstance(module, nn.Linear)]
        for layer, (weight, bias) in zip(layers, parameters, strict=True):
            assert weight.grad is not None
            assert bias.grad is not None
            assert layer.weight.grad is not None
            torch.testing.assert_close(weight.grad[network].T, layer.weight.grad)
            torch.testing.assert_close(bias.grad[network].squeeze(0), layer.bias.grad)


def test_networks_of_a_stack_start_differently() -> None:
    stack = StackedMLP(2, 4, (6,), "tanh", orthogonal=True, generator=_generator())
    first, second = stack(torch.ones(1, 4))
    assert not first.allclose(second)


def test_a_stack_without_hidden_layers_passes_its_features_on() -> None:
    stack = StackedMLP(2, 4, (), "tanh", orthogonal=True, generator=_generator())
    features = torch.randn(3, 4, generator=_generator())
    assert stack.outputs == 4
    assert stack(features).equal(torch.stack((features, features)))


def test_policy_alone_equals_the_policy_of_the_whole_model() -> None:
    model = _actor_critic(VECTOR, spaces.Discrete(3))
    observation = torch.randn(6, 5, generator=_generator())
    whole: Any = model(observation, None)[0]
    alone: Any = model.policy(observation, None)
    torch.testing.assert_close(alone.log_probs, whole.log_probs)


def test_actor_and_critic_share_no_hidden_weights() -> None:
    model = _actor_critic(VECTOR, spaces.Discrete(3))
    _, value = model(torch.randn(6, 5, generator=_generator()), None)
    assert value.shape == (6,)
    value.sum().backward()
    for parameter in model.stacks.parameters():
        assert parameter.grad is not None
        used = [bool(network.abs().max() > 0) for network in parameter.grad]
        assert sorted(used) == [False, True]


# -- encoders ------------------------------------------------------------------------------------


def _encoder(space: Space[Any]) -> Any:
    return make_encoder(space, orthogonal=True, generator=_generator())


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int32])
def test_numbers_are_flattened_into_single_precision(dtype: Any) -> None:
    encoder = _encoder(spaces.Box(-9, 9, (2, 3), dtype))
    features = encoder(torch.from_numpy(np.arange(12).reshape(2, 2, 3).astype(dtype)))
    assert encoder.width == 6
    assert features.dtype == torch.float32
    assert features.tolist() == [[0, 1, 2, 3, 4, 5], [6, 7, 8, 9, 10, 11]]


def test_observations_reach_the_device_in_single_precision() -> None:
    """MuJoCo observes in double precision, which not every device has."""
    given = {"position": np.array([[0.1]]), "lamp": np.array([[1]], np.int8)}
    moved = to_tensor(given, torch.device("cpu"))
    assert isinstance(moved, dict)
    assert {key: tensor.dtype for key, tensor in moved.items()} == {"position": torch.float32, "lamp": torch.int8}
    assert moved["position"].item() == np.float32(0.1)


def test_a_single_number_is_a_vector_of_one() -> None:
    encoder = _encoder(spaces.Box(-9, 9, (), np.float32))
    assert encoder.width == 1
    assert encoder(torch.tensor([4.0, -2.0])).tolist() == [[4.0], [-2.0]]


def test_a_discrete_observation_becomes_one_hot_from_its_start() -> None:
    encoder = _encoder(spaces.Discrete(3, start=-1))
    assert encoder.width == 3
    assert encoder(torch.tensor([-1, 1])).tolist() == [[1, 0, 0], [0, 0, 1]]


def test_several_discrete_observations_become_joined_one_hots() -> None:
    encoder = _encoder(spaces.MultiDiscrete([2, 3], start=[0, 5]))
    assert encoder.width == 5
    assert encoder(torch.tensor([[1, 5], [0, 7]])).tolist() == [[0, 1, 1, 0, 0], [1, 0, 0, 0, 1]]


def test_switches_are_numbers() -> None:
    encoder = _encoder(spaces.MultiBinary(3))
    assert encoder(torch.tensor([[1, 0, 1]], dtype=torch.int8)).tolist() == [[1, 0, 1]]


def _image_features(pixels: Tensor, space: spaces.Box) -> Tensor:
    features: Tensor = _encoder(space)(pixels)
    return features


def test_channels_may_come_first_or_last() -> None:
    last = torch.randint(0, 256, (2, 40, 36, 3), dtype=torch.uint8, generator=_generator())
    first = last.permute(0, 3, 1, 2).contiguous()
    features = _image_features(last, PICTURE)
    assert features.shape == (2, 512)
    assert not features[0].equal(features[1])
    torch.testing.assert_close(features, _image_features(first, spaces.Box(0, 255, (3, 40, 36), np.uint8)))


def test_an_image_without_channels_has_one() -> None:
    pixels = torch.randint(0, 256, (2, 40, 36), dtype=torch.uint8, generator=_generator())
    features = _image_features(pixels, spaces.Box(0, 255, (40, 36), np.uint8))
    with_channel = _image_features(pixels.unsqueeze(1), spaces.Box(0, 255, (1, 40, 36), np.uint8))
    torch.testing.assert_close(features, with_channel)


def test_image_bytes_are_scaled_to_one() -> None:
    encoder = _encoder(PICTURE)
    seen: list[Tensor] = []
    encoder.convolutions[0].register_forward_pre_hook(lambda module, inputs: seen.append(inputs[0]))
    encoder(torch.full((1, 40, 36, 3), 255, dtype=torch.uint8))
    torch.testing.assert_close(seen[0], torch.ones(1, 3, 40, 36))


def test_a_frame_stack_is_seen_as_channels() -> None:
    encoder = _encoder(spaces.Box(0, 255, (4, 84, 84), np.uint8))
    assert encoder.convolutions[0].in_channels == 4
    assert encoder.output.in_features == 64 * 7 * 7  # as in Mnih et al. 2015


@pytest.mark.parametrize(
    ("side", "filters", "points_after"), [(36, 32, 3), (42, 32, 3), (63, 32, 4), (64, 64, 4), (84, 64, 7)]
)
def test_convolutions_of_a_large_image_leave_several_points(side: int, filters: int, points_after: int) -> None:
    encoder = _encoder(spaces.Box(0, 255, (1, side, side), np.uint8))
    assert encoder.output.in_features == filters * points_after**2
    corners = torch.zeros(3, 1, side, side, dtype=torch.uint8)
    corners[1, 0, 1, 1] = corners[2, 0, side - 8, side - 8] = 255
    features = encoder(corners)
    assert features.shape == (3, 512)
    assert not any(features[one].equal(features[other]) for one, other in ((0, 1), (0, 2), (1, 2)))


@pytest.mark.parametrize(("shape", "pixels_after"), [((10, 10, 4), 8 * 8), ((35, 36), 33 * 34), ((2, 3, 3), 1)])
def test_a_small_image_passes_filters_that_see_every_pixel(shape: tuple[int, ...], pixels_after: int) -> None:
    encoder = _encoder(spaces.Box(0, 255, shape, np.uint8))
    (layer,) = encoder.convolutions
    assert (layer.out_channels, layer.kernel_size, layer.stride) == (16, (3, 3), (1, 1))
    assert encoder.output.in_features == 16 * pixels_after
    assert encoder.width == 128
    seen = torch.zeros(shape, dtype=torch.uint8).expand(2, *shape).clone()
    seen[1].view(-1)[-1] = 255  # the last corner
    features = encoder(seen)
    assert features.shape == (2, 128)
    assert not features[0].equal(features[1])


def test_booleans_are_not_scaled() -> None:
    encoder = _encoder(spaces.Box(0, 1, (10, 10, 4), np.bool_))
    seen: list[Tensor] = []
    encoder.convolutions[0].register_forward_pre_hook(lambda module, inputs: seen.append(inputs[0]))
    encoder(torch.ones(2, 10, 10, 4, dtype=torch.bool))
    assert seen[0].equal(torch.ones(2, 4, 10, 10))


@pytest.mark.parametrize("shape", [(40, 2, 3), (40, 2), (2, 2, 1)])
def test_a_too_small_image_is_refused_with_the_repair(shape: tuple[int, ...]) -> None:
    small = spaces.Box(0, 255, shape, np.uint8)
    with pytest.raises(ConfigError, match=r"too small.*at least 3x3.*ResizeObservation.*float32"):
        _encoder(small)
    with pytest.raises(ConfigError, match="image observation `camera`"):
        _encoder(spaces.Dict(camera=small))


@pytest.mark.parametrize(("side", "most"), [(10, 1), (35, 1), (36, 4), (84, 4)])
def test_images_are_shifted_by_a_distance_that_follows_their_size(side: int, most: int) -> None:
    middle = side // 2
    images = torch.zeros(400, side, side, 1, dtype=torch.bool)
    images[:, middle, middle] = True
    rows, columns = (shift_images(images, _generator()).nonzero()[:, axis] - middle for axis in (1, 2))
    assert len(rows) == 400  # nothing that is not at the border is lost or doubled
    assert set(rows.tolist()) == set(columns.tolist()) == set(range(-most, most + 1))


def test_a_dict_joins_the_features_of_its_entries() -> None:
    space = spaces.Dict(camera=PICTURE, speed=VECTOR, gear=spaces.Discrete(3))
    encoder = _encoder(space)
    observation = {
        "camera": torch.randint(0, 256, (2, 40, 36, 3), dtype=torch.uint8, generator=_generator()),
        "speed": torch.randn(2, 5, generator=_generator()),
        "gear": torch.tensor([2, 0]),
    }
    features = encoder(observation)
    assert encoder.width == features.shape[1] == 256 + 5 + 3
    start = 0
    for key in space:
        width = {"camera": 256, "speed": 5, "gear": 3}[key]
        part = features[:, start : start + width]
        if key == "speed":
            assert part.equal(observation["speed"])
        elif key == "gear":
            assert part.tolist() == [[0, 0, 1], [1, 0, 0]]
        else:
            assert part.abs().max() > 0
        start += width


def test_hidden_layers_follow_numbers_and_not_images_unless_asked_for() -> None:
    assert _actor_critic(VECTOR, spaces.Discrete(2)).stacks.outputs == 64
    assert _actor_critic(PICTURE, spaces.Discrete(2)).stacks.outputs == 512
    assert _actor_critic(PICTURE, spaces.Discrete(2), hidden_sizes=(16,)).stacks.outputs == 16
