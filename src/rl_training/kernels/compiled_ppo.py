"""PPO in compiled code: acting, evaluating a rollout and all gradient steps, for perceptrons on the CPU."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rl_training.algorithms.base import HostAction
from rl_training.algorithms.ppo import KL_MARGIN, PPO, PPOBatch
from rl_training.data.observations import NumpyObservation, Observation, to_tensor
from rl_training.data.rollout import Rollout
from rl_training.kernels.checks import compare
from rl_training.kernels.compiled import estimates
from rl_training.kernels.compiled import ppo_epochs as compiled
from rl_training.kernels.compiled.lanes import LANES
from rl_training.kernels.compiled.perceptrons import packed_size, trace_size, transposed_size
from rl_training.kernels.compiled.policies import BERNOULLI, CATEGORICAL, GAUSSIAN
from rl_training.kernels.layouts import ACTIVATIONS, as_array, index_in, linear_place, stacked_places
from rl_training.models.actor_critic import ACTOR, ActorCritic
from rl_training.models.encoders import VectorEncoder
from rl_training.models.heads import BernoulliHead, CategoricalHead, GaussianHead, MultiCategoricalHead
from rl_training.models.layers import parameter_pairs

HEADS = {
    CategoricalHead: CATEGORICAL,
    MultiCategoricalHead: CATEGORICAL,
    BernoulliHead: BERNOULLI,
    GaussianHead: GAUSSIAN,
}
_CHUNK_NUMBERS = 1 << 16  # of one network's layers for the rows that are passed at once: they stay in the cache
_NO_INDICES, _NO_MASK, _NO_NUMBERS = np.empty(0, np.int64), np.empty(0, np.uint8), np.empty(0, np.float32)


class CompiledPPO:
    """Takes the place of acting, evaluating and improving."""

    def __init__(self, algorithm: PPO, kernel: str) -> None:
        self.algorithm = algorithm
        self.kernel = kernel
        self.model: ActorCritic = algorithm.model
        self.values = algorithm.optimizer.values.numpy()
        self.statistics = [
            algorithm.optimizer.state[name].numpy()
            for name in (("exp_avg", "exp_avg_sq") if algorithm.params.optimizer == "adam" else ("square_avg",) * 2)
        ]
        self.networks = describe(self.model, algorithm.optimizer.values)
        self.memory = allocate(self.networks)
        self._gradient = torch.zeros_like(algorithm.optimizer.values)
        self._noise = torch.empty(0, self.model.head.linear.out_features)
        self._encode: Any = self.model.encoder.forward  # calling the module itself takes longer than a small network
        encoder, head = self.model.encoder, self.model.head
        self._flattens = type(encoder) is VectorEncoder and not encoder.choices
        self._same_for_env = type(head) is CategoricalHead and head.start == 0

    def outputs(self, network: int, features: Tensor) -> Tensor:
        """Return the outputs of the actor's or the critic's last layer, [B, outputs]."""
        found = torch.empty(len(features), int(self.networks.sizes[network, -1]))
        compiled.network_outputs(
            self.values,
            self.networks,
            self.memory,
            network,
            _array(features),
            _NO_INDICES,
            _array(found),
            _NO_NUMBERS,
            _NO_MASK,
            _NO_INDICES,
            _NO_NUMBERS,
        )
        return found

    def act(
        self, observation: Observation, mask: Tensor | None, controls: Mapping[str, float], generator: torch.Generator
    ) -> Tensor:
        """Return sampled actions."""
        legal = None if mask is None else mask.cpu().numpy()
        with torch.inference_mode():
            features = _array(self._encode(observation))
        return torch.from_numpy(self._sample(features, legal, generator))

    def act_on_host(
        self,
        observation: NumpyObservation,
        mask: np.ndarray | None,
        controls: Mapping[str, float],
        generator: torch.Generator,
    ) -> HostAction:
        """Return sampled actions as they are stored and as the environment takes them."""
        action = self._sample(self._host_features(observation), mask, generator)
        return HostAction(action, action if self._same_for_env else self.model.env_action(torch.from_numpy(action)))

    def _host_features(self, observation: NumpyObservation) -> np.ndarray:
        """Return what the encoder makes of observations, [B * inputs]."""
        if self._flattens and isinstance(observation, np.ndarray) and observation.dtype == np.float32:
            return observation.reshape(-1)
        with torch.inference_mode():
            return _array(self._encode(to_tensor(observation, self.algorithm.device)))

    def _sample(self, features: np.ndarray, mask: np.ndarray | None, generator: torch.Generator) -> np.ndarray:
        """Return sampled actions [B, ...] for features [B * inputs]."""
        networks, outputs = self.networks, self._noise.shape[1]
        rows = len(features) // int(networks.sizes[0, 0])
        if self._noise.shape[0] != rows:
            self._noise = torch.empty(rows, outputs)
        gaussian = networks.policy == GAUSSIAN
        variables = outputs if networks.policy == BERNOULLI else len(networks.choices)
        choice = _NO_INDICES if gaussian else np.empty((rows, variables), np.int64)
        action = np.empty((rows, outputs), np.float32) if gaussian else _NO_NUMBERS
        compiled.network_outputs(
            self.values,
            networks,
            self.memory,
            compiled.ACTOR,
            features,
            _NO_INDICES,
            np.empty(rows * outputs, np.float32),
            _array(self._draw(generator)),
            _NO_MASK if mask is None else mask.reshape(-1).view(np.uint8),
            choice.reshape(-1),
            action.reshape(-1),
        )
        if gaussian:
            return action
        if type(self.model.head) is CategoricalHead:
            return choice.reshape(-1)
        return choice.astype(np.int8) if networks.policy == BERNOULLI else choice

    def _draw(self, generator: torch.Generator) -> Tensor:
        """Draw the noise that the distributions draw, in their order."""
        if self.networks.policy == GAUSSIAN:
            return self._noise.normal_(generator=generator)
        if self.networks.policy == BERNOULLI:
            return self._noise.uniform_(generator=generator)
        if len(self.networks.choices) == 1:
            return self._noise.exponential_(generator=generator)
        rows = len(self._noise)
        parts = [torch.empty(rows, int(n)).exponential_(generator=generator) for n in self.networks.choices]
        return torch.cat(parts, dim=1)

    def check_act(
        self,
        reference: Callable[..., Tensor],
        observation: Observation,
        mask: Tensor | None,
        controls: Mapping[str, float],
        generator: torch.Generator,
    ) -> None:
        """Compare the policy's outputs."""
        with torch.no_grad():
            expected = self.model.head.linear(self.model.policy_latent(observation))
        found = self.outputs(compiled.ACTOR, self.model.encoder(observation))
        compare(self.kernel, "the outputs of this run's first policy", found, expected)

    def check_act_on_host(
        self,
        reference: Callable[..., Any],
        observation: NumpyObservation,
        mask: np.ndarray | None,
        controls: Mapping[str, float],
        generator: torch.Generator,
    ) -> None:
        """Compare the policy's outputs."""
        self.check_act(reference, to_tensor(observation, self.algorithm.device), None, controls, generator)

    def evaluate_actions(self, observation: Observation, action: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return log-probabilities [B] of actions and values [B]."""
        features = self.model.encoder(observation)
        distribution: Any = self.model.head.distribution(self.outputs(compiled.ACTOR, features), mask)
        log_prob: Tensor = distribution.log_prob(action)
        return log_prob, self.outputs(compiled.CRITIC, features).squeeze(1)

    def check_evaluation(
        self, reference: Callable[..., tuple[Tensor, Tensor]], observation: Observation, action: Tensor, mask: Any
    ) -> None:
        """Compare log-probabilities and values."""
        expected, found = reference(observation, action, mask), self.evaluate_actions(observation, action, mask)
        for what, mine, theirs in zip(("log-probabilities", "values"), found, expected, strict=True):
            compare(self.kernel, f"the {what} of this run's first rollout", mine, theirs)

    def state_values(self, observation: Observation) -> Tensor:
        """Return the critic's values [B]."""
        return self.outputs(compiled.CRITIC, self._encode(observation)).squeeze(1)

    def check_values(self, reference: Callable[..., Tensor], observation: Observation) -> None:
        """Compare values."""
        expected, found = reference(observation), self.state_values(observation)
        compare(self.kernel, "the first values of this run", found, expected)

    def advantages(self, rollout: Rollout, value: Tensor, last_value: Tensor) -> Tensor:
        """Return advantages [num_steps, num_envs]."""
        found = torch.empty_like(rollout.reward)
        estimates.advantages(
            rollout.reward.numpy(),
            value.numpy(),
            rollout.final_value.numpy(),
            rollout.terminated.numpy(),
            rollout.truncated.numpy(),
            last_value.numpy(),
            self.algorithm.params.gamma,
            self.algorithm.params.gae_lambda,
            found.numpy(),
        )
        return found

    def check_advantages(
        self, reference: Callable[..., Tensor], rollout: Rollout, value: Tensor, last_value: Tensor
    ) -> None:
        """Compare advantages."""
        expected, found = reference(rollout, value, last_value), self.advantages(rollout, value, last_value)
        compare(self.kernel, "the advantages of this run's first rollout", found, expected)

    def improve(
        self, transitions: PPOBatch, controls: Mapping[str, float], generator: torch.Generator
    ) -> dict[str, Tensor]:
        """Take the gradient steps of all epochs and return the means of the loss's parts."""
        params, optimizer = self.algorithm.params, self.algorithm.optimizer
        data, settings = self._transitions(transitions), self._settings(transitions, controls)
        rows, report = len(data.log_prob), np.zeros(compiled.REPORT)
        # With a limit on the divergence the order of an epoch that may not come is not drawn.
        blocks = [params.update_epochs] if params.target_kl is None else [1] * params.update_epochs
        for epochs in blocks:
            orders = [] if settings.minibatch == rows else [self._order(rows, generator) for _ in range(epochs)]
            compiled.ppo_epochs(
                self.values,
                *self.statistics,
                self.networks,
                self.memory,
                data,
                settings,
                np.concatenate(orders) if orders else _NO_INDICES,
                epochs,
                optimizer.steps,
                self._gradient.numpy(),
                report,
            )
            if report[compiled.STOPPED]:
                break
        optimizer.count_steps(int(report[compiled.STEPS]))
        return self._metrics(report, controls)

    def check_improvement(
        self,
        reference: Callable[..., dict[str, Tensor]],
        transitions: PPOBatch,
        controls: Mapping[str, float],
        generator: torch.Generator,
    ) -> None:
        """Compare the gradients of the rollout's first minibatch."""
        settings = self._settings(transitions, controls)
        indices = torch.arange(settings.minibatch)
        self.algorithm.gradient(transitions.select(indices), controls)
        expected = self.algorithm.optimizer.gradient.clone()
        found = self.gradient(transitions, controls, indices)
        compare(self.kernel, "the gradient of this run's first update", found, expected)

    def gradient(self, transitions: PPOBatch, controls: Mapping[str, float], indices: Tensor) -> Tensor:
        """Return the gradient of the loss of some transitions, in the optimizer's order."""
        compiled.ppo_epochs(
            self.values,
            *self.statistics,
            self.networks,
            self.memory,
            self._transitions(transitions),
            self._settings(transitions, controls),
            indices.numpy(),
            0,
            0,
            self._gradient.numpy(),
            np.zeros(compiled.REPORT),
        )
        return self._gradient

    def _order(self, rows: int, generator: torch.Generator) -> np.ndarray:
        return torch.randperm(rows, generator=generator).numpy()

    def _transitions(self, batch: PPOBatch) -> compiled.Transitions:
        mask = batch.action_mask
        return compiled.Transitions(
            _array(self.model.encoder(batch.observation)),
            _array(batch.action.to(torch.float32)),
            _NO_MASK if mask is None else _array(mask.view(torch.uint8)),
            _array(batch.log_prob),
            _array(batch.value),
            _array(batch.advantage),
            _array(batch.target_value),
        )

    def _settings(self, batch: PPOBatch, controls: Mapping[str, float]) -> compiled.Settings:
        params, optimizer, rows = self.algorithm.params, self.algorithm.optimizer, len(batch.log_prob)
        return compiled.Settings(
            minibatch=min(params.minibatch_size or rows, rows),
            normalize=params.normalize_advantage,
            clip_value=params.clip_value_loss,
            clip_coef=float(controls["clip_coef"]),
            ent_coef=float(controls["ent_coef"]),
            vf_coef=float(params.vf_coef),
            stop_kl=-1.0 if params.target_kl is None else KL_MARGIN * params.target_kl,
            learning_rate=float(controls["learning_rate"]),
            max_grad_norm=-1.0 if params.max_grad_norm is None else float(params.max_grad_norm),
            adam=params.optimizer == "adam",
            beta1=float(optimizer.beta1),
            eps=float(optimizer.eps),
        )

    def _metrics(self, report: np.ndarray, controls: Mapping[str, float]) -> dict[str, Tensor]:
        batches, rows = report[compiled.BATCHES], report[compiled.ROWS]
        policy, value, entropy = (
            report[[compiled.LOSS_POLICY, compiled.LOSS_VALUE, compiled.ENTROPY]] / batches
        )  # each a mean over minibatches
        metrics = {
            "loss_policy": policy,
            "loss_value": value,
            "loss_total": policy + self.algorithm.params.vf_coef * value - controls["ent_coef"] * entropy,
            "entropy": entropy,
            "approx_kl": report[compiled.KL] / rows,
            "clip_fraction": report[compiled.CLIPPED] / rows,
        }
        if report[compiled.STEPS]:
            metrics["gradient_norm"] = report[compiled.NORM] / report[compiled.STEPS]
        return {name: torch.tensor(number, dtype=torch.float32) for name, number in metrics.items()}


def describe(model: ActorCritic, values: Tensor) -> compiled.Networks:
    """Return what compiled code has to know of a model whose parameters are views of `values`."""
    hidden = tuple(int(bias.shape[-1]) for _, bias in parameter_pairs(model.stacks))
    head = model.head
    sizes = [(model.encoder.width, *hidden, layer.out_features) for layer in (head.linear, model.value_head)]
    places = [
        [*stacked_places(values, model.stacks, member), linear_place(values, layer)]
        for member, layer in ((ACTOR, head.linear), (1 - ACTOR, model.value_head))
    ]
    ends = np.cumsum([packed_size(network) for network in sizes])
    gaussian = isinstance(head, GaussianHead)
    return compiled.Networks(
        sizes=as_array(sizes),
        places=as_array(places),
        ends=ends,
        transposed_ends=np.cumsum([transposed_size(network) for network in sizes]),
        activation=ACTIVATIONS[model.stacks.activation],
        policy=HEADS[type(head)],
        choices=as_array(getattr(head, "choices", (head.linear.out_features,))),
        log_std=index_in(values, head.log_std) if isinstance(head, GaussianHead) else -1,
        size=int(ends[-1]) + (packed_size((0, head.linear.out_features)) if gaussian else 0),
    )


def allocate(networks: compiled.Networks) -> compiled.Memory:
    """Return the memory that compiled code works in."""
    sizes = [tuple(map(int, network)) for network in networks.sizes]
    per_row = max(map(trace_size, sizes))
    chunk = min(max(_CHUNK_NUMBERS // per_row // LANES * LANES, LANES), 512)
    region = chunk * max(width + -width % LANES for network in sizes for width in network)
    values, mean, square, gradient = (np.zeros(networks.size, np.float32) for _ in range(4))
    return compiled.Memory(
        values,
        mean,
        square,
        gradient,
        transposed=np.zeros(int(networks.transposed_ends[-1]) + LANES, np.float32),
        trace=np.zeros(chunk * per_row, np.float32),
        grad=np.zeros(LANES + 2 * region, np.float32),
        other=LANES + region,
        chunk=chunk,
    )


def _array(tensor: Tensor) -> np.ndarray:
    """Return the elements in order; of contiguous tensors they share the memory."""
    return tensor.numpy().reshape(-1)
