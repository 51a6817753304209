"""User-defined encoders named by `algo_kwargs.encoder`, and checks of all networks before they learn."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from gymnasium import Space
from torch import Tensor, nn

from rl_training.algorithms.base import Algorithm
from rl_training.algorithms.network_checks import ROWS
from rl_training.algorithms.params.encoder_params import EncoderParams
from rl_training.data.observations import sample_batch
from rl_training.errors import AxiomError, ConfigError
from rl_training.experiment.algorithm_spec import AlgorithmSpec
from rl_training.experiment.own_code.user_code import load_object

PLACE = "algo_kwargs.encoder"
CPU = torch.device("cpu")


def encoder_argument(params: Any) -> dict[str, UserEncoder]:
    """Return the argument `encoder` for an algorithm's constructor, or an empty dict if the parameters name none."""
    if not isinstance(params, EncoderParams) or params.encoder is None:
        return {}
    return {"encoder": UserEncoder(params.encoder, params.encoder_kwargs)}


def build_algorithm(
    spec: AlgorithmSpec,
    params: Any,
    observation_space: Space[Any],
    action_space: Space[Any],
    device: torch.device,
    generator: torch.Generator,
) -> Any:
    """Return an algorithm with random weights, whose networks were tried on these spaces."""
    algorithm = spec.algorithm_class(params)(
        params, observation_space, action_space, device=device, generator=generator, **encoder_argument(params)
    )
    check_networks(algorithm, observation_space)
    return algorithm


def check_networks(algorithm: Algorithm, space: Space[Any]) -> None:
    """Raise an error if an algorithm's networks do not return what its losses need."""
    try:
        with torch.no_grad():
            algorithm.check_networks(sample_batch(space, ROWS, algorithm.device))
    except AxiomError:
        raise
    except Exception as error:
        raise ConfigError(
            f"algo: a network of {type(algorithm).__qualname__} cannot be used, {type(error).__name__}: {error}; "
            "docs/extending.md lists what each network needs"
        ) from error


class UserEncoder:
    """Makes the encoders of networks; an `EncoderFactory` for algorithms."""

    def __init__(self, name: str, kwargs: Mapping[str, Any]) -> None:
        """`name` is `module:Name`, already admitted by the run's setup."""
        self.name = name
        self.kwargs = dict(kwargs)
        self._make = load_object(name, place=PLACE, fits=_is_module_class, wanted="encoder class (torch.nn.Module)")
        self._weights: set[nn.Parameter] = set()  # weights of the encoders made so far

    def __call__(self, space: Space[Any], *, orthogonal: bool, generator: torch.Generator) -> nn.Module:
        """Return a checked encoder for an observation space; its weights are drawn from torch's global generator.

        Algorithms seed the global generator from `generator` while they make their networks.
        """
        arguments = ", ".join(["observation_space", *(f"{key}={value!r}" for key, value in self.kwargs.items())])
        try:
            encoder = self._make(space, **self.kwargs)
        except AxiomError:
            raise
        except Exception as error:
            raise self._problem(
                f"cannot be called with ({arguments}), {type(error).__name__}: {error}",
                "change algo_kwargs.encoder_kwargs or the class",
            ) from error
        self._check_module(encoder)
        self._check_output(encoder, space)
        self._weights.update(encoder.parameters())
        return encoder

    def _check_module(self, encoder: Any) -> None:
        """Raise an error if the object is not a module that networks and optimizers can contain."""
        if not isinstance(encoder, nn.Module):
            raise self._problem(f"gives an object of type {type(encoder).__name__}", "return a torch.nn.Module")
        width = getattr(encoder, "width", None)
        if type(width) is not int or width < 1:
            found = "no attribute `width`" if width is None else f"the width {width!r}"
            raise self._problem(f"has {found}", "set self.width to the number of its features, an int of at least 1")
        weights = list(encoder.parameters())
        for tensor in (*weights, *encoder.buffers()):
            if tensor.device != CPU:
                raise self._problem(f"lies on {tensor.device}", "make it on the CPU, from where the run moves it")
        for weight in weights:
            if weight.dtype != torch.float32:
                raise self._problem(f"has weights of {weight.dtype}", "make them float32")
            if not weight.requires_grad:
                raise self._problem(
                    "has weights without requires_grad, which algorithms switch on and off themselves",
                    "leave it on and call what is frozen under torch.no_grad() in forward",
                )
        if not self._weights.isdisjoint(weights):
            raise self._problem("gives the same weights twice", "make new ones at each call, one per network")

    def _check_output(self, encoder: nn.Module, space: Space[Any]) -> None:
        """Raise an error if a batch of observations is not mapped to features [B, width]."""
        batch = sample_batch(space, ROWS, CPU)
        before, random = [buffer.clone() for buffer in encoder.buffers()], torch.get_rng_state()
        try:
            with torch.no_grad():
                features = encoder(batch)
        except AxiomError:
            raise
        except Exception as error:
            raise self._problem(
                f"fails on {ROWS} observations of {space}, {type(error).__name__}: {error}", "repair its forward"
            ) from error
        found = f"a {type(features).__name__}"
        if isinstance(features, Tensor):
            found = f"{features.dtype} of shape {list(features.shape)}"
        wanted = f"{torch.float32} of shape {[ROWS, encoder.width]}"
        if found != wanted:
            raise self._problem(
                f"returns {found} for {ROWS} observations, not {wanted}", "return features [B, width] or set width"
            )
        changed = any(not torch.equal(*pair) for pair in zip(before, encoder.buffers(), strict=True))
        if changed or not torch.equal(random, torch.get_rng_state()):
            raise self._problem(
                "draws random numbers or changes its buffers in forward, as dropout and batch normalisation do, so "
                "that acting would change what is learned",
                "use modules without either, such as LayerNorm",
            )

    def _problem(self, what: str, repair: str) -> ConfigError:
        return ConfigError(f"{PLACE}: `{self.name}` {what}; {repair}")


def _is_module_class(value: Any) -> bool:
    return isinstance(value, type) and issubclass(value, nn.Module)
