"""CrossQ: batch renormalisation by hand, one pass for both halves of a batch, and updates without target networks."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from replay_parts import (
    CONTROLS,
    CPU,
    OBSERVATION,
    TORQUE,
    Untouched,
    assert_goes_on_alike,
    generator,
    parameters_of,
    random_batch,
)
from rl_training.algorithms.params.sac_params import CrossQParams, SACParams
from rl_training.algorithms.sac import SAC, joint_values
from rl_training.errors import ConfigError
from rl_training.experiment.config import validate_config
from rl_training.models.batch_renorm import EPSILON, MAX_OFFSET, MAX_RATIO, RATE, BatchRenorm, RenormalizedMLP
from rl_training.models.layers import StackedMLP
from rl_training.models.optimizers import FlatOptimizer

# -- the layer -----------------------------------------------------------------------------------


def _column(*values: float) -> Tensor:
    """Return a batch [1, B, 1] of one feature of one network."""
    return torch.tensor(values).view(1, -1, 1)


def _renorm(*, mean: float = 0.0, var: float = 1.0, warmup: int = 100, passes: int = 0) -> BatchRenorm:
    layer = BatchRenorm(1, 1, warmup=warmup)
    layer.mean.fill_(mean)
    layer.var.fill_(var)
    layer.passes.fill_(passes)
    return layer


def test_a_training_pass_normalises_by_the_batch_and_moves_the_running_statistics() -> None:
    layer = _renorm()
    outputs = layer(_column(1.0, 2.0, 6.0))  # mean 3, variance 14/3
    std = math.sqrt(14 / 3 + EPSILON)
    assert outputs.flatten().tolist() == pytest.approx([-2 / std, -1 / std, 3 / std])
    assert layer.mean.item() == pytest.approx(RATE * 3)
    assert layer.var.item() == pytest.approx((1 - RATE) * 1 + RATE * 14 / 3)
    layer(_column(1.0, 2.0, 6.0))
    assert layer.mean.item() == pytest.approx((1 - RATE) * RATE * 3 + RATE * 3)
    assert layer.passes.item() == 2


def test_an_evaluation_pass_normalises_by_the_running_statistics_and_leaves_them() -> None:
    layer = _renorm(mean=2.0, var=4.0).eval()
    with torch.no_grad():
        layer.scale.fill_(3.0)
        layer.shift.fill_(0.5)
    before = copy.deepcopy(layer.state_dict())
    assert layer(_column(6.0)).item() == pytest.approx(3 * (6 - 2) / math.sqrt(4 + EPSILON) + 0.5)
    assert all(torch.equal(value, before[name]) for name, value in layer.state_dict().items())


def test_after_the_warm_up_a_batch_is_normalised_as_in_evaluation_unless_it_lies_far_off() -> None:
    near = _column(1.0, 2.0, 6.0)
    for passes, corrected in ((4, False), (5, True), (6, True)):
        layer = _renorm(mean=2.0, var=4.0, warmup=5, passes=passes)
        expected = copy.deepcopy(layer).eval()(near)
        assert torch.allclose(layer(near), expected) is corrected
    # Ten deviations away and ten times as wide: both corrections reach their limits.
    far = _column(-20.0, 20.0) + 22.0
    mean, std = 22.0, math.sqrt(400 + EPSILON)
    outputs = _renorm(mean=2.0, var=4.0, warmup=0)(far)
    expected_far = [(value - mean) / std * MAX_RATIO + MAX_OFFSET for value in (2.0, 42.0)]
    assert outputs.flatten().tolist() == pytest.approx(expected_far)
    narrow = _renorm(mean=22.0, var=4000.0, warmup=0)(far)
    assert narrow.flatten().tolist() == pytest.approx([-20 / std / MAX_RATIO, 20 / std / MAX_RATIO])


def test_gradients_pass_through_the_statistics_of_the_batch_as_torch_says() -> None:
    layer = BatchRenorm(1, 4, warmup=100)
    with torch.no_grad():
        layer.scale.copy_(torch.randn(1, 1, 4, generator=generator(2)))
        layer.shift.copy_(torch.randn(1, 1, 4, generator=generator(3)))
    inputs = torch.randn(1, 6, 4, generator=generator(0)).requires_grad_()
    weight = torch.randn(6, 4, generator=generator(1))
    scale, shift = (tensor.detach().flatten().clone().requires_grad_() for tensor in (layer.scale, layer.shift))
    plain = functional.batch_norm(inputs[0], None, None, scale, shift, training=True, eps=EPSILON)
    ours = layer(inputs)[0]
    torch.testing.assert_close(ours, plain)
    expected = torch.autograd.grad((plain * weight).sum(), [inputs, scale, shift])
    found = torch.autograd.grad((ours * weight).sum(), [inputs, layer.scale, layer.shift])
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one.flatten(), other.flatten(), rtol=1e-4, atol=1e-5)


def test_gradients_do_not_pass_through_the_correction_to_the_running_statistics() -> None:
    layer = BatchRenorm(2, 4, warmup=0).double()
    for seed, tensor in enumerate((layer.scale.data, layer.shift.data, layer.mean)):
        tensor.copy_(torch.randn(2, 1, 4, generator=generator(seed)))
    layer.var.uniform_(0.2, 2.0, generator=generator(3))
    inputs, weight = torch.randn(2, 2, 6, 4, generator=generator(4), dtype=torch.float64)
    inputs.requires_grad_()
    var, mean = torch.var_mean(inputs, dim=1, correction=0, keepdim=True)
    std, running = (var + EPSILON).sqrt(), (layer.var + EPSILON).sqrt()
    ratio, offset = (std / running).detach().clamp(1 / 3, 3), ((mean - layer.mean) / running).detach().clamp(-5, 5)
    plain = ((inputs - mean) / std * ratio + offset) * layer.scale + layer.shift
    ours = layer(inputs)
    torch.testing.assert_close(ours, plain)
    parameters = [inputs, layer.scale, layer.shift]
    expected = torch.autograd.grad((plain * weight).sum(), parameters)
    torch.testing.assert_close(torch.autograd.grad((ours * weight).sum(), parameters), expected)


def test_stacked_networks_keep_statistics_of_their_own() -> None:
    stacked = RenormalizedMLP(2, 3, (5,), "relu", orthogonal=False, generator=generator(0), outputs=1, warmup=10)
    features = torch.randn(8, 3, generator=generator(1))
    stacked(features)
    first, second = stacked.norms[1].get_buffer("mean")
    assert not torch.allclose(first, second)
    stacked.eval()
    torch.testing.assert_close(stacked.one(1, features), stacked(features)[1])


def test_normalisation_draws_nothing_and_a_plain_network_has_none_of_it() -> None:
    shape: Any = (2, 3, (5,), "relu")
    plain = StackedMLP(*shape, orthogonal=False, generator=generator(0), outputs=1)
    normalised = RenormalizedMLP(*shape, orthogonal=False, generator=generator(0), outputs=1, warmup=10)
    for name, parameter in plain.named_parameters():
        assert parameter.equal(normalised.get_parameter(name))
    assert not list(plain.buffers())


# -- updates -------------------------------------------------------------------------------------


def _algorithm(*, seed: int = 0, **params: Any) -> SAC:
    settings = CrossQParams(**{"hidden_sizes": (16,), "critic_hidden_sizes": (24,), **params})
    return SAC(settings, OBSERVATION, TORQUE, device=CPU, generator=generator(seed))


def _statistics(algorithm: SAC) -> list[Tensor]:
    return [buffer.clone() for part in (algorithm.actor, algorithm.critic) for buffer in part.buffers()]


class PlainNetwork(nn.Module):
    """One network of a renormalised stack, with torch's own kernels and running statistics kept by hand."""

    def __init__(self, stack: StackedMLP, network: int) -> None:
        super().__init__()
        assert isinstance(stack, RenormalizedMLP)
        own = {name: value.detach()[network].clone() for name, value in stack.named_parameters()}
        layers = range(sum(name.startswith("weight") for name in own))
        self.weights = nn.ParameterList([own[f"weight_{layer}"].T.contiguous() for layer in layers])
        self.biases = nn.ParameterList([own[f"bias_{layer}"].flatten() for layer in layers])
        norms = range(len(stack.norms))
        self.scales = nn.ParameterList([own[f"norms.{norm}.scale"].flatten() for norm in norms])
        self.shifts = nn.ParameterList([own[f"norms.{norm}.shift"].flatten() for norm in norms])
        self.means = [torch.zeros_like(scale) for scale in self.scales]
        self.vars = [torch.ones_like(scale) for scale in self.scales]

    def _normalise(self, norm: int, hidden: Tensor) -> Tensor:
        affine = self.scales[norm], self.shifts[norm]
        if not self.training:
            return functional.batch_norm(hidden, self.means[norm], self.vars[norm], *affine, eps=EPSILON)
        outputs = functional.batch_norm(hidden, None, None, *affine, training=True, eps=EPSILON)
        self.means[norm] = 0.99 * self.means[norm] + 0.01 * hidden.detach().mean(dim=0)
        self.vars[norm] = 0.99 * self.vars[norm] + 0.01 * hidden.detach().var(dim=0, correction=0)
        return outputs

    def forward(self, hidden: Tensor) -> Tensor:
        hidden = functional.linear(self._normalise(0, hidden), self.weights[0], self.biases[0])
        hidden = self._normalise(1, torch.relu(hidden))
        return functional.linear(hidden, self.weights[1], self.biases[1]) if len(self.weights) > 1 else hidden


def test_updates_equal_a_loop_written_with_torch_alone() -> None:
    eps = 1e-3  # large, so that Adam does not turn the rounding of a tiny gradient into a step
    algorithm = _algorithm(policy_delay=2, optimizer_eps=eps)
    critics = nn.ModuleList(PlainNetwork(algorithm.critic.networks, network) for network in range(2))
    trunk = PlainNetwork(algorithm.actor.hidden, 0)
    assert algorithm.actor.log_std_head is not None
    heads = nn.ModuleList(copy.deepcopy(head) for head in (algorithm.actor.mean, algorithm.actor.log_std_head))
    critics.eval()
    trunk.eval()
    log_temperature = torch.zeros(1, requires_grad=True)
    settings: dict[str, Any] = {"lr": 1e-2, "eps": eps}
    critic_optimizer = torch.optim.Adam(critics.parameters(), betas=(0.5, 0.999), **settings)
    actor_optimizer = torch.optim.Adam([*trunk.parameters(), *heads.parameters()], betas=(0.5, 0.999), **settings)
    temperature_optimizer = torch.optim.Adam([log_temperature], **settings)  # of the usual beta

    def descend(optimizer: torch.optim.Optimizer, loss: Tensor) -> None:
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    def sample(observation: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        latent = trunk(observation)
        mean, log_std = heads[0](latent), heads[1](latent).clamp(-20, 2)
        raw = mean + log_std.exp() * noise
        log_prob = torch.distributions.Normal(mean, log_std.exp()).log_prob(raw)
        return torch.tanh(raw), (log_prob - (1 - torch.tanh(raw).square()).log()).sum(dim=1)

    for seed in range(5):
        batch = random_batch(TORQUE, seed=seed)
        assert isinstance(batch.observation, Tensor)
        assert isinstance(batch.next_observation, Tensor)
        noise = torch.empty(2, 16, 2).normal_(generator=generator(seed))
        temperature = log_temperature.detach().exp()
        with torch.no_grad():
            action, log_prob = sample(batch.next_observation, noise[0])
        now = torch.cat((batch.observation, batch.action), dim=1)
        then = torch.cat((batch.next_observation, action), dim=1)
        critics.train()
        one, two = (critic(torch.cat((now, then))).squeeze(1) for critic in critics)
        critics.eval()
        smallest = torch.minimum(one[16:], two[16:]).detach()
        goal = batch.reward + batch.discount * (smallest - temperature * log_prob)
        descend(critic_optimizer, 0.5 * (one[:16] - goal).square().mean() + 0.5 * (two[:16] - goal).square().mean())
        if seed % 2 == 1:
            trunk.train()
            action, log_prob = sample(batch.observation, noise[1])
            trunk.eval()
            judged = torch.cat((batch.observation, action), dim=1)
            smallest = torch.minimum(*(critic(judged).squeeze(1) for critic in critics))
            descend(actor_optimizer, (temperature * log_prob - smallest).mean())
            descend(temperature_optimizer, -(log_temperature * (log_prob.detach() - 2)).mean())
        algorithm.update(batch, CONTROLS, generator(seed))

    tolerance: dict[str, Any] = {"rtol": 1e-3, "atol": 2e-5}
    probe = torch.randn(7, 5, generator=generator(9))
    expected = torch.stack([critic(probe) for critic in critics])
    torch.testing.assert_close(algorithm.critic(probe[:, :3], probe[:, 3:]), expected, **tolerance)
    torch.testing.assert_close(algorithm.actor.latent(probe[:, :3]), trunk(probe[:, :3]), **tolerance)
    for stack, plain in ((algorithm.actor.hidden, [trunk]), (algorithm.critic.networks, list(critics))):
        assert isinstance(stack, RenormalizedMLP)
        for norm, layer in enumerate(stack.norms):
            for network, twin in enumerate(plain):
                assert isinstance(twin, PlainNetwork)
                torch.testing.assert_close(layer.get_buffer("mean")[network, 0], twin.means[norm], **tolerance)
                torch.testing.assert_close(layer.get_buffer("var")[network, 0], twin.vars[norm], **tolerance)
    torch.testing.assert_close(algorithm.temperature.log.detach(), log_temperature.detach(), **tolerance)


def test_one_pass_sees_the_statistics_of_both_halves_and_gives_successors_without_gradient() -> None:
    algorithm = _algorithm()
    batch = random_batch(TORQUE)
    action = torch.rand(16, 2, generator=generator(5))
    predicted, successor = joint_values(algorithm.critic, batch, action)
    assert predicted.requires_grad
    assert not successor.requires_grad
    assert isinstance(batch.observation, Tensor)
    assert isinstance(batch.next_observation, Tensor)
    both = torch.cat((torch.cat((batch.observation, batch.action), 1), torch.cat((batch.next_observation, action), 1)))
    norms = algorithm.critic.networks.norms
    assert isinstance(norms, nn.ModuleList)
    torch.testing.assert_close(norms[0].get_buffer("mean")[0, 0], RATE * both.mean(dim=0))
    # Swapping the halves swaps the values: neither is normalised apart.
    swapped = batch._replace(observation=batch.next_observation, action=action, next_observation=batch.observation)
    then, now = joint_values(algorithm.critic, swapped, batch.action)
    torch.testing.assert_close((then, now), (successor, predicted), check_stride=False)
    assert not algorithm.critic.training


def test_only_updates_move_the_statistics() -> None:
    algorithm = _algorithm()
    assert not algorithm.actor.training
    assert not algorithm.critic.training
    for seed in range(3):
        algorithm.update(random_batch(TORQUE, seed=seed), CONTROLS, generator(seed))
    before, observation = _statistics(algorithm), torch.randn(5, 3, generator=generator(1))
    for _ in range(3):
        algorithm.act(observation, None, CONTROLS, generator(0))
        algorithm.choose(observation, None, None)
        algorithm.choose(observation, None, generator(0))
    assert all(map(torch.equal, _statistics(algorithm), before))
    # Nobody's action depends on who else is asked.
    alone = torch.cat([algorithm.choose(row.unsqueeze(0), None, None) for row in observation])
    torch.testing.assert_close(algorithm.choose(observation, None, None), alone)
    algorithm.update(random_batch(TORQUE), CONTROLS, generator(0))
    assert not any(map(torch.equal, _statistics(algorithm)[-6:], before[-6:]))  # the critics'


def test_the_actor_and_the_temperature_wait_for_their_turn() -> None:
    algorithm = _algorithm()
    actor, temperature = parameters_of(algorithm.actor), algorithm.temperature.value
    for turn in range(1, 7):
        metrics = algorithm.update(random_batch(TORQUE, seed=turn), CONTROLS, generator(turn))
        due = turn % 3 == 0
        assert {"loss_actor", "entropy"}.issubset(metrics) is due
        assert {"loss_critic", "temperature", "q_mean"} <= metrics.keys()
        assert parameters_of(algorithm.actor).equal(actor) is not due
        assert algorithm.temperature.value.equal(temperature) is not due
        actor, temperature = parameters_of(algorithm.actor), algorithm.temperature.value


def test_the_actors_loss_leaves_the_critics_and_their_statistics_alone() -> None:
    algorithm = _algorithm(policy_delay=1)
    waiting = _algorithm(policy_delay=5)
    for learner in (algorithm, waiting):
        learner.update(random_batch(TORQUE), CONTROLS, generator(0))
    assert parameters_of(algorithm.critic).equal(parameters_of(waiting.critic))
    for one, other in zip(algorithm.critic.buffers(), waiting.critic.buffers(), strict=True):
        assert one.equal(other)
    assert not parameters_of(algorithm.actor).equal(parameters_of(waiting.actor))


def test_there_is_no_target_network_to_build_or_save() -> None:
    algorithm = _algorithm()
    assert algorithm.target_critic is None
    state = algorithm.state_dict()
    assert "target_critic" not in state
    assert {"networks.norms.1.mean", "networks.norms.1.var", "networks.norms.1.passes"} <= state["critic"].keys()
    assert {"hidden.norms.0.mean", "hidden.norms.1.var"} <= state["actor"].keys()


OPTIONS: list[Any] = [
    pytest.param({"policy_delay": 2}, id="delayed"),
    pytest.param({"renorm_warmup": 2}, id="after the warm-up"),
    pytest.param({"use_sde": True, "sde_sample_freq": 2}, id="gsde"),
    pytest.param({"num_quantiles": 5, "dropped_quantiles": 1}, id="quantiles"),
    pytest.param({"batch_norm": False}, id="without normalisation"),
]


@pytest.mark.parametrize("settings", OPTIONS)
def test_a_saved_state_goes_on_bit_for_bit(settings: dict[str, Any]) -> None:
    assert_goes_on_alike(_algorithm(**settings), _algorithm(seed=9, **settings), TORQUE)


@pytest.mark.parametrize("settings", OPTIONS)
def test_global_generators_are_left_alone(settings: dict[str, Any]) -> None:
    with Untouched():
        algorithm = _algorithm(**settings)
        batch = random_batch(TORQUE)
        algorithm.act(batch.observation, None, CONTROLS, generator(0))
        algorithm.update(batch, CONTROLS, generator(0))


def test_critics_have_widths_of_their_own() -> None:
    algorithm = _algorithm()
    assert algorithm.actor.hidden.get_parameter("weight_0").shape == (1, 3, 16)
    assert algorithm.critic.networks.get_parameter("weight_0").shape == (2, 5, 24)
    alike = _algorithm(critic_hidden_sizes=None)
    assert alike.critic.networks.get_parameter("weight_0").shape == (2, 5, 16)


def test_adam_keeps_as_much_of_its_mean_gradient_as_asked() -> None:
    ours, theirs = (nn.Parameter(torch.tensor([1.0, -2.0])) for _ in range(2))
    flat, plain = FlatOptimizer([ours], "adam", eps=1e-8, beta1=0.5), torch.optim.Adam([theirs], betas=(0.5, 0.999))
    for power in (2, 3, 2):
        flat.step(ours.pow(power).sum(), learning_rate=1e-3, max_grad_norm=None)
        plain.zero_grad()
        theirs.pow(power).sum().backward()
        plain.step()
    torch.testing.assert_close(ours, theirs)
    assert FlatOptimizer([nn.Parameter(torch.ones(1))], "adam", eps=1e-8).beta1 == 0.9


# -- mistakes ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("algo", "settings", "complaint"),
    [
        ("sac", {"batch_norm": True}, "set target_network to false"),
        ("crossq", {"target_network": True}, "set target_network to false"),
        ("crossq", {"batch_size": 1}, "batch_norm needs at least 2 transitions"),
    ],
)
def test_options_that_do_not_fit_are_refused_with_the_repair(
    algo: str, settings: dict[str, Any], complaint: str
) -> None:
    raw = {"algo": algo, "env_id": "Pendulum-v1", "seed": 0, "total_timesteps": 5000, "output_dir": "runs"}
    with pytest.raises(ConfigError, match=complaint):
        validate_config({**raw, "algo_kwargs": settings})


def test_crossq_is_a_set_of_parameters_of_sac() -> None:
    ours, base = CrossQParams(), SACParams()
    changed = {name for name in vars(base) if getattr(ours, name) != getattr(base, name)}
    expected = {"batch_norm", "target_network", "policy_delay", "critic_hidden_sizes", "optimizer_beta1"}
    assert changed == {*expected, "learning_rate"}
