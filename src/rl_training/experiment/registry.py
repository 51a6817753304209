"""The registry of algorithms, and the only place that resolves their names.

A name is one of this package's algorithms, one that an installed package provides by the entry point group
`axiomrl.algorithms`, or user code: `module:SPEC`, `path/to/file.py:SPEC`. The origin of such a name decides what may be
imported for it (`user_code`): callers declare it with `admit_algorithm` first. Listing algorithms imports nothing.
"""

from __future__ import annotations

from importlib.metadata import EntryPoint, entry_points
from typing import Any

from rl_training.errors import ConfigError, did_you_mean
from rl_training.experiment.algorithm_spec import AlgorithmSpec, Loop, check_spec
from rl_training.experiment.own_code.user_code import LoadedFrom, admit, load_object, split_name

ENTRY_POINTS = "axiomrl.algorithms"
_PLACE = "algo"
_ELSEWHERE = "install the package that offers it, or name your own as module:SPEC"

# An algorithm becomes stable with five seeds on each of two environments in benchmarks/results, which a test holds.
_STABLE = ("dqn", "gumbel_muzero", "ppo", "sac", "td3")


def _family(
    loop: Loop,
    algorithm: str,
    actions: tuple[str, ...],
    members: dict[str, tuple[str, str]],
    *,
    params_module: str | None = None,
    train: str | None = None,
    many_tasks: bool = False,
) -> list[AlgorithmSpec]:
    """Return the algorithms of one class, which differ in their parameters: name -> (dataclass, summary)."""
    module = params_module or algorithm.partition(":")[0]
    return [
        AlgorithmSpec(
            name=name,
            loop=loop,
            params=f"rl_training.algorithms.{module}:{params}",
            algorithm=f"rl_training.algorithms.{algorithm}",
            action_spaces=actions,
            summary=summary,
            tier="stable" if name in _STABLE else "experimental",
            train=train,
            many_tasks=many_tasks,
        )
        for name, (params, summary) in members.items()
    ]


_POLICY_GRADIENT = {
    "ppo": ("PPOParams", "Proximal policy optimisation: several clipped epochs per rollout."),
    "a2c": ("A2CParams", "Advantage actor-critic: one plain policy-gradient step per short rollout."),
    "appo": ("APPOParams", "PPO for samplers that collect while it learns, corrected by V-trace."),
    "impala": ("IMPALAParams", "A2C for samplers that collect while it learns, corrected by V-trace."),
}
_Q_LEARNING = {
    "dqn": ("DQNParams", "Deep Q-learning, with its extensions as options."),
    "double_dqn": ("DoubleDQNParams", "DQN whose online network chooses the successor's action."),
    "c51": ("C51Params", "DQN with a categorical distribution of returns."),
    "qr_dqn": ("QRDQNParams", "DQN with quantiles of the return."),
    "rainbow": ("RainbowParams", "DQN with all six extensions together."),
}
_PARALLEL = {"pqn": ("PQNParams", "Q-learning on many environments, without a replay and target network.")}
_SOFT = {
    "sac": ("SACParams", "Soft actor-critic: maximum entropy with a learned temperature."),
    "tqc": ("TQCParams", "Soft actor-critic with truncated quantile critics."),
    "crossq": ("CrossQParams", "Soft actor-critic with batch normalisation and without target networks."),
    "redq": ("REDQParams", "Soft actor-critic with ten critics, two of them in each target, and 20 updates per step."),
    "droq": ("DroQParams", "Soft actor-critic with dropout and LayerNorm in the critics, and 20 updates per step."),
}
_SOFT_DISCRETE = {"discrete_sac": ("DiscreteSACParams", "Soft actor-critic for discrete actions.")}
_DETERMINISTIC = {
    "td3": ("TD3Params", "Twin delayed deep deterministic policy gradient."),
    "ddpg": ("DDPGParams", "Deep deterministic policy gradient: TD3 with one critic, no delay, no smoothing."),
}
_PLANNING = {"muzero": ("MuZeroParams", "Plans with a learned model by tree search.")}
_GUMBEL = {"gumbel_muzero": ("GumbelMuZeroParams", "MuZero whose search halves the candidates; needs few simulations.")}
_EFFICIENT = {
    "efficientzero": ("EfficientZeroParams", "MuZero with a value prefix, consistency and off-policy correction.")
}
_MANY_TASKS = {"scalezero": ("ScaleZeroParams", "One planning model for many tasks: experts, staged adapters.")}
_IMITATION = {"bc": ("BCParams", "Behavioural cloning of a dataset, or of its best episodes.")}
_NEAR_DATA = {
    "td3_bc": ("TD3BCParams", "TD3 on a dataset, with an actor that also imitates it."),
    "rebrac": ("ReBRACParams", "TD3+BC with a penalty in the critics' target, LayerNorm and larger batches."),
}
_IMPLICIT = {"iql": ("IQLParams", "Implicit Q-learning: values and policy from a dataset's own actions only.")}
_CONSERVATIVE = {"cql": ("CQLParams", "Soft actor-critic on a dataset, with low values of actions outside of it.")}
_CONSERVATIVE_DISCRETE = {
    "discrete_cql": ("DiscreteCQLParams", "DQN on a dataset, with low values of actions outside of it.")
}
_ANY_ACTIONS = ("Discrete", "MultiDiscrete", "MultiBinary", "Box")

ALGORITHMS: dict[str, AlgorithmSpec] = {
    spec.name: spec
    for spec in (
        *_family("on_policy", "ppo:PPO", _ANY_ACTIONS, _POLICY_GRADIENT, params_module="params.ppo_params"),
        *_family("off_policy", "dqn:DQN", ("Discrete",), _Q_LEARNING, params_module="params.dqn_params"),
        *_family("on_policy", "pqn:PQN", ("Discrete",), _PARALLEL),
        *_family("off_policy", "sac:SAC", ("Box",), _SOFT, params_module="params.sac_params"),
        *_family("off_policy", "discrete_sac:DiscreteSAC", ("Discrete",), _SOFT_DISCRETE),
        *_family("off_policy", "td3:TD3", ("Box",), _DETERMINISTIC),
        *_family("planning", "muzero:MuZero", ("Discrete",), _PLANNING, params_module="planning.muzero_params"),
        *_family("planning", "gumbel_muzero:GumbelMuZero", ("Discrete",), _GUMBEL),
        *_family("planning", "efficientzero:EfficientZero", ("Discrete",), _EFFICIENT),
        *_family(
            "planning",
            "scalezero:ScaleZero",
            ("Discrete",),
            _MANY_TASKS,
            params_module="planning.scalezero_params",
            train="rl_training.runtime.scalezero_trainer:train_scalezero",
            many_tasks=True,
        ),
        *_family("offline", "offline.bc:BC", _ANY_ACTIONS, _IMITATION),
        *_family("offline", "offline.td3_bc:TD3BC", ("Box",), _NEAR_DATA),
        *_family("offline", "offline.iql:IQL", ("Box", "Discrete"), _IMPLICIT),
        *_family("offline", "offline.cql:CQL", ("Box",), _CONSERVATIVE),
        *_family("offline", "offline.discrete_cql:DiscreteCQL", ("Discrete",), _CONSERVATIVE_DISCRETE),
    )
}


def get_algorithm_spec(name: str) -> AlgorithmSpec:
    """Return the algorithm called `name`; the error for an unknown name suggests the nearest ones."""
    spec = find_algorithm(name)
    if spec is None:
        raise ConfigError(unknown_algorithm(name))
    return spec


def find_algorithm(name: Any) -> AlgorithmSpec | None:
    """Return the algorithm called `name`, None if there is none.

    User code that was not admitted before is treated as named by a loaded file.
    """
    if not isinstance(name, str):
        return None
    if name in ALGORITHMS:
        return ALGORITHMS[name]
    code = algorithm_code(name)
    if code is None:
        return None
    value = load_object(code, place=_PLACE, fits=lambda found: isinstance(found, AlgorithmSpec), wanted="AlgorithmSpec")
    return check_spec(value, name)


def algorithm_code(name: Any) -> str | None:
    """Return the `module:SPEC` of an algorithm's name, None for this package's own and unknown names."""
    if not isinstance(name, str) or name in ALGORITHMS:
        return None
    if split_name(name)[0]:
        return name
    found = {entry.value: entry for entry in _installed(name)}
    if len(found) > 1:
        raise ConfigError(
            f"{_PLACE}: several packages offer an algorithm `{name}`: {', '.join(sorted(found))}; name one of these"
        )
    return next(iter(found), None)


def admit_algorithm(name: Any, loaded: LoadedFrom | None = None) -> None:
    """Import the code of an algorithm's name; `loaded` says that the user did not write the name."""
    code = algorithm_code(name)
    if code is not None:
        admit(code, place=_PLACE, loaded=loaded)


def installed_algorithms() -> dict[str, str]:
    """Return the names that installed packages provide, each with its `module:SPEC`; nothing is imported."""
    return {entry.name: entry.value for entry in sorted(_installed()) if entry.name not in ALGORITHMS}


def list_algorithm_specs() -> list[AlgorithmSpec]:
    """Return every algorithm of this package, ordered by name."""
    return [ALGORITHMS[name] for name in list_algorithms()]


def list_algorithms() -> list[str]:
    """Return the names of this package's algorithms in alphabetical order."""
    return sorted(ALGORITHMS)


def unknown_algorithm(name: str) -> str:
    """Return the error message for an unknown name."""
    known = sorted({*ALGORITHMS, *installed_algorithms()})
    hint = did_you_mean(name, known) or f"; known algorithms: {', '.join(known)}; {_ELSEWHERE}"
    return f"unknown algorithm `{name}`{hint}"


def _installed(name: str | None = None) -> list[EntryPoint]:
    return list(entry_points(group=ENTRY_POINTS) if name is None else entry_points(group=ENTRY_POINTS, name=name))
