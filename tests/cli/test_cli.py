"""The command line: results on stdout, everything else on stderr, mistakes as one sentence with the repair."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import yaml

from cli_parts import CARTPOLE, COMPLETE, SMALL, Command, assert_refused
from harness import assert_same_run, only_run
from rl_training import zoo_cli
from rl_training.experiment.configuration.config_files import preset_names
from rl_training.experiment.registry import list_algorithm_specs
from rl_training.experiment.runs import read_metadata
from rl_training.runtime.callbacks import TrainingEvent
from rl_training.runtime.recording.metrics import WALL_CLOCK_FIELDS
from rl_training.runtime.recording.progress import ProgressLines


def without_clock(metrics: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in metrics.items() if key not in WALL_CLOCK_FIELDS}


# -- training --------------------------------------------------------------------------------------


def test_train_prints_where_the_results_are_and_then_the_metrics(axiomrl: Command, tmp_path: Path) -> None:
    answer = axiomrl("train", *CARTPOLE, "--output-dir", "here")
    assert answer.status == 0
    values = answer.values()
    run_dir = only_run(tmp_path / "here")
    first = ["run_dir", "checkpoint_path", "best_checkpoint_path", "status", "resume_mode", "global_step"]
    assert list(values)[:6] == first
    assert (tmp_path / values["run_dir"]).samefile(run_dir)
    assert (tmp_path / values["checkpoint_path"]).samefile(run_dir / "checkpoints" / "step_256")
    assert (values["status"], values["resume_mode"], values["global_step"]) == ("completed", "exact", "256")
    assert float(values["eval_return_mean"]) > 0


def test_progress_and_logs_go_to_stderr_as_plain_lines(axiomrl: Command) -> None:
    answer = axiomrl("train", *CARTPOLE)
    assert "on backend local_sync" in answer.err
    assert "step 64/256 (25%)" in answer.err
    assert "step 256: eval return" in answer.err
    assert answer.err.replace("\n", "").isprintable()


def test_quiet_says_nothing_on_stderr(axiomrl: Command) -> None:
    answer = axiomrl("train", *CARTPOLE, "--quiet")
    assert answer.err == ""
    assert answer.values()["status"] == "completed"


def test_json_prints_exactly_one_object(axiomrl: Command) -> None:
    record = json.loads(axiomrl("train", *CARTPOLE, "--json").out)
    assert record["status"] == "completed"
    assert record["metrics"]["global_step"] == 256
    assert Path(record["best_checkpoint_path"]).is_dir()


def test_flags_and_set_land_in_the_config_with_set_last(axiomrl: Command) -> None:
    flags = ["--seed", "4", "--num-envs", "9", "--total-timesteps", "1e5", "--device", "cpu"]
    flags += ["--execution-backend", "local_sync", "--eval-episodes", "7", "--output-dir", "elsewhere"]
    sets = ["--set", "algo_kwargs.learning_rate=1e-4", "--set", "tags=[a, b]", "--set", "seed=5"]
    config = yaml.safe_load(axiomrl("config", "--preset", "ppo-cartpole", *flags, *sets).out)
    assert config["algo_kwargs"]["learning_rate"] == 1e-4
    assert config["algo_kwargs"]["gae_lambda"] == 0.8  # of the preset
    expected = {
        "seed": 5,
        "num_envs": 9,
        "total_timesteps": 100_000,
        "device": "cpu",
        "execution_backend": "local_sync",
        "eval_episodes": 7,
        "output_dir": "elsewhere",
        "tags": ["a", "b"],
    }
    assert {key: config[key] for key in expected} == expected


def test_printed_config_trains_the_same_run(axiomrl: Command, tmp_path: Path) -> None:
    arguments = ["--preset", "ppo-cartpole", *SMALL, "--seed", "9"]
    (tmp_path / "saved.yaml").write_text(axiomrl("config", *arguments).out)
    one = json.loads(axiomrl("train", *arguments, "--json", "--output-dir", "one").out)
    other = json.loads(axiomrl("train", "--config", "saved.yaml", "--json", "--output-dir", "other").out)
    assert without_clock(one["metrics"]) == without_clock(other["metrics"])


def test_config_of_a_run_repeats_it_bit_for_bit(axiomrl: Command, finished_run: Path, tmp_path: Path) -> None:
    answer = axiomrl("train", "--config", finished_run / "config.yaml", "--output-dir", "again", "--quiet")
    assert answer.status == 0
    assert_same_run(finished_run, only_run(tmp_path / "again"))


def test_config_as_json_is_the_same_data(axiomrl: Command) -> None:
    as_yaml = yaml.safe_load(axiomrl("config", *CARTPOLE).out)
    assert json.loads(axiomrl("config", *CARTPOLE, "--format", "json").out) == as_yaml
    assert json.loads(axiomrl("config", *CARTPOLE, "--json").out) == as_yaml


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_run_prints_its_checkpoint_and_exits_with_the_signal(
    axiomrl: Command, number: signal.Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(progress: ProgressLines, event: TrainingEvent) -> None:
        if event.step == 64:
            signal.raise_signal(number)

    monkeypatch.setattr(ProgressLines, "on_update_end", interrupt)
    answer = axiomrl("train", *CARTPOLE)
    assert answer.status == 128 + number
    assert answer.values()["status"] == "interrupted"
    assert f"interrupted by {number.name}; `axiomrl resume --checkpoint" in answer.err
    assert Path(answer.values()["checkpoint_path"]).is_dir()


# -- eval and resume ---------------------------------------------------------------------------------


@pytest.mark.parametrize("place", ["", "checkpoints/best", "checkpoints/latest", "checkpoints/step_256"])
def test_eval_takes_a_run_a_pointer_or_a_checkpoint(axiomrl: Command, finished_run: Path, place: str) -> None:
    answer = axiomrl("eval", "--checkpoint", finished_run / place, "--num-episodes", "3")
    assert answer.status == 0
    values = answer.values()
    assert (values["eval_episodes"], values["resume_mode"], values["global_step"]) == ("3", "exact", "256")
    assert Path(values["run_dir"]) == finished_run


def test_eval_is_repeatable_and_follows_its_seed(axiomrl: Command, finished_run: Path) -> None:
    def returns(*flags: str) -> list[float]:
        record = json.loads(axiomrl("eval", "--checkpoint", finished_run, "--json", *flags).out)
        return [episode["return"] for episode in record["episodes"]]

    assert returns("--num-episodes", "8") == returns("--num-episodes", "8")
    assert returns("--num-episodes", "8") != returns("--num-episodes", "8", "--seed", "77")
    assert returns("--num-episodes", "8") != returns("--num-episodes", "8", "--stochastic")


@pytest.mark.skipif(find_spec("imageio_ffmpeg") is None, reason="the extra `video` is not installed")
def test_eval_records_a_video(axiomrl: Command, own_run: Path) -> None:
    answer = axiomrl("eval", "--checkpoint", own_run, "--num-episodes", "1", "--video")
    assert answer.status == 0
    video = Path(answer.values()["video_path"])
    assert video.parent == own_run / "videos"
    assert video.read_bytes()[4:8] == b"ftyp"


def test_resume_extends_the_run_in_its_own_directory(axiomrl: Command, own_run: Path) -> None:
    answer = axiomrl("resume", "--checkpoint", own_run, "--total-timesteps", "384", "--eval-episodes", "1")
    assert answer.status == 0
    values = answer.values()
    assert (values["global_step"], values["eval_episodes"]) == ("384", "1")
    assert Path(values["run_dir"]) == own_run
    assert "going on at step 256" in answer.err


def test_resume_of_a_finished_run_says_how_to_extend_it(axiomrl: Command, own_run: Path) -> None:
    answer = axiomrl("resume", "--checkpoint", own_run)
    assert (answer.status, answer.values()["status"]) == (0, "completed")
    assert "already complete at step 256; --total-timesteps" in answer.err


def test_fork_starts_a_new_run_that_knows_its_parent(axiomrl: Command, own_run: Path) -> None:
    answer = axiomrl("resume", "--checkpoint", own_run, "--fork", "--total-timesteps", "384")
    assert answer.status == 0
    child = Path(answer.values()["run_dir"])
    assert child != own_run
    assert read_metadata(child)["parent"]["run_dir"].endswith(own_run.name)
    assert read_metadata(own_run)["latest_checkpoint"] == "checkpoints/step_256"


def test_a_name_and_tags_are_laid_over_the_files(axiomrl: Command, tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text(f"{COMPLETE}name: filed\ntags: [old]\n")
    given = json.loads(axiomrl("config", "--config", "c.yaml", "--json").out)
    assert (given["name"], given["tags"]) == ("filed", ["old"])
    flags = ["--name", "lr3e-4", "--tag", "first", "--tag", "second half", "--init", "runs/x"]
    changed = json.loads(axiomrl("config", "--config", "c.yaml", *flags, "--json").out)
    assert (changed["name"], changed["tags"], changed["init"]) == ("lr3e-4", ["first", "second half"], "runs/x")
    answer = axiomrl("train", "--config", "c.yaml", "--name", "a\nb")
    assert_refused(answer, "--name: name: must be printable text of at most 80 characters")


# -- listings ----------------------------------------------------------------------------------------


def test_algos_lists_names_tiers_and_summaries(axiomrl: Command) -> None:
    lines = axiomrl("algos").out.splitlines()
    assert [line.split()[:2] for line in lines] == [[spec.name, spec.tier] for spec in list_algorithm_specs()]
    assert ["ppo", "stable"] in [line.split()[:2] for line in lines]


def test_algos_shows_one_algorithms_parameters(axiomrl: Command) -> None:
    assert "num_steps: an integer >= 1; default 2048\n    Steps of each environment" in axiomrl("algos", "ppo").out
    record = json.loads(axiomrl("algos", "ppo", "--json").out)
    gamma = next(entry for entry in record["parameters"] if entry["name"] == "gamma")
    assert gamma["default"] == "0.99"
    assert gamma["text"] == "Discount factor."


def test_zoo_lists_presets_with_what_they_need(axiomrl: Command, capsys: pytest.CaptureFixture[str]) -> None:
    answer = axiomrl("zoo")
    rows = {line.split()[0]: line.split()[1:] for line in answer.out.splitlines()}
    assert set(rows) == {"preset", *preset_names()}
    assert rows["ppo-cartpole"] == ["ppo", "CartPole-v1", "100,000", "-"]
    extras = {"ppo-pong": "atari", "ppo-halfcheetah": "mujoco", "ppo-lunarlander": "box2d"}
    assert {name: rows[name][-1] for name in extras} == extras
    assert zoo_cli.main([]) == 0
    assert capsys.readouterr().out == answer.out


def test_zoo_commands_are_ready_to_run(axiomrl: Command) -> None:
    commands = axiomrl("zoo", "--format", "commands").out.splitlines()
    assert commands == [f"axiomrl train --preset {name}" for name in preset_names()]
    assert axiomrl("config", *commands[0].split()[2:]).status == 0


def test_version_and_help_exit_with_0(axiomrl: Command) -> None:
    assert axiomrl("--version").out.startswith("axiomrl ")
    for arguments in ([], ["--help"], ["train", "--help"]):
        answer = axiomrl(*arguments)
        assert answer.status == 0
        assert answer.out.startswith("Usage: axiomrl")


def test_mistyped_command_gets_a_suggestion(axiomrl: Command) -> None:
    answer = axiomrl("trian")
    assert_refused(answer, "Did you mean 'train'?")


def test_json_error_is_one_object_and_the_sentence_is_still_on_stderr(axiomrl: Command) -> None:
    for arguments in (["train", "--preset", "nothing"], ["train", "--presett", "x"], ["nothing"]):
        answer = axiomrl(*arguments, "--json")
        record = json.loads(answer.out)
        assert (answer.status, record["exit_status"]) == (2, 2)
        assert record["error"] in answer.err


def test_debug_shows_the_traceback_of_a_mistake(axiomrl: Command) -> None:
    answer = axiomrl("train", "--preset", "nothing", "--debug")
    assert answer.status == 2
    assert "Traceback" in answer.err
    assert answer.err.splitlines()[-1].startswith("axiomrl: error: unknown preset `nothing`")


def test_bug_is_one_line_that_names_it_and_hints_at_debug(axiomrl: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*arguments: object, **options: object) -> None:
        raise ZeroDivisionError("by\nnothing")

    monkeypatch.setattr("rl_training.runtime.workflows.train", broken)
    answer = axiomrl("train", *CARTPOLE)
    assert (answer.status, answer.out) == (1, "")
    (line,) = answer.err.splitlines()
    assert "ZeroDivisionError: by nothing" in line
    assert "--debug" in line
    assert "Traceback" in axiomrl("train", *CARTPOLE, "--debug").err


def test_keyboard_interrupt_outside_a_run_exits_with_130(axiomrl: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*arguments: object, **options: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("rl_training.runtime.workflows.evaluate", interrupted)
    answer = axiomrl("eval", "--checkpoint", "anywhere")
    assert answer.status == 130
    assert "Traceback" not in answer.err


def test_reader_who_leaves_early_sees_no_complaint() -> None:
    program = "from rl_training.cli import main; import sys; sys.exit(main(['algos', 'ppo']))"
    process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    complaint = process.stderr.read()
    process.stderr.close()
    assert (process.wait(), complaint) == (0, b"")
