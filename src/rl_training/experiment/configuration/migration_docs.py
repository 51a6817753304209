"""The page docs/migrating.md, generated from the table of names behind the error messages.

`python -m rl_training.experiment.configuration.migration_docs > docs/migrating.md` writes the page.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

from rl_training.experiment.algorithm_spec import AlgorithmSpec
from rl_training.experiment.configuration.calls_elsewhere import (
    CLEANRL_CALLS,
    RL_ZOO_COMMANDS,
    RL_ZOO_KEYS,
    SB3_CALLS,
)
from rl_training.experiment.configuration.names_elsewhere import D3RLPY, PARAMETERS, WHOLE_CONFIGURATION, answer_for
from rl_training.experiment.registry import get_algorithm_spec, list_algorithm_specs

_HEADINGS = {
    "PPO and A2C": "ppo",
    "DQN, double DQN, C51, QR-DQN and Rainbow": "dqn",
    "PQN": "pqn",
    "SAC, TQC, CrossQ, REDQ and DroQ": "sac",
    "Discrete SAC": "discrete_sac",
    "TD3 and DDPG": "td3",
    "MuZero, Gumbel MuZero and EfficientZero": "muzero",
    "ScaleZero": "scalezero",
}


def render_migration() -> str:
    """Return the page."""
    sections = [_INTRODUCTION, "## From Stable-Baselines3", _pairs("there", SB3_CALLS), _MODELS]
    sections += [_RL_ZOO, _pairs("key of a file", RL_ZOO_KEYS), _pairs("command there", RL_ZOO_COMMANDS)]
    sections += ["## From CleanRL", _pairs("there", CLEANRL_CALLS)]
    sections += ["## Keys of the whole configuration", _WHOLE_CONFIGURATION, _table(WHOLE_CONFIGURATION)]
    for heading, algo in _HEADINGS.items():
        sections += [f"## {heading}", _algorithm(get_algorithm_spec(algo))]
    sections += ["## Offline algorithms of d3rlpy", _D3RLPY, _table(D3RLPY)]
    return "\n\n".join(sections) + "\n"


def _algorithm(spec: AlgorithmSpec) -> str:
    """Return an algorithm's section: parameters with other names, with the same name, and without a counterpart."""
    known = {field.name for field in dataclasses.fields(spec.load_params())}
    answers = {name: answer for name in PARAMETERS if (answer := answer_for(spec, name, known)) and name not in known}
    same = sorted({"learning_rate", *PARAMETERS} & known)
    none = sorted(PARAMETERS.keys() - answers.keys() - known)
    return "\n\n".join(
        [
            f"The same here: {_list(same)}. Without a counterpart: {_list(none)}.",
            _table({name: answer for name, answer in answers.items() if name not in WHOLE_CONFIGURATION}),
            *_special_cases(spec),
        ]
    )


def _special_cases(spec: AlgorithmSpec) -> list[str]:
    """Return sentences about algorithms of the same class whose parameters differ."""
    found = []
    for other in list_algorithm_specs():
        if other.algorithm != spec.algorithm or other.name == spec.name:
            continue
        own = {name: answers[other.name] for name, answers in PARAMETERS.items() if other.name in answers}
        if own:
            found.append(f"Other answers for `{other.name}`:\n\n{_table(own)}")
    return found


def _table(answers: dict[str, str]) -> str:
    return _pairs("elsewhere", [(f"`{name}`", _cell(answer)) for name, answer in answers.items()])


def _pairs(heading: str, rows: Iterable[tuple[str, str]]) -> str:
    return "\n".join([f"| {heading} | here |", "|---|---|", *(f"| {there} | {here} |" for there, here in rows)])


def _cell(answer: str) -> str:
    return f"`{answer}`" if answer.isidentifier() else answer


def _list(names: list[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


_D3RLPY = """\
`algo_kwargs` of the [offline algorithms](algorithms/iql.md), for those that have the parameter. d3rlpy's `n_steps` is
`total_timesteps`. `actor_learning_rate` has the same name in `iql` and `cql`; `td3_bc` has one rate for both."""

_INTRODUCTION = """\
# Coming from Stable-Baselines3, RL Zoo or CleanRL

This page is generated from the table of names behind the error messages:
`python -m rl_training.experiment.configuration.migration_docs > docs/migrating.md` regenerates it. You
need not read it first: an error message tells you our name for a key that has another name here:

```text
axiomrl: error: --set: algo_kwargs.train_freq: unknown key; it is called `train_interval` here
```

What works as you know it:

```bash
axiomrl config --algo sac --env Pendulum-v1 --set algo_kwargs.learning_starts=0 --set algo_kwargs.gradient_steps=-1
```

- `learning_starts: 0` learns from the first step on. A batch larger than what is stored repeats transitions, which is
  reported once. Returns of several steps (`n_step`) need as many steps to be complete; updates that were due before are
  made up for.
- `gradient_steps: -1` makes as many updates as environment steps were taken since the last round, and
  `sde_sample_freq: -1` draws new exploration noise after each round of updates (PPO: at the start of each rollout).
- Trained policies are loaded with [`load_policy`](python-api.md) and queried with `predict`.

What differs:

- Everything is counted in environment steps, whatever the number of environments. `train_interval: 1` makes one update
  per environment step: with 64 environments 64 updates each time all of them step. The run reports this before it
  starts; `train_interval: 64` is equivalent to `train_freq=1, gradient_steps=1` elsewhere.
- PPO's `minibatch_size` is the number of transitions per gradient step, like SB3's `batch_size`; CleanRL sets the
  number of minibatches instead.
- A replay, a rollout, a network or a search tree that does not fit into memory is refused with an estimate.
- With `--total-timesteps` far below what a preset is made for, a warm-up that would take half of the run or more
  is shortened in proportion, unless you set `learning_starts` yourself; the run reports this, and its `config.yaml`
  contains the result."""

_MODELS = """\
### Models

A model of PPO, DQN, SAC or TD3 with an MLP policy becomes a run that goes on learning, without unpickling anything:

```text
axiomrl import-sb3 model.zip --algo ppo --env CartPole-v1
axiomrl eval --checkpoint runs/ppo__CartPole-v1__seed0__... --num-episodes 100
axiomrl resume --checkpoint runs/ppo__CartPole-v1__seed0__... --total-timesteps 200000
```

Models that RL Zoo trained are such files too. What is taken over and what is not is listed in
[import](export.md#import-from-stable-baselines3)."""

_RL_ZOO = """\
## From RL Zoo

An entry of a hyperparameter file is a configuration here. RL Zoo's file has one entry per environment:

```yaml
Pendulum-v1:
  normalize: true
  n_envs: 4
  n_timesteps: !!float 1e5
  policy: MlpPolicy
  n_steps: 1024
  batch_size: 256
  gamma: 0.9
  learning_rate: lin_1e-3
  clip_range: 0.2
  policy_kwargs: "dict(net_arch=[64, 64], activation_fn=nn.Tanh)"
  callback:
    - my_callbacks.Progress: {every: 1000}
```

A file here is one configuration. Nothing in it is evaluated, so that values are plain and every key is checked:

```bash
cat > my_callbacks.py <<'END'
from rl_training import Callback


class Progress(Callback):
    def __init__(self, every):
        self.every = every
END
cat > pendulum.yaml <<'END'
algo: ppo
env_id: Pendulum-v1
seed: 0
output_dir: runs
num_envs: 4
total_timesteps: 100_000
env_kwargs:
  normalize_observation: true
  normalize_reward: true
algo_kwargs:
  num_steps: 1024
  minibatch_size: 256
  gamma: 0.9
  learning_rate: 1e-3
  learning_rate_schedule: linear
  clip_coef: 0.2
  hidden_sizes: [64, 64]
  activation: tanh
callbacks:
  - {use: "my_callbacks:Progress", every: 1000}
END
axiomrl config --config pendulum.yaml
```"""

_WHOLE_CONFIGURATION = """\
The tables below are those that the error messages use, for keys of Stable-Baselines3, RL Zoo and CleanRL alike. Keys of
a file and flags of a command have the same answer."""


if __name__ == "__main__":
    print(render_migration(), end="")
