"""Mixtures of experts: gates, the router's gradient, balance, and the dense twin."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from planning_parts import generator, randomize
from rl_training.models.planning import experts as experts_module
from rl_training.models.planning.adapters import activate_adapters
from rl_training.models.planning.experts import FEW_TOKENS, MixtureOfExperts, Routing, expert_usage, load_balance

WIDTH, SIZE, EXPERTS = 6, 5, 4


def make_mixture(*, experts: int = EXPERTS, top_k: int = 1, seed: int = 0, adapters: int = 0) -> MixtureOfExperts:
    mixture = MixtureOfExperts(
        WIDTH, SIZE, experts=experts, top_k=top_k, adapters=adapters, rank=2, generator=generator(seed)
    )
    randomize(mixture, seed)
    return mixture


def tokens(count: int, seed: int = 1) -> Tensor:
    return torch.randn(count, WIDTH, generator=generator(seed))


def slow_mixture(mixture: MixtureOfExperts, inputs: Tensor) -> Tensor:
    """Return what the experts say, token by token and expert by expert."""
    assert mixture.router is not None
    outputs = []
    for token in inputs:
        probability = (mixture.router @ token).softmax(0)
        best = sorted(range(mixture.experts), key=lambda expert: -probability[expert].item())[: mixture.top_k]
        output: Tensor = mixture.second.bias
        for expert, gate in [*((expert, probability[expert]) for expert in best), (mixture.experts, torch.ones(()))]:
            own = slice(expert * SIZE, (expert + 1) * SIZE)
            hidden = torch.relu(mixture.first.merged()[own] @ token + mixture.first.bias[own])
            output = output + gate * (mixture.second.merged()[:, own] @ hidden)
        outputs.append(output)
    return torch.stack(outputs)


def test_gates_multiply_outputs_in_a_case_done_by_hand() -> None:
    mixture = MixtureOfExperts(1, 1, experts=2, top_k=1, adapters=0, rank=1, generator=generator(0))
    assert mixture.router is not None
    with torch.no_grad():
        mixture.router.copy_(torch.tensor([[0.0], [1.0]]))
        mixture.first.weight.copy_(torch.tensor([[2.0], [3.0], [5.0]]))  # two experts and the shared one
        mixture.first.bias.zero_()
        mixture.second.weight.copy_(torch.tensor([[7.0, 11.0, 13.0]]))
        mixture.second.bias.fill_(0.5)
    one = torch.tensor(1.0)
    output, routing = mixture(torch.ones(1, 1))
    gate = 1 / (1 + torch.exp(-one))  # the second expert's probability
    torch.testing.assert_close(output, (gate * 33 + 65.5).view(1, 1))
    assert routing is not None
    assert routing.chosen.tolist() == [[1]]
    torch.testing.assert_close(routing.probability, torch.tensor([[1 - gate, gate]]))


@pytest.mark.parametrize("few", [FEW_TOKENS, 0], ids=["all", "chosen"])
@pytest.mark.parametrize("top_k", [1, 2])
@pytest.mark.parametrize("stage", [0, 1])
def test_both_ways_equal_a_loop_over_tokens(few: int, top_k: int, stage: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(experts_module, "FEW_TOKENS", few)
    mixture = make_mixture(top_k=top_k, adapters=1).double()
    activate_adapters(mixture, stage)
    inputs = tokens(12).double().requires_grad_()
    gradients = []
    for output in (mixture(inputs.view(3, 4, WIDTH))[0].view(12, WIDTH), slow_mixture(mixture, inputs)):
        leaves = [inputs, *mixture.parameters()]
        slopes = torch.autograd.grad((output * torch.arange(1.0, 7.0)).square().sum(), leaves, allow_unused=True)
        gradients.append((output, *(slope for slope in slopes if slope is not None)))
    for ours, theirs in zip(*gradients, strict=True):
        torch.testing.assert_close(ours, theirs)


def test_many_tokens_and_few_tokens_agree() -> None:
    mixture = make_mixture(top_k=2)
    inputs = tokens(FEW_TOKENS + 10)
    many, routing = mixture(inputs)
    parts = [mixture(part)[0] for part in inputs.split(50)]
    torch.testing.assert_close(many, torch.cat(parts), rtol=1e-5, atol=1e-5)
    assert routing is not None
    assert routing.chosen.shape == (len(inputs), 2)


@pytest.mark.parametrize("count", [40, FEW_TOKENS + 40])
def test_the_router_learns_for_every_expert_in_use(count: int) -> None:
    mixture = make_mixture()
    output, routing = mixture(tokens(count))
    assert routing is not None
    used = expert_usage(routing) > 0
    assert used.sum() >= 3
    output.square().sum().backward()
    assert mixture.router is not None
    assert mixture.router.grad is not None
    assert (mixture.router.grad[used].norm(dim=1) > 1e-3).all()


def test_an_expert_that_no_token_chose_may_be_left_out() -> None:
    mixture = make_mixture()
    assert mixture.router is not None
    with torch.no_grad():
        mixture.router.zero_()
        mixture.router[2, 0] = 50.0
    inputs = tokens(FEW_TOKENS + 1)
    inputs[:, 0] = 1.0
    output, routing = mixture(inputs)
    assert routing is not None
    assert expert_usage(routing).tolist() == [0.0, 0.0, 1.0, 0.0]
    torch.testing.assert_close(output[:5], slow_mixture(mixture, inputs[:5]), rtol=1e-4, atol=1e-4)


# -- balance -----------------------------------------------------------------------------------------


def routing_of(probability: list[list[float]], chosen: list[list[int]]) -> Routing:
    return Routing(torch.tensor(probability), torch.tensor(chosen))


def test_balance_and_usage_by_hand() -> None:
    routing = routing_of([[0.5, 0.3, 0.2], [0.6, 0.1, 0.3], [0.1, 0.2, 0.7], [0.5, 0.4, 0.1]], [[0], [0], [2], [0]])
    torch.testing.assert_close(expert_usage(routing), torch.tensor([0.75, 0.0, 0.25]))
    # Mean probabilities 0.425, 0.25, 0.325.
    assert load_balance(routing).item() == pytest.approx(3 * (0.75 * 0.425 + 0.25 * 0.325))
    mask = torch.tensor([1.0, 0.0, 1.0, 0.0])
    torch.testing.assert_close(expert_usage(routing, mask), torch.tensor([0.5, 0.0, 0.5]))
    assert load_balance(routing, mask).item() == pytest.approx(3 * (0.5 * 0.3 + 0.5 * 0.45))


def test_two_choices_share_a_token() -> None:
    routing = routing_of([[0.5, 0.3, 0.2], [0.1, 0.5, 0.4]], [[0, 1], [1, 2]])
    torch.testing.assert_close(expert_usage(routing), torch.tensor([0.25, 0.5, 0.25]))


def test_balance_is_1_where_all_are_used_alike_and_more_where_not() -> None:
    even = routing_of([[0.4, 0.2, 0.2, 0.2][-shift:] + [0.4, 0.2, 0.2, 0.2][:-shift] for shift in range(4)], [[0]] * 4)
    even = even._replace(chosen=even.probability.argmax(1, keepdim=True))
    assert load_balance(even).item() == pytest.approx(1.0)
    one = routing_of([[1.0, 0.0, 0.0, 0.0]] * 4, [[0]] * 4)
    assert load_balance(one).item() == pytest.approx(4.0)
    leaning = routing_of([[0.4, 0.3, 0.2, 0.1]] * 4, [[0]] * 4)
    assert load_balance(leaning).item() == pytest.approx(1.6)


def test_balance_learned_alone_makes_use_even() -> None:
    mixture = make_mixture()
    assert mixture.router is not None
    inputs = tokens(200)
    with torch.no_grad():
        mixture.router[0] += 0.5 * inputs.mean(0) + 0.2
    before = after = None
    for _ in range(100):
        _, routing = mixture(inputs)
        assert routing is not None
        loss = load_balance(routing)
        before, after = before or loss.item(), loss.item()
        (slope,) = torch.autograd.grad(loss, mixture.router)
        with torch.no_grad():
            mixture.router.sub_(slope)
    assert before is not None
    assert after is not None
    assert before > 1.05
    assert after < 1.01


# -- the dense twin -------------------------------------------------------------------------------------


@pytest.mark.parametrize("top_k", [1, 2])
def test_the_dense_twin_has_as_many_parameters_as_a_token_meets(top_k: int) -> None:
    mixture, twin = make_mixture(top_k=top_k), make_mixture(experts=1, top_k=top_k)
    assert sum(parameter.numel() for parameter in twin.parameters()) == twin.active_parameters
    assert mixture.active_parameters == twin.active_parameters
    # What one token moves: its experts' units, the shared one's, and the bias.
    output, _ = mixture(tokens(1))
    output.sum().backward()
    assert mixture.second.weight.grad is not None
    assert mixture.second.bias.grad is not None
    units = mixture.first.weight.shape[0] // SIZE
    met = sum(
        bool(part.abs().sum() > 0) * (part.numel() + SIZE * (WIDTH + 1))
        for part in mixture.second.weight.grad.split(SIZE, dim=1)
    )
    assert units == EXPERTS + 1
    assert met + mixture.second.bias.grad.numel() == twin.active_parameters


def test_the_dense_twin_is_a_plain_layer_without_routing() -> None:
    twin = make_mixture(experts=1)
    inputs = tokens(9)
    output, routing = twin(inputs)
    assert routing is None
    hidden = torch.relu(inputs @ twin.first.weight.T + twin.first.bias)
    torch.testing.assert_close(output, hidden @ twin.second.weight.T + twin.second.bias, rtol=1e-5, atol=1e-5)
