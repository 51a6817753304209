"""The tasks of a suite: what their keys mean, what is refused before anything is written, one task evaluated alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from harness import tiny_config
from rl_training.cli import main
from rl_training.errors import AxiomError, ConfigError
from rl_training.experiment.config import TrainConfig, validate_config
from rl_training.experiment.configuration.env_params import env_params
from rl_training.experiment.tasks import Task, choose_task, is_suite, tasks_of
from rl_training.runtime.workflows import train

CART, ACRO, PENDULUM = "CartPole-v1", "Acrobot-v1", "Pendulum-v1"
SMALL: dict[str, Any] = {
    "batch_size": 4,
    "buffer_size": 64,
    "learning_starts": 16,
    "num_simulations": 2,
    "width": 8,
    "layers": 1,
    "heads": 1,
    "expert_size": 4,
    "experts": 2,
    "hidden_size": 4,
    "support_size": 4,
    "unroll_steps": 2,
    "n_step": 2,
}


def suite(*tasks: Any, **changes: Any) -> dict[str, Any]:
    """Return a configuration over tasks; an environment's name stands for the task without other keys."""
    entries = [{"env_id": task} if isinstance(task, str) else task for task in tasks]
    raw = {"algo": "scalezero", "env_id": "some-suite", "seed": 0, "total_timesteps": 5000, "output_dir": "runs"}
    return {**raw, **changes, "env_kwargs": {"tasks": entries, **changes.get("env_kwargs", {})}}


def tasks_in(raw: dict[str, Any]) -> tuple[Task, ...]:
    return tasks_of(validate_config(raw))


# -- what a suite says -----------------------------------------------------------------------------------


def test_a_task_is_called_by_its_environment_unless_it_has_a_name() -> None:
    named = {"env_id": CART, "name": "pole", "target_return": 450, "random_return": 22.2}
    first, second, third = tasks_in(suite(ACRO, named, {"env_id": CART, "name": None, "sutton_barto_reward": True}))
    assert (first.name, first.env_id, first.target_return, first.random_return) == (ACRO, ACRO, None, None)
    assert (second.name, second.env_id, second.target_return, second.random_return) == ("pole", CART, 450.0, 22.2)
    assert second.env_kwargs == {}
    assert (third.name, dict(third.env_kwargs)) == (CART, {"sutton_barto_reward": True})


def test_without_a_list_the_environment_is_the_only_task() -> None:
    config = validate_config({**suite(), "env_id": CART, "env_kwargs": {"max_episode_steps": 9}})
    assert not is_suite(config)
    (task,) = tasks_of(config)
    assert (task.name, task.env_id, task.env_kwargs, task.target_return) == (CART, CART, {"max_episode_steps": 9}, None)


def test_wrappers_beside_the_list_hold_for_every_task_that_does_not_say_otherwise() -> None:
    shared = {
        "max_episode_steps": 50,
        "normalize_observation": True,
        "training": {"reward_sign": True, "frame_stack": 2},
        "evaluation": {"max_episode_steps": 70, "frame_stack": 2},
    }
    own = {"env_id": ACRO, "max_episode_steps": 30, "training": {"frame_stack": 3}, "evaluation": {"frame_stack": 3}}
    cart, acro = tasks_in(suite(CART, own, env_kwargs=shared))

    def seen(task: Task, mode: Any) -> tuple[Any, ...]:
        params = env_params(task.env_kwargs, mode)
        return params.max_episode_steps, params.normalize_observation, params.reward_sign, params.frame_stack

    assert seen(cart, "training") == (50, True, True, 2)
    assert seen(cart, "evaluation") == (70, True, False, 2)
    assert seen(acro, "training") == (30, True, True, 3)
    assert seen(acro, "evaluation") == (30, True, False, 3)  # its own key also replaces that of a shared block
    assert "tasks" not in cart.env_kwargs


def test_the_same_task_is_known_by_what_it_does_not_by_how_it_is_written() -> None:
    again = {"env_id": CART, "name": "again", "frame_stack": 1, "evaluation": {"normalize_reward": False}}
    with pytest.raises(ConfigError, match="is the task `CartPole-v1` again under another name"):
        validate_config(suite(CART, again))
    other = {"env_id": CART, "name": "other", "max_episode_steps": 100}
    assert len(tasks_in(suite(CART, other))) == 2


def test_an_argument_of_an_environment_may_be_called_tasks() -> None:
    raw = {**suite(CART), "algo": "ppo", "env_kwargs": {"tasks": ["reach", "push"]}}
    assert not is_suite(validate_config(raw))


def test_early_stopping_of_a_suite_names_what_it_watches() -> None:
    with pytest.raises(ConfigError, match=r"early_stopping\.metric: the mean return of several tasks says nothing"):
        validate_config({**suite(CART, ACRO), "early_stopping": {"target": 400.0}})
    metric = f"eval_return_mean/{CART}"
    validate_config({**suite(CART, ACRO), "early_stopping": {"target": 400.0, "metric": metric}})


def test_the_configuration_keeps_the_list_as_it_was_written() -> None:
    raw = suite(CART, {"env_id": ACRO, "target_return": -120}, env_kwargs={"max_episode_steps": 50})
    config = validate_config(raw)
    assert config.env_kwargs == raw["env_kwargs"]
    assert [task.name for task in tasks_of(validate_config({**raw, "env_kwargs": config.env_kwargs}))] == [CART, ACRO]


@pytest.mark.parametrize(
    ("score", "random", "target", "share"),
    [
        (450.0, 22.0, 450.0, 1.0),
        (22.0, 22.0, 450.0, 0.0),
        (-120.0, -500.0, -100.0, 0.95),
        (-600.0, -500.0, -100.0, -0.25),
        (30.0, 10.0, 20.0, 2.0),
        (1.0, 3.0, -1.0, 0.5),
        (30.0, None, 20.0, None),
        (30.0, 10.0, None, None),
    ],
)
def test_a_score_is_the_share_of_the_way_from_random_to_the_target(
    score: float, random: float | None, target: float | None, share: float | None
) -> None:
    found = Task("task", CART, {}, target, random).normalized(score)
    assert found == (None if share is None else pytest.approx(share))


def test_tasks_are_chosen_by_name() -> None:
    tasks = tasks_in(suite(CART, {"env_id": ACRO, "name": "swing"}))
    assert choose_task(tasks, "swing") is tasks[1]
    assert choose_task(tasks[:1], None) is tasks[0]
    with pytest.raises(AxiomError, match=f"knows several tasks; name one of {CART}, swing"):
        choose_task(tasks, None)
    with pytest.raises(ConfigError, match=r"unknown task `swong`; did you mean `swing`\?"):
        choose_task(tasks, "swong")
    with pytest.raises(ConfigError, match=f"unknown task `xxxxxxxx`; there are {CART}, swing"):
        choose_task(tasks, "xxxxxxxx")


# -- what is refused ---------------------------------------------------------------------------------------

TARGET = {"env_id": CART, "target_return": 450}
SCALING = {"algo_kwargs": {"parameter_scaling": True}, "eval_interval": 500}
EVALUATIONS = (
    "parameter scaling needs evaluations to find out whether a task is solved; set eval_interval and eval_episodes, or "
    "algo_kwargs.parameter_scaling to false"
)
# Faults that the file alone shows are told with its name, those of an environment once it is made.
IN_FILE: dict[str, tuple[dict[str, Any], str]] = {
    "twice": (
        suite(CART, ACRO, CART),
        f"env_kwargs.tasks.2: the task `{CART}` is listed twice; remove one of them",
    ),
    "twice by shared wrappers": (
        suite(CART, {"env_id": CART, "max_episode_steps": 9}, env_kwargs={"max_episode_steps": 9}),
        f"env_kwargs.tasks.1: the task `{CART}` is listed twice; remove one of them",
    ),
    "another name": (
        suite(CART, {"env_id": CART, "name": "pole"}),
        f"env_kwargs.tasks.1: is the task `{CART}` again under another name; remove one of them",
    ),
    "name taken": (
        suite(CART, {"env_id": ACRO, "name": CART}),
        f"env_kwargs.tasks.1.name: `{CART}` is taken by another task; give each its own name",
    ),
    "target missing": (
        suite(TARGET, ACRO, **SCALING),
        f"env_kwargs.tasks.1.target_return: parameter scaling needs to know when {ACRO} is solved; state its "
        "target_return in a list of tasks, or set algo_kwargs.parameter_scaling to false",
    ),
    "target of one task": (
        {**suite(**SCALING), "env_id": CART, "env_kwargs": {}},
        f"env_kwargs.tasks: parameter scaling needs to know when {CART} is solved; state its target_return in a list "
        "of tasks, or set algo_kwargs.parameter_scaling to false",
    ),
    "no interval": (suite(TARGET), f"eval_interval: {EVALUATIONS}"),
    "no episodes": (suite(TARGET, eval_interval=500, eval_episodes=0), f"eval_episodes: {EVALUATIONS}"),
    "one task only": (
        suite(CART, ACRO, algo="ppo"),
        "env_kwargs.tasks: ppo learns one task; name it by env_id, or choose an algorithm for several (scalezero)",
    ),
    "empty": (suite(), "env_kwargs.tasks: must be a list of at least one task, got []"),
    "no list": (
        suite(env_kwargs={"tasks": {"first": CART}}),
        f"env_kwargs.tasks: must be a list of at least one task, got {{'first': '{CART}'}}",
    ),
    "a name": (
        suite(env_kwargs={"tasks": [TARGET, ACRO]}, eval_interval=500),
        f"env_kwargs.tasks.1: must be a mapping with the key env_id, got '{ACRO}'",
    ),
    "no environment": (suite({"name": "x"}), "env_kwargs.tasks.0.env_id: is required; name the task's environment"),
    "nested": (
        suite(CART, {"env_id": ACRO, "tasks": [TARGET]}),
        "env_kwargs.tasks.1.tasks: tasks do not nest; list them all on one level",
    ),
    "no wrapper": (
        suite(CART, ACRO, env_kwargs={"render_mode": "human"}),
        "env_kwargs.render_mode: is no wrapper that all tasks could share; write it into a task",
    ),
    "bad wrapper": (
        suite(CART, {"env_id": ACRO, "frame_stack": 0}),
        "env_kwargs.tasks.1.frame_stack: must be an integer >= 1, got 0",
    ),
    "bad shared wrapper": (
        suite(CART, {"env_id": ACRO, "max_episode_steps": 9}, env_kwargs={"frame_stack": 0}),
        "env_kwargs.frame_stack: must be an integer >= 1, got 0",
    ),
    "bad shared block": (
        suite({"env_id": CART, "training": {"reward_sign": True}}, ACRO, env_kwargs={"training": {"frame_stack": 0}}),
        "env_kwargs.training.frame_stack: must be an integer >= 1, got 0",
    ),
    "bad own block": (
        suite(CART, {"env_id": ACRO, "training": {"frame_stack": 0}}, env_kwargs={"training": {"frame_stack": 2}}),
        "env_kwargs.tasks.1.training.frame_stack: must be an integer >= 1, got 0",
    ),
    "target is text": (
        suite({"env_id": CART, "target_return": "high"}),
        "env_kwargs.tasks.0.target_return: must be a number or null, got 'high'",
    ),
    "target is random": (
        suite({**TARGET, "random_return": 450}, eval_interval=500),
        "env_kwargs.tasks.0.random_return: 450 is not below target_return, 450; set it to what random actions earn",
    ),
    "two lines": (
        suite({"env_id": CART, "name": "a\nb"}),
        "env_kwargs.tasks.0.name: must be printable text, got 'a\\nb'",
    ),
    "width": (
        suite(CART, ACRO, algo_kwargs={"width": 20}),
        "algo_kwargs.width: 20 is not a multiple of 8, the size of a latent's group, and of the 4 heads; choose one "
        "that is",
    ),
    "heads": (
        suite(CART, ACRO, algo_kwargs={"heads": 5}),
        "algo_kwargs.width: 64 is not a multiple of 8, the size of a latent's group, and of the 5 heads; choose one "
        "that is",
    ),
    "top_k": (
        suite(CART, ACRO, algo_kwargs={"top_k": 5}),
        "algo_kwargs.top_k: 5 of 4 experts cannot be chosen; lower top_k",
    ),
    "context": (
        suite(CART, ACRO, algo_kwargs={"context_steps": 5}),
        "algo_kwargs.context_steps: 5 steps do not hold the 6 states of an unroll; raise it to 6 or lower unroll_steps",
    ),
    "batch": (
        suite(CART, ACRO, algo_kwargs={"batch_size": 1}),
        "algo_kwargs.batch_size: leaves nothing for some of 2 tasks; raise it",
    ),
    "priorities": (
        suite(CART, ACRO, algo_kwargs={"per_alpha": 1.5}),
        "algo_kwargs.per_alpha: must be a number >= 0 and <= 1, got 1.5",
    ),
}
IN_ENVIRONMENT: dict[str, tuple[dict[str, Any], str]] = {
    "unknown": (
        suite(CART, "Acrobat-v1"),
        f"env_kwargs.tasks.1: env_id: unknown environment `Acrobat-v1`; did you mean `{ACRO}`",
    ),
    "version": (suite("CartPole-v7"), f"env_kwargs.tasks.0: env_id: `CartPole-v7` has no such version; use `{CART}`"),
    "continuous": (
        suite(CART, ACRO, PENDULUM),
        f"env_kwargs.tasks.2: scalezero does not support the Box actions of {PENDULUM}; it takes Discrete: choose "
        "another environment, or an algorithm that fits (",
    ),
    "argument": (
        suite(CART, {"env_id": ACRO, "speed": 3}),
        f"env_kwargs.tasks.1: env_kwargs.speed: `{ACRO}` takes no such argument",
    ),
    "alone": ({**suite(), "env_id": PENDULUM, "env_kwargs": {}}, "scalezero does not support the Box actions of"),
}


def refusal(raw: dict[str, Any], directory: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> str:
    """Return the one line that the command says before it ends with status 2 and nothing written."""

    def no_training(*_: Any, **__: Any) -> None:
        raise AssertionError("the mistake was not noticed")

    monkeypatch.setattr("rl_training.runtime.setup.task_setup.make_vector_env", no_training)
    monkeypatch.chdir(directory)
    Path("suite.yaml").write_text(yaml.safe_dump(raw), encoding="utf-8")
    assert main(["train", "--config", "suite.yaml"]) == 2
    assert [path.name for path in directory.iterdir()] == ["suite.yaml"]
    said = capsys.readouterr()
    assert said.out == ""
    (line,) = said.err.splitlines()
    return str(line)


@pytest.mark.parametrize("case", IN_FILE)
def test_a_mistake_in_the_file_is_one_sentence_with_its_place_and_repair(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    raw, sentence = IN_FILE[case]
    assert refusal(raw, tmp_path, monkeypatch, capsys) == f"axiomrl: error: suite.yaml: {sentence}"


@pytest.mark.parametrize("case", IN_ENVIRONMENT)
def test_an_environment_that_does_not_fit_is_told_by_its_place_in_the_list(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    raw, sentence = IN_ENVIRONMENT[case]
    assert refusal(raw, tmp_path, monkeypatch, capsys).startswith(f"axiomrl: error: {sentence}")


def test_every_mistake_of_a_list_is_told_at_once() -> None:
    entries = [CART, {"env_id": CART, "frame_stack": 0}, {"name": "x", "tasks": []}, {"env_id": ACRO}, {"env_id": ACRO}]
    with pytest.raises(ConfigError) as refused:
        validate_config(suite(env_kwargs={"tasks": entries, "color": "red"}))
    places = [problem.split(": ")[0].removeprefix("env_kwargs.") for problem in refused.value.problems]
    assert places == ["color", "tasks.0", "tasks.1.frame_stack", "tasks.2.env_id", "tasks.2.tasks", "tasks.4"]


@pytest.mark.parametrize(
    "raw",
    [
        suite(TARGET, ACRO),  # one task without a target: null means no scaling
        suite(TARGET, algo_kwargs={"parameter_scaling": False}),
        suite(
            TARGET,
            {"env_id": CART, "name": "short", "max_episode_steps": 9},
            algo_kwargs={"batch_size": 2},
            eval_interval=500,
        ),
        suite(CART, algo_kwargs={"experts": 1, "top_k": 2}),
        suite(CART, algo_kwargs={"width": 40, "heads": 5, "unroll_steps": 4, "context_steps": 5}),
    ],
)
def test_what_only_looks_like_a_mistake_is_taken(raw: dict[str, Any]) -> None:
    validate_config(raw)


# -- one task of a trained suite ----------------------------------------------------------------------------


def short(algo: str, output_dir: Path, **changes: Any) -> TrainConfig:
    settings = {"total_timesteps": 32, "eval_interval": None, "eval_episodes": 1, "torch_threads": 1}
    return tiny_config(output_dir, algo=algo, **{**settings, **changes})


@pytest.fixture(scope="module")
def suite_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Train a few steps of two tasks."""
    tasks = [{"env_id": CART, "name": "pole"}, {"env_id": "toy_envs:Toy/Discrete-v0", "name": "echo"}]
    changes = {"env_id": "two", "env_kwargs": {"tasks": tasks, "max_episode_steps": 12}, "algo_kwargs": SMALL}
    return train(short("scalezero", tmp_path_factory.mktemp("suite"), **changes)).run_dir


def evaluated(run_dir: Path, *arguments: str, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    capsys.readouterr()
    assert main(["eval", "--checkpoint", str(run_dir), "--num-episodes", "2", "--json", *arguments]) == 0
    return dict(json.loads(capsys.readouterr().out)["metrics"])


def test_one_task_of_a_suite_is_evaluated_alone_as_it_is_among_the_others(
    suite_run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    together = evaluated(suite_run, capsys=capsys)
    assert together["eval_episodes"] == 4
    for name in ("pole", "echo"):
        alone = evaluated(suite_run, "--task", name, capsys=capsys)
        assert alone["eval_episodes"] == 2
        key = f"eval_return_mean/{name}"
        assert alone[key] == alone["eval_return_mean"] == together[key]
        (only,) = (key for key in alone if key.startswith("eval_return_mean/"))
        assert only.endswith(name)
    assert together["eval_length_mean/echo"] == 8


def test_a_task_that_is_not_in_the_suite_is_refused_by_the_names_of_those_that_are(
    suite_run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["eval", "--checkpoint", str(suite_run), "--task", "Breakout"]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err == "axiomrl: error: unknown task `Breakout`; there are pole, echo\n"


@pytest.mark.parametrize("algo", ["ppo", "scalezero"])
def test_the_task_of_an_ordinary_run_is_called_by_its_environment(
    algo: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kwargs = {"scalezero": SMALL, "ppo": {}}[algo]
    run_dir = train(short(algo, tmp_path, algo_kwargs=kwargs, env_kwargs={"max_episode_steps": 12})).run_dir
    named, plain = (evaluated(run_dir, *more, capsys=capsys) for more in (["--task", CART], []))
    assert named == plain
    assert named["eval_episodes"] == 2
    assert not any("/" in key for key in named)
    assert main(["eval", "--checkpoint", str(run_dir), "--task", "Breakout"]) == 2
    assert capsys.readouterr().err == f"axiomrl: error: unknown task `Breakout`; there are {CART}\n"
