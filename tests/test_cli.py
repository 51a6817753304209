"""The command line: results on stdout, everything else on stderr, mistakes as one sentence with the repair."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

from harness import assert_same_run, only_run, stopped_after
from rl_training import zoo_cli
from rl_training.cli import main
from rl_training.experiment.config_files import preset_names
from rl_training.experiment.registry import list_algorithm_specs
from rl_training.experiment.runs import read_metadata
from rl_training.runtime.callbacks import TrainingEvent
from rl_training.runtime.metrics import WALL_CLOCK_FIELDS
from rl_training.runtime.progress import ProgressLines
from sweep_runs import only_summary, read_json

SMALL = ["--num-envs", "2", "--total-timesteps", "256", "--eval-episodes", "2", "--set", "log_interval=64"]
SMALL += ["--set", "algo_kwargs.num_steps=16", "--set", "algo_kwargs.minibatch_size=16"]
SMALL += ["--set", "algo_kwargs.hidden_sizes=[8]", "--set", "tracking.tensorboard=false"]
CARTPOLE = ["--algo", "ppo", "--env", "CartPole-v1", *SMALL]


class Answer(NamedTuple):
    """What a command left: its exit status and the texts it printed."""

    status: int
    out: str
    err: str

    def values(self) -> dict[str, str]:
        return dict(line.split("=", 1) for line in self.out.splitlines())


Command = Callable[..., Answer]


@pytest.fixture
def axiomrl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """Run commands in an empty directory."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments: object) -> Answer:
        capsys.readouterr()
        status = main([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        return Answer(status, captured.out, captured.err)

    return run


@pytest.fixture(scope="module")
def finished_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("finished")
    assert main(["train", *CARTPOLE, "--seed", "3", "--output-dir", str(folder), "--quiet"]) == 0
    return only_run(folder)


@pytest.fixture
def own_run(finished_run: Path, tmp_path: Path) -> Path:
    """A copy of the finished run that a test may change."""
    copy = tmp_path / "own" / finished_run.name
    shutil.copytree(finished_run, copy, symlinks=True)
    return copy


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


# -- listings ----------------------------------------------------------------------------------------


def test_algos_lists_names_tiers_and_summaries(axiomrl: Command) -> None:
    lines = axiomrl("algos").out.splitlines()
    assert [line.split()[:2] for line in lines] == [[spec.name, spec.tier] for spec in list_algorithm_specs()]
    assert ["ppo", "stable"] in [line.split()[:2] for line in lines]


def test_algos_shows_one_algorithms_parameters(axiomrl: Command) -> None:
    assert "num_steps: an integer >= 1; default 2048\n    Steps each environment" in axiomrl("algos", "ppo").out
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


# -- mistakes ----------------------------------------------------------------------------------------

WRONG_ARGUMENTS = {
    "unknown algorithm": (["--algo", "pppo", "--env", "CartPole-v1"], "did you mean `ppo`?"),
    "unknown environment": (["--algo", "ppo", "--env", "CartPool-v1"], "did you mean `CartPole-v1`"),
    "unknown preset": (["--preset", "ppo-cartpol"], "did you mean `ppo-cartpole`"),
    "mistyped key in --set": (
        [*CARTPOLE, "--set", "algo_kwargs.learning_rat=1e-3"],
        "--set: algo_kwargs.learning_rat: unknown key; did you mean `learning_rate`",
    ),
    "negative steps": ([*CARTPOLE, "--total-timesteps", "-5"], "must be an integer >= 1, got -5"),
    "minibatch larger than the rollout": (
        [*CARTPOLE, "--set", "algo_kwargs.minibatch_size=64"],
        "64 is larger than the rollout of 32 transitions",
    ),
    "--set without =": ([*CARTPOLE, "--set", "seed"], "write --set seed=VALUE"),
    "missing file": (["--config", "nowhere.yaml"], "nowhere.yaml: "),
    "state-dependent exploration with discrete actions": (
        [*CARTPOLE, "--set", "algo_kwargs.use_sde=true"],
        "set use_sde to false",
    ),
    "unknown argument of the environment": (
        [*CARTPOLE, "--set", "env_kwargs.gravitation=3"],
        "env_kwargs.gravitation: `CartPole-v1` takes no such argument",
    ),
    "unknown device": ([*CARTPOLE, "--device", "gpu"], "auto, cpu, cuda, cuda:N or mps"),
    "unknown backend": (
        [*CARTPOLE, "--execution-backend", "async"],
        "did you mean `local_sync` or `local_async`?",
    ),
    "no source": ([], "give --config FILE, --preset NAME, or --algo NAME with --env ID"),
    "two sources": (["--config", "a.yaml", "--preset", "ppo-cartpole"], "choose one of --config, --preset"),
    "environment with a preset": (
        ["--preset", "ppo-cartpole", "--env", "Pendulum-v1"],
        "write --set env_id=VALUE",
    ),
    "algorithm without environment": (["--algo", "ppo"], "add --env ID"),
    "mistyped option": ([*CARTPOLE, "--sed", "1"], "did you mean `--seed`?"),
    "text for a number": ([*CARTPOLE, "--seed", "one"], "'one' is not an integer"),
}


def assert_refused(answer: Answer, repair: str) -> None:
    """Assert that a mistake was answered by exit status 2 and one sentence."""
    assert answer.status == 2, answer.err
    assert answer.out == ""
    errors = [line for line in answer.err.splitlines() if line.startswith("axiomrl: error: ")]
    assert len(errors) == 1
    assert repair in errors[0]
    assert "Traceback" not in answer.err
    assert not Path("runs").exists(), "a run directory was left behind"


@pytest.mark.parametrize("mistake", WRONG_ARGUMENTS)
def test_wrong_arguments_are_refused(axiomrl: Command, mistake: str) -> None:
    arguments, repair = WRONG_ARGUMENTS[mistake]
    assert_refused(axiomrl("train", *arguments), repair)


COMPLETE = "algo: ppo\nenv_id: CartPole-v1\nseed: 0\ntotal_timesteps: 100\noutput_dir: runs\n"
WRONG_FILES = {
    "mistyped key": (COMPLETE + "num_env: 2\n", "wrong.yaml: num_env: unknown key; did you mean `num_envs`"),
    "broken YAML": (COMPLETE + "tags: [a, b\n", "not valid YAML"),
    "a tag that would execute code": (
        COMPLETE + 'tags: !!python/object/apply:os.system ["touch executed"]\n',
        "remove the tag",
    ),
    "empty": ("", "is empty"),
}


@pytest.mark.parametrize("mistake", WRONG_FILES)
def test_wrong_file_is_refused(axiomrl: Command, tmp_path: Path, mistake: str) -> None:
    text, repair = WRONG_FILES[mistake]
    (tmp_path / "wrong.yaml").write_text(text)
    assert_refused(axiomrl("train", "--config", "wrong.yaml"), repair)
    assert not (tmp_path / "executed").exists()


def test_several_problems_are_reported_together(axiomrl: Command) -> None:
    answer = axiomrl("train", *CARTPOLE, "--seed", "-1", "--num-envs", "0", "--set", "tag=x")
    assert answer.status == 2
    errors = answer.err.splitlines()
    assert len(errors) == 3
    assert all(line.startswith("axiomrl: error: ") for line in errors)


def test_unsupported_action_space_is_refused(axiomrl: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "tuple_actions.py").write_text(
        "import gymnasium as gym\n"
        "class TupleActions(gym.Env):\n"
        "    observation_space = gym.spaces.Box(0, 1, (2,))\n"
        "    action_space = gym.spaces.Tuple([gym.spaces.Discrete(2), gym.spaces.Discrete(3)])\n"
        "gym.register('TupleActions-v0', entry_point=TupleActions)\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    answer = axiomrl("train", "--algo", "ppo", "--env", "tuple_actions:TupleActions-v0")
    assert_refused(answer, "the action space of `tuple_actions:TupleActions-v0` is not supported")


def test_failed_run_exits_with_1_and_keeps_what_was_learned(
    axiomrl: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "fragile.py").write_text(
        "import gymnasium as gym\n"
        "from gymnasium.envs.classic_control import CartPoleEnv\n"
        "class Fragile(CartPoleEnv):\n"
        "    steps = 0\n"
        "    def step(self, action):\n"
        "        self.steps += 1\n"
        "        if self.steps == 100:\n"
        "            raise RuntimeError('a wheel came off')\n"
        "        return super().step(action)\n"
        "gym.register('Fragile-v0', entry_point=Fragile)\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    answer = axiomrl("train", *CARTPOLE, "--set", "env_id=fragile:Fragile-v0", "--json")
    assert answer.status == 1
    assert json.loads(answer.out)["exit_status"] == 1
    assert "RuntimeError: a wheel came off" in answer.err
    assert read_metadata(only_run(tmp_path / "runs"))["status"] == "failed"


def test_an_environment_that_calls_sys_exit_does_not_pass_for_success(axiomrl: Command, tmp_path: Path) -> None:
    fault = ["--set", "env_id=run_samples:Run/Faulty-v0", "--set", "env_kwargs.training={fault: exit, at: 40}"]
    answer = axiomrl("train", *CARTPOLE, *fault)
    assert answer.status == 1
    assert "the run was ended by a call of sys.exit(0) inside it" in answer.err
    assert read_metadata(only_run(tmp_path / "runs"))["status"] == "failed"


def test_missing_extra_names_the_command_that_installs_it(axiomrl: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "Box2D", None)
    for name in [name for name in sys.modules if name.startswith("gymnasium.envs.box2d")]:
        monkeypatch.delitem(sys.modules, name)
    answer = axiomrl("train", "--algo", "ppo", "--env", "LunarLander-v3")
    assert_refused(answer, "pip install 'axiomrl[box2d]'")


def test_missing_checkpoint_is_refused(axiomrl: Command) -> None:
    for command in ("eval", "resume"):
        assert_refused(axiomrl(command, "--checkpoint", "nowhere"), "no checkpoint at nowhere: give a run")


def test_checkpoint_of_another_algorithm_is_refused(axiomrl: Command, own_run: Path) -> None:
    for manifest in own_run.glob("checkpoints/step_*/manifest.json"):
        content = json.loads(manifest.read_text())
        content["algo"] = content["config"]["algo"] = "a2c"
        content["config"]["algo_kwargs"] = {}
        manifest.write_text(json.dumps(content))
    before = sorted(path.name for path in own_run.parent.iterdir())
    for command in (["eval"], ["resume"], ["resume", "--fork"]):
        answer = axiomrl(*command, "--checkpoint", own_run)
        assert_refused(answer, "does not fit algorithm 'a2c'")
    assert sorted(path.name for path in own_run.parent.iterdir()) == before


def test_resume_refuses_seeds_and_names_what_continues_a_sweep(axiomrl: Command, finished_run: Path) -> None:
    answer = axiomrl("resume", "--checkpoint", finished_run, "--seeds", "1,2")
    assert_refused(answer, "resume is for one run")
    assert "train --continue" in answer.err


# -- sweeps ----------------------------------------------------------------------------------------


def test_seeds_leave_one_run_each_and_one_summary(axiomrl: Command, tmp_path: Path) -> None:
    answer = axiomrl("config", *CARTPOLE)
    (tmp_path / "small.yaml").write_text(answer.out)
    answer = axiomrl("train", "--config", "small.yaml", "--seeds", "11,13", "--output-dir", "here")
    assert answer.status == 0, answer.err
    summary_path = only_summary(tmp_path / "here")
    runs = [path.name.split("__")[2] for path in sorted((tmp_path / "here").iterdir()) if path.is_dir()]
    assert runs == ["seed11", "seed13"]
    values = answer.values()
    assert (tmp_path / values["benchmark_summary_path"]).samefile(summary_path)
    assert (values["status"], values["benchmark_run_count"]) == ("completed", "2")
    names = list(values)
    assert names[:3] == ["run_dir", "checkpoint_path", "best_checkpoint_path"]
    assert names.index("benchmark_summary_path") == names.index("benchmark_run_count") - 1, "then the metrics"
    summary = read_json(summary_path)
    assert summary["config"]["benchmark"] == {"seeds": [11, 13]}
    scores = [run["metrics"]["eval_return_mean"] for run in summary["runs"]]
    assert float(values["eval_return_mean_mean"]) == sum(scores) / 2
    said = [line for line in answer.err.splitlines() if line.startswith("seed ")]
    assert [line.split(",")[0] for line in said] == [
        "seed 11 (1 of 2)",
        "seed 11 completed",
        "seed 13 (2 of 2)",
        "seed 13 completed",
    ]


def test_a_summary_alone_continues_its_sweep(axiomrl: Command, tmp_path: Path) -> None:
    """A failed seed is exit status 1 and a sentence that names the repair; the repair works."""
    fault = f"env_kwargs.training={{fault: raise, at: 40, once: {tmp_path / 'happened'}}}"
    arguments = ["--algo", "ppo", "--env", "run_samples:Run/Faulty-v0", *SMALL, "--set", fault]
    answer = axiomrl("train", *arguments, "--seeds", "1,2")
    assert answer.status == 1
    assert answer.values()["status"] == "failed"
    assert "axiomrl: error: seed 1 failed: " in answer.err
    summary = answer.values()["benchmark_summary_path"]
    assert f"`axiomrl train --continue {summary}` tries them again" in answer.err
    answer = axiomrl("train", "--continue", summary, "--quiet")
    assert (answer.status, answer.err) == (0, "")
    assert (answer.values()["status"], answer.values()["benchmark_run_count"]) == ("completed", "2")
    answer = axiomrl("train", "--continue", summary, "--total-timesteps", "512")
    assert (answer.status, "it differs in total_timesteps" in answer.err) == (2, True)
    answer = axiomrl("train", *arguments, "--continue", summary, "--json")
    assert json.loads(answer.out)["metrics"]["benchmark_run_count"] == 2


def test_an_interrupted_sweep_names_what_continues_it(axiomrl: Command) -> None:
    with stopped_after(20):
        answer = axiomrl("train", *CARTPOLE, "--seeds", "1,2", "--quiet")
    assert answer.status == 128 + signal.SIGTERM
    values = answer.values()
    assert values["status"] == "interrupted"
    assert (
        f"interrupted by SIGTERM; `axiomrl train --continue {values['benchmark_summary_path']}` goes on" in answer.err
    )


WRONG_SWEEPS = {
    "empty": (["--seeds", ""], "--seeds: benchmark.seeds: must be a list of integers >= 0 such as [1, 2, 3]"),
    "gap": (["--seeds", "1,,2"], "got [1, '', 2]"),
    "repeated": (["--seeds", "1,1"], "must be distinct; remove the repeated 1"),
    "negative": (["--seeds", "-3"], "got [-3]"),
    "word": (["--seeds", "a"], "got ['a']"),
    "fraction": (["--seeds", "1.5"], "got ['1.5']"),
    "seed and seeds": (["--seeds", "1,2", "--seed", "3"], "--seed does not go with --seeds"),
    "jobs without seeds": (["--jobs", "2"], "benchmark.jobs: there are no seeds to train"),
    "unknown executor": (["--seeds", "1", "--executor", "rai"], "did you mean `ray`?"),
    "address without ray": (["--seeds", "1", "--ray-address", "auto"], "set executor to ray"),
    "no summary": (["--continue", "nowhere.json"], "nowhere.json cannot be read"),
}


@pytest.mark.parametrize("mistake", WRONG_SWEEPS)
def test_wrong_sweeps_are_refused(axiomrl: Command, mistake: str) -> None:
    arguments, repair = WRONG_SWEEPS[mistake]
    assert_refused(axiomrl("train", *CARTPOLE, *arguments), repair)


@pytest.mark.parametrize("seeds", ["[]", "[1, 1]", "[-3]", "[a]", "[1.5]", "'1,2'"])
def test_wrong_seeds_in_a_file_are_refused_like_those_of_the_flag(axiomrl: Command, tmp_path: Path, seeds: str) -> None:
    (tmp_path / "c.yaml").write_text(f"{COMPLETE}benchmark: {{seeds: {seeds}}}\n")
    assert_refused(axiomrl("train", "--config", "c.yaml"), "c.yaml: benchmark.seeds: must be ")


def test_a_seed_is_not_silently_ignored_beside_the_seeds_of_a_file(axiomrl: Command, tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text(f"{COMPLETE}benchmark: {{seeds: [1, 2]}}\n")
    refused = axiomrl("config", "--config", "c.yaml", "--seed", "7")
    assert_refused(refused, "--seed: the configuration has the seeds 1, 2; name others by --seeds, or make it one run")
    alone = axiomrl("config", "--config", "c.yaml", "--seed", "7", "--set", "benchmark.seeds=null")
    assert "seed: 7" in alone.out.splitlines()


@pytest.mark.parametrize(
    ("flags", "repair"),
    [
        (["--num-episodes", "0"], "must be an integer >= 1, got 0"),
        (["--seed", "-1"], "must be an integer >= 0, got -1"),
        (["--device", "gpu"], "use auto, cpu, cuda, cuda:N or mps"),
    ],
)
def test_wrong_evaluation_is_refused(axiomrl: Command, finished_run: Path, flags: list[str], repair: str) -> None:
    assert_refused(axiomrl("eval", "--checkpoint", finished_run, *flags), repair)


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
