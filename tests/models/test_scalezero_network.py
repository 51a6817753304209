"""ScaleZero's network: shared and separate parts, unrolls, the loss against a slow reference, and the search."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import Tensor

from planning_parts import generator, randomize
from replay_parts import Untouched
from rl_training.algorithms.planning.scalezero_loss import LossWeights, scalezero_loss
from rl_training.algorithms.planning.scalezero_models import ScaleZeroModel
from rl_training.algorithms.planning.unroll import UnrollBatch
from rl_training.models.planning.adapters import freeze_for_stage, merged_weights, scaled_layers
from rl_training.models.planning.experts import Routing
from rl_training.models.planning.scalar_support import expected_scalar, scalar_loss
from rl_training.models.planning.scalezero_network import ScaleZeroNetwork, TaskSpec, TaskWindow, simplex_norm
from rl_training.search.gumbel import Gumbel
from rl_training.search.puct import Puct
from rl_training.search.rule import Rule
from rl_training.search.search import SearchResult, TreeSearch
from scalezero_parts import DISCOUNT, SIZES, SPECS, ForgetfulModel, make_scalezero, observations, task_unroll

TASKS = range(len(SPECS))
RULES = pytest.mark.parametrize("rule", [Puct(), Gumbel()], ids=["puct", "gumbel"])


# -- parts ---------------------------------------------------------------------------------------------


def used_parameters(network: ScaleZeroNetwork, task: int) -> set[int]:
    """Return the identities of the parameters that a task's unroll depends on."""
    network.zero_grad()
    latent = network.encode(task, observations(task, 3 * 20)).view(3, 20, -1)
    (unrolled,) = network.unroll([TaskWindow(task, latent, torch.zeros(2, 20, dtype=torch.long))])
    total = sum(part.square().sum() for part in (*unrolled.step, *unrolled.prediction))
    assert isinstance(total, Tensor)
    total.backward()
    return {id(parameter) for parameter in network.parameters() if parameter.grad is not None}


def test_tasks_of_unlike_form_share_the_transformer_and_nothing_else() -> None:
    network = make_scalezero()
    used = [used_parameters(network, task) for task in TASKS]
    shared = used[0] & used[1] & used[2]
    backbone = {id(parameter) for parameter in network.transformer.parameters() if parameter.requires_grad}
    assert shared == backbone
    for task in TASKS:
        assert used[task] - shared == {id(parameter) for parameter in network.tasks[task].parameters()}


@pytest.mark.parametrize("stage", [0, 1, 2])
def test_heads_encoders_and_the_newest_adapter_learn_in_a_stage(stage: int) -> None:
    network = make_scalezero()
    freeze_for_stage(network.transformer, stage)
    trained = {name for name, parameter in network.named_parameters() if parameter.requires_grad}
    own = {name for name, _ in network.named_parameters() if name.startswith("tasks.")}
    backbone = trained - own
    assert own < trained
    if stage == 0:
        assert not any(part in name for name in backbone for part in ("down", "up.", "scales"))
        assert "transformer.positions" in backbone
        assert "transformer.blocks.1.experts.router" in backbone
    else:
        layers = len(scaled_layers(network.transformer))
        assert layers == 8
        endings = [f".down.{stage - 1}", f".up.{stage - 1}", ".scales"]
        assert [sum(name.endswith(ending) for name in backbone) for ending in endings] == [layers] * 3
        assert len(backbone) == 3 * layers


@torch.no_grad()
def test_a_switch_of_stages_changes_no_output() -> None:
    network = ScaleZeroNetwork(SPECS, **SIZES, generator=generator(0))
    model = ScaleZeroModel(network, [0], DISCOUNT)

    def outputs() -> list[Tensor]:
        first = model.initial([observations(0, 5)])
        return [*first, *model.recurrent(first.embedding, torch.tensor([0, 1, 0, 1, 1]))]

    for head in (network.parts(0).policy, network.parts(0).value, network.parts(0).reward):
        head.weight.normal_(generator=generator(1))
    before = outputs()
    for stage in (1, 2):
        freeze_for_stage(network.transformer, stage)
        assert all(map(torch.equal, outputs(), before))
        with merged_weights(network.transformer):
            assert all(map(torch.equal, outputs(), before))


@torch.no_grad()
def test_latents_are_distributions_over_eight() -> None:
    assert simplex_norm(torch.zeros(1, 16)).tolist() == [[0.125] * 16]
    network = make_scalezero()
    for task in TASKS:
        latent = network.encode(task, observations(task, 5))
        (unrolled,) = network.unroll([TaskWindow(task, latent.expand(3, -1, -1), torch.ones(2, 5, dtype=torch.long))])
        for found in (latent, unrolled.step.latent):
            assert found.shape[-1] == 16
            torch.testing.assert_close(found.unflatten(-1, (2, 8)).sum(-1), torch.ones(*found.shape[:-1], 2))


def test_images_and_dicts_are_encoded() -> None:
    image = spaces.Box(0, 255, (36, 36, 3), np.uint8)
    both = spaces.Dict({"image": image, "place": spaces.Discrete(4)})
    network = make_scalezero(tasks=(TaskSpec("image", image, 2), TaskSpec("both", both, 3)))
    pixels = torch.zeros(2, 36, 36, 3, dtype=torch.uint8)
    assert network.encode(0, pixels).shape == (2, 16)
    assert network.encode(1, {"image": pixels, "place": torch.tensor([0, 3])}).shape == (2, 16)


def test_a_new_network_says_nothing_yet_and_leaves_global_generators_alone() -> None:
    with Untouched():
        network = ScaleZeroNetwork(SPECS, **SIZES, generator=generator(0))
    for task in TASKS:
        found = ScaleZeroModel(network, [task], DISCOUNT).initial([observations(task, 3)])
        assert found.value.abs().max() < 1e-6
        assert (found.prior_logits == 0).all()


# -- unrolls -------------------------------------------------------------------------------------------


@torch.no_grad()
def test_an_unroll_says_what_each_beginning_of_the_sequence_says() -> None:
    network = make_scalezero()
    rows, steps = 4, 2
    windows = []
    for task in TASKS:
        latent = network.encode(task, observations(task, (steps + 1) * rows)).view(steps + 1, rows, -1)
        action = torch.randint(SPECS[task].actions, (steps, rows), generator=generator(task))
        windows.append(TaskWindow(task, latent, action))
    for window, unrolled in zip(windows, network.unroll(windows), strict=True):
        parts = network.parts(window.task)
        tokens: list[Tensor] = []
        for step in range(steps + 1):
            tokens.append(window.latent[step])
            predicted = parts.predict(network.transformer(torch.stack(tokens, 1))[0][:, -1])
            for ours, theirs in zip(unrolled.prediction, predicted, strict=True):
                torch.testing.assert_close(ours[step], theirs, rtol=1e-4, atol=1e-5)
            if step == steps:
                break
            tokens.append(parts.action_rows[window.action[step]])
            imagined = parts.imagine(network.transformer(torch.stack(tokens, 1))[0][:, -1])
            for ours, theirs in zip(unrolled.step, imagined, strict=True):
                torch.testing.assert_close(ours[step], theirs, rtol=1e-4, atol=1e-5)
        assert unrolled.routings[0].probability.shape == (2 * steps + 1, rows, 3)
        _, routings = network.transformer(torch.stack(tokens, 1))
        torch.testing.assert_close(unrolled.routings[1].probability.transpose(0, 1), routings[1].probability)


@torch.no_grad()
def test_values_are_those_of_a_search_at_its_root() -> None:
    network = make_scalezero()
    for task in TASKS:
        seen = observations(task, 6)
        root = ScaleZeroModel(network, [task], DISCOUNT).initial([seen])
        torch.testing.assert_close(network.values(task, seen), root.value, rtol=1e-5, atol=1e-5)


# -- the loss ------------------------------------------------------------------------------------------

WEIGHTS = LossWeights(latent=10.0, reward=1.3, value=0.5, policy=0.9, entropy=0.2, balance=0.3)


def slow_loss(network: ScaleZeroNetwork, target: ScaleZeroNetwork, batches: dict[int, UnrollBatch]) -> Tensor:
    """Return the loss of windows taken one by one, token by token."""
    total = torch.zeros(())
    routings: list[list[tuple[Tensor, int]]] = [[], []]  # per layer: probabilities and choices of tokens that count
    for task, batch in batches.items():
        parts = network.parts(task)
        assert isinstance(batch.observation, Tensor)
        assert isinstance(batch.successor, Tensor)
        steps, rows = batch.action.shape
        for row in range(rows):
            seen = [batch.observation[row], *(batch.successor[step * rows + row] for step in range(steps))]
            tokens: list[Tensor] = []
            loss = torch.zeros(())
            for step in range(steps + 1):
                tokens.append(network.encode(task, seen[step].unsqueeze(0))[0])
                output, layers = network.transformer(torch.stack(tokens).unsqueeze(0))
                remember(routings, layers, batch.value_mask[step, row])
                policy, value = parts.predict(output[0, -1])
                chance = policy.softmax(0)
                cross = -(batch.policy[step, row] * chance.log()).sum()
                entropy = -(chance * chance.log()).sum()
                state = batch.policy_mask[step, row] * (0.9 * cross - 0.2 * entropy)
                state = state + 0.5 * batch.value_mask[step, row] * scalar_loss(value, batch.value[step, row])
                loss = loss + state / (steps + 1)
                if step == steps:
                    break
                tokens.append(parts.action_rows[batch.action[step, row]])
                output, layers = network.transformer(torch.stack(tokens).unsqueeze(0))
                remember(routings, layers, batch.reward_mask[step, row])
                latent, reward = parts.imagine(output[0, -1])
                goal = target.encode(task, seen[step + 1].unsqueeze(0))[0].detach()
                apart = ((latent - goal) ** 2).sum() / network.width
                change = 1.3 * batch.reward_mask[step, row] * scalar_loss(reward, batch.reward[step, row])
                loss = loss + (change + 10 * batch.successor_mask[step, row] * apart) / steps
            total = total + loss * (1.0 if batch.weight is None else batch.weight[row]) / rows / len(batches)
    for layer in routings:
        probability = torch.stack([chance for chance, _ in layer]).mean(0)
        share = torch.bincount(torch.tensor([choice for _, choice in layer]), minlength=3) / len(layer)
        total = total + 0.3 * 3 * (share * probability).sum() / len(routings)
    return total


def remember(routings: list[list[tuple[Tensor, int]]], layers: list[Routing], known: Tensor) -> None:
    for found, layer in zip(routings, layers, strict=True):
        if known:
            found.append((layer.probability[0, -1], int(layer.chosen[0, -1, 0])))


def gradients(loss: Tensor, network: ScaleZeroNetwork) -> dict[str, Tensor]:
    network.zero_grad()
    loss.backward()
    return {
        name: torch.zeros_like(parameter) if parameter.grad is None else parameter.grad.clone()
        for name, parameter in network.named_parameters()
    }


@pytest.mark.parametrize("weighted", [False, True])
def test_loss_and_gradient_equal_a_loop_over_tokens(weighted: bool) -> None:
    network, target = make_scalezero(), make_scalezero(1)
    batches = {
        task: task_unroll(task, seed=task, rows=rows, weighted=weighted) for task, rows in ((2, 3), (0, 4), (1, 2))
    }
    loss, metrics = scalezero_loss(network, target, batches, WEIGHTS)
    expected = slow_loss(network, target, batches)
    torch.testing.assert_close(loss, expected, rtol=1e-5, atol=1e-5)
    ours, theirs = gradients(loss, network), gradients(expected, network)
    for name, gradient in theirs.items():
        torch.testing.assert_close(ours[name], gradient, rtol=1e-3, atol=1e-4, msg=name)
    assert all(parameter.grad is None for parameter in target.parameters())
    for task in ("pole", "table", "grid"):
        assert sum(metrics[f"expert_use_{expert}/{task}"].item() for expert in range(3)) == pytest.approx(1.0)
        assert metrics[f"loss_latent/{task}"] > 0
    assert not any(metric.requires_grad for metric in metrics.values())


def test_what_is_masked_teaches_nothing() -> None:
    network, target = make_scalezero(), make_scalezero(1)
    batch = task_unroll(0)
    masks = ("value_mask", "reward_mask", "policy_mask", "successor_mask")
    nothing = batch._replace(**{name: torch.zeros_like(getattr(batch, name)) for name in masks})
    loss, _ = scalezero_loss(network, target, {0: nothing}, LossWeights())
    assert loss.item() == 0
    assert max(gradient.abs().max().item() for gradient in gradients(loss, network).values()) == 0


def test_without_experts_there_is_nothing_to_balance() -> None:
    network = make_scalezero(experts=1)
    loss, metrics = scalezero_loss(network, copy.deepcopy(network), {0: task_unroll(0)}, LossWeights())
    assert torch.isfinite(loss)
    assert "load_balance" not in metrics


# -- the search ----------------------------------------------------------------------------------------


def found_by(
    model: ScaleZeroModel | ForgetfulModel, rule: Rule, seen: object, *, actions: int, rows: int
) -> tuple[TreeSearch, SearchResult]:
    search = TreeSearch(rule)
    draws = np.random.default_rng(3)
    noise = draws.dirichlet(np.ones(actions), rows) if isinstance(rule, Puct) else draws.gumbel(size=(rows, actions))
    found = search.run(model, seen, num_simulations=18, exploration=0.25, generator=draws, noise=noise)
    return search, found


def depths(nodes: np.ndarray) -> list[int]:
    """Return the depth of every node of one tree."""
    found = [0]
    for node in nodes[1:]:
        found.append(found[node["parent"]] + 1)
    return found


@RULES
@pytest.mark.parametrize("task", TASKS)
def test_a_search_with_the_cache_grows_the_tree_of_one_that_reads_everything_again(rule: Rule, task: int) -> None:
    network = make_scalezero(context_steps=2)  # paths outgrow the context
    seen, actions = observations(task, 5, seed=8), SPECS[task].actions
    ours, first = found_by(ScaleZeroModel(network, [task], DISCOUNT), rule, [seen], actions=actions, rows=5)
    theirs, second = found_by(ForgetfulModel(network, task), rule, seen, actions=actions, rows=5)
    np.testing.assert_array_equal(first.visits, second.visits)
    np.testing.assert_array_equal(first.action, second.action)
    for field in ("parent", "action", "visits"):
        np.testing.assert_array_equal(ours.tree.nodes[field], theirs.tree.nodes[field])
    for field in ("value", "network_value", "reward", "discount"):
        np.testing.assert_allclose(ours.tree.nodes[field], theirs.tree.nodes[field], rtol=1e-3, atol=1e-3)
    assert max(map(max, map(depths, ours.tree.nodes))) > 2
    assert np.abs(ours.tree.nodes["reward"]).max() > 0.1


def test_tasks_searched_together_grow_the_trees_they_grow_alone() -> None:
    network = make_scalezero(context_steps=2)
    rows = {1: 2, 0: 3, 2: 1}
    seen = [observations(task, count, seed=task) for task, count in rows.items()]
    noise = np.zeros((6, 4))
    first = 0
    for task, count in rows.items():
        actions = SPECS[task].actions
        noise[first : first + count, :actions] = np.random.default_rng(task).dirichlet(np.ones(actions), count)
        first += count
    model, search = ScaleZeroModel(network, tuple(rows), DISCOUNT), TreeSearch(Puct())
    options: dict[str, Any] = {"num_simulations": 12, "exploration": 0.25, "generator": np.random.default_rng(0)}
    together = search.run(model, seen, noise=noise, **options)
    first = 0
    for (task, count), part in zip(rows.items(), seen, strict=True):
        actions, own = SPECS[task].actions, slice(first, first + count)
        alone = TreeSearch(Puct()).run(
            ScaleZeroModel(network, [task], DISCOUNT),
            [part],
            noise=noise[own, :actions],
            **options,
        )
        np.testing.assert_array_equal(together.visits[own, :actions], alone.visits)
        assert together.visits[own, actions:].sum() == 0
        np.testing.assert_allclose(together.value[own], alone.value, rtol=1e-3, atol=1e-3)
        first += count


@RULES
def test_actions_that_a_task_lacks_are_never_searched(rule: Rule) -> None:
    network = make_scalezero()
    model = ScaleZeroModel(network, [0, 1], DISCOUNT)
    search = TreeSearch(rule)
    seen = [observations(0, 3), observations(1, 3)]
    found = search.run(model, seen, num_simulations=30, exploration=0.25, generator=np.random.default_rng(0))
    assert (found.weights[:3, 2:] == 0).all()
    assert (search.tree.edges["visits"][:3, :, 2:] == 0).all()
    assert (search.tree.edges["visits"][3:, :, 2:] > 0).any()


@torch.no_grad()
def test_a_parent_can_be_expanded_twice() -> None:
    """Imagining from a state leaves its embedding as it was."""
    network = make_scalezero()
    model = ScaleZeroModel(network, [1], DISCOUNT)
    root = model.initial([observations(1, 3)])
    kept = root.embedding.clone()
    once = model.recurrent(root.embedding, torch.tensor([0, 1, 2]))
    assert torch.equal(root.embedding, kept)
    again = model.recurrent(root.embedding, torch.tensor([0, 1, 2]))
    assert all(map(torch.equal, once, again))


@torch.no_grad()
def test_the_search_imagines_what_an_unroll_of_its_own_latents_says() -> None:
    network = make_scalezero(context_steps=6)
    randomize(network, 4)
    model = ScaleZeroModel(network, [2], DISCOUNT)
    actions = torch.randint(3, (5, 4), generator=generator(0))
    seen = observations(2, 4)
    output, latents, rewards, values = model.initial([seen]), [network.encode(2, seen)], [], []
    values.append(output.value)
    for action in actions:
        output = model.recurrent(output.embedding, action)
        rewards.append(output.reward)
        values.append(output.value)
        window = TaskWindow(2, torch.stack([*latents, latents[-1]]), actions[: len(latents)])
        latents.append(network.unroll([window])[0].step.latent[-1])
    (unrolled,) = network.unroll([TaskWindow(2, torch.stack(latents), actions)])
    expected = expected_scalar(unrolled.step.reward)
    torch.testing.assert_close(torch.stack(rewards), expected, rtol=1e-3, atol=1e-3)
    expected = expected_scalar(unrolled.prediction.value)
    torch.testing.assert_close(torch.stack(values), expected, rtol=1e-3, atol=1e-3)
