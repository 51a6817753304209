"""Forward and backward passes of stacked perceptrons and linear layers, written out.

They give what autograd gives, in less time: small networks are bound by the number of operations, and autograd
records, orders and accumulates as many again; large ones gain from memory that is used again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn

from rl_training.models.layers import StackedMLP, parameter_pairs

# Each turns the gradient with respect to an activation's output into that with respect to its input, in place.
_ACTIVATION_BACKWARD: dict[Callable[[Tensor], Tensor], Callable[[Tensor, Tensor], Tensor]] = {
    torch.tanh: lambda gradient, output: torch.ops.aten.tanh_backward.grad_input(gradient, output, grad_input=gradient),
    torch.relu: lambda gradient, output: torch.ops.aten.threshold_backward.grad_input(
        gradient, output, 0, grad_input=gradient
    ),
}
_IN_PLACE: dict[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]] = {
    torch.tanh: torch.tanh_,
    torch.relu: torch.relu_,
}


def gradient_of(parameter: Tensor) -> Tensor:
    """Return where a parameter's gradient is written to; torch would take None for "nowhere" and say nothing."""
    assert parameter.grad is not None, "an optimizer must have taken the parameters over"
    return parameter.grad


def linear_backward(layer: nn.Linear, inputs: Tensor, grad_outputs: Tensor, *, out: Tensor) -> None:
    """Overwrite a layer's gradients and write the gradient with respect to its inputs into `out`."""
    torch.mm(grad_outputs.t(), inputs, out=gradient_of(layer.weight))
    torch.sum(grad_outputs, 0, out=gradient_of(layer.bias))
    torch.mm(grad_outputs, layer.weight, out=out)


def differentiable(network: nn.Module) -> bool:
    """Return whether `Perceptrons` knows the backward pass of a network."""
    return type(network) is StackedMLP and network.activation in _ACTIVATION_BACKWARD


class Perceptrons:
    """Passes of one `StackedMLP`, with memory that the next pass overwrites.

    To get as much memory anew costs the system as long as a product.
    """

    def __init__(self, network: StackedMLP) -> None:
        self.network = network
        self._activate = _IN_PLACE[network.activation]
        self._activation_backward = _ACTIVATION_BACKWARD[network.activation]
        self._outputs: list[Tensor] = []  # of every layer, [count, B, width]
        self._gradients: list[Tensor] = []

    def forward(self, features: Tensor, count: int | None = None) -> list[Tensor]:
        """Return the input and every layer's output, [count, B, width] each, for features [B, inputs].

        `count` evaluates only the first networks; None evaluates all.
        """
        count, rows = count or self.network.count, len(features)
        hidden = features.expand(count, *features.shape)
        activations = [hidden]
        layers = self._layers(count)
        if not self._outputs or self._outputs[0].shape[1] < rows:
            for memory in (self._outputs, self._gradients):
                memory[:] = [hidden.new_empty(self.network.count, rows, bias.shape[2]) for _, bias in layers]
        for layer, (weight, bias) in enumerate(layers):
            hidden = torch.baddbmm(bias, hidden, weight, out=self._outputs[layer][:count, :rows])
            if layer < self.network.activated:
                self._activate(hidden)
            activations.append(hidden)
        return activations

    def gradient_buffer(self, output: Tensor) -> Tensor:
        """Return memory for the gradient with respect to an output [count, B, outputs] of `forward`."""
        return self._gradients[-1][:, : output.shape[1]] if self._gradients else output.new_empty(output.shape)

    def backward(self, activations: list[Tensor], grad_output: Tensor) -> None:
        """Overwrite the parameters' gradients, given that with respect to the output [count, B, outputs]."""
        layers = list(parameter_pairs(self.network))
        for layer, grad_sum in self._walk_back(activations, grad_output):
            weight, bias = layers[layer]
            torch.bmm(activations[layer].transpose(1, 2), grad_sum, out=gradient_of(weight))
            torch.sum(grad_sum, 1, keepdim=True, out=gradient_of(bias))

    def input_gradient(self, activations: list[Tensor], grad_output: Tensor, first: int) -> Tensor:
        """Return the gradient [B, inputs - first] with respect to the inputs from `first` on."""
        *_, (_, grad_sum) = self._walk_back(activations, grad_output)
        weight = self._layers(len(grad_output))[0][0][:, first:]
        return torch.bmm(grad_sum, weight.transpose(1, 2)).sum(0)

    def _walk_back(self, activations: list[Tensor], gradient: Tensor) -> Iterator[tuple[int, Tensor]]:
        """Go from the last layer to the first with the gradient with respect to its sums, before the activation."""
        layers = self._layers(len(gradient))
        for layer in range(len(layers) - 1, -1, -1):
            if layer < self.network.activated:
                gradient = self._activation_backward(gradient, activations[layer + 1])
            yield layer, gradient
            if layer:
                memory = self._gradients[layer - 1][: len(gradient), : gradient.shape[1]]
                gradient = torch.bmm(gradient, layers[layer][0].transpose(1, 2), out=memory)

    def _layers(self, count: int) -> list[tuple[Tensor, Tensor]]:
        """Return weights and biases of the first `count` networks."""
        layers = list(parameter_pairs(self.network))
        return layers if count == self.network.count else [(weight[:count], bias[:count]) for weight, bias in layers]
