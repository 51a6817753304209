"""The manager turns configurations into trainers and runners, of one run or of a sweep."""

from __future__ import annotations

import dataclasses
import json
import pickle
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from harness import assert_same_run, only_run, stopped_after, tiny_config
from rl_training import DefaultExperimentManager, TrainConfig
from rl_training.errors import AxiomError, ConfigError
from rl_training.experiment.checkpoints import list_checkpoints
from rl_training.experiment.config import config_to_dict
from rl_training.experiment.runs import read_metadata, write_metadata
from rl_training.runtime.callbacks import Callback, EarlyStopping, TrainingEvent
from rl_training.runtime.runner import BenchmarkRunner, FunctionRunner
from rl_training.runtime.session import TrainResult
from rl_training.runtime.workflows import train
from sweep_runs import SHORT, assert_same_sweep, only_summary, read_json, run_dirs, sweep_config


@pytest.fixture
def manager() -> DefaultExperimentManager:
    return DefaultExperimentManager()


@pytest.fixture(scope="module")
def straight(tmp_path_factory: pytest.TempPathFactory) -> TrainResult:
    """A sweep over seeds 3 and 5 that nothing disturbed."""
    return train(sweep_config(tmp_path_factory.mktemp("straight"), 3, 5))


@pytest.fixture
def summary(straight: TrainResult, tmp_path: Path) -> Path:
    """The summary of a copy of that sweep, which a test may change."""
    shutil.copytree(straight.run_dir, tmp_path / "copy", symlinks=True)
    return only_summary(tmp_path / "copy")


class Seen(Callback):
    """Notes at which step every run started."""

    def __init__(self) -> None:
        self.starts: list[tuple[int, int]] = []

    def on_train_start(self, event: TrainingEvent) -> None:
        self.starts.append((read_metadata(event.run_dir)["seed"], event.step))


def test_a_configuration_without_seeds_gets_an_ordinary_runner(
    manager: DefaultExperimentManager, tmp_path: Path
) -> None:
    runner = manager.setup_runner(tiny_config(tmp_path, total_timesteps=64))
    assert isinstance(runner, FunctionRunner)
    result = runner.run()
    assert result.run_dir == only_run(tmp_path)
    assert result.benchmark_summary_path is None


def test_a_configuration_with_seeds_gets_a_benchmark_runner(manager: DefaultExperimentManager, tmp_path: Path) -> None:
    assert isinstance(manager.setup_runner(sweep_config(tmp_path, 3, 5)), BenchmarkRunner)
    assert list(tmp_path.iterdir()) == [], "setting up leaves nothing behind"


def test_each_seed_leaves_the_run_it_would_have_left_alone(straight: TrainResult, tmp_path: Path) -> None:
    runs = run_dirs(only_summary(straight.run_dir))
    assert list(runs) == [3, 5]
    for seed, run_dir in runs.items():
        assert_same_run(run_dir, train(tiny_config(tmp_path, **SHORT, seed=seed)).run_dir)
        assert read_metadata(run_dir)["seed"] == seed


def test_the_summary_holds_the_configuration_and_every_run(straight: TrainResult) -> None:
    content = read_json(only_summary(straight.run_dir))
    assert content["config"] == config_to_dict(sweep_config(straight.run_dir, 3, 5))
    for run in content["runs"]:
        latest = read_metadata(Path(run["run_dir"]))["latest_metrics"]
        assert run["metrics"] == latest
        assert run["checkpoint_path"].endswith("/checkpoints/step_160")
        assert Path(run["best_checkpoint_path"]).is_dir()
        assert (run["status"], run["resume_mode"], run["error"]) == ("completed", "exact", None)
    scores = [run["metrics"]["eval_return_mean"] for run in content["runs"]]
    assert straight.metrics["eval_return_mean_mean"] == sum(scores) / 2


def test_the_configuration_of_a_seed_repeats_that_seed_alone(straight: TrainResult, tmp_path: Path) -> None:
    from rl_training import load_config

    run_dir = run_dirs(only_summary(straight.run_dir))[5]
    config = load_config(run_dir / "config.yaml", overrides={"output_dir": str(tmp_path)})
    assert (config.seed, config.benchmark) == (5, {})
    assert_same_run(run_dir, train(config).run_dir)


def test_a_mistake_is_one_error_before_anything_is_written(manager: DefaultExperimentManager, tmp_path: Path) -> None:
    config = sweep_config(tmp_path, 1, 2, env_id="CartPole-v99")
    with pytest.raises(AxiomError, match="CartPole"):
        manager.setup_runner(config).run()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("block", [{"jobs": 2}, {"executor": "processes"}])
def test_an_executor_needs_seeds(block: dict[str, Any], manager: DefaultExperimentManager, tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"benchmark\.\w+: there are no seeds to train; set benchmark.seeds or --seeds 1,2,3"
    ):
        manager.setup_runner(tiny_config(tmp_path, benchmark=block))


def test_callbacks_cannot_cross_processes(manager: DefaultExperimentManager, tmp_path: Path) -> None:
    config = sweep_config(tmp_path, 1, 2, benchmark={"jobs": 2})
    with pytest.raises(ConfigError, match="callbacks: objects cannot cross processes; name their classes"):
        manager.setup_runner(config, callbacks=[Seen()])


def test_callbacks_start_every_seed_in_the_same_state(tmp_path: Path) -> None:
    """What early stopping remembers of one seed must not stop the next."""

    class Noting(EarlyStopping):
        def __init__(self) -> None:
            super().__init__("global_step", patience=100)
            self.at_start: list[float] = []

        def on_train_start(self, event: TrainingEvent) -> None:
            self.at_start.append(self.best)

    callback = Noting()
    train(sweep_config(tmp_path, 1, 2, total_timesteps=64), callbacks=[callback])
    assert callback.at_start == [-float("inf")] * 2
    assert callback.best == 64


def test_the_runner_of_a_seed_can_be_sent_to_another_process(manager: DefaultExperimentManager, tmp_path: Path) -> None:
    from rl_training.runtime.sweep.sweep_setup import SeedRunner

    runner = SeedRunner(manager, tiny_config(tmp_path, total_timesteps=32))
    assert pickle.loads(pickle.dumps(runner)).run().status == "completed"


# -- continuing ------------------------------------------------------------------------------------


def go_on(summary: Path, config: TrainConfig | None = None) -> tuple[TrainResult, list[tuple[int, int]]]:
    """Continue a sweep and return its result and where each run started."""
    seen = Seen()
    config = sweep_config(summary.parent, 3, 5) if config is None else config
    return train(config, callbacks=[seen], continue_from=summary), seen.starts


def edit(summary: Path, seed: int, **fields: Any) -> None:
    content = read_json(summary)
    for run in content["runs"]:
        run.update(fields if run["seed"] == seed else {})
    summary.write_text(json.dumps(content))


def test_a_complete_sweep_is_left_as_it_is(summary: Path, straight: TrainResult) -> None:
    result, starts = go_on(summary)
    assert starts == []
    assert result.metrics == straight.metrics
    assert result.benchmark_summary_path == summary


def test_an_interrupted_sweep_goes_on_from_its_checkpoints_to_the_same_end(
    straight: TrainResult, tmp_path: Path
) -> None:
    config = sweep_config(tmp_path, 3, 5)
    with stopped_after(140):  # 80 vector steps each: in the second seed
        result = train(config)
    assert (result.status, read_json(only_summary(tmp_path))["status"]) == ("interrupted", "interrupted")
    result, starts = go_on(only_summary(tmp_path), config)
    assert [seed for seed, _ in starts] == [5]
    assert starts[0][1] > 0
    assert result.status == "completed"
    assert_same_sweep(only_summary(tmp_path), only_summary(straight.run_dir))


def test_a_seed_without_a_sound_checkpoint_starts_anew(summary: Path, straight: TrainResult) -> None:
    edit(summary, 5, status="running", metrics={})
    damaged = summary.parent / run_dirs(summary)[5].name
    for checkpoint in list_checkpoints(damaged):
        (checkpoint / "state.json").write_text("{}")
    result, starts = go_on(summary)
    assert starts == [(5, 0)]
    assert result.status == "completed"
    assert run_dirs(summary)[5].name != damaged.name
    assert_same_sweep(summary, only_summary(straight.run_dir))


@pytest.mark.parametrize(("status", "later"), [("running", "interrupted"), ("failed", "failed")])
def test_a_run_that_was_killed_and_given_up_is_interrupted(status: str, later: str, summary: Path) -> None:
    edit(summary, 5, status="running", metrics={})
    killed = summary.parent / run_dirs(summary)[5].name
    shutil.rmtree(killed / "checkpoints")
    write_metadata(killed, {**read_metadata(killed), "status": status, "finished_at_utc": None})
    go_on(summary)
    left = read_metadata(killed)
    assert left["status"] == later
    if later == "interrupted":
        assert left["finished_at_utc"] is not None
        assert left["notices"] == [f"killed, and no sound checkpoint is left: {summary.name} started seed 5 anew"]


def test_a_run_that_is_gone_is_trained_anew(summary: Path) -> None:
    edit(summary, 5, status="running", metrics={})
    shutil.rmtree(summary.parent / run_dirs(summary)[5].name)
    edit(summary, 5, run_dir=str(summary.parent / "gone"))
    result, starts = go_on(summary)
    assert (result.status, starts) == ("completed", [(5, 0)])


def test_a_seed_that_never_began_is_trained(summary: Path, straight: TrainResult) -> None:
    edit(summary, 3, status="pending", run_dir=None, checkpoint_path=None, best_checkpoint_path=None, metrics={})
    _, starts = go_on(summary)
    assert starts == [(3, 0)]
    assert_same_sweep(summary, only_summary(straight.run_dir))


def test_a_run_that_ended_before_the_summary_knew_is_not_trained_again(summary: Path, straight: TrainResult) -> None:
    edit(summary, 5, status="running", checkpoint_path=None, best_checkpoint_path=None, metrics={}, resume_mode=None)
    _, starts = go_on(summary)
    assert starts == [(5, 160)], "it starts at its end"
    assert_same_sweep(summary, only_summary(straight.run_dir))


def test_a_failed_seed_is_tried_again_from_its_checkpoint(tmp_path: Path) -> None:
    fault = {"fault": "raise", "at": 70, "once": str(tmp_path / "happened")}
    config = sweep_config(tmp_path / "runs", 1, 2, env_id="run_samples:Run/Faulty-v0", env_kwargs={"training": fault})
    result = train(config)
    summary = only_summary(tmp_path / "runs")
    first, second = read_json(summary)["runs"]
    assert (result.status, first["status"], second["status"]) == ("failed", "failed", "completed")
    assert "the floor gave way" in first["error"]
    assert Path(first["checkpoint_path"]).is_dir()
    result, starts = go_on(summary, config)
    assert (result.status, len(starts), starts[0][0]) == ("completed", 1, 1)
    assert starts[0][1] > 0
    assert [run["error"] for run in read_json(summary)["runs"]] == [None, None]


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"total_timesteps": 640}, "total_timesteps"),
        ({"algo_kwargs": {"gamma": 0.5}}, "algo_kwargs.gamma"),
        ({"env_kwargs": {"max_episode_steps": 9}, "num_envs": 4}, "num_envs, env_kwargs.max_episode_steps"),
        ({"benchmark": {"seeds": [3, 5, 7]}}, "benchmark.seeds"),
    ],
)
def test_another_configuration_than_the_sweeps_is_refused(
    changes: Mapping[str, Any], named: str, summary: Path, manager: DefaultExperimentManager
) -> None:
    before = summary.read_bytes()
    with pytest.raises(ConfigError, match=rf"differs in {named}; leave the differences out"):
        manager.setup_runner(sweep_config(summary.parent, 3, 5, **changes), continue_from=summary)
    assert summary.read_bytes() == before


def test_the_place_and_the_executor_are_no_part_of_the_fit(
    summary: Path, manager: DefaultExperimentManager, tmp_path: Path
) -> None:
    config = sweep_config(tmp_path / "elsewhere", 3, 5, seed=99, benchmark={"jobs": 2})
    result = manager.setup_runner(config, continue_from=summary).run()
    assert result.status == "completed"
    assert not (tmp_path / "elsewhere").exists()


def test_a_configuration_without_seeds_takes_those_of_the_summary(summary: Path) -> None:
    config = dataclasses.replace(sweep_config(summary.parent, 3, 5), benchmark={})
    assert go_on(summary, config)[0].status == "completed"


def test_a_moved_sweep_goes_on_where_it_is_now(summary: Path, straight: TrainResult) -> None:
    edit(summary, 5, status="running", metrics={})
    content = read_json(straight.run_dir / summary.name)
    go_on(summary, sweep_config(straight.run_dir, 3, 5))
    assert run_dirs(summary)[5].parent == summary.parent
    assert read_json(straight.run_dir / summary.name) == content, "the original stays as it was"


def test_a_summary_without_a_configuration_cannot_go_on(summary: Path, manager: DefaultExperimentManager) -> None:
    content = read_json(summary)
    summary.write_text(json.dumps({**content, "config": None}))
    with pytest.raises(ConfigError, match="was not made from a configuration"):
        manager.setup_runner(sweep_config(summary.parent, 3, 5), continue_from=summary)
