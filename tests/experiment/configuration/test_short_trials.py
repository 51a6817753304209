"""A short trial of a long preset learns: its warm-up shrinks with the horizon, unless the user chose one."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
import yaml

from rl_training.cli import main
from rl_training.errors import ConfigError
from rl_training.experiment.configuration.config_files import load_config, preset_names
from rl_training.zoo.preset_lock import locked_presets


def warm_up(caplog: pytest.LogCaptureFixture, path: Path | None = None, **request: Any) -> tuple[int, list[str]]:
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        config = load_config(path, **request)
    return config.algo_kwargs["learning_starts"], [line for line in caplog.messages if "learning_starts" in line]


def test_a_presets_warm_up_shrinks_with_the_horizon_and_is_said(caplog: pytest.LogCaptureFixture) -> None:
    steps, said = warm_up(caplog, preset="dqn-pong", overrides={"total_timesteps": 2000})
    assert steps == 20
    assert said == [
        "algo_kwargs.learning_starts: 20 instead of the 100000 of preset dqn-pong, in proportion to 2000 of 10000000 "
        "steps; choose another by --set algo_kwargs.learning_starts="
    ]


@pytest.mark.parametrize("total", [100_000, 200_000, "2e5"])
def test_a_warm_up_of_half_the_horizon_or_more_shrinks(total: Any, caplog: pytest.LogCaptureFixture) -> None:
    steps, said = warm_up(caplog, preset="dqn-pong", set_values=[f"total_timesteps={total}"])
    assert steps == int(float(total)) // 100
    assert len(said) == 1


@pytest.mark.parametrize("total", [200_001, 9_000_000, 10_000_000, 20_000_000])
def test_a_warm_up_that_leaves_most_of_the_horizon_stays(total: int, caplog: pytest.LogCaptureFixture) -> None:
    assert warm_up(caplog, preset="dqn-pong", overrides={"total_timesteps": total}) == (100_000, [])


def test_what_the_user_chose_stays_and_is_refused_with_the_option(tmp_path: Path) -> None:
    repair = "lower it \\(--set algo_kwargs.learning_starts=200\\) or train longer"
    with pytest.raises(ConfigError, match=f"^--set: algo_kwargs.learning_starts: 5000 steps .*; {repair}"):
        load_config(
            preset="dqn-pong", overrides={"total_timesteps": 2000}, set_values=["algo_kwargs.learning_starts=5000"]
        )
    own = tmp_path / "own.yaml"
    own.write_text("config: preset:dqn-pong\ntotal_timesteps: 2000\nalgo_kwargs: {learning_starts: 5000}\n")
    with pytest.raises(ConfigError, match=f"own.yaml: algo_kwargs.learning_starts: 5000 steps .*; {repair}"):
        load_config(own)


def test_a_file_over_a_preset_shrinks_the_presets_warm_up(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    own = tmp_path / "own.yaml"
    own.write_text("config: preset:dqn-pong\ntotal_timesteps: 2000\n")
    steps, said = warm_up(caplog, own)
    assert (steps, len(said)) == (20, 1)


def test_the_defaults_shrink_as_a_preset_does(caplog: pytest.LogCaptureFixture) -> None:
    base = {"algo": "sac", "env_id": "Pendulum-v1"}
    steps, said = warm_up(caplog, base=base, overrides={"total_timesteps": 500})
    assert steps == 5
    assert "5 instead of the 1000 of the defaults, in proportion to 500 of 100000 steps" in said[0]
    assert warm_up(caplog, base=base, overrides={"total_timesteps": 5000}) == (1000, [])


def test_the_saved_configuration_repeats_the_run(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    config = load_config(preset="dqn-mountaincar", overrides={"total_timesteps": 500})
    saved = tmp_path / "config.yaml"
    saved.write_text(yaml.safe_dump({**locked_presets()["dqn-mountaincar"], "algo_kwargs": config.algo_kwargs}))
    again = warm_up(caplog, saved, overrides={"total_timesteps": 500, "seed": 0, "output_dir": "runs"})
    assert again == (config.algo_kwargs["learning_starts"], [])


def test_the_command_shows_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "--preset", "dqn-mountaincar", "--total-timesteps", "500"]) == 0
    shown = capsys.readouterr()
    assert yaml.safe_load(shown.out)["algo_kwargs"]["learning_starts"] == 4
    assert "4 instead of the 1000 of preset dqn-mountaincar" in shown.err


@pytest.mark.parametrize("name", preset_names())
def test_every_preset_can_be_tried_for_a_thousand_steps(name: str) -> None:
    settings = load_config(preset=name, overrides={"total_timesteps": 1000}).algo_kwargs
    assert settings.get("learning_starts", 0) <= 500


def test_mistakes_are_left_to_validation() -> None:
    for text, complaint in (("total_timesteps=many", "total_timesteps: must be"), ("algo=none", "unknown algorithm")):
        with pytest.raises(ConfigError, match=complaint):
            load_config(preset="dqn-pong", set_values=[text])
