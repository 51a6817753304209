"""Environments of the user's own: found in the working directory or by their file, in every process."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from cli_parts import Answer, Command, assert_refused
from harness import only_run
from own_code import PROGRAM, SMALL, write_environment
from paths import EXAMPLES
from processes import process_environment
from rl_training.envs.make import check_environment, make_slots, make_vector_env
from rl_training.errors import ConfigError
from rl_training.experiment.checkpoints import LATEST, MANIFEST, pointed
from rl_training.experiment.own_code.user_code import admit, adopted, load_object
from rl_training.experiment.runs import read_metadata
from rl_training.runtime.workflows import evaluate, resume

Forget = Callable[[], None]


def length_of(env_id: str) -> int:
    (slot,) = make_slots(env_id, {}, mode="training", count=1)
    length: int = slot.env.unwrapped.length  # type: ignore[attr-defined]
    return length


@pytest.mark.parametrize(
    ("env_id", "length"),
    [
        ("my_envs:MyEnv", 5),
        ("my_envs:make_env", 4),
        ("my_envs:Mine/Own-v2", 2),
        ("my_envs.py:MyEnv", 5),
        ("./my_envs.py:Mine/Own-v2", 2),
        ("deep/down/the file.py:make_env", 4),
        ("deep.down.my_envs:MyEnv", 5),
        ("package.inner.my_envs:Mine/Own-v2", 2),
        ("random.py:MyEnv", 5),
    ],
)
def test_a_name_that_the_user_writes_is_found_from_the_working_directory(
    env_id: str,
    length: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    new_process: Forget,
) -> None:
    for place in ("my_envs.py", "deep/down/the file.py", "deep/down/my_envs.py", "random.py"):
        write_environment(tmp_path / place)
    inner = write_environment(tmp_path / "package" / "inner" / "my_envs.py").parent
    for package in (inner, inner.parent):
        (package / "__init__.py").write_text("")
    monkeypatch.chdir(tmp_path)
    use = admit(env_id, place="env_id")
    assert length_of(env_id) == length
    assert use.file is not None
    assert Path(use.file).parent.is_relative_to(tmp_path)
    assert len(use.sha256 or "") == 64


def test_the_example_can_be_named_by_its_file_and_saved_in_mid_episode(new_process: Forget) -> None:
    env_id = f"{EXAMPLES / 'corridor.py'}:Corridor"
    admit(env_id, place="env_id")
    slot, other = make_slots(env_id, {"length": 7}, mode="training", count=2)
    slot.reset(3)
    slot.step(1)
    saved = slot.snapshot()
    assert saved is not None
    other.reset(4)
    other.restore(saved)
    steps = [one.step(1) for one in (slot, other)]
    assert steps[0].obs == steps[1].obs
    assert check_environment(env_id, {})[1].n == 2  # type: ignore[attr-defined]


def test_what_user_code_imports_later_hides_no_package_of_ours(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    new_process: Forget,
) -> None:
    write_environment(tmp_path / "my_envs.py")
    monkeypatch.chdir(tmp_path)
    admit("my_envs:MyEnv", place="env_id")
    assert sys.path.index(str(tmp_path)) == len(sys.path) - 1


@pytest.mark.parametrize(
    ("env_id", "words"),
    [
        ("my_envs:MyEnvv", ["`my_envs` has no `MyEnvv`", "did you mean `MyEnv`?"]),
        ("my_envs:Zebra", ["`my_envs` has no `Zebra`", "it has MyEnv"]),
        ("my_envs:Mine/Own-v7", ["has no such version", "use `Mine/Own-v2`"]),
        ("my_envs:NUMBER", ["is a int, which makes no environment", "subclass of gymnasium.Env"]),
        ("my_envs:Other", ["is a class, which makes no environment"]),
        ("my_envs:", ["write my_envs:NAME"]),
        ("no_envs:MyEnv", ["cannot import `no_envs`", "no_envs.py is not in the working directory"]),
        ("no/envs.py:MyEnv", ["there is no file", "no/envs.py"]),
        ("../my_envs:MyEnv", ["neither a module nor a Python file"]),
        ("broken:MyEnv", ["importing `broken` of `broken:MyEnv` failed with ZeroDivisionError"]),
        ("lacking.py:MyEnv", ["it needs the missing module `no_such_thing`"]),
    ],
)
def test_a_mistake_in_a_name_is_answered_with_its_repair(
    env_id: str,
    words: list[str],
    axiomrl: Command,
    tmp_path: Path,
    new_process: Forget,
) -> None:
    write_environment(tmp_path / "my_envs.py")
    (tmp_path / "broken.py").write_text("1 / 0\n")
    (tmp_path / "lacking.py").write_text("import no_such_thing\n")
    answer = axiomrl("train", "--algo", "ppo", "--env", env_id, *SMALL)
    for word in words:
        assert_refused(answer, word)
    assert not (tmp_path / "state").exists(), "code that trained nothing is remembered"


def trained(axiomrl: Command, env_id: str) -> Path:
    answer: Answer = axiomrl("train", "--algo", "ppo", "--env", env_id, *SMALL)
    assert answer.status == 0, answer.err
    return only_run(Path("runs").absolute())


@pytest.mark.parametrize("env_id", ["my_envs:MyEnv", "code/my_envs.py:make_env", "my_envs:Mine/Own-v2"])
def test_a_run_is_evaluated_and_resumed_from_another_directory_with_the_code_that_it_used(
    env_id: str,
    axiomrl: Command,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    new_process: Forget,
) -> None:
    file = write_environment(tmp_path / ("code/my_envs.py" if "/my_envs.py" in env_id else "my_envs.py"))
    run_dir = trained(axiomrl, env_id)
    (record,) = read_metadata(run_dir)["user_code"]
    assert (record["name"], record["file"]) == (env_id, str(file))
    checkpoint = pointed(run_dir, LATEST)
    assert checkpoint is not None
    assert json.loads((checkpoint / MANIFEST).read_text())["user_code"] == [record]

    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    new_process()
    assert evaluate(run_dir).metrics["eval_episodes"] == 1
    new_process()
    assert resume(run_dir, total_timesteps=64).metrics["global_step"] == 64


def test_code_that_changed_since_it_was_used_needs_to_be_trusted_once(
    axiomrl: Command,
    tmp_path: Path,
    new_process: Forget,
) -> None:
    file = write_environment(tmp_path / "my_envs.py")
    run_dir = trained(axiomrl, "my_envs:MyEnv")
    file.write_text(file.read_text().replace("1.0, self.moves", "2.0, self.moves"))
    for command in (["eval"], ["resume", "--total-timesteps", "64"]):
        new_process()
        answer = axiomrl(*command, "--checkpoint", run_dir)
        assert answer.status == 2
        assert f"{file}, which has changed since a training of yours used it" in answer.err
        assert "--trust-code" in answer.err
    new_process()
    answer = axiomrl("eval", "--checkpoint", run_dir, "--trust-code")
    assert (answer.status, answer.values()["eval_return_mean"]) == (0, "10.0")
    new_process()
    assert axiomrl("eval", "--checkpoint", run_dir).status == 2, "an evaluation is no training"
    new_process()
    assert axiomrl("resume", "--checkpoint", run_dir, "--total-timesteps", "64", "--trust-code").status == 0
    new_process()
    assert axiomrl("eval", "--checkpoint", run_dir).status == 0, "the resumed training used the file as it is"


def test_a_state_directory_that_cannot_be_written_is_told_and_does_not_stop_a_run(
    axiomrl: Command,
    tmp_path: Path,
    new_process: Forget,
) -> None:
    write_environment(tmp_path / "my_envs.py")
    (tmp_path / "state").write_text("a file")
    answer = axiomrl("train", "--algo", "ppo", "--env", "my_envs:MyEnv", *SMALL)
    assert answer.status == 0
    assert "resuming or evaluating this run will need --trust-code" in answer.err


# -- other processes -------------------------------------------------------------------------------


def test_async_workers_import_a_file_of_the_users_own(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    new_process: Forget,
) -> None:
    write_environment(tmp_path / "code" / "my_envs.py")
    monkeypatch.chdir(tmp_path)
    admit("code/my_envs.py:Mine/Own-v2", place="env_id")
    env = make_vector_env(
        "code/my_envs.py:Mine/Own-v2", {"num_workers": 1}, mode="training", num_envs=2, backend="local_async"
    )
    obs, _ = env.reset([1, 2])
    assert obs.shape == (2, 2)  # type: ignore[union-attr]
    env.close()


def test_a_process_elsewhere_gives_a_name_the_meaning_that_it_had_here(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    new_process: Forget,
) -> None:
    write_environment(tmp_path / "my_envs.py")
    other = write_environment(tmp_path / "elsewhere" / "my_envs.py")
    other.write_text(other.read_text().replace("length=LENGTH", "length=99"))
    monkeypatch.chdir(tmp_path)
    sent = pickle.dumps([admit(name, place="env_id") for name in ("my_envs:MyEnv", "my_envs.py:make_env")])
    new_process()
    monkeypatch.chdir(other.parent)
    with adopted(pickle.loads(sent)):
        for name in ("my_envs:MyEnv", "my_envs.py:make_env"):
            admit(name, place="env_id")  # what a run that is set up there does
        assert (length_of("my_envs:MyEnv"), length_of("my_envs.py:make_env")) == (5, 4)


def test_a_machine_without_the_file_says_so(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    new_process: Forget,
) -> None:
    file = write_environment(tmp_path / "my_envs.py")
    monkeypatch.chdir(tmp_path)
    use = admit("my_envs:MyEnv", place="env_id")
    for change in (lambda: file.write_text("x = 1\n"), file.unlink):
        new_process()
        change()
        with (
            pytest.raises(ConfigError, match="put the same file there, or install the code as a package"),
            adopted([use]),
        ):
            pass


def command(directory: Path, *arguments: str) -> str:
    """Run a program whose path does not hold its working directory, as that of `axiomrl`, and return its output."""
    script = directory / "bin" / "axiomrl"
    script.parent.mkdir()
    script.write_text(PROGRAM)
    answer = subprocess.run(
        [sys.executable, str(script), *arguments, *SMALL],
        cwd=directory,
        env=process_environment(OMP_NUM_THREADS="1"),
        capture_output=True,
        text=True,
    )
    assert answer.returncode == 0, answer.stderr
    return answer.stdout


def test_the_command_line_trains_what_lies_in_its_working_directory(tmp_path: Path) -> None:
    write_environment(tmp_path / "my_envs.py")
    arguments = ["train", "--algo", "ppo", "--env", "my_envs:MyEnv", "--set", "acceleration=off"]  # which starts slowly
    assert "eval_return_mean=5.0" in command(tmp_path, *arguments)


@pytest.mark.slow
@pytest.mark.parametrize("env_id", ["my_envs:MyEnv", "code/my_envs.py:make_env"])
def test_seeds_in_processes_train_the_users_own_environment(env_id: str, tmp_path: Path) -> None:
    write_environment(tmp_path / ("code/my_envs.py" if "/" in env_id else "my_envs.py"))
    sweep = ["--seeds", "1,2", "--jobs", "2", "--execution-backend", "local_async"]
    output = command(tmp_path, "train", "--algo", "ppo", "--env", env_id, *sweep)
    assert "benchmark_run_count=2" in output


# -- the door for what comes next ------------------------------------------------------------------


def test_any_object_can_be_loaded_by_name(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    new_process: Forget,
) -> None:
    write_environment(tmp_path / "my_envs.py")
    monkeypatch.chdir(tmp_path)
    admit("my_envs.py:NUMBER", place="algo")
    assert load_object("my_envs.py:NUMBER", place="algo", fits=lambda value: False, wanted="algorithm") == 3


@pytest.mark.filterwarnings("ignore:.*already in registry")
def test_a_relative_name_means_the_file_of_the_present_directory(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    new_process: Forget,
) -> None:
    for place, length in (("one", 7), ("two", 8)):
        file = write_environment(tmp_path / place / "my_envs.py")
        file.write_text(file.read_text().replace("length=LENGTH", f"length={length}"))
        monkeypatch.chdir(file.parent)
        admit("my_envs.py:MyEnv", place="env_id")
        assert length_of("my_envs.py:MyEnv") == length
        assert check_environment("my_envs.py:MyEnv", {})[0].shape == (2,)
