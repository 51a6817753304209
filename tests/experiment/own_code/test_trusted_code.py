"""A name that comes out of a loaded file executes nothing that this user has neither installed nor used."""

from __future__ import annotations

import importlib
import json
import py_compile
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cli_parts import Command
from own_code import SMALL, copy_run, rename_environment, write_environment, write_trap
from processes import process_environment
from rl_training import load_policy
from rl_training.envs.make import check_environment
from rl_training.errors import AxiomError, UntrustedCodeError
from rl_training.experiment.own_code import code_memory, code_search
from rl_training.experiment.own_code.code_search import find_installed
from rl_training.experiment.own_code.user_code import LoadedFrom, admit
from rl_training.runtime.workflows import evaluate, resume
from sweep_runs import only_summary

Forget = Callable[[], None]
LOADED = LoadedFrom("a test")


@pytest.fixture
def gift(finished_run: Path, tmp_path: Path, new_process: Forget) -> Path:
    """A run that somebody else made, in a directory of its own."""
    return copy_run(finished_run, tmp_path / "gift" / "run")


@pytest.mark.parametrize("env_id", ["evil:MyEnv", "evil:Mine/Own-v2", "evil.py:MyEnv", "{place}/evil.py:make_env"])
@pytest.mark.parametrize("beside", [".", "run", "run/checkpoints"])
def test_code_beside_a_loaded_file_is_never_executed(
    env_id: str, beside: str, gift: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = gift.parent / beside
    sprung = write_trap(place / "evil.py")
    rename_environment(gift, env_id.format(place=place))
    monkeypatch.chdir(place)
    monkeypatch.setattr(sys, "path", ["", str(place), *sys.path])  # `python -m`, and a program in that directory
    for enter in (evaluate, resume):
        with pytest.raises(
            UntrustedCodeError, match=r"evil\.py, which is not installed and was not used.*--trust-code"
        ):
            enter(gift)
    load_policy(gift).predict([0.0, 0.0, 0.0, 0.0])
    assert not sprung.exists()
    assert "evil" not in sys.modules


@pytest.mark.parametrize(
    ("command", "status"),
    [
        (["-m", "rl_training.cli", "eval", "--checkpoint", "run"], 2),
        pytest.param(["program.py"], 1, marks=pytest.mark.slow),
    ],
)
def test_neither_python_m_nor_a_program_beside_it_executes_the_code_of_a_loaded_file(
    command: list[str], status: int, gift: Path
) -> None:
    place = gift.parent
    sprung = write_trap(place / "evil.py")
    rename_environment(gift, "evil:MyEnv")
    (place / "program.py").write_text("import rl_training\nrl_training.evaluate('run')\n")
    answer = subprocess.run(
        [sys.executable, *command],
        cwd=place,
        env=process_environment(OMP_NUM_THREADS="1"),
        capture_output=True,
        text=True,
    )
    assert answer.returncode == status, answer.stderr
    assert f"{place / 'evil.py'}, which is not installed" in answer.stderr
    assert "--trust-code (in Python: trust_code=True)" in answer.stderr
    assert not sprung.exists()


def test_the_user_may_trust_the_code_of_a_loaded_file(gift: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sprung = write_trap(gift.parent / "evil.py")
    rename_environment(gift, "evil:MyEnv")
    monkeypatch.chdir(gift.parent)
    with pytest.raises(AxiomError, match=r"evil:MyEnv is Box.*the policy has learned with Box"):
        evaluate(gift, trust_code=True)
    assert sprung.exists()


def test_a_file_that_the_loaded_file_vouches_for_itself_is_not_executed(
    gift: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sprung = write_trap(tmp_path / "far" / "evil.py")
    record = {"name": "evil:MyEnv", "file": str(tmp_path / "far" / "evil.py"), "sha256": "0" * 64}
    monkeypatch.chdir(gift.parent)
    with pytest.raises(AxiomError, match="cannot import `evil`"):
        admit("evil:MyEnv", place="env_id", loaded=LoadedFrom("a test", [record]))
    assert not sprung.exists()


def test_a_task_of_a_loaded_suite_is_not_executed(gift: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sprung = write_trap(gift.parent / "evil.py")
    tasks = [{"env_id": "CartPole-v1"}, {"env_id": "evil:MyEnv"}]
    rename_environment(
        gift, "suite", algo="scalezero", env_kwargs={"tasks": tasks}, total_timesteps=10_000, algo_kwargs={}
    )
    monkeypatch.chdir(gift.parent)
    for enter in (evaluate, resume):
        with pytest.raises(UntrustedCodeError, match=r"env_kwargs\.tasks\.1\.env_id: `evil:MyEnv` comes out of"):
            enter(gift)
    assert not sprung.exists()


def test_a_sweep_that_is_continued_executes_no_code_of_its_summary(
    axiomrl: Command,
    tmp_path: Path,
    new_process: Forget,
) -> None:
    small = ["train", "--algo", "ppo", "--env", "CartPole-v1", *SMALL, "--seeds", "1"]
    assert axiomrl(*small).status == 0
    path = only_summary(Path("runs"))
    summary = json.loads(path.read_text())
    summary["config"]["env_id"] = "evil:MyEnv"
    summary["runs"][0] = {"seed": 1, "status": "pending"}
    path.write_text(json.dumps(summary))
    sprung = write_trap(tmp_path / "evil.py")
    answer = axiomrl("train", "--continue", path)
    assert answer.status == 2
    assert f"comes out of sweep {path} and means the code in {tmp_path / 'evil.py'}" in answer.err
    assert not sprung.exists()
    assert axiomrl("train", "--continue", path, "--trust-code").status == 0
    assert sprung.exists()


@pytest.mark.parametrize("env_id", ["os:system", "subprocess:Popen", "builtins:exec", "shutil:rmtree", "pathlib:Path"])
def test_a_loaded_name_calls_nothing_but_environment_classes(
    env_id: str, gift: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rename_environment(gift, env_id, env_kwargs={"command": f"touch {gift / 'called'}"})
    monkeypatch.chdir(gift.parent)
    for enter in (evaluate, resume):
        with pytest.raises(UntrustedCodeError, match=r"is no environment class \(gymnasium\.Env\)"):
            enter(gift)
    assert not (gift / "called").exists()


def test_a_function_in_used_code_is_called_only_where_a_training_called_it(
    axiomrl: Command,
    tmp_path: Path,
    new_process: Forget,
) -> None:
    write_environment(tmp_path / "my_envs.py")
    assert axiomrl("train", "--algo", "ppo", "--env", "my_envs:make_env", *SMALL).status == 0
    for name, allowed in (("make_env", True), ("MyEnv", True), ("NUMBER", False), ("Other", False)):
        new_process()
        admit(f"my_envs:{name}", place="env_id", loaded=LOADED)
        if allowed:
            check_environment(f"my_envs:{name}", {})
        else:
            with pytest.raises(UntrustedCodeError):
                check_environment(f"my_envs:{name}", {})


def test_a_compiled_file_beside_used_code_is_not_executed(
    axiomrl: Command,
    tmp_path: Path,
    new_process: Forget,
) -> None:
    file = write_environment(tmp_path / "my_envs.py")
    assert axiomrl("train", "--algo", "ppo", "--env", "my_envs:MyEnv", *SMALL).status == 0
    sprung = write_trap(tmp_path / "evil.py")
    cached = importlib.util.cache_from_source(str(file))
    unchecked = py_compile.PycInvalidationMode.UNCHECKED_HASH
    py_compile.compile(str(tmp_path / "evil.py"), cached, invalidation_mode=unchecked)
    new_process()
    admit("my_envs:MyEnv", place="env_id", loaded=LOADED)
    assert not sprung.exists()


def test_a_damaged_list_of_used_code_is_named(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    new_process: Forget,
) -> None:
    path = code_memory.state_directory() / "used_code.json"
    path.parent.mkdir()
    for content in ("[" * 9000, '{"used": [{"name": 1}]}', "[]"):
        path.write_text(content)
        with pytest.raises(AxiomError, match=r"used_code\.json"):
            code_memory.remembered("x")


# -- what is installed -----------------------------------------------------------------------------


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, new_process: Forget) -> Path:
    """The working directory of a user with a virtual environment in it."""
    place = tmp_path / "desk"
    site = place / ".venv" / "site-packages"
    site.mkdir(parents=True)
    monkeypatch.chdir(place)
    monkeypatch.setattr(code_search, "_package_directories", lambda: frozenset({str(site), str(place / "edited/src")}))
    monkeypatch.setattr(sys, "path", ["", str(place), *sys.path, str(site), str(place / "edited/src")])
    return place


def written(path: Path) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("")
    return str(path)


def found(name: str) -> str | None:
    importlib.invalidate_caches()
    chain = find_installed(name)
    return chain[-1].file if chain else None


def test_the_working_directory_is_not_installed_and_a_virtual_environment_in_it_is(desk: Path) -> None:
    written(desk / "mine.py")
    theirs = written(desk / ".venv/site-packages/theirs.py")
    assert (found("mine"), found("theirs")) == (None, theirs)


def test_an_editable_install_below_the_working_directory_is_installed(desk: Path) -> None:
    inside = written(desk / "edited/src/edited_package/__init__.py")
    assert found("edited_package") == inside


def test_a_finder_of_an_editable_install_is_asked(desk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = written(desk / "project/mapped.py")

    class Finder:
        @staticmethod
        def find_spec(name: str, path: Any = None, target: Any = None) -> Any:
            return importlib.util.spec_from_file_location(name, file) if name == "mapped" else None

    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path, Finder])
    assert found("mapped") == file


def test_a_copy_in_the_working_directory_does_not_hide_an_installed_module(desk: Path) -> None:
    sprung = write_trap(desk / "theirs.py")
    write_environment(desk / ".venv/site-packages/theirs.py")
    use = admit("theirs:MyEnv", place="env_id", loaded=LOADED)
    assert use.file == str(desk / ".venv/site-packages/theirs.py")
    assert not sprung.exists()
    new = admit("theirs:make_env", place="env_id")
    assert new.file == use.file, "what is imported stays as it is"


def test_a_part_of_a_namespace_in_the_working_directory_is_not_installed(desk: Path) -> None:
    written(desk / "shared_name/evil.py")
    theirs = written(desk / ".venv/site-packages/shared_name/theirs.py")
    written(desk / "shared_name/deep/evil.py")
    assert (found("shared_name.theirs"), found("shared_name.evil"), found("shared_name.deep.evil")) == (
        theirs,
        None,
        None,
    )


def test_a_directory_below_an_installed_one_is_not_installed_when_it_is_the_working_directory(
    desk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written(desk / "edited/src/downloads/evil.py")
    monkeypatch.chdir(desk / "edited/src/downloads")
    assert (found("evil"), found("downloads.evil")) == (None, None)


def test_a_directory_of_the_path_elsewhere_is_installed_and_that_of_the_program_is_not(
    desk: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen, beside = written(tmp_path / "chosen/far.py"), written(tmp_path / "program/near.py")
    monkeypatch.setattr(sys, "path", [str(tmp_path / "program"), *sys.path, str(tmp_path / "chosen")])
    assert (found("far"), found("near")) == (chosen, beside)
    monkeypatch.setattr(sys.modules["__main__"], "__file__", str(tmp_path / "program/main.py"), raising=False)
    assert (found("far"), found("near")) == (chosen, None)


def test_a_working_directory_that_is_a_package_of_the_path_is_not_installed(
    desk: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inside = written(tmp_path / "chosen/gift/__init__.py")
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path / "chosen")])
    assert found("gift") == inside
    monkeypatch.chdir(tmp_path / "chosen/gift")
    assert found("gift") is None


@pytest.mark.parametrize("name", ["../evil", "a..b", "", "evil/../evil", "evil\0"])
def test_a_loaded_name_that_is_no_module_is_refused(name: str, desk: Path) -> None:
    written(desk / "evil.py")
    with pytest.raises(AxiomError):
        admit(f"{name}:MyEnv", place="env_id", loaded=LOADED)
