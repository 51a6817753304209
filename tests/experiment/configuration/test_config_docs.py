"""The documentation of records comes from the records, and the committed page is up to date."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import pytest
from annotated_types import Ge, Gt

from paths import ROOT
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.configuration.config_blocks import (
    BenchmarkParams,
    EarlyStoppingParams,
    TrackingParams,
    WandbParams,
)
from rl_training.experiment.configuration.config_docs import describe_fields, render_config_schema
from rl_training.experiment.configuration.config_files import load_config
from rl_training.experiment.configuration.env_params import EnvParams
from rl_training.experiment.schedules import Schedule
from rl_training.experiment.tasks import tasks_of

RECORDS = [
    TrainConfig,
    EnvParams,
    Schedule,
    TrackingParams,
    WandbParams,
    BenchmarkParams,
    EarlyStoppingParams,
]


@dataclass(frozen=True)
class Parent:
    """A record that exists only here."""

    rate: Annotated[float, Ge(0)] = 0.5
    """Step size."""
    batch: Annotated[int, Ge(1)] = 4
    """Size of a batch."""
    limit: Annotated[float, Gt(0)] | None = None
    """Optional bound."""
    sizes: tuple[int, ...] = (8, 8)
    """Widths of the layers,
    first to last."""


@pytest.mark.parametrize("record", RECORDS)
def test_every_field_is_documented(record: type) -> None:
    assert all(entry.text for entry in describe_fields(record))


def test_field_descriptions_hold_type_default_and_sentence() -> None:
    described = {entry.name: entry for entry in describe_fields(Parent)}
    assert described["batch"] == ("batch", "an integer >= 1", "4", "Size of a batch.")
    assert described["sizes"].default == "[8, 8]"
    assert described["sizes"].text == "Widths of the layers, first to last."
    assert described["limit"].default == "null"


def test_subclass_docstrings_win() -> None:
    @dataclass(frozen=True)
    class Child(Parent):
        batch: Annotated[int, Ge(1)] = 16
        """A larger batch."""

    described = {entry.name: entry for entry in describe_fields(Child)}
    assert (described["batch"].default, described["batch"].text) == ("16", "A larger batch.")
    assert described["rate"].text == "Step size."


def test_the_committed_page_is_the_generated_one() -> None:
    page = (ROOT / "docs" / "config-schema.md").read_text()
    command = "python -m rl_training.experiment.configuration.config_docs > docs/config-schema.md"
    assert page == render_config_schema(), f"the page is out of date; run: {command}"


RUN_LENGTH = "seed: 0\nnum_envs: 1\noutput_dir: runs\ntotal_timesteps: 9000\neval_interval: 900\n"


def test_the_examples_on_the_page_are_valid(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "config-schema.md").read_text()
    overlay, suite, schedule = re.findall(r"```yaml\n(.*?)```", page, flags=re.DOTALL)
    (tmp_path / "ppo-cartpole.yaml").write_text((ROOT / "configs" / "ppo-cartpole.yaml").read_text())
    (tmp_path / "overlay.yaml").write_text(overlay)
    assert load_config(tmp_path / "overlay.yaml").total_timesteps == 10_000
    (tmp_path / "suite.yaml").write_text(f"algo: scalezero\n{RUN_LENGTH}{suite}")
    assert [task.name for task in tasks_of(load_config(tmp_path / "suite.yaml"))] == ["CartPole-v1", "Acrobot-v1"]
    indented = "".join(f"  {line}\n" for line in schedule.splitlines())
    (tmp_path / "schedule.yaml").write_text(f"config: ppo-cartpole.yaml\nalgo_kwargs:\n{indented}")
    assert load_config(tmp_path / "schedule.yaml").algo_kwargs["learning_rate_schedule"]["end"] == 1e-5
