"""Documentation generated from the parameter dataclasses: field tables, and the page docs/config-schema.md.

`python -m rl_training.experiment.configuration.config_docs > docs/config-schema.md` writes the page.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import textwrap
from typing import Any, NamedTuple

import yaml

from rl_training.experiment.config import TrainConfig
from rl_training.experiment.configuration.config_blocks import (
    BenchmarkParams,
    EarlyStoppingParams,
    MlflowParams,
    TrackingParams,
    TrackioParams,
    VideoParams,
    WandbParams,
)
from rl_training.experiment.configuration.env_params import EnvParams
from rl_training.experiment.configuration.type_words import describe
from rl_training.experiment.configuration.validation import field_default, field_types, is_required, plain
from rl_training.experiment.registry import list_algorithm_specs
from rl_training.experiment.schedules import Schedule
from rl_training.experiment.tasks import TaskKeys


class FieldDoc(NamedTuple):
    """Documentation of one field of a record."""

    name: str
    accepts: str
    default: str
    """In YAML form; empty if the field is required."""
    text: str


def describe_fields(record: type) -> list[FieldDoc]:
    """Return the fields of a parameter dataclass with types, defaults and docstrings."""
    hints = field_types(record)
    docstrings = field_docstrings(record)
    return [
        FieldDoc(field.name, describe(hints[field.name]), _default_text(field), docstrings.get(field.name, ""))
        for field in dataclasses.fields(record)
    ]


def field_docstrings(record: type) -> dict[str, str]:
    """Return the docstring below each field, which Python itself does not keep; those of subclasses override."""
    found: dict[str, str] = {}
    for owner in reversed(record.__mro__):
        if not dataclasses.is_dataclass(owner):
            continue
        body = ast.parse(textwrap.dedent(inspect.getsource(owner))).body[0]
        assert isinstance(body, ast.ClassDef)
        for statement, follower in zip(body.body, body.body[1:], strict=False):
            text = _docstring(follower)
            if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name) and text:
                found[statement.target.id] = text
    return found


def render_config_schema() -> str:
    """Return the page docs/config-schema.md."""
    sections = [
        _INTRODUCTION,
        "## Keys of a configuration",
        _table(TrainConfig),
        _ENV_KWARGS,
        _table(EnvParams, leave_out=("make_kwargs",)),
        _TASKS,
        _table(TaskKeys),
        _SCHEDULES,
        _table(Schedule),
        _BLOCKS,
        _prefixed("tracking", TrackingParams),
        _prefixed("tracking.wandb", WandbParams),
        _prefixed("tracking.mlflow", MlflowParams),
        _prefixed("tracking.trackio", TrackioParams),
        _prefixed("video", VideoParams),
        _prefixed("benchmark", BenchmarkParams),
        _prefixed("early_stopping", EarlyStoppingParams),
        _ALGORITHMS,
    ]
    for spec in list_algorithm_specs():
        sections += [f"### `{spec.name}`", f"{spec.summary} Tier: {spec.tier}.", _table(spec.load_params())]
    return "\n\n".join(sections) + "\n"


_INTRODUCTION = """\
# Configuration

This page is generated from the dataclasses that validate a configuration:
`python -m rl_training.experiment.configuration.config_docs > docs/config-schema.md` regenerates it.

A configuration is a YAML file of plain values: no string in it is ever evaluated. It is either a
complete file, or an overlay that names another file and changes some of its keys:

```yaml
config: ppo-cartpole.yaml # relative to this file; `preset:ppo-cartpole` names a packaged preset
total_timesteps: 10_000
algo_kwargs:
  learning_rate: 1e-3
```

Mappings are merged key by key, everything else is replaced. A linked file may link another one; a cycle is an error.
Flags override the file, and `--set KEY=VALUE` overrides both: `--set algo_kwargs.learning_rate=1e-3`. Validation
runs once, after all of that, and reports all problems together, each with the file or flag it comes from and its
repair. The run stores the result as `config.yaml`; training with that file repeats the run.

`true` is not accepted as an integer and `"8"` not as a number, but `1e6` is accepted as an integer. NaN and
infinity are refused."""

_ENV_KWARGS = """\
## `env_kwargs`

The keys below wrap the environment; all other keys are arguments of `gymnasium.make`. The optional blocks
`training:` and `evaluation:` override the shared keys for that mode. Evaluation always uses real rewards
and real episodes: `normalize_reward`, `reward_sign` and `episodic_life` never apply to it."""

_TASKS = """\
### `env_kwargs.tasks`

A list of tasks for an algorithm that learns several at once; `env_id` is then the name of the suite. Each task has the
keys below and those of its environment; wrapper keys outside the list apply to all tasks:

```yaml
env_id: my-suite
env_kwargs:
  max_episode_steps: 500
  tasks:
    - {env_id: CartPole-v1, target_return: 450, random_return: 22.2}
    - {env_id: Acrobot-v1, target_return: -120, random_return: -499.1}
```"""

_SCHEDULES = """\
## Schedules

A control such as `learning_rate` has a fixed value, `learning_rate_schedule` and
`learning_rate_warmup_steps`. The schedule is one of the kinds below with its defaults
(`learning_rate_schedule: linear`) or a mapping:

```yaml
learning_rate: 1e-3
learning_rate_schedule: {type: linear, end: 1e-5, duration: 0.8}
learning_rate_warmup_steps: 1000
```

Positions (`duration`, `milestones`, the first number of a point) count environment steps, or are fractions
of `total_timesteps` if all of them are <= 1. After its end a schedule keeps its last value. Warm-up
multiplies the scheduled value by a factor that rises linearly from 0 to 1; it does not delay the
schedule."""

_BLOCKS = """\
## `tracking`, `video`, `benchmark` and `early_stopping`

`metrics.jsonl` is always written; `tracking` adds [dashboards](tracking.md), and `video` records
[films](tracking.md#films-during-training). `benchmark.seeds` trains the configuration once per seed and
[summarises](run-artifacts.md#sweeps-over-seeds) the results. `early_stopping` ends a run before its horizon."""

_ALGORITHMS = """\
## `algo_kwargs`, by algorithm

`axiomrl algos NAME` prints the same."""


def _table(record: type, *, leave_out: tuple[str, ...] = (), prefix: str = "") -> str:
    rows = ["| key | accepts | default | meaning |", "|---|---|---|---|"]
    for entry in describe_fields(record):
        if entry.name not in leave_out:
            default = f"`{entry.default}`" if entry.default else "required"
            cells = (f"`{prefix}{entry.name}`", entry.accepts, default, entry.text)
            rows.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(rows)


def _prefixed(block: str, record: type) -> str:
    return _table(record, prefix=f"{block}.")


def _default_text(field: dataclasses.Field[Any]) -> str:
    if is_required(field):
        return ""
    text = yaml.safe_dump(plain(field_default(field)), default_flow_style=True, width=1000)
    return text.removesuffix("\n").removesuffix("\n...")


def _docstring(statement: ast.stmt) -> str:
    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
        value = statement.value.value
        return " ".join(value.split()) if isinstance(value, str) else ""
    return ""


if __name__ == "__main__":
    print(render_config_schema(), end="")
