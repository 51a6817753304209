"""`axiomrl dataset`: results on stdout, mistakes as one sentence, and an exit status for what is wrong."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import h5py
import numpy as np
import pytest

from cli_parts import Command, assert_refused
from processes import process_environment
from rl_training.data.datasets.dataset import open_dataset


@pytest.fixture(autouse=True)
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the directory of all datasets."""
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "datasets"))
    return tmp_path / "datasets"


@pytest.fixture
def recorded(axiomrl: Command, finished_run: Path) -> str:
    """The id of a dataset of ten episodes."""
    wanted = ("--episodes", 10, "--random", "--name", "tests/random-v0", "--quiet")
    assert axiomrl("dataset", "record", "--checkpoint", finished_run, *wanted).status == 0
    return "tests/random-v0"


def test_record_prints_the_dataset_that_it_made(axiomrl: Command, finished_run: Path, root: Path) -> None:
    answer = axiomrl("dataset", "record", "--checkpoint", finished_run, "--steps", "1e2", "--stochastic")
    assert answer.status == 0, answer.err
    values = answer.values()
    assert list(values) == ["dataset", "path", "episodes", "steps"]
    assert values["dataset"] == "CartPole-v1/ppo-stochastic-v0"
    assert Path(values["path"]) == root / "CartPole-v1" / "ppo-stochastic-v0"
    assert open_dataset(values["dataset"]).total_steps == int(values["steps"]) >= 100


def test_quiet_and_json_print_one_object_and_nothing_else(axiomrl: Command, finished_run: Path) -> None:
    answer = axiomrl("dataset", "record", "--checkpoint", finished_run, "--episodes", 2, "--json", "--quiet")
    assert answer.err == ""
    assert json.loads(answer.out)["episodes"] == 2


@pytest.mark.parametrize(
    ("arguments", "repair"),
    [
        ((), "--steps or --episodes"),
        (("--steps", 5, "--episodes", 5), "--steps or --episodes"),
        (("--steps", 0), "--steps: must be an integer >= 1"),
        (("--steps", "many"), "'many' is not an integer"),
        (("--steps", 5, "--random", "--stochastic"), "--stochastic and --random exclude each other"),
        (("--steps", 5, "--epsilon", 2), "--epsilon: must be a probability"),
        (("--steps", 5, "--name", "x"), "`x` is no id of a dataset"),
        (("--steps", 5, "--task", "other"), "unknown task `other`"),
    ],
)
def test_mistakes_of_record_are_one_sentence(
    axiomrl: Command, finished_run: Path, root: Path, arguments: tuple[object, ...], repair: str
) -> None:
    assert_refused(axiomrl("dataset", "record", "--checkpoint", finished_run, *arguments), repair)
    assert not root.exists()


def test_an_existing_name_is_refused(axiomrl: Command, finished_run: Path, recorded: str) -> None:
    again = axiomrl("dataset", "record", "--checkpoint", finished_run, "--episodes", 1, "--name", recorded)
    assert_refused(again, "choose another --name, or delete it")


def test_replay_of_a_run_without_one_names_the_command_that_works(axiomrl: Command, finished_run: Path) -> None:
    assert_refused(axiomrl("dataset", "replay", finished_run), "`axiomrl dataset record --checkpoint")


def test_show_gives_figures_and_a_histogram(axiomrl: Command, recorded: str, tmp_path: Path) -> None:
    answer = axiomrl("dataset", "show", recorded, "--plot", "returns.png")
    assert answer.status == 0, answer.err
    figures, _, bars = answer.out.partition("\n\nreturns:\n")
    values = dict(line.split("=", 1) for line in figures.splitlines())
    assert values["env_id"] == "CartPole-v1"
    assert values["episodes"] == "10"
    assert values["behaviour"] == "random"
    assert values["infos"] == "log_prob"
    returns = [episode.episode_return for episode in open_dataset(recorded).episodes()]
    assert float(values["return_mean"]) == pytest.approx(np.mean(returns))
    assert sum(int(line.split()[-1]) for line in bars.splitlines()) == 10
    assert max(line.count("#") for line in bars.splitlines()) == 40
    assert (tmp_path / "returns.png").read_bytes().startswith(b"\x89PNG")


def test_show_as_json_has_every_return(axiomrl: Command, recorded: str) -> None:
    record = json.loads(axiomrl("dataset", "show", recorded, "--json", "--quiet").out)
    assert len(record["returns"]) == record["episodes"] == 10


def test_a_picture_of_unknown_kind_is_refused(axiomrl: Command, recorded: str) -> None:
    assert_refused(axiomrl("dataset", "show", recorded, "--plot", "x.gif"), "--plot x.gif: a picture is a file")


def test_check_exits_with_1_and_lists_what_is_wrong(axiomrl: Command, recorded: str) -> None:
    answer = axiomrl("dataset", "check", recorded)
    assert (answer.status, answer.values()["status"]) == (0, "sound")
    with h5py.File(open_dataset(recorded).data_file, "a") as file:
        del file["episode_3/rewards"]
        file["episode_3/rewards"] = np.full(int(file["episode_3"].attrs["total_steps"]), np.nan)
    answer = axiomrl("dataset", "check", recorded)
    assert (answer.status, answer.values()["status"]) == (1, "faulty")
    assert "axiomrl: error: episode 3: the rewards hold NaN or infinity" in answer.err
    assert "fingerprint" in answer.err


def test_a_damaged_dataset_is_refused_by_the_other_commands(axiomrl: Command, recorded: str) -> None:
    file = open_dataset(recorded).data_file
    file.write_bytes(file.read_bytes()[:2000])
    for command in (("show", recorded), ("merge", recorded, recorded, "--name", "tests/two-v0")):
        assert_refused(axiomrl("dataset", *command), "is damaged or no HDF5 file")
    answer = axiomrl("dataset", "check", recorded)
    assert answer.status == 1
    assert "Traceback" not in answer.err


def test_merge_and_split_print_what_they_made(axiomrl: Command, recorded: str) -> None:
    answer = axiomrl("dataset", "merge", recorded, recorded, "--name", "tests/two-v0")
    assert answer.status == 0, answer.err
    steps = open_dataset(recorded).total_steps
    assert answer.out == f"dataset=tests/two-v0 episodes=20 steps={2 * steps}\n"
    answer = axiomrl("dataset", "split", "tests/two-v0", "--fraction", 0.75, "--json")
    made = json.loads(answer.out)["datasets"]
    assert [(one["dataset"], one["episodes"]) for one in made] == [("tests/two-train-v0", 15), ("tests/two-test-v0", 5)]
    into = ("--into", "tests/a-v0", "--into", "tests/b-v0")
    assert axiomrl("dataset", "split", recorded, "--episodes", 4, *into).status == 0
    assert open_dataset("tests/a-v0").total_episodes == 4


@pytest.mark.parametrize(
    ("arguments", "repair"),
    [
        (("split", "tests/random-v0"), "give --fraction or --episodes"),
        (("split", "tests/random-v0", "--fraction", 1.5), "--fraction: must be a number between 0 and 1"),
        (("split", "tests/random-v0", "--episodes", 10), "can have 1 to 9"),
        (("split", "tests/random-v0", "--episodes", 2, "--into", "tests/a-v0"), "is given twice"),
        (("merge", "tests/random-v0", "--name", "tests/a-v0"), "two datasets or more"),
        (("merge", "tests/random-v0", "tests/random-v0", "--name", "tests/random-v0"), "exists"),
        (("show", "tests/randon-v0"), "did you mean `tests/random-v0`?"),
        (("check", "tests/other-v0"), "there is no dataset"),
    ],
)
def test_mistakes_are_one_sentence(axiomrl: Command, recorded: str, arguments: tuple[object, ...], repair: str) -> None:
    assert_refused(axiomrl("dataset", *arguments), repair)


def test_list_names_what_there_is(axiomrl: Command, recorded: str, root: Path) -> None:
    (root / "broken-v0" / "data").mkdir(parents=True)
    (root / "broken-v0" / "data" / "metadata.json").write_text("{")
    answer = axiomrl("dataset", "list")
    assert answer.status == 0
    assert [line.split()[0] for line in answer.out.splitlines()] == ["dataset", recorded]
    assert "broken-v0" in answer.err
    record = json.loads(axiomrl("dataset", "list", "--json", "--quiet").out)
    assert record["datasets"][0]["env_id"] == "CartPole-v1"


def test_without_datasets_the_list_is_empty(axiomrl: Command) -> None:
    answer = axiomrl("dataset", "list")
    assert (answer.status, answer.out) == (0, "")


def _modules_after(*arguments: str) -> set[str]:
    script = f"import sys; from rl_training.cli import main; main({list(arguments)!r}); print(*sys.modules)"
    answer = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, env=process_environment()
    )
    return set(answer.stdout.splitlines()[-1].split())


def test_looking_at_datasets_needs_no_torch(recorded: str) -> None:
    assert not {"torch", "gymnasium", "h5py"} & _modules_after("dataset", "list")
    assert "torch" not in _modules_after("dataset", "show", recorded)


def test_without_h5py_the_extra_is_named(
    axiomrl: Command, recorded: str, finished_run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "h5py", None)
    assert_refused(axiomrl("dataset", "show", recorded), "needs the extra `offline`")
    again = axiomrl("dataset", "record", "--checkpoint", finished_run, "--episodes", 1)
    assert_refused(again, "needs the extra `offline`")
    assert axiomrl("dataset", "list").status == 0
