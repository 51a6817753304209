"""The settings of a model of Stable-Baselines3 as this package's configuration, by the table of names elsewhere."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from typing import Any

from rl_training.experiment.configuration.names_elsewhere import PARAMETERS, answer_for
from rl_training.experiment.registry import get_algorithm_spec
from rl_training.runtime.sb3.model_zip import SERIALIZED, ModelError, SavedModel

_CONSTANT = re.compile(r"ConstantSchedule\(val=([-+.\deE]+)\)")
_CLASS = re.compile(r"<class '(?:[\w.]+\.)?(\w+)'>")
_ACTIVATIONS = {"Tanh": "tanh", "ReLU": "relu", "ELU": "elu", "GELU": "gelu", "SiLU": "silu"}
_DEFAULT_ACTIVATION = {"ppo": "tanh"}
# Keys of policy_kwargs that shape nothing which the weights do not show.
_HARMLESS = {"net_arch", "use_sde", "log_std_init", "ortho_init", "n_critics", "normalize_images"}
_HARMLESS |= {"share_features_extractor", "optimizer_class", "optimizer_kwargs", SERIALIZED, ":type:"}
_SWITCHES = ("features_extractor_kwargs", "use_expln", "squash_output")
_OFF: tuple[Any, ...] = ({}, "{}", False, "False")
_EXTRACTOR, _FLATTEN = "features_extractor_class", "FlattenExtractor"
# Read by rules of their own, or of no meaning for a run that goes on.
_SPECIAL = {"action_noise", "ent_coef", "policy", "policy_kwargs", "exploration_fraction", "exploration_initial_eps"}
_SPECIAL |= {"exploration_final_eps", "replay_buffer_class", "replay_buffer_kwargs", "verbose", "tensorboard_log"}
_SPECIAL |= {"net_arch", "clip_range_vf", "batch_norm_stats"}


def import_settings(algo: str, model: SavedModel) -> tuple[dict[str, Any], list[str]]:
    """Return `algo_kwargs` for a model, and the names of settings that cannot be read without unpickling."""
    spec, data = get_algorithm_spec(algo), model.data
    known = {field.name for field in dataclasses.fields(spec.load_params())}
    settings: dict[str, Any] = {"activation": _activation(algo, model)}
    unread = []
    for name in sorted(PARAMETERS.keys() | known):
        if name not in data or name in _SPECIAL:
            continue
        ours = name if name in known else answer_for(spec, name, known)
        if ours is None or ours not in known:
            continue
        value = _readable(data[name])
        if value is _UNREADABLE:
            unread.append(name)
        elif value is not None or name in ("target_kl", "max_grad_norm"):
            settings[ours] = value
    settings |= _special(algo, data, unread)
    return settings, unread


_UNREADABLE = object()


def _readable(value: Any) -> Any:
    """Return a plain value, the number of a constant schedule, or `_UNREADABLE`."""
    if isinstance(value, Mapping):
        constant = _CONSTANT.search(str(value.get("value_schedule", "")))
        return float(constant.group(1)) if constant else _UNREADABLE
    return value if value is None or isinstance(value, bool | int | float | str) else _UNREADABLE


def _special(algo: str, data: Mapping[str, Any], unread: list[str]) -> dict[str, Any]:
    """Return the settings whose values have another form here."""
    found: dict[str, Any] = {}
    weight = data.get("ent_coef")
    if algo == "sac" and isinstance(weight, str) and weight.startswith("auto"):
        found["temperature"] = "auto"
    elif algo == "sac" and isinstance(weight, int | float):
        found["temperature"] = weight
    elif algo == "ppo" and isinstance(weight, int | float):
        found["ent_coef"] = weight
    if algo == "dqn":
        # A trained model goes on exploring as much as it did at the end.
        last = data.get("exploration_final_eps")
        found |= {"epsilon": last if isinstance(last, int | float) else 0.05, "epsilon_schedule": None}
    if algo == "td3":
        if data.get("action_noise") is None:
            found["exploration_noise"] = 0.0
        else:
            unread.append("action_noise")
    if algo == "ppo" and _readable(data.get("clip_range_vf")) is not None:
        found["clip_value_loss"] = True
    return found


def _activation(algo: str, model: SavedModel) -> str:
    """Return the activation function, or raise an error for a policy that is more than a perceptron.

    Of a serialised value the class names beside it are read, as text.
    """
    given = model.data.get("policy_kwargs")
    kwargs = given if isinstance(given, dict) else {}
    activation = _DEFAULT_ACTIVATION.get(algo, "relu")
    for key, value in kwargs.items():
        name = _CLASS.fullmatch(str(value))
        kind = "" if name is None else name.group(1)
        if key == "activation_fn" and kind in _ACTIVATIONS:
            activation = _ACTIVATIONS[kind]
        elif not (key in _HARMLESS or (key in _SWITCHES and value in _OFF) or (key == _EXTRACTOR and kind == _FLATTEN)):
            raise ModelError(
                f"{model.path}: its policy was made with {key}={value!s:.80}, which is not imported; only plain MLP "
                f"policies are, with the activations {', '.join(_ACTIVATIONS)}"
            )
    return activation
