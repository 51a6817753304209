"""The page about names elsewhere is made from the table that errors speak from."""

from __future__ import annotations

import pytest

from paths import ROOT
from rl_training.cli import main
from rl_training.experiment.configuration.migration_docs import render_migration
from rl_training.experiment.configuration.names_elsewhere import PARAMETERS, WHOLE_CONFIGURATION

PAGE = ROOT / "docs" / "migrating.md"


def test_the_committed_page_is_the_generated_one() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert text == render_migration(), (
        "run `python -m rl_training.experiment.configuration.migration_docs > docs/migrating.md` and commit the result"
    )


def test_every_name_is_on_the_page() -> None:
    text = render_migration()
    assert not [name for name in (*PARAMETERS, *WHOLE_CONFIGURATION) if f"`{name}`" not in text]


def test_the_error_on_the_page_is_what_the_command_says(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--algo", "sac", "--env", "Pendulum-v1", "--set", "algo_kwargs.train_freq=1"]
    assert main(["config", *arguments]) == 2
    assert capsys.readouterr().err in PAGE.read_text(encoding="utf-8")
