"""The registry names every algorithm and imports nothing until one is used."""

from __future__ import annotations

import dataclasses
import subprocess
import sys

import pytest

from rl_training.errors import ConfigError
from rl_training.experiment.configuration.config_docs import describe_fields
from rl_training.experiment.registry import get_algorithm_spec, list_algorithm_specs, list_algorithms


def test_algorithms_are_listed_by_name() -> None:
    assert list_algorithms() == sorted(list_algorithms())
    assert {"ppo", "a2c"} <= set(list_algorithms())
    assert [spec.name for spec in list_algorithm_specs()] == list_algorithms()


def test_unknown_name_suggests_the_nearest() -> None:
    with pytest.raises(ConfigError, match="unknown algorithm `pppo`; did you mean `ppo`"):
        get_algorithm_spec("pppo")


def test_a_name_like_no_other_gets_the_whole_list() -> None:
    with pytest.raises(ConfigError, match=r"known algorithms: .*a2c.*ppo"):
        get_algorithm_spec("zzzzzz")


@pytest.mark.parametrize("name", list_algorithms())
def test_parameters_are_a_documented_dataclass_with_defaults(name: str) -> None:
    record = get_algorithm_spec(name).load_params()
    assert dataclasses.is_dataclass(record)
    record()
    assert all(entry.text for entry in describe_fields(record))


@pytest.mark.parametrize("name", list_algorithms())
def test_every_declared_control_is_a_parameter(name: str) -> None:
    record = get_algorithm_spec(name).load_params()
    names = {entry.name for entry in dataclasses.fields(record)}
    for control in record().controls:
        assert {control, f"{control}_schedule", f"{control}_warmup_steps"} <= names


@pytest.mark.parametrize("name", list_algorithms())
def test_summary_and_spaces_are_filled_in(name: str) -> None:
    spec = get_algorithm_spec(name)
    assert spec.summary.endswith(".")
    assert set(spec.observation_spaces) <= {"vector", "image", "dict"}
    assert spec.action_spaces
    assert spec.tier in ("stable", "experimental", "contrib")


def test_listing_and_config_import_no_machinery() -> None:
    code = (
        "import sys, rl_training.experiment.config, rl_training.experiment.configuration.config_files;"
        "from rl_training.experiment.registry import list_algorithms; list_algorithms();"
        "from rl_training.experiment.configuration.config_files import preset_names; preset_names();"
        "print([name for name in ('torch', 'gymnasium', 'numpy', 'pydantic') if name in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"
