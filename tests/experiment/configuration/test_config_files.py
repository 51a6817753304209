"""Files, overlays, presets, flags and `--set`: what lies over what, and where a mistake was written."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

import rl_training
from rl_training.errors import ConfigError
from rl_training.experiment.config import config_to_dict
from rl_training.experiment.configuration.config_files import load_config, parse_set
from rl_training.experiment.configuration.safe_yaml import parse_yaml

FULL = """\
algo: ppo
env_id: CartPole-v1
seed: 1
total_timesteps: 1000
output_dir: runs
algo_kwargs:
  gamma: 0.9
  num_steps: 128
tags: [a, b]
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "full.yaml").write_text(FULL)
    return tmp_path


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def failure(*args: Any, **kwargs: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        load_config(*args, **kwargs)
    return str(caught.value)


def test_a_full_file_loads_as_text_or_path(folder: Path) -> None:
    config = load_config(folder / "full.yaml")
    assert config == load_config(str(folder / "full.yaml"))
    assert (config.seed, config.tags, config.algo_kwargs["gamma"]) == (1, ("a", "b"), 0.9)


def test_an_overlay_merges_mappings_and_replaces_everything_else(folder: Path) -> None:
    path = write(folder / "over.yaml", "config: full.yaml\nseed: 7\ntags: [c]\nalgo_kwargs: {gamma: 0.5}\n")
    config = load_config(path)
    assert (config.seed, config.tags) == (7, ("c",))
    assert (config.algo_kwargs["gamma"], config.algo_kwargs["num_steps"]) == (0.5, 128)


def test_links_are_relative_to_the_linking_file_and_may_go_on(folder: Path) -> None:
    write(folder / "sub" / "middle.yaml", "config: ../full.yaml\nseed: 2\ntotal_timesteps: 5\n")
    path = write(folder / "top.yaml", "config: sub/middle.yaml\nseed: 3\n")
    config = load_config(path)
    assert (config.seed, config.total_timesteps, config.env_id) == (3, 5, "CartPole-v1")


def test_a_file_may_overlay_a_packaged_preset(folder: Path) -> None:
    path = write(folder / "over.yaml", "config: preset:ppo-pendulum\nseed: 9\n")
    config = load_config(path)
    assert (config.env_id, config.seed) == ("Pendulum-v1", 9)


def test_a_circle_of_links_names_the_chain(folder: Path) -> None:
    first = write(folder / "a.yaml", "config: b.yaml\n")
    write(folder / "b.yaml", "config: ./a.yaml\n")
    message = failure(first)
    assert "form a circle" in message
    assert message.count("a.yaml") == 2
    assert "b.yaml -> " in message


def test_a_file_that_links_itself_is_a_circle(folder: Path) -> None:
    assert "form a circle" in failure(write(folder / "a.yaml", "config: a.yaml\n"))


def test_a_broken_link_names_the_linking_file_and_a_near_name(folder: Path) -> None:
    message = failure(write(folder / "a.yaml", "config: fulll.yaml\n"))
    assert "a.yaml: config: " in message
    assert "no such file; did you mean `full.yaml`" in message


@pytest.mark.parametrize("link", ["", "[a, b]", "3", "preset:nothing-here"])
def test_a_link_that_is_no_path_is_refused(folder: Path, link: str) -> None:
    message = failure(write(folder / "a.yaml", f"config: {link}\n"))
    assert "must be the path of another file" in message or "unknown preset" in message


def test_flags_lie_over_the_file_and_set_over_both(folder: Path) -> None:
    config = load_config(
        folder / "full.yaml",
        overrides={"seed": 5, "total_timesteps": 77, "num_envs": None, "benchmark.seeds": [1, 2]},
        set_values=["seed=6", "algo_kwargs.learning_rate=1e-3", "env_kwargs.training.reward_sign=true"],
    )
    assert (config.seed, config.total_timesteps, config.num_envs) == (6, 77, 1)
    assert config.algo_kwargs["learning_rate"] == 0.001
    assert config.env_kwargs == {"training": {"reward_sign": True}}
    assert config.benchmark == {"seeds": [1, 2]}


def test_algorithm_and_environment_alone_get_defaults() -> None:
    config = load_config(base={"algo": "ppo", "env_id": "CartPole-v1"})
    assert (config.seed, config.total_timesteps, str(config.output_dir)) == (0, 100_000, "runs")


def test_an_algorithm_without_an_environment_says_what_is_missing() -> None:
    assert failure(base={"algo": "ppo"}).startswith("--env: env_id: is required")


def test_exactly_one_origin_must_be_given(folder: Path) -> None:
    assert "choose one" in failure(folder / "full.yaml", preset="ppo-cartpole")
    assert "give --config" in failure()


def test_every_problem_names_where_it_was_written(folder: Path) -> None:
    write(folder / "base.yaml", FULL + "device: gpu\n")
    path = write(folder / "top.yaml", "config: base.yaml\nalgo_kwargs: {gama: 1, gamma: 2}\n")
    with pytest.raises(ConfigError) as caught:
        load_config(path, overrides={"env_id": 3, "num_envs": 0}, set_values=["algo_kwargs.num_steps=x"])
    written = {line.split(": ")[1]: line.split(": ")[0] for line in caught.value.problems}
    assert written == {
        "device": str(folder / "base.yaml"),
        "algo_kwargs.gama": str(folder / "top.yaml"),
        "algo_kwargs.gamma": str(folder / "top.yaml"),
        "algo_kwargs.num_steps": "--set",
        "env_id": "--env",
        "num_envs": "--num-envs",
    }


def test_a_missing_key_is_blamed_on_the_file(folder: Path) -> None:
    path = write(folder / "short.yaml", "algo: ppo\nenv_id: CartPole-v1\n")
    problems = failure(path).splitlines()
    assert [problem.split(": ")[:2] for problem in problems] == [
        [str(path), "seed"],
        [str(path), "total_timesteps"],
        [str(path), "output_dir"],
    ]


def test_a_problem_in_a_preset_names_the_preset() -> None:
    message = failure(preset="ppo-cartpole", set_values=["algo_kwargs.num_steps=1"])
    assert message.startswith("preset ppo-cartpole: algo_kwargs.minibatch_size: 256 is larger")


@pytest.mark.parametrize(
    ("text", "path", "value"),
    [
        ("a.b=1e-3", ("a", "b"), 0.001),
        ("a=1E5", ("a",), 100000.0),
        ("a=-2e+3", ("a",), -2000.0),
        ("a=[1, 2]", ("a",), [1, 2]),
        ("a={type: linear, end: 1e-5}", ("a",), {"type": "linear", "end": 1e-5}),
        ("a=x=y", ("a",), "x=y"),
        ("a=", ("a",), None),
        ("a='8'", ("a",), "8"),
        (" a . b = true", ("a", "b"), True),
    ],
)
def test_set_reads_a_dotted_key_and_a_yaml_value(text: str, path: Any, value: Any) -> None:
    assert parse_set(text) == (path, value)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("seed", "no `=`; write --set seed=VALUE"),
        ("=3", "is incomplete"),
        ("a..b=3", "is incomplete"),
        ("a=[1, 2", "not valid YAML"),
        ("a=!!python/name:os.system", "is refused"),
    ],
)
def test_a_set_that_cannot_be_read_says_how_to_write_it(text: str, words: str) -> None:
    with pytest.raises(ConfigError, match="--set") as caught:
        parse_set(text)
    assert words in str(caught.value)


def test_set_through_a_plain_value_is_reported_not_raised(folder: Path) -> None:
    assert "--set: seed: must be an integer" in failure(folder / "full.yaml", set_values=["seed.x=1"])


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("seed: 1\n  x: [", "line 2: not valid YAML"),
        ("seed: 1\nalgo: ppo\nseed: 2\n", "line 3: `seed` was already set in line 1; remove one"),
        ("algo_kwargs: {gamma: 1, gamma: 2}\n", "`gamma` was already set"),
        ("x: !!python/object/apply:os.system [ls]", "the tag `!!python/object/apply:os.system` is refused"),
        ("- a\n- b\n", "must be a mapping"),
        ("just text\n", "must be a mapping"),
        ("", "is empty"),
        ("? [a, b]\n: c\n", "a key must be text"),
        ("1: x\n", "key 1 must be text"),
        ("day: 2024-13-45\n", "put quotes around text"),
        ("day: 2024-01-15\n", "was read as a date; put quotes around text"),
        ("bag: !!set {a, b}\n", "was read as a set"),
        ("a: \x07\n", "not valid YAML"),
        ("a: &a [*a]\n", "contains itself"),
        ("a: 1\n---\nb: 2\n", "not valid YAML"),
        ("a: " + "[" * 1500 + "]" * 1500, "nested too deeply"),
    ],
)
def test_a_file_that_is_not_plain_yaml_names_file_and_repair(folder: Path, text: str, words: str) -> None:
    message = failure(write(folder / "bad.yaml", text))
    assert message.startswith(str(folder / "bad.yaml"))
    assert words in message


def test_aliases_that_multiply_are_refused_quickly() -> None:
    lines = ["l0: &l0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"l{i}: &l{i} [{', '.join([f'*l{i - 1}'] * 10)}]" for i in range(1, 9)]
    with pytest.raises(ConfigError, match="too large"):
        parse_yaml("\n".join(lines), "bomb.yaml")


def test_anchors_and_merge_keys_of_ordinary_size_work() -> None:
    text = "base: &base {gamma: 0.9, num_steps: 8}\nover: {<<: *base, gamma: 0.5}\n"
    assert parse_yaml(text, "x")["over"] == {"gamma": 0.5, "num_steps": 8}


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_every_float_survives_yaml(number: float) -> None:
    assert parse_yaml(yaml.safe_dump({"x": number}), "x") == {"x": number}
    assert parse_yaml(f"x: {number!r}", "x")["x"] == number


def test_a_missing_file_and_a_directory_are_told_apart(folder: Path) -> None:
    assert "no such file; did you mean `full.yaml`" in failure(folder / "ful.yaml")
    assert "is a directory; name a YAML file" in failure(folder)
    write(folder / "config.yaml", FULL)
    assert f"did you mean `{folder / 'config.yaml'}`" in failure(folder)


def test_bytes_that_are_not_utf8_are_refused_and_a_byte_order_mark_is_not(folder: Path) -> None:
    path = folder / "latin.yaml"
    path.write_bytes(FULL.encode() + "tags: [caf\xe9]\n".encode("latin-1"))
    assert "is not UTF-8 text" in failure(path)
    path.write_bytes(b"\xef\xbb\xbf" + FULL.encode())
    assert load_config(path).seed == 1


def test_the_resolved_config_written_as_yaml_loads_to_the_same_config(folder: Path) -> None:
    config = load_config(preset="ppo-breakout", set_values=["algo_kwargs.ent_coef_schedule={type: step, factor: 0.5}"])
    path = write(folder / "again.yaml", yaml.safe_dump(config_to_dict(config)))
    assert load_config(path) == config


def test_presets_load_from_a_zipped_package(tmp_path: Path) -> None:
    """An installed wheel may have no files on disk; a preset's link must work there too."""
    package = Path(rl_training.__file__).parent
    shutil.copytree(package, tmp_path / "root" / "rl_training", ignore=shutil.ignore_patterns("__pycache__"))
    archive = shutil.make_archive(str(tmp_path / "package"), "zip", tmp_path / "root")
    code = (
        f"import sys; sys.path.insert(0, {archive!r});"
        "from rl_training.experiment.configuration import config_files as files;"
        "assert '.zip' in files.__file__;"
        "location = files._preset_location('ppo-pong');"
        "print(len(files.preset_names()) > 5, [name for name, _ in files._read_chain(location)])"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, env={})
    assert result.stdout.strip() == ("True ['preset base/atari', 'preset base/atari-ppo', 'preset ppo-pong']"), (
        result.stderr
    )


def bomb(merge: str) -> str:
    """Return a few lines in which each mapping merges the one before it fifty times."""
    lines = ["a: &a {" + ", ".join(f"k{number}: 1" for number in range(50)) + "}"]
    lines += [
        f"{b}: &{b} {{<<: {merge.format(','.join([f'*{a}'] * 50))}}}" for a, b in zip("abcdef", "bcdefg", strict=True)
    ]
    return "\n".join(lines)


@pytest.mark.parametrize("quick", [False, True])
@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a: " + "[" * 25_000 + "]" * 25_000, "nested too deeply"),
        ("a: " + "{b: " * 101 + "1" + "}" * 101, "nested too deeply"),
        ("- " * 5_000, "nested too deeply"),
        (bomb("[{}]"), "too large once its aliases"),
        ("a: &a {<<: *a}", "contains itself"),
        ("a: 0x" + "f" * 20_000, "more than 400 characters"),
        ("a: " + ":".join(["1"] * 20_000), "more than 400 characters"),
        ("a: 0x" + "f" * 33, "more than 128 bits"),
        ("a: " + "x" * (1 << 20), "characters; at most"),
        ("a: !!bool maybe", "not valid YAML"),
    ],
)
def test_yaml_that_grows_without_bound_is_refused_in_one_sentence(text: str, words: str, quick: bool) -> None:
    with pytest.raises(ConfigError, match=words) as raised:
        parse_yaml(text, "x.yaml", quick=quick)
    assert len(str(raised.value)) < 200


def test_the_deepest_allowed_yaml_is_read() -> None:
    assert parse_yaml("[" * 100 + "]" * 100, "x") == parse_yaml("[" * 100 + "]" * 100, "x", quick=True) != []


def test_a_device_or_a_pipe_is_no_configuration(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.yaml")
    for path in (Path("/dev/zero"), tmp_path / "pipe.yaml"):
        assert failure(path) == f"{path} is not a regular file; name a YAML file"
