"""Mistakes on the command line: one sentence with the repair, and no run directory left behind."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from cli_parts import CARTPOLE, COMPLETE, Command, assert_refused
from harness import only_run
from rl_training.experiment.runs import read_metadata
from rl_training.install_hint import install_hint

WRONG_ARGUMENTS = {
    "unknown algorithm": (["--algo", "tqcc", "--env", "CartPole-v1"], "did you mean `tqc`?"),
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


@pytest.mark.parametrize("mistake", WRONG_ARGUMENTS)
def test_wrong_arguments_are_refused(axiomrl: Command, mistake: str) -> None:
    arguments, repair = WRONG_ARGUMENTS[mistake]
    assert_refused(axiomrl("train", *arguments), repair)


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
    assert_refused(answer, install_hint("box2d"))


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
