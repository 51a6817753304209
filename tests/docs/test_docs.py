"""The documentation is true: its commands and snippets run, its links lead somewhere, its tables match the code."""

from __future__ import annotations

import contextlib
import importlib.util
import io
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium
import pytest

import rl_training
from documents.docs_pages import (
    EXECUTED,
    INSTALLATION,
    PAGES,
    ROOT,
    RUN_BY_CI,
    Block,
    anchors,
    blocks,
    code_spans,
    executable_blocks,
    links,
    marked_block,
    marked_section,
    marked_table,
    page_name,
    read_page,
)
from documents.page_runner import PageRunner
from harness import json_rows, tiny_config
from paths import HELPERS
from processes import Launcher
from rl_training import core
from rl_training.cli import main
from rl_training.experiment.checkpoints import MANIFEST
from rl_training.experiment.runs import EVALUATIONS, METRICS, read_metadata
from rl_training.runtime.recording.metrics import WALL_CLOCK_FIELDS
from rl_training.runtime.workflows import resume, train
from sweep_runs import sweep_config

README = ROOT / "README.md"
ARTIFACTS = ROOT / "docs" / "run-artifacts.md"
COMPATIBILITY = ROOT / "docs" / "compatibility.md"
PPO = ROOT / "docs" / "algorithms" / "ppo.md"
METADATA_SCHEMA = ROOT / "src" / "rl_training" / "experiment" / "metadata.schema.json"
COMMAND_SERVER = HELPERS / "docs_commands.py"
# Of tools that the pages mention besides axiomrl and the benchmarks.
FOREIGN_OPTIONS = {"--check", "--dist", "--logdir", "--backend-store-uri", "--nproc-per-node"}


# -- commands and snippets -------------------------------------------------------------------------


@pytest.fixture(scope="module")
def command_path(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A PATH on which `axiomrl` and `python` are this checkout's."""
    with tempfile.TemporaryDirectory() as folder:  # the name of a socket must be short
        address = f"{folder}/socket"
        server = Launcher(tmp_path_factory.mktemp("commands")).start([address], module=COMMAND_SERVER.stem)
        while not Path(address).exists():
            assert server.poll() is None, server.output.read_text()
            time.sleep(0.01)
        shim = Path(folder) / "axiomrl"
        shim.write_text(f'#!/bin/sh\nexec "{sys.executable}" -S -I "{COMMAND_SERVER}" "{address}" "$@"\n')
        shim.chmod(0o755)
        yield os.pathsep.join([folder, str(Path(sys.executable).parent), os.environ["PATH"]])
        server.kill()


@pytest.mark.parametrize("page", [page for page in PAGES if executable_blocks(page)], ids=page_name)
def test_every_command_and_snippet_runs(
    page: Path, command_path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = tmp_path / "work"
    shutil.copytree(ROOT / "configs", directory / "configs")
    monkeypatch.chdir(directory)
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "datasets"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    known = dict(gymnasium.registry)
    runner = PageRunner(page, directory, command_path)
    try:
        for number, block in enumerate(executable_blocks(page)):
            runner.run(number, block)
    finally:
        runner.close()
        for added in gymnasium.registry.keys() - known.keys():
            # What the package registers when it is imported is not registered again.
            if not str(gymnasium.registry[added].entry_point).startswith("rl_training."):
                del gymnasium.registry[added]


def test_a_failing_command_fails_its_page(command_path: str, tmp_path: Path) -> None:
    (tmp_path / "work").mkdir()
    runner = PageRunner(README, tmp_path / "work", command_path)
    runner.run(0, Block("bash", "answer=$(axiomrl --version)\n", 1, ""))
    runner.run(1, Block("bash", 'test -n "$answer"\n', 2, ""))
    with pytest.raises(AssertionError, match="no-such-preset"):
        runner.run(2, Block("bash", "axiomrl train --preset no-such-preset | cat\n", 3, ""))
    runner.close()


def test_a_shown_message_is_compared_with_the_real_one(command_path: str, tmp_path: Path) -> None:
    (tmp_path / "work").mkdir()
    runner = PageRunner(README, tmp_path / "work", command_path)
    shown = (
        "$ axiomrl train --preset no-such-preset\naxiomrl: error: ...`no-such-preset`...\n$ axiomrl --version\n...\n"
    )
    runner.run(0, Block("console", shown, 1, ""))
    with pytest.raises(AssertionError, match="shows other output than `axiomrl train --preset no-such-preset` gives"):
        runner.run(1, Block("console", shown.replace("error", "mistake"), 1, ""))
    runner.close()


def test_only_installation_and_lint_commands_are_not_executed() -> None:
    skipped = [
        (page_name(page), block.marker)
        for page in PAGES
        for block in blocks(read_page(page))
        if block.language in EXECUTED and block not in executable_blocks(page)
    ]
    assert skipped == [*(("README.md", marker) for marker in INSTALLATION), ("CONTRIBUTING.md", RUN_BY_CI)]


def test_the_lint_commands_are_those_of_continuous_integration() -> None:
    wanted = re.split(r"\n| && ", marked_block(ROOT / "CONTRIBUTING.md", RUN_BY_CI))
    script = (ROOT / ".ci" / "run").read_text(encoding="utf-8").replace('"$VENV/bin/', "").replace('"', "")
    assert [command for command in wanted if command not in script] == []


@pytest.mark.parametrize(
    ("marker", "last"),
    [(INSTALLATION[0], "axiomrl train --preset ppo-cartpole"), (INSTALLATION[1], "pytest -q -n auto --dist worksteal")],
)
def test_installation_is_one_command_with_the_tested_versions(marker: str, last: str) -> None:
    command = marked_block(README, marker)
    assert "\n" not in command
    make, install, use = command.split(" && ")
    assert make == 'python3 -m venv "${VENV:=.venv}"'
    assert re.fullmatch(r'"\$VENV/bin/pip" install -q -c constraints\.txt (\.|-e \'\.\[dev\]\')', install)
    assert use.replace('"$VENV/bin/', "").replace('"', "") == last


@pytest.mark.slow
def test_the_train_command_installs_and_trains_on_a_fresh_machine(tmp_path: Path) -> None:
    checkout = tmp_path / "checkout"
    shutil.copytree(ROOT, checkout, ignore=shutil.ignore_patterns(".git", ".venv", "runs", "*cache*", ".hypothesis"))
    environment = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "VIRTUAL_ENV")}
    answer = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", marked_block(README, INSTALLATION[0])],
        cwd=checkout,
        env={**environment, "VENV": str(tmp_path / "venv")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert answer.returncode == 0, answer.stdout + answer.stderr
    assert "status=completed" in answer.stdout


# -- links and options -----------------------------------------------------------------------------


@pytest.mark.parametrize("page", PAGES, ids=page_name)
def test_every_link_within_the_project_leads_somewhere(page: Path) -> None:
    for link in links(read_page(page)):
        if re.match(r"https?://", link):
            continue
        target, _, anchor = link.partition("#")
        file = page.parent / target if target else page
        assert file.exists(), f"{page_name(page)} links to {link}, which is not there"
        if anchor:
            assert anchor in anchors(read_page(file)), f"{page_name(page)} links to {link}: no such heading"


@pytest.fixture(scope="module")
def options() -> dict[str, set[str]]:
    """The options that `--help` shows, by command; those of a group also by its commands, such as `dataset show`."""

    def shown(*arguments: str) -> str:
        with contextlib.redirect_stdout(io.StringIO()) as text:
            assert main([*arguments, "--help"]) == 0
        return text.getvalue()

    def below(*group: str) -> dict[str, set[str]]:
        text = shown(*group)
        found: dict[str, set[str]] = {}
        listed = text.partition("Commands:")[2]
        for command in re.findall(r"^  (\w[\w-]*) ", listed, flags=re.MULTILINE):
            found |= below(*group, command)
        return found | {" ".join(group): set(re.findall(r"--[a-z][a-z-]*", text))}

    return below()


@pytest.mark.parametrize("page", PAGES, ids=page_name)
def test_every_option_that_is_mentioned_exists(page: Path, options: dict[str, set[str]]) -> None:
    scripts = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "benchmarks").glob("*.py"))
    known = set().union(*options.values(), FOREIGN_OPTIONS, re.findall(r'add_argument\("(--[a-z-]+)"', scripts))
    code = [*code_spans(read_page(page)), *(block.code.replace("\\\n", " ") for block in blocks(read_page(page)))]
    for line in "\n".join(code).splitlines():
        mentioned = set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", line))
        command = re.search(r"\baxiomrl (\w[\w-]*)(?: (\w+))?", line)
        accepted = known
        if command is not None:
            accepted = options.get(" ".join(filter(None, command.groups())), options.get(command.group(1), set()))
        assert not mentioned - accepted, f"{page_name(page)} mentions {mentioned - accepted} in: {line}"
        assert command is None or command.group(1) in options, f"{page_name(page)}: no such command in: {line}"


# -- tables ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was forked from another, so that every field has a value."""
    parent = train(tiny_config(tmp_path_factory.mktemp("docs")))
    return resume(parent.run_dir, total_timesteps=640, fork=True).run_dir


def column(page: Path, table: str) -> list[str]:
    return [row[0] for row in marked_table(page, table)]


def test_metric_names_are_those_that_a_run_writes(run_dir: Path) -> None:
    written: dict[str, set[str]] = {"train": set(), "eval": set()}
    for row in json_rows(run_dir / METRICS):
        written[row["event"]] |= row.keys()
    table = marked_table(ARTIFACTS, "metrics")
    for event, names in written.items():
        assert {name for name, events, *_ in table if event in events.split(", ")} == names
    everything = written["train"] | written["eval"]
    assert {name for name, _, clock, _ in table if clock} == everything & set(WALL_CLOCK_FIELDS)


def test_evaluation_fields_are_those_that_a_run_writes(run_dir: Path) -> None:
    assert column(ARTIFACTS, "evaluations") == list(json_rows(run_dir / EVALUATIONS)[0])


def test_manifest_fields_are_those_of_a_checkpoint(run_dir: Path) -> None:
    manifest = json.loads((run_dir / "checkpoints" / "latest" / MANIFEST).read_text(encoding="utf-8"))
    assert column(ARTIFACTS, "manifest") == list(manifest)


def test_metadata_fields_are_those_of_a_run(run_dir: Path) -> None:
    metadata = read_metadata(run_dir)
    documented = [name for name in column(ARTIFACTS, "metadata") if "." not in name]
    assert documented == list(metadata)
    for name in ("hardware", "parent", "best_checkpoint"):
        parts = [field.split(".")[1] for field in column(ARTIFACTS, "metadata") if field.startswith(f"{name}.")]
        assert parts == list(metadata[name]), name
    if metadata["git"] is not None:
        assert set(metadata["git"]) == {"commit", "dirty"}


def test_summary_fields_are_those_that_a_sweep_writes(tmp_path: Path) -> None:
    summary_path = train(sweep_config(tmp_path, 1, total_timesteps=32)).benchmark_summary_path
    assert summary_path is not None
    summary = json.loads(summary_path.read_text(encoding="utf-8"))
    assert column(ARTIFACTS, "summary") == list(summary)
    assert column(ARTIFACTS, "summary runs") == list(summary["runs"][0])


def test_metadata_fields_are_those_of_the_schema() -> None:
    def fields(schema: Any, prefix: str) -> set[str]:
        found = {prefix} if prefix else set()
        for name, part in schema.get("properties", {}).items():
            found |= fields(part, f"{prefix}.{name}" if prefix else name)
        return found.union(*(fields(part, prefix) for part in schema.get("oneOf", ())))

    schema = json.loads(METADATA_SCHEMA.read_text(encoding="utf-8"))
    assert set(column(ARTIFACTS, "metadata")) == fields(schema, "")


def test_stable_names_are_those_that_are_exported() -> None:
    _, package, further = marked_section(COMPATIBILITY, "stable names").split("- `rl_training")
    names, more_names = (set(re.findall(r"`(\w+)`", text.split(":", 1)[1])) for text in (package, further))
    assert names == set(rl_training.__all__)
    assert names | more_names == set(core.__all__)


def test_supported_versions_are_those_that_are_declared() -> None:
    declared = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    dependencies = re.findall(r'"([\w-]+)(>=[\d.]+)"', declared.split("dependencies = [")[1].split("]")[0])
    python = re.findall(r'requires-python = "(.*)"', declared)
    assert marked_table(COMPATIBILITY, "versions") == [["Python", *python], *map(list, dependencies)]


# -- results ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def renderer() -> Any:
    spec = importlib.util.spec_from_file_location("render_results", ROOT / "benchmarks" / "render_results.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_results_on_the_page_are_the_stored_ones(renderer: Any) -> None:
    command = "python benchmarks/render_results.py"
    stored = renderer.render_page("ppo", ROOT / "benchmarks" / "results")
    assert marked_section(PPO, "results") == stored, f"the page is out of date; run: {command}"


def test_without_stored_results_no_number_is_shown(renderer: Any, tmp_path: Path) -> None:
    assert renderer.render_page("ppo", tmp_path) == "No results are stored yet."


def test_results_show_every_seed_and_hide_other_algorithms(renderer: Any, tmp_path: Path) -> None:
    run = {"steps": 1000, "seconds": 90.0, "eval_episodes": 100}
    stored = {
        "preset": "ppo-cartpole",
        "runs": [{**run, "seed": 2, "eval_return_mean": 500.0}, {**run, "seed": 1, "eval_return_mean": 400.0}],
        "command": "python benchmarks/learning.py --preset ppo-cartpole --seeds 2 --output-dir elsewhere",
        "config": {"algo": "ppo", "env_id": "CartPole-v1", "total_timesteps": 1000},
        "versions": {"axiomrl": "0.1.0", "torch": "2.13.0", "mujoco": None},
        "machine": {"python": "3.11.7", "processor": "x86_64"},
    }
    (tmp_path / "ppo-cartpole.json").write_text(json.dumps(stored))
    other = {**stored, "preset": "dqn-cartpole", "config": {**stored["config"], "algo": "dqn"}}  # type: ignore[dict-item]
    (tmp_path / "dqn-cartpole.json").write_text(json.dumps(other))
    shown = renderer.render_page("ppo", tmp_path)
    assert (
        "| `ppo-cartpole` | CartPole-v1 | 1,000 | 2 | 450.0 | 50.0 | 400.0 | 450.0 | 500.0 | 100 | 1.5 |"
        in shown.splitlines()
    )
    assert "python benchmarks/learning.py --preset ppo-cartpole --seeds 1,2" in shown.splitlines()
    assert "dqn" not in shown
    assert "elsewhere" not in shown


def test_speed_is_shown_with_its_spread(renderer: Any, tmp_path: Path) -> None:
    sides = {"ours": {"steps_per_second": 6000.0}, "stable_baselines3": {"steps_per_second": 3000.0}}
    stored = {
        "benchmark": "speed-ppo",
        "command": "python benchmarks/speed.py --only ppo --rounds 1",
        "settings": "CartPole-v1",
        "clock": "processor time",
        "ratios": {"stable-baselines3": {"median": 2.0, "smallest": 1.9, "largest": 2.1}},
        "missing": ["CleanRL is not installed in build/cleanrl"],
        "algo": "ppo",
        "total_timesteps": 100_000,
        "sides": {"stable-baselines3": ["ours", "stable_baselines3"]},
        "rounds": [{"seed": 1, **sides}],
        "versions": {"torch": "2.13.0"},
        "machine": {"python": "3.11.7", "processor": "x86_64"},
    }
    (tmp_path / "speed-ppo.json").write_text(json.dumps(stored))
    shown = renderer.render_page("ppo", tmp_path).splitlines()
    assert "| stable-baselines3 | 2.00 | 1.90 | 2.10 | 1 | 100,000 | 6,000 | 3,000 |" in shown
    assert "CleanRL is not installed in build/cleanrl." in shown
    assert "python benchmarks/speed.py --only ppo" in shown
