"""Files of search spaces: names and kinds that are read, and the sentence for every mistake."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from documents.docs_pages import ROOT, blocks, marked_table, read_page
from rl_training.errors import ConfigError
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.configuration.config_files import load_config
from rl_training.experiment.tuning.adaptation import DRAWS
from rl_training.experiment.tuning.domains import Choice, Range
from rl_training.experiment.tuning.entries import KINDS
from rl_training.experiment.tuning.searched_keys import NOT_SEARCHABLE, SEARCHABLE
from rl_training.experiment.tuning.space import SearchSpace
from rl_training.experiment.tuning.space_files import read_space, space_from_data

PAGE = ROOT / "docs" / "tuning.md"
EVERY_KIND = """\
learning_rate: {log: [1e-5, 1e-2]}
gamma: {one_minus_log: [0.9, 0.9999]}
ent_coef: {uniform: [0, 0.02]}
clip_coef: {uniform: [0.1, 0.4], step: 0.1}
update_epochs: {int: [1, 20]}
num_steps: {log_int: [64, 1e3]}
minibatch_size: {int: [16, 64], step: 16}
max_grad_norm: {choice: [0.5, 1e0, null]}
hidden_sizes: {choice: [[64, 64], [256, 256]]}
learning_rate_schedule: {choice: [constant, {type: linear, end: 1e-5}]}
use_sde: {choice: [true, false]}
sde_sample_freq: {choice: [-1, 8, 64], when: {use_sde: true}}
log_std_init: {uniform: [-3, 0], when: {algo_kwargs.use_sde: [true, false], hidden_sizes: [64, 64]}}
algo_kwargs.vf_coef: {choice: [0.5]}
env_kwargs.normalize_observation: {choice: [true, false]}
env_kwargs.training.g: {uniform: [9.0, 11.0]}
num_envs: {choice: [8, 16]}
"""


@pytest.fixture
def start() -> TrainConfig:
    return load_config(base={"algo": "ppo", "env_id": "Pendulum-v1", "num_envs": 8})


def read(folder: Path, text: str, config: TrainConfig) -> SearchSpace:
    path = folder / "space.yaml"
    path.write_text(text, encoding="utf-8")
    return read_space(path, config)


def mistakes(folder: Path, text: str, config: TrainConfig) -> list[str]:
    """Return the problems of a space, without the directory of its file."""
    with pytest.raises(ConfigError) as caught:
        read(folder, text, config)
    assert caught.value.exit_status == 2
    return [problem.replace(f"{folder}/", "") for problem in caught.value.problems]


def test_every_kind_is_read_with_the_type_of_its_parameter(tmp_path: Path, start: TrainConfig) -> None:
    space = read(tmp_path, EVERY_KIND, start)
    found = {parameter.key: parameter.domain for parameter in space.parameters}
    assert found == {
        "algo_kwargs.learning_rate": Range(1e-5, 1e-2, "log"),
        "algo_kwargs.gamma": Range(0.9, 0.9999, "one_minus_log"),
        "algo_kwargs.ent_coef": Range(0.0, 0.02),
        "algo_kwargs.clip_coef": Range(0.1, 0.4, step=0.1),
        "algo_kwargs.update_epochs": Range(1, 20, integer=True),
        "algo_kwargs.num_steps": Range(64, 1000, "log", integer=True),
        "algo_kwargs.minibatch_size": Range(16, 64, integer=True, step=16),
        "algo_kwargs.max_grad_norm": Choice((0.5, 1.0, None)),
        "algo_kwargs.hidden_sizes": Choice(([64, 64], [256, 256])),
        "algo_kwargs.learning_rate_schedule": Choice(("constant", {"type": "linear", "end": 1e-5})),
        "algo_kwargs.use_sde": Choice((True, False)),
        "algo_kwargs.sde_sample_freq": Choice((-1, 8, 64)),
        "algo_kwargs.log_std_init": Range(-3.0, 0.0),
        "algo_kwargs.vf_coef": Choice((0.5,)),
        "env_kwargs.normalize_observation": Choice((True, False)),
        "env_kwargs.training.g": Range(9.0, 11.0),
        "num_envs": Choice((8, 16)),
    }
    conditions = {parameter.key: parameter.when for parameter in space.parameters if parameter.when}
    assert conditions == {
        "algo_kwargs.sde_sample_freq": {"algo_kwargs.use_sde": (True,)},
        "algo_kwargs.log_std_init": {
            "algo_kwargs.use_sde": (True, False),
            "algo_kwargs.hidden_sizes": ([64, 64],),
        },
    }
    assert space_from_data(space.to_data(), start, "study.yaml") == space


def test_numbers_are_read_as_in_a_configuration(tmp_path: Path, start: TrainConfig) -> None:
    space = read(tmp_path, "learning_rate: {log: ['1e-5', 1E-2]}\nnum_steps: {choice: [1e3, 64.0]}\n", start)
    assert space.parameters[0].domain == Range(1e-5, 1e-2, "log")
    assert space.parameters[1].domain.to_data() == {"choice": [1000, 64]}


@pytest.mark.parametrize(
    ("entry", "sentence"),
    [
        # names
        ("learning_rat: {log: [1, 2]}", "learning_rat: unknown key; did you mean `learning_rate`"),
        ("lr: {log: [1, 2]}", "lr: unknown key; it is called `learning_rate` here"),
        ("algo_kwargs.lr: {log: [1, 2]}", "algo_kwargs.lr: unknown key; it is called `learning_rate` here"),
        ("n_envs: {choice: [1]}", "n_envs: unknown key; it is called `num_envs` here"),
        ("tau: {log: [0.1, 1]}", "tau: unknown key; it is a setting of"),
        ("frame_stack: {choice: [4]}", "frame_stack: unknown key; it describes the environment: write `env_kwargs.fr"),
        ("algo_kwargs: {choice: [4]}", "algo_kwargs: is a whole block; search its keys one by one, such as `algo_kwa"),
        ("env_kwargs.training: {choice: [4]}", "env_kwargs.training: is a whole block"),
        ("gamma.end: {uniform: [0, 1]}", "gamma.end: `gamma` has no parts; search it as a whole"),
        ("learning_rate_schedule.end: {uniform: [0, 1]}", "learning_rate_schedule.end: the configuration has no lear"),
        ("encoder_kwargs: {choice: [{size: 3}]}", "encoder_kwargs: is a mapping; search its keys one by one"),
        ("env_kwargs.normalise_observation: {choice: [true]}", "unknown key; did you mean `normalize_observation` or"),
        # what is compared
        ("seed: {choice: [1, 2]}", "seed: cannot be searched: all trials are trained with the same seeds"),
        ("n_timesteps: {choice: [100]}", "n_timesteps: cannot be searched: a longer trial would win by its length"),
        ("benchmark.seeds: {choice: [[1]]}", "benchmark.seeds: cannot be searched: the study chooses"),
        ("env_kwargs.max_episode_steps: {int: [1, 9]}", "search it in training only, as `env_kwargs.training.max_epi"),
        ("env_kwargs.g: {uniform: [1, 9]}", "search it in training only, as `env_kwargs.training.g`"),
        ("env_kwargs.evaluation.g: {uniform: [1, 9]}", "cannot be searched: it decides how trials are scored"),
        ("env_kwargs.num_workers: {choice: [1, 2]}", "cannot be searched: it changes how fast a trial is trained"),
        ("env_kwargs.tasks.0.env_id: {choice: [a]}", "cannot be searched: it decides what is learned"),
        # kinds
        ("gamma: {loguniform: [0.1, 1]}", "gamma.loguniform: unknown kind of search; did you mean `uniform`"),
        ("gamma: {log: [0.1, 1], choice: [1]}", "gamma: has several kinds of search, log, choice; keep one"),
        ("gamma: {when: {use_sde: true}}", "gamma: has no kind of search; write one of choice, uniform, log,"),
        ("gamma: [0.9, 0.99]", "gamma: must say how to search; write {choice: [0.9, 0.99]}"),
        ("gamma: 0.9", "gamma: must be a mapping such as {log: [1e-5, 1e-2]} or {choice: [32, 64]}, got 0.9; set"),
        ("gamma:", "gamma: must be a mapping such as"),
        # ranges
        ("learning_rate: {log: [1e-2, 1e-5]}", "learning_rate.log: [0.01, 1e-05] is empty"),
        ("learning_rate: {log: [0, 1]}", "learning_rate.log: must be a number > 0, got 0"),
        ("ent_coef: {log: [0, 1]}", "ent_coef.log: [0.0, 1.0] has no logarithm at 0.0; begin above 0"),
        ("gamma: {one_minus_log: [0.9, 1]}", "gamma.one_minus_log: [0.9, 1.0] must lie between 0 and 1"),
        ("gamma: {uniform: [0.9, 1.1]}", "gamma.uniform: must be a number >= 0 and <= 1, got 1.1"),
        ("gamma: {uniform: [0.9]}", "gamma.uniform: must be two numbers, [lowest, highest], got [0.9]"),
        ("gamma: {uniform: 0.9}", "gamma.uniform: must be two numbers, [lowest, highest], got 0.9"),
        ("gamma: {uniform: [0, 1], step: 0.3}", "gamma.uniform: steps of 0.3 from 0.0 do not reach 1.0"),
        ("gamma: {uniform: [0, 1], step: big}", "gamma.uniform: must be finite numbers, got 'big'"),
        ("num_steps: {log: [8, 64]}", "num_steps.log: takes integers only; write {log_int: [8, 64]}"),
        ("num_steps: {uniform: [8, 64]}", "num_steps.uniform: takes integers only; write {int: [8, 64]}"),
        ("num_steps: {int: [8, 64.5]}", "num_steps.int: must be an integer >= 1, got 64.5"),
        ("ent_coef: {int: [0, 1.5]}", "ent_coef.int: must be integers, got 1.5"),
        ("use_sde: {int: [0, 1]}", "use_sde.int: takes no numbers; list values by choice, each true or false"),
        # choices
        ("num_steps: {choice: []}", "num_steps.choice: is empty; list the values to choose from"),
        ("num_steps: {choice: 8}", "num_steps.choice: must be a list of values, got 8"),
        ("num_steps: {choice: [64, 64.0]}", "num_steps.choice: 64 is listed twice; remove one of them"),
        ("num_steps: {choice: [64, 0]}", "num_steps.choice: must be an integer >= 1, got 0"),
        ("num_steps: {choice: [64, '8']}", "must be an integer >= 1, got '8'; write the number without quotes"),
        ("activation: {choice: [rely]}", "activation.choice: must be one of tanh, relu, elu, gelu, silu, got 'rely'"),
        ("learning_rate_schedule: {choice: [{type: linear, ends: 1}]}", "ends: unknown key; did you mean `end`"),
        ("num_steps: {choice: [64], step: 2}", "num_steps.step: goes with uniform and int only; leave it out"),
        ("env_kwargs.training.g: {choice: [.inf]}", "env_kwargs.training.g.choice: must be finite"),
        # conditions
        ("gamma: {choice: [1], when: {use_sde: true}}", "gamma.when: `use_sde` is no parameter of this space"),
        ("gamma: {choice: [1], when: use_sde}", "gamma.when: must be a mapping such as {use_sde: true}"),
        ("gamma: {choice: [1], when: {gamma: 1}}", "gamma.when: the conditions gamma -> gamma form a circle"),
        (
            "use_sde: {choice: [true]}\ngamma: {choice: [1], when: {use_sde: 3}}",
            "gamma.when: `use_sde` is never 3 in this space; it is one of true",
        ),
        (
            "gamma: {choice: [1]}\nalgo_kwargs.gamma: {choice: [0]}",
            "gamma: `algo_kwargs.gamma` is in the space already; remove one of them",
        ),
        # combinations
        (
            "num_steps: {choice: [4, 64]}",
            "minibatch_size: some combinations are not valid: 64 is larger than the rollout of 32 transitions",
        ),
    ],
)
def test_a_mistake_names_its_place_and_the_repair(
    entry: str, sentence: str, tmp_path: Path, start: TrainConfig
) -> None:
    problems = mistakes(tmp_path, entry, start)
    assert problems[0].startswith("space.yaml: ")
    assert sentence in problems[0]
    assert len(problems) == 1


def test_all_mistakes_are_reported_together(tmp_path: Path, start: TrainConfig) -> None:
    text = """\
seed: {choice: [1]}
learning_rat: {log: [1, 2]}
gamma: {uniform: [0.9, 1.1]}
use_sde: {choice: [maybe]}
sde_sample_freq: {choice: [8], when: {use_sde: true}}
num_steps: {choice: [0, 64, nothing]}
"""
    problems = mistakes(tmp_path, text, start)
    places = [problem.split(": ")[1] for problem in problems]
    assert places == ["seed", "learning_rat", "gamma.uniform", "use_sde.choice", "num_steps.choice", "num_steps.choice"]


def test_a_combination_is_judged_as_a_whole(tmp_path: Path, start: TrainConfig) -> None:
    # 64, the configuration's own minibatch, would not fit into a rollout of 4 x 8 transitions; it is never used.
    space = read(tmp_path, "num_steps: {choice: [4, 8]}\nminibatch_size: {choice: [16, 32]}\n", start)
    assert len(space.grid()) == 4


def test_a_part_of_a_schedule_is_searched_if_the_configuration_has_one(tmp_path: Path, start: TrainConfig) -> None:
    scheduled = load_config(base={"algo": "dqn", "env_id": "CartPole-v1"})
    space = read(tmp_path, "epsilon_schedule.end: {uniform: [0.01, 0.2]}\n", scheduled)
    assert space.keys == ("algo_kwargs.epsilon_schedule.end",)
    wrong = mistakes(tmp_path, "epsilon_schedule.ende: {uniform: [0.01, 0.2]}\n", scheduled)
    assert "epsilon_schedule.ende: unknown key; did you mean `end`" in wrong[0]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "is empty; name a parameter to search, such as `learning_rate: {log: [1e-5, 1e-2]}`"),
        ("# nothing\n", "is empty"),
        ("{}", "is empty"),
        ("[1, 2]", "must be a mapping `parameter: {kind: values}`, got list"),
        ("text", "must be a mapping"),
        ("gamma: {log: [1, 2", "line 1: not valid YAML"),
        ("gamma: {choice: [1]}\ngamma: {choice: [2]}\n", "line 2: `gamma` was already set in line 1"),
        ("gamma: !!python/name:os.system {}", "the tag `!!python/name:os.system` is refused"),
    ],
)
def test_a_file_that_holds_no_space_says_so(text: str, sentence: str, tmp_path: Path, start: TrainConfig) -> None:
    (problem,) = mistakes(tmp_path, text, start)
    assert problem.startswith("space.yaml")
    assert sentence in problem


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path, start: TrainConfig) -> None:
    def failure(name: str) -> str:
        with pytest.raises(ConfigError) as caught:
            read_space(tmp_path / name, start)
        return str(caught.value)

    (tmp_path / "space.yaml").write_bytes(b"gamma: \xff")
    assert "space.yml: no such file; did you mean `space.yaml`?" in failure("space.yml")
    assert "is a directory; name a YAML file" in failure("")
    assert "byte 7 is not UTF-8 text" in failure("space.yaml")


def test_every_key_of_a_configuration_is_searchable_or_has_a_reason() -> None:
    keys = {field.name for field in dataclasses.fields(TrainConfig)}
    assert {*SEARCHABLE, *NOT_SEARCHABLE, "algo_kwargs", "env_kwargs"} == keys
    assert not set(SEARCHABLE) & NOT_SEARCHABLE.keys()


@pytest.mark.parametrize("key", sorted(NOT_SEARCHABLE))
def test_a_key_that_changes_what_is_compared_is_refused(key: str, tmp_path: Path, start: TrainConfig) -> None:
    (problem,) = mistakes(tmp_path, f"{key}: {{choice: [1, 2]}}\n", start)
    assert problem.startswith(f"space.yaml: {key}: cannot be searched: ")
    assert problem.endswith("; leave it out of the space")


def test_an_offline_algorithm_has_no_environments_to_search(tmp_path: Path) -> None:
    offline: dict[str, Any] = {"algo": "bc", "dataset": "cartpole/expert-v0"}
    (problem,) = mistakes(tmp_path, "num_envs: {choice: [1, 8]}\n", load_config(base=offline))
    assert "num_envs: some combinations are not valid: bc steps no environment in training" in problem


# -- docs/tuning.md


def shown(language: str, beginning: str = "") -> str:
    """Return the first block of a language on the page that begins so."""
    found = (block.code for block in blocks(read_page(PAGE)) if block.language == language)
    return next(code for code in found if code.startswith(beginning))


def test_the_example_on_the_page_is_a_space(tmp_path: Path, start: TrainConfig) -> None:
    example = shown("yaml")
    assert len(read(tmp_path, example, start).parameters) == len(example.splitlines())


def test_the_mistakes_on_the_page_are_reported_like_that(tmp_path: Path, start: TrainConfig) -> None:
    text = "lr: {log: [1, 2]}\nnum_steps: {choice: [0]}\nseed: {choice: [1]}\n"
    pair = "num_steps: {choice: [16]}\nminibatch_size: {choice: [256]}\n"
    reported = [*mistakes(tmp_path, text, start), *mistakes(tmp_path, pair, start)]
    assert sorted(reported) == sorted(shown("text", "space.yaml: ").splitlines())


def test_the_page_lists_every_kind_and_the_size_of_the_sample() -> None:
    assert [row[0].split(":")[0].strip("`") for row in marked_table(PAGE, "kinds")] == list(KINDS)
    assert f"a sample of {DRAWS} combinations" in " ".join(read_page(PAGE).split())
