"""Sweeps over seeds from the command line."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

from cli_parts import CARTPOLE, COMPLETE, SMALL, Command, assert_refused
from harness import stopped_after
from rl_training.experiment.configuration.config_blocks import BenchmarkParams
from sweep_runs import only_summary, read_json


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
    assert summary["config"]["benchmark"] == {"seeds": [11, 13], "jobs": "auto"}
    scores = [run["metrics"]["eval_return_mean"] for run in summary["runs"]]
    assert float(values["eval_return_mean_mean"]) == sum(scores) / 2
    said = [line for line in answer.err.splitlines() if line.startswith("seed ")]
    assert [line.split(",")[0] for line in said] == [
        "seed 11 (1 of 2)",
        "seed 11 completed",
        "seed 13 (2 of 2)",
        "seed 13 completed",
    ]


@pytest.mark.parametrize(("flags", "jobs"), [([], "auto"), (["--jobs", "1"], 1), (["--jobs", "2"], 2)])
def test_seeds_share_the_cores_unless_jobs_says_otherwise(axiomrl: Command, flags: list[str], jobs: int | str) -> None:
    answer = axiomrl("config", *CARTPOLE, "--seeds", "1-3", *flags, "--json")
    assert BenchmarkParams(**json.loads(answer.out)["benchmark"]).jobs == jobs


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
    "backwards": (["--seeds", "3-1"], "--seeds: the range 3-1 runs backwards; write 1-3"),
    "open range": (["--seeds", "1-"], "--seeds: `1-` is no range of seeds; write the first and the last, such as 1-10"),
    "double range": (["--seeds", "5,1-2-3"], "--seeds: `1-2-3` is no range of seeds"),
    "endless range": (["--seeds", "1-1000000000000"], "has more than the 10000 seeds that a sweep may have"),
    "long ranges": (["--seeds", "1-9000,9001-18000"], "--seeds: 18000 seeds are more than the 10000"),
    "range of many digits": (["--seeds", f"1-{'9' * 5000}"], "is no range of seeds"),
    "seed of many digits": (["--seeds", "9" * 5000], "must be a list of integers >= 0"),
    "overlapping ranges": (["--seeds", "1-3,3-4"], "must be distinct; remove the repeated 3"),
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


def test_the_address_of_a_cluster_is_for_seeds_or_for_samplers(axiomrl: Command) -> None:
    samplers = ["--num-envs", "2", "--set", "samplers=2", "--set", "sampler_backend=ray"]
    address = ["--ray-address", "127.0.0.1:1"]
    command = ("--algo", "ppo", "--env", "CartPole-v1")
    assert "ray_address: 127.0.0.1:1" in axiomrl("config", *command, *samplers, *address).out.splitlines()
    both = axiomrl("config", *command, *samplers, "--seeds", "1,2", "--executor", "ray", *address).out.splitlines()
    assert "ray_address: null" in both
    assert "  ray_address: 127.0.0.1:1" in both


def test_a_seed_is_not_silently_ignored_beside_the_seeds_of_a_file(axiomrl: Command, tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text(f"{COMPLETE}benchmark: {{seeds: [1, 2]}}\n")
    refused = axiomrl("config", "--config", "c.yaml", "--seed", "7")
    assert_refused(refused, "--seed: the configuration has the seeds 1, 2; name others by --seeds, or make it one run")
    alone = axiomrl("config", "--config", "c.yaml", "--seed", "7", "--set", "benchmark.seeds=null")
    assert "seed: 7" in alone.out.splitlines()
