"""The names of parameters of Stable-Baselines3, RL Zoo, CleanRL and d3rlpy, with ours, for messages about unknown keys.

An answer is the name of our key, or the rest of a sentence if there is no key of the same meaning.
`experiment.configuration.migration_docs` makes a page of the table.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any

from rl_training.experiment.algorithm_spec import AlgorithmSpec
from rl_training.experiment.configuration.env_params import WRAPPER_KEYS
from rl_training.experiment.configuration.validation import unknown_key
from rl_training.experiment.registry import find_algorithm, list_algorithm_specs

# The scope of an answer: an algorithm by name, the algorithms of one class, or a group of classes.
ON_POLICY, REPLAY, PLANNING, OFFLINE, ALL = "on-policy", "replay", "planning", "offline", "all"
_GROUPS = {
    "PPO": ON_POLICY,
    "DQN": REPLAY,
    "SAC": REPLAY,
    "DiscreteSAC": REPLAY,
    "TD3": REPLAY,
    "MuZero": PLANNING,
    "ScaleZero": PLANNING,
    "BC": OFFLINE,
    "TD3BC": OFFLINE,
    "IQL": OFFLINE,
    "CQL": OFFLINE,
    "DiscreteCQL": OFFLINE,
}

_LEAVE = "leave it out"
_NETWORKS = "the kind of network follows from the observation space"
_ENCODER = f"the encoder follows from the observation space; {_LEAVE}"
_BY_TAU = "the target networks move at every update, by `tau`; leave it out"
_COPIED = "the target network is copied every `target_update_interval` gradient steps; leave it out"
_ONE_RATE = "one `learning_rate` holds for actor, critics and temperature"
_ROUNDS = "how often it learns is set by `train_interval` and `gradient_steps`"
_RATIO = "how often it learns is set by `replay_ratio`, gradient steps per environment step"
_ROLLOUTS = "it learns after every rollout of `num_steps` steps per environment; leave it out"
_EVERY_STEP = "a step is a gradient step; leave it out"
_DATASET = "transitions come from `dataset`; leave it out"
_ONE_PASS = "there is one pass over each rollout; leave it out"
_WHOLE = "the whole rollout is one batch, `num_steps` steps of each environment; leave it out"
_TEMPERATURE = "it is called `temperature` here: a number, or auto to learn it from `temperature_init` on"
_EPSILON = "set `epsilon_schedule` to {type: linear, end: 0.05, duration: 0.1}: its last value, and the fraction"
_OWN_POLICY = "it explores by its own policy; leave it out"
_HINDSIGHT = "hindsight is chosen by `hindsight`, an n-step return by `n_step`"
_ADAM = "the optimizer is Adam, with `optimizer_eps`; leave it out"
_TENSORBOARD = "every run writes its own TensorBoard files unless `tracking.tensorboard` is false; leave it out"
_VERBOSE = "the command line's --quiet shows less; leave it out"
_RECORDED = "returns are always recorded; leave it out"
_BACKEND = "choose by `execution_backend`: local_sync is one process (dummy), local_async worker processes (subproc)"
_SEARCH = "`axiomrl tune` searches settings; leave it out"
_UPLOAD = "nothing is uploaded; leave it out"

# Keys of the whole configuration, at whatever level they are written.
WHOLE_CONFIGURATION: dict[str, str] = {
    "env": "env_id",
    "env_name": "env_id",
    "gym_id": "env_id",
    "environment": "env_id",
    "n_envs": "num_envs",
    "n_timesteps": "total_timesteps",
    "total_steps": "total_timesteps",
    "num_timesteps": "total_timesteps",
    "eval_freq": "eval_interval",
    "n_eval_episodes": "eval_episodes",
    "save_freq": "checkpoint_interval",
    "torch_deterministic": "deterministic",
    "exp_name": "tags",
    "seeds": "write them as `benchmark.seeds`, or --seeds 1,2,3 on the command line",
    "cuda": "choose by `device`: auto, cpu or cuda",
    "track": "write `tracking.wandb`",
    "wandb_project_name": "write `tracking.wandb.project`",
    "wandb_entity": "write `tracking.wandb.entity`",
    "capture_video": "films during training are made by `video`, such as {interval: 50_000, episodes: 1}",
    "save_model": "every run keeps checkpoints; leave it out",
    "n_stack": "write `env_kwargs.frame_stack`",
    "normalize": "write `env_kwargs.normalize_observation` and `env_kwargs.normalize_reward`",
    "norm_obs": "write `env_kwargs.normalize_observation`",
    "norm_reward": "write `env_kwargs.normalize_reward`",
    "clip_obs": "write `env_kwargs.clip_observation`",
    "env_wrapper": "name a function that returns the wrapped environment as `env_id` (path/to/file.py:Name); Atari's "
    "wrappers are `env_kwargs.atari`",
    "vec_env_wrapper": "stacking and normalisation are keys of `env_kwargs`; leave it out",
    "vec_env": _BACKEND,
    "vec_env_class": _BACKEND,
    "eval_env_kwargs": "write them in the block evaluation: of `env_kwargs`",
    "n_eval_envs": "evaluation chooses its number of environments; leave it out",
    "callback": "callbacks",
    "hyperparams": "write its entries in `algo_kwargs`",
    "conf_file": "the command line's --config names a file; leave it out",
    "log_folder": "output_dir",
    "num_threads": "torch_threads",
    "trained_agent": "`axiomrl import-sb3` makes a run of a model; `init` starts another run with its weights",
    "save_replay_buffer": "checkpoints contain the replay; leave it out",
    "monitor_kwargs": _RECORDED,
    "uuid": "run directories never collide; leave it out",
    "progress": "a terminal always shows the progress; leave it out",
    "progress_bar": "a terminal always shows the progress; leave it out",
    "wandb_group": "write `tracking.wandb.group`",
    "wandb_tags": "tags",
    **dict.fromkeys(("optimize_hyperparameters", "n_trials", "max_total_trials", "n_startup_trials"), _SEARCH),
    **dict.fromkeys(("sampler", "pruner", "n_evaluations", "storage", "study_name"), _SEARCH),
    "upload_model": _UPLOAD,
    "hf_entity": _UPLOAD,
    "tensorboard_log": _TENSORBOARD,
    "verbose": _VERBOSE,
}

PARAMETERS: dict[str, dict[str, str]] = {
    # -- step sizes and optimizers
    "lr": {ALL: "learning_rate"},
    "anneal_lr": {ALL: "set `learning_rate_schedule` to linear"},
    "policy_lr": {"SAC": _ONE_RATE, "DiscreteSAC": _ONE_RATE, "TD3": "one `learning_rate` holds for actor and critics"},
    "q_lr": {"SAC": _ONE_RATE, "DiscreteSAC": _ONE_RATE, "TD3": "one `learning_rate` holds for actor and critics"},
    "optimizer_class": {ON_POLICY: "optimizer", REPLAY: _ADAM, PLANNING: _ADAM, OFFLINE: _ADAM},
    "optimizer_kwargs": {ALL: "its parts are keys of their own here: eps is `optimizer_eps`"},
    "adam_eps": {ALL: "optimizer_eps"},
    "rms_prop_eps": {ON_POLICY: "optimizer_eps"},
    "use_rms_prop": {ON_POLICY: "set `optimizer` to rmsprop or adam"},
    "max_grad_norm": {},
    "gamma": {},
    # -- rollouts
    "n_steps": {ON_POLICY: "num_steps", REPLAY: "n_step", PLANNING: "n_step"},
    "n_step": {ON_POLICY: "num_steps"},
    "num_steps": {},
    "batch_size": {"a2c": _WHOLE, "impala": _WHOLE, ON_POLICY: "minibatch_size"},
    "minibatch_size": {REPLAY: "batch_size", PLANNING: "batch_size", OFFLINE: "batch_size"},
    "num_minibatches": {
        "a2c": _WHOLE,
        "impala": _WHOLE,
        ON_POLICY: "set `minibatch_size`, transitions per gradient step: `num_steps` * `num_envs` / num_minibatches",
        REPLAY: "`batch_size` is the number of transitions per gradient step; leave it out",
        PLANNING: "`batch_size` is the number of windows per gradient step; leave it out",
    },
    "n_epochs": {"a2c": _ONE_PASS, "impala": _ONE_PASS, ON_POLICY: "update_epochs", REPLAY: _ROUNDS, PLANNING: _RATIO},
    "update_epochs": {REPLAY: _ROUNDS, PLANNING: _RATIO},
    "gae_lambda": {},
    "clip_range": {ON_POLICY: "clip_coef"},
    "clip_coef": {},
    "clip_range_vf": {ON_POLICY: "set `clip_value_loss` to true: the value's change is clipped by `clip_coef`"},
    "clip_vloss": {ON_POLICY: "clip_value_loss"},
    "normalize_advantage": {},
    "norm_adv": {ON_POLICY: "normalize_advantage"},
    "vf_coef": {PLANNING: "value_coef"},
    "target_kl": {},
    # -- entropy
    "ent_coef": {
        "SAC": _TEMPERATURE,
        "DiscreteSAC": _TEMPERATURE,
        "CQL": _TEMPERATURE,
        "scalezero": "entropy_coef",
    },
    "alpha": {
        "SAC": _TEMPERATURE,
        "DiscreteSAC": _TEMPERATURE,
        "DQN": "per_alpha",
        PLANNING: "per_alpha",
        "CQL": "conservative_weight",
        "DiscreteCQL": "conservative_weight",
    },
    "autotune": {
        "SAC": "set `temperature` to auto, or to a number that stays",
        "DiscreteSAC": "set `temperature` to auto, or to a number that stays",
    },
    "target_entropy": {"DiscreteSAC": "set `target_entropy_ratio`, a share of the uniform policy's entropy"},
    "target_entropy_scale": {"DiscreteSAC": "target_entropy_ratio"},
    # -- exploration
    "use_sde": {},
    "sde_sample_freq": {},
    "use_sde_at_warmup": {"SAC": f"the first `learning_starts` steps act uniformly at random; {_LEAVE}"},
    "action_noise": {
        "TD3": "set `exploration_noise`, the standard deviation of Gaussian noise on actions in [-1, 1]",
        "SAC": f"it explores by its own policy, or by `use_sde`; {_LEAVE}",
        "DiscreteSAC": _OWN_POLICY,
        "DQN": f"it explores by `epsilon` or by `noisy` weights; {_LEAVE}",
        ON_POLICY: _OWN_POLICY,
        PLANNING: f"it explores in its search; {_LEAVE}",
    },
    "noise_std": {"TD3": "exploration_noise"},
    "noise_type": {"TD3": f"the noise is Gaussian, with the standard deviation `exploration_noise`; {_LEAVE}"},
    "exploration_noise": {},
    "exploration_fraction": {"DQN": _EPSILON, "PQN": _EPSILON, PLANNING: "root_exploration_fraction"},
    "exploration_initial_eps": {"DQN": "epsilon", "PQN": "epsilon"},
    "start_e": {"DQN": "epsilon", "PQN": "epsilon"},
    "exploration_final_eps": {"DQN": _EPSILON, "PQN": _EPSILON},
    "end_e": {"DQN": _EPSILON, "PQN": _EPSILON},
    "target_policy_noise": {"TD3": "target_noise"},
    "policy_noise": {"TD3": "target_noise"},
    "target_noise_clip": {},
    "noise_clip": {"TD3": "target_noise_clip"},
    # -- replay and cadence
    "buffer_size": {},
    "learning_starts": {},
    "train_freq": {ON_POLICY: _ROLLOUTS, REPLAY: "train_interval", PLANNING: _RATIO, OFFLINE: _EVERY_STEP},
    "train_frequency": {ON_POLICY: _ROLLOUTS, REPLAY: "train_interval", PLANNING: _RATIO, OFFLINE: _EVERY_STEP},
    "gradient_steps": {
        "a2c": _ONE_PASS,
        "impala": _ONE_PASS,
        ON_POLICY: "update_epochs",
        PLANNING: _RATIO,
        OFFLINE: _EVERY_STEP,
    },
    "tau": {PLANNING: _COPIED},
    "target_update_interval": {"SAC": _BY_TAU, "DiscreteSAC": _BY_TAU, "TD3": _BY_TAU},
    "target_network_frequency": {
        "DQN": "target_update_interval",
        "SAC": _BY_TAU,
        "DiscreteSAC": _BY_TAU,
        "TD3": _BY_TAU,
        PLANNING: "target_update_interval",
    },
    "policy_delay": {},
    "policy_frequency": {"SAC": "policy_delay", "TD3": "policy_delay"},
    "replay_buffer_class": {
        "DQN": "the replay is chosen by `prioritized`, `hindsight` and `n_step`",
        REPLAY: _HINDSIGHT,
        PLANNING: "priorities are chosen by `per_alpha`",
        OFFLINE: _DATASET,
    },
    "replay_buffer_kwargs": {
        "DQN": "the replay is chosen by `prioritized`, `hindsight` and `n_step`",
        REPLAY: _HINDSIGHT,
        PLANNING: "priorities are chosen by `per_alpha` and `per_beta`",
    },
    "goal_selection_strategy": {REPLAY: "hindsight"},
    "n_sampled_goal": {REPLAY: "set `hindsight_ratio` to n_sampled_goal / (n_sampled_goal + 1)"},
    "optimize_memory_usage": {
        REPLAY: f"each observation is stored once as it is; {_LEAVE}",
        PLANNING: f"each observation is stored once as it is; {_LEAVE}",
    },
    "handle_timeout_termination": {ALL: f"a truncated episode always bootstraps from its final observation; {_LEAVE}"},
    # -- networks
    "policy": {
        ON_POLICY: f"{_NETWORKS}, its size from `hidden_sizes`; {_LEAVE}",
        REPLAY: f"{_NETWORKS}, its size from `hidden_sizes`; {_LEAVE}",
        PLANNING: f"{_NETWORKS}, its size from `hidden_size`; {_LEAVE}",
    },
    "policy_kwargs": {
        ON_POLICY: "its parts are keys of their own here: net_arch is `hidden_sizes`, activation_fn is `activation`",
        REPLAY: "its parts are keys of their own here: net_arch is `hidden_sizes`, activation_fn is `activation`",
        PLANNING: "its parts are keys of their own here: net_arch is `hidden_size`",
    },
    "net_arch": {ON_POLICY: "hidden_sizes", REPLAY: "hidden_sizes", PLANNING: "hidden_size", OFFLINE: "hidden_sizes"},
    "hidden_size": {ON_POLICY: "hidden_sizes", REPLAY: "hidden_sizes", OFFLINE: "hidden_sizes"},
    "hidden_sizes": {PLANNING: "hidden_size"},
    "activation_fn": {
        ON_POLICY: "activation",
        REPLAY: "activation",
        PLANNING: f"the model's activations are fixed; {_LEAVE}",
        OFFLINE: "activation",
    },
    "ortho_init": {ON_POLICY: "orthogonal_init"},
    "log_std_init": {},
    "features_extractor_class": {
        ON_POLICY: "encoder",
        REPLAY: "encoder",
        "MuZero": "encoder",
        "ScaleZero": _ENCODER,
        OFFLINE: "encoder",
    },
    "features_extractor_kwargs": {
        ON_POLICY: "encoder_kwargs",
        REPLAY: "encoder_kwargs",
        "MuZero": "encoder_kwargs",
        "ScaleZero": _ENCODER,
        OFFLINE: "encoder_kwargs",
    },
    "n_critics": {
        "SAC": "num_critics",
        "DiscreteSAC": "num_critics",
        "TD3": "num_critics",
        "TD3BC": "num_critics",
        "IQL": "num_critics",
        "CQL": "num_critics",
    },
    "n_quantiles": {"SAC": "num_quantiles", "DQN": "num_quantiles"},
    "top_quantiles_to_drop_per_net": {"SAC": "dropped_quantiles"},
    "n_atoms": {"DQN": "num_atoms"},
    "v_min": {PLANNING: "the values' range is set by `support_size`"},
    "v_max": {PLANNING: "the values' range is set by `support_size`"},
    # -- what is no parameter of an algorithm here
    "stats_window_size": {ALL: f"returns are shown as means of the latest episodes; {_LEAVE}"},
    "tensorboard_log": {ALL: _TENSORBOARD},
    "verbose": {ALL: _VERBOSE},
    "monitor_wrapper": {ALL: _RECORDED},
}


# Parameters of d3rlpy's offline algorithms, for those that have ours.
D3RLPY: dict[str, str] = {
    "actor_learning_rate": "learning_rate",
    "critic_learning_rate": "learning_rate",
    "policy_type": "policy",
    "weight_temp": "beta",
    "n_action_samples": "action_samples",
    "alpha_threshold": "lagrange_threshold",
    "soft_q_backup": "soft_target",
    "initial_temperature": "temperature_init",
    "target_smoothing_sigma": "target_noise",
    "target_smoothing_clip": "target_noise_clip",
    "update_actor_interval": "policy_delay",
}


def unknown_parameter(spec: AlgorithmSpec, name: str, known: Iterable[str], *, top_level: Iterable[str]) -> str:
    """Return the error message for a key under `algo_kwargs` that the algorithm does not have.

    `top_level` are the keys of the whole configuration.
    """
    known = set(known)
    answer = answer_for(spec, name, known)
    if answer is not None:
        return f"unknown key; {_called(answer)}"
    top = WHOLE_CONFIGURATION.get(name, name if name in set(top_level) else None)
    if top is not None and not top.isidentifier():
        return f"unknown key; {top}"
    if top is not None:
        called = "" if top == name else f"{_called(top)}; "
        return f"unknown key; {called}it stands at the top level, outside algo_kwargs"
    if name in WRAPPER_KEYS:
        return f"unknown key; it describes the environment: write `env_kwargs.{name}`"
    owners = [other.name for other in list_algorithm_specs() if _has(other, name)]
    if owners:
        return f"unknown key; it is a setting of {', '.join(owners)}, and {spec.name} has none like it: leave it out"
    return unknown_key(name, known)


def unknown_top_level_key(name: str, known: Iterable[str], raw: Mapping[str, Any]) -> str:
    """Return the error message for a key at the top level of the configuration `raw` that does not belong there."""
    known = set(known)
    if name in WHOLE_CONFIGURATION:
        return f"unknown key; {_called(WHOLE_CONFIGURATION[name])}"
    if name in WRAPPER_KEYS:
        return f"unknown key; it describes the environment: write `env_kwargs.{name}`"
    spec = find_algorithm(raw.get("algo"))
    if spec is not None:
        if name in _fields(spec):
            return f"unknown key; it is a setting of the algorithm: write `algo_kwargs.{name}`"
        answer = answer_for(spec, name, _fields(spec))
        if answer is not None and answer.isidentifier():
            return f"unknown key; it is a setting of the algorithm, called `algo_kwargs.{answer}` here"
        if answer is not None:
            return f"unknown key; it is a setting of the algorithm: {answer}, under algo_kwargs"
    return unknown_key(name, known)


def answer_for(spec: AlgorithmSpec, name: str, known: Iterable[str]) -> str | None:
    """Return our name for a parameter from elsewhere: a key, a sentence, or None if the table has no answer.

    An algorithm of a class that is not in the table gets the first answer that is one of its keys.
    """
    answers = PARAMETERS.get(name, {})
    kinds = _kinds(spec)
    for reader in (spec.name, *kinds, *(_GROUPS.get(kind, "") for kind in kinds), ALL):
        if reader in answers:
            return answers[reader]
    known = set(known)
    if spec.loop == "offline" and D3RLPY.get(name) in known:
        return D3RLPY[name]
    if not _GROUPS.keys().isdisjoint(kinds):
        return None
    return next((answer for answer in answers.values() if answer in known), None)


def _kinds(spec: AlgorithmSpec) -> list[str]:
    """Return the names of an algorithm's class and of its base classes."""
    if isinstance(spec.algorithm, str):
        return [spec.algorithm.rpartition(":")[2]]
    return [owner.__name__ for owner in spec.algorithm.__mro__]


def _has(spec: AlgorithmSpec, name: str) -> bool:
    """Return whether an algorithm has the parameter, by any name."""
    return name in _fields(spec) or (name in PARAMETERS and answer_for(spec, name, _fields(spec)) is not None)


@cache
def _fields(spec: AlgorithmSpec) -> set[str]:
    return {field.name for field in dataclasses.fields(spec.load_params())}


def _called(answer: str) -> str:
    return f"it is called `{answer}` here" if answer.isidentifier() else answer
