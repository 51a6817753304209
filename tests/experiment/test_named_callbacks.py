"""`callbacks:` in a configuration: classes by name, made for every run, saved with it and made again on resume."""

from __future__ import annotations

import dataclasses
import logging
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from cli_parts import CARTPOLE, Command, assert_refused
from harness import assert_same_run, last_checkpoint, metric_rows, only_run, tiny_config, train_with_stops
from own_code import rename_environment
from paths import EXAMPLES
from rl_training.errors import AxiomError, ConfigError, UntrustedCodeError
from rl_training.experiment.config import config_to_dict, validate_config
from rl_training.experiment.runs import read_metadata
from rl_training.experiment.storage.state_files import read_state
from rl_training.runtime.callbacks import Callback, CallbackList, EarlyStopping
from rl_training.runtime.workflows import evaluate, resume, train

Forget = Callable[[], None]
EXAMPLE = EXAMPLES / "own_callback.py"
CODE = """
from rl_training import Callback

made = []


class Count(Callback):
    def __init__(self, start=0, name="count"):
        if start < 0:
            raise ValueError("start must not be negative")
        made.append(self)
        self.count, self.name = start, name

    def on_update_end(self, event):
        self.count += 1
        event.log(self.name, self.count)

    def state_dict(self):
        return {"count": self.count}

    def load_state_dict(self, state):
        self.count = state["count"]


class Raises(Callback):
    def on_update_end(self, event):
        raise RuntimeError("it broke")


class Other:
    pass


def function():
    return Count()
"""


@pytest.fixture
def code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, new_process: Forget) -> Path:
    """A module `my_callbacks` in the working directory."""
    file = tmp_path / "my_callbacks.py"
    file.write_text(CODE)
    monkeypatch.chdir(tmp_path)
    return file


def counts(run_dir: Path, name: str = "count") -> list[int]:
    return [row[name] for row in metric_rows(run_dir) if name in row]


@pytest.mark.parametrize(
    ("entries", "words"),
    [
        ("my_callbacks:Count", "callbacks: must be a list of `module:Name` and"),
        ("[3]", "callbacks: must be a list of `module:Name` and"),
        ("[Count]", "callbacks.0: must be module:Name or path/to/file.py:Name, got 'Count'"),
        ("['my_callbacks:']", "callbacks.0: must be module:Name or path/to/file.py:Name"),
        ("[{start: 3}]", "callbacks.0.use: is required; set it to module:Name"),
        ("[my_callbacks: Count]", "without a space behind the colon"),
        ("[{use: 4}]", "callbacks.0.use: must be module:Name"),
        ("[{use: my_callbacks:Count, start: .nan}]", "callbacks.0: must be finite"),
        ("[no_such:Count]", "callbacks.0: cannot import `no_such`"),
        ("[no/such.py:Count]", "callbacks.0: cannot import `no/such.py`"),
        ("[my_callbacks:Cuont]", "did you mean `Count`?"),
        ("[my_callbacks:Other]", "is a class that is no callback; name a subclass of rl_training.Callback"),
        ("[my_callbacks:function]", "is a function that is no callback"),
        ("[my_callbacks:Raises, {use: my_callbacks:Count, begin: 3}]", "callbacks.1: `my_callbacks:Count` does not"),
        ("[{use: my_callbacks:Count, begin: 3}]", "it is made by Count(start=0, name='count')"),
        ("[{use: my_callbacks:Count, start: -1}]", "arguments: ValueError: start must not be negative"),
        ("[{use: rl_training:EarlyStopping}]", "callbacks.0: `rl_training:EarlyStopping` cannot be made"),
    ],
)
def test_a_mistake_is_one_sentence_and_leaves_no_run(
    entries: str, words: str, axiomrl: Command, code: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert_refused(axiomrl("train", *CARTPOLE, "--set", f"callbacks={entries}"), words)


def test_an_object_in_the_configuration_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"callbacks: must be a list of `module:Name`"):
        validate_config({**config_to_dict(tiny_config(Path("runs"))), "callbacks": [Callback()]})


def test_named_callbacks_are_called_saved_and_recorded_beside_objects(code: Path, tmp_path: Path) -> None:
    class Count(Callback):  # of the same class name
        def state_dict(self) -> dict[str, int]:
            return {"mine": 1}

    entries = ["my_callbacks:Count", {"use": "my_callbacks.py:Count", "start": 100, "name": "other"}]
    config = tiny_config(tmp_path / "runs", total_timesteps=96, eval_episodes=0, callbacks=entries)
    assert config_to_dict(config)["callbacks"] == entries
    run_dir = train(config, callbacks=[Count()]).run_dir
    assert (counts(run_dir), counts(run_dir, "other")) == ([1, 2, 3], [101, 102, 103])
    assert read_state(last_checkpoint(run_dir))["session"]["callbacks"] == {
        "callbacks.0": {"count": 3},
        "callbacks.1": {"count": 103},
        "Count-1": {"mine": 1},
    }
    records = read_metadata(run_dir)["user_code"]
    assert [record["name"] for record in records] == ["my_callbacks:Count", "my_callbacks.py:Count"]


def test_a_stopped_run_makes_its_callbacks_again_and_goes_on_exactly(
    code: Path, tmp_path: Path, new_process: Forget
) -> None:
    entries = ["my_callbacks:Count", {"use": "my_callbacks:Count", "start": 100, "name": "other"}]
    straight = train(tiny_config(tmp_path / "straight", callbacks=entries)).run_dir
    stopped = train_with_stops(tiny_config(tmp_path / "stopped", callbacks=entries), [21, 70])
    assert_same_run(stopped, straight)
    assert counts(straight)[-1] == 10


def test_every_seed_of_a_sweep_makes_its_own(axiomrl: Command, code: Path) -> None:
    answer = axiomrl("train", *CARTPOLE, "--seeds", "1,2", "--set", "callbacks=[my_callbacks:Count]", "--quiet")
    assert answer.status == 0, answer.err
    runs = [path for path in Path("runs").iterdir() if path.is_dir()]
    assert [counts(run_dir)[-1] for run_dir in runs] == [8, 8]
    from my_callbacks import made  # type: ignore[import-not-found]

    assert len(made) == 2


@pytest.mark.slow
def test_seeds_in_processes_make_their_own(axiomrl: Command, code: Path) -> None:
    sweep = ["--seeds", "1,2", "--jobs", "2", "--set", "callbacks=[my_callbacks.py:Count]"]
    answer = axiomrl("train", *CARTPOLE, *sweep, "--quiet")
    assert answer.status == 0, answer.err
    assert [counts(path)[-1] for path in Path("runs").iterdir() if path.is_dir()] == [8, 8]


def test_a_fork_keeps_the_states_of_the_callbacks_that_stay_and_says_which_are_dropped(
    code: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    entries = [{"use": "my_callbacks:Count", "name": name} for name in ("one", "two")]
    parent = train(tiny_config(tmp_path / "runs", total_timesteps=96, eval_episodes=0, callbacks=entries)).run_dir
    kept = ["my_callbacks.py:Count", entries[1]]
    with caplog.at_level(logging.WARNING):
        fork = resume(parent, fork=True, total_timesteps=128, overrides={"callbacks": kept}).run_dir
    assert (counts(fork, "two"), counts(fork)) == ([3, 4], [1])
    assert counts(fork, "one") == [3], "what had been logged before the checkpoint waited for the fork's first row"
    sentence = "callbacks: my_callbacks:Count (name: one) is not in the fork; its state in the checkpoint is dropped"
    assert [record.message for record in caplog.records if "fork" in record.message] == [sentence]
    assert sentence in read_metadata(fork)["notices"]
    with pytest.raises(ConfigError, match="callbacks: an exact continuation keeps its settings; add --fork"):
        resume(parent, total_timesteps=128, set_values=["callbacks=[]"])


def test_early_stopping_of_an_older_checkpoint_goes_on_counting() -> None:
    """Its key was and is `EarlyStopping-1`, also beside one that is named."""
    callbacks = CallbackList([EarlyStopping(patience=3)], named={"callbacks.0": EarlyStopping(patience=5)})
    callbacks.load_state_dict({"EarlyStopping-1": {"best": 2.5, "reports_without_improvement": 1}})
    states = callbacks.state_dict()
    assert states["EarlyStopping-1"] == {"best": 2.5, "reports_without_improvement": 1}
    assert states["callbacks.0"]["reports_without_improvement"] == 0


def test_a_callback_that_raises_ends_the_run(code: Path, tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="it broke"):
        train(tiny_config(tmp_path / "runs", callbacks=["my_callbacks:Raises"]))
    assert read_metadata(only_run(tmp_path / "runs"))["status"] == "failed"


def test_a_callback_that_only_a_loaded_file_names_is_not_imported(
    code: Path, tmp_path: Path, new_process: Forget
) -> None:
    run_dir = train(tiny_config(tmp_path / "runs", total_timesteps=32, eval_episodes=0)).run_dir
    sprung = tmp_path / "sprung"
    (tmp_path / "trap.py").write_text(f"open({str(sprung)!r}, 'w').close()\n{CODE}")
    rename_environment(run_dir, "CartPole-v1", callbacks=["trap:Count"])
    with pytest.raises(UntrustedCodeError, match=r"callbacks\.0: `trap:Count` comes out of checkpoint"):
        resume(run_dir, total_timesteps=64)
    rename_environment(run_dir, "CartPole-v1", callbacks=["subprocess:Popen"])
    with pytest.raises(UntrustedCodeError, match="`subprocess:Popen` is no callback class"):
        resume(run_dir, total_timesteps=64)
    assert not sprung.exists()


def test_a_resume_without_the_module_says_so_and_an_evaluation_does_not_need_it(
    code: Path, tmp_path: Path, new_process: Forget
) -> None:
    config = tiny_config(tmp_path / "runs", total_timesteps=32, eval_episodes=0, callbacks=["my_callbacks:Count"])
    run_dir = train(config).run_dir
    code.unlink()
    new_process()
    with pytest.raises(AxiomError, match=r"callbacks\.0: cannot import `my_callbacks`"):
        resume(run_dir, total_timesteps=64)
    assert evaluate(run_dir, num_episodes=1).metrics["eval_episodes"] == 1


def test_the_example_stops_a_run_from_the_command_line(axiomrl: Command, tmp_path: Path, new_process: Forget) -> None:
    shutil.copy(EXAMPLE, tmp_path)
    entry = "{use: own_callback:StopWhenSteady, target: 5, rows: 2}"
    answer = axiomrl("train", *CARTPOLE, "--set", f"callbacks=[{entry}]", "--quiet")
    assert answer.status == 0, answer.err
    assert "the return stayed at 5 for 2 rows" in answer.out
    run_dir = only_run(Path("runs"))
    assert counts(run_dir, "rows_at_target")[0] == 1
    text = EXAMPLE.read_text()
    assert len(text[text.index("class") :].splitlines()) < 25


def test_objects_for_a_sweep_in_processes_are_refused_with_the_other_way(tmp_path: Path) -> None:
    config = dataclasses.replace(tiny_config(tmp_path), benchmark={"seeds": [1, 2], "jobs": 2})
    with pytest.raises(ConfigError, match="name their classes by the key `callbacks`"):
        train(config, callbacks=[Callback()])
