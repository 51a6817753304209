"""The page docs/migrating.md, generated from the table of names behind the error messages.

`python -m rl_training.experiment.configuration.migration_docs > docs/migrating.md` writes the page.
"""

from __future__ import annotations

import dataclasses

from rl_training.experiment.algorithm_spec import AlgorithmSpec
from rl_training.experiment.configuration.names_elsewhere import D3RLPY, PARAMETERS, WHOLE_CONFIGURATION, answer_for
from rl_training.experiment.registry import get_algorithm_spec, list_algorithm_specs

_HEADINGS = {
    "PPO and A2C": "ppo",
    "DQN, double DQN, C51, QR-DQN and Rainbow": "dqn",
    "SAC, TQC and CrossQ": "sac",
    "Discrete SAC": "discrete_sac",
    "TD3 and DDPG": "td3",
    "MuZero, Gumbel MuZero and EfficientZero": "muzero",
    "ScaleZero": "scalezero",
}


def render_migration() -> str:
    """Return the page."""
    sections = [_INTRODUCTION, "## Keys of the whole configuration", _table(WHOLE_CONFIGURATION)]
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
    rows = ["| elsewhere | here |", "|---|---|"]
    rows += [f"| `{name}` | {_cell(answer)} |" for name, answer in answers.items()]
    return "\n".join(rows)


def _cell(answer: str) -> str:
    return f"`{answer}`" if answer.isidentifier() else answer


def _list(names: list[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


_D3RLPY = """\
`algo_kwargs` of the [offline algorithms](algorithms/iql.md), for those that have the parameter. d3rlpy's `n_steps` is
`total_timesteps`. `actor_learning_rate` has the same name in `iql` and `cql`; `td3_bc` has one rate for both."""

_INTRODUCTION = """\
# Coming from Stable-Baselines3 or CleanRL

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


if __name__ == "__main__":
    print(render_migration(), end="")
