"""Suites say how results are made and normalised; runs made otherwise are drift, graded and gated."""

from __future__ import annotations

import copy
import json
from importlib import resources
from pathlib import Path
from typing import Any

import gymnasium
import pytest
import yaml

from documents.docs_pages import marked_table
from fake_runs import fake_run, fake_runs
from harness import require
from paths import ROOT
from rl_training.cli import main
from rl_training.experiment.configuration.config_files import load_config, preset_names
from rl_training.runtime.workflows import train
from rl_training.zoo.drift import DriftFinding, find_drift, worst_severity
from rl_training.zoo.entries import group_runs, preset_settings
from rl_training.zoo.manifests import Manifest, Reference, load_manifests, manifest_of, read_manifest
from rl_training.zoo.preset_lock import LOCK, lock_text, locked_presets, resolve_presets
from rl_training.zoo.run_index import index_runs

MEASURED = json.loads((ROOT / "benchmarks" / "results" / "random-scores.json").read_text())
SUITES = {manifest.suite: manifest for manifest in load_manifests()}
SUITE_OF_FAMILY = {"classic_control": "classic-control", "box2d": "box2d", "mujoco": "mujoco"}
Capture = pytest.CaptureFixture[str]


def manifest_content(suite: str) -> Any:
    text = resources.files("rl_training.zoo").joinpath(f"manifests/{suite}.yaml").read_text(encoding="utf-8")
    return yaml.safe_load(text)


# -- the packaged manifests ------------------------------------------------------------------------


def test_there_are_six_suites() -> None:
    assert list(SUITES) == ["atari", "box2d", "classic-control", "memory", "minatar", "mujoco"]
    assert {suite: manifest.extra for suite, manifest in SUITES.items()} == {
        "atari": "atari",
        "box2d": "box2d",
        "classic-control": None,
        "memory": None,
        "minatar": "minatar",
        "mujoco": "mujoco",
    }
    assert len(SUITES["atari"].environments) == 57


@pytest.mark.parametrize("manifest", SUITES.values(), ids=list(SUITES))
def test_a_manifest_is_complete(manifest: Manifest) -> None:
    assert manifest.protocol.seeds >= 5
    assert manifest.protocol.eval_episodes >= 10
    assert manifest.protocol.training
    assert manifest.protocol.evaluation
    used = set()
    for reference in manifest.environments.values():
        if reference is not None:
            assert reference.kind in ("human", "solved", "published")
            assert reference.random < reference.target
            used |= set(reference.sources)
    assert used == set(manifest.sources)
    for preset in manifest.presets:
        assert locked_presets()[preset]["env_id"] in manifest.environments


def test_every_preset_of_a_suites_environment_is_listed_once() -> None:
    listed = [preset for manifest in SUITES.values() for preset in manifest.presets]
    inside = [name for name in preset_names() if manifest_of(locked_presets()[name]["env_id"]) is not None]
    assert sorted(listed) == inside, "list the preset in src/rl_training/zoo/manifests/"


def test_the_environments_are_those_of_the_suites_family() -> None:
    for suite in set(SUITES) - {"atari", "memory", "minatar"}:
        for env_id in SUITES[suite].environments:
            assert SUITE_OF_FAMILY[str(gymnasium.registry[env_id].entry_point).split(".")[2]] == suite
    pytest.importorskip("ale_py")
    assert set(SUITES["atari"].environments) <= set(gymnasium.registry)


def test_the_suite_of_minatar_holds_its_games_with_their_own_actions() -> None:
    require("MinAtar/Breakout-v1")
    games = {env_id for env_id in gymnasium.registry if env_id.startswith("MinAtar/") and env_id.endswith("-v1")}
    assert set(SUITES["minatar"].environments) == games <= set(MEASURED["scores"])


def test_tasks_without_velocities_have_the_references_of_those_with() -> None:
    for env_id, reference in SUITES["memory"].environments.items():
        assert reference is not None
        assert reference.random == round(MEASURED["scores"][env_id]["mean"], 2)
        known = manifest_of(env_id.rpartition(":")[2].replace("NoVel", ""))
        if known is not None and reference.kind == "solved":
            with_velocities = known.environments[env_id.rpartition(":")[2].replace("NoVel", "")]
            assert with_velocities is not None
            assert (reference.random, reference.target) == (with_velocities.random, with_velocities.target)


@pytest.mark.parametrize("suite", ["box2d", "classic-control", "mujoco"])
def test_references_are_the_measured_and_the_registered_ones(suite: str) -> None:
    for env_id, reference in SUITES[suite].environments.items():
        threshold = gymnasium.registry[env_id].reward_threshold
        if reference is None:
            assert threshold is None
            continue
        assert reference.random == round(MEASURED["scores"][env_id]["mean"], 2)
        assert reference.sources[0] == "measured"
        assert (reference.kind == "solved") is (threshold is not None)
        if threshold is not None:
            assert reference.target == threshold


def test_a_score_is_normalised_between_its_references() -> None:
    reference = Reference(random=-20.0, target=20.0, kind="human", sources=())
    assert [reference.normalize(score) for score in (-20.0, 0.0, 20.0, 40.0)] == [0.0, 0.5, 1.0, 1.5]


def test_the_fingerprint_stands_for_the_whole_content(monkeypatch: pytest.MonkeyPatch) -> None:
    content = manifest_content("classic-control")
    original = read_manifest(content).fingerprint
    assert original == SUITES["classic-control"].fingerprint
    assert read_manifest(dict(reversed(content.items()))).fingerprint == original  # whatever the order of keys
    changes: list[tuple[list[str], Any]] = [
        (["version"], 2),
        (["protocol", "eval_episodes"], 11),
        (["protocol", "training"], "As you like."),
        (["environments", "CartPole-v1", "target"], 476.0),
        (["sources", "gymnasium"], "hearsay"),
        (["presets"], content["presets"][:-1]),
    ]
    seen = {original}
    for path, value in changes:
        changed = copy.deepcopy(content)
        block = changed
        for key in path[:-1]:
            block = block[key]
        block[path[-1]] = value
        seen.add(read_manifest(changed).fingerprint)
    assert len(seen) == 1 + len(changes)
    settings = {name: dict(values) for name, values in preset_settings().items()}
    settings["ppo-cartpole"]["num_envs"] = 9
    monkeypatch.setattr("rl_training.zoo.manifests.preset_settings", lambda: settings)
    assert read_manifest(content).fingerprint not in seen


def test_the_lock_is_that_of_the_presets() -> None:
    command = "python -m rl_training.zoo.preset_lock"
    stored = resources.files("rl_training.zoo").joinpath(LOCK).read_text(encoding="utf-8")
    assert stored == lock_text(resolve_presets()), f"{LOCK} is out of date; run: {command}"


# -- drift -----------------------------------------------------------------------------------------


def drift(root: Path, **settings: Any) -> dict[str, DriftFinding]:
    fake_run(root, 1, **settings)
    (entry,) = group_runs(index_runs([root]).runs)
    findings = find_drift(entry)
    assert len({finding.key for finding in findings}) == len(findings)
    return {finding.key: finding for finding in findings}


@pytest.mark.parametrize("preset", preset_names())
def test_a_preset_as_it_is_does_not_drift(preset: str, tmp_path: Path) -> None:
    assert drift(tmp_path, preset=preset) == {}


@pytest.mark.parametrize(
    ("preset", "key", "value", "severity"),
    [
        ("ppo-cartpole", "total_timesteps", 5_000, "critical"),
        ("ppo-cartpole", "env_kwargs.max_episode_steps", 50, "critical"),
        ("ppo-pendulum", "env_kwargs.g", 1.0, "critical"),
        ("ppo-pong", "env_kwargs.frame_skip", 1, "critical"),
        ("muzero-breakout", "env_kwargs.sticky_action_prob", 0.0, "critical"),
        ("ppo-pong", "env_kwargs.repeat_action_probability", 0.25, "critical"),
        ("ppo-cartpole", "algo_kwargs.gamma", 0.5, "major"),
        ("ppo-cartpole", "algo_kwargs.vf_coef", 0.9, "major"),  # a default that the preset does not mention
        ("ppo-cartpole", "algo_kwargs.clip_coef_schedule", None, "major"),
        ("ppo-cartpole", "env_kwargs.normalize_observation", True, "major"),
        ("ppo-cartpole", "eval_episodes", 5, "major"),
        ("ppo-cartpole", "num_envs", 1, "major"),
        ("ppo-cartpole", "eval_episodes", 100, "minor"),
        ("ppo-cartpole", "eval_interval", 1_000, "minor"),
    ],
)
def test_drift_is_found_and_graded(preset: str, key: str, value: Any, severity: str, tmp_path: Path) -> None:
    (finding,) = drift(tmp_path, preset=preset, changes={key: value}).values()
    assert (finding.key, finding.severity) == (key, severity)
    assert finding.found == value


def test_training_may_be_made_harder_without_changing_the_task_that_is_scored(tmp_path: Path) -> None:
    found = drift(tmp_path, changes={"env_kwargs.training": {"max_episode_steps": 50}})
    assert {finding.severity for finding in found.values()} == {"major"}
    evaluated = drift(tmp_path / "b", changes={"env_kwargs.evaluation": {"max_episode_steps": 50}})
    assert evaluated["env_kwargs.max_episode_steps"].severity == "critical"


def test_without_a_preset_only_the_protocol_is_held_against_a_run(tmp_path: Path) -> None:
    own = {"preset": None, "algo_kwargs.gamma": 0.5, "total_timesteps": 77}
    assert drift(tmp_path / "a", changes=own) == {}
    found = drift(tmp_path / "b", changes={**own, "eval_episodes": 2, "env_kwargs.max_episode_steps": 9})
    assert {key: finding.severity for key, finding in found.items()} == {
        "env_kwargs.max_episode_steps": "critical",
        "eval_episodes": "major",
    }
    outside = drift(tmp_path / "c", preset="sac-pointreach", changes={**own, "eval_episodes": 1})
    assert outside == {}


def test_a_preset_that_is_not_packaged_is_minor_drift(tmp_path: Path) -> None:
    found = drift(tmp_path, changes={"preset": "ppo-of-somebody"})
    assert worst_severity(list(found.values())) == "minor"
    assert found["preset"].sentence() == "preset is ppo-of-somebody, the zoo says a packaged one"


@pytest.mark.parametrize("kind", ["report", "leaderboard"])
def test_the_drift_gate_exits_with_3_from_its_severity_on(kind: str, tmp_path: Path, capsys: Capture) -> None:
    fake_runs(tmp_path, [1.0], changes={"algo_kwargs.gamma": 0.5})
    gate = [kind, str(tmp_path), "--fail-on-manifest-drift"]
    assert main([kind, str(tmp_path)]) == 0
    shown = capsys.readouterr().out
    assert "major     algo_kwargs.gamma is 0.5, preset ppo-cartpole says 0.98" in shown
    assert main(gate) == 3
    assert "gate fired: manifest drift: ppo-cartpole+" in capsys.readouterr().err
    assert main([*gate, "--drift-severity", "minor"]) == 3
    assert main([*gate, "--drift-severity", "critical"]) == 0
    assert main(["zoo", "--format", kind, "--runs", str(tmp_path), "--fail-on-manifest-drift"]) == 3
    assert main([*gate, "--drift-severity", "grave"]) == 2


def test_a_baseline_of_another_manifest_is_drift(tmp_path: Path, capsys: Capture) -> None:
    fake_runs(tmp_path / "runs", [1.0])
    file = tmp_path / "baseline.json"
    assert main(["leaderboard", str(tmp_path / "runs"), "--output", str(file)]) == 0
    gate = ["leaderboard", str(tmp_path / "runs"), "--baseline", str(file), "--fail-on-manifest-drift"]
    assert main(gate) == 0
    content = json.loads(file.read_text())
    content["manifests"]["classic-control"]["fingerprint"] = "000000000000"
    file.write_text(json.dumps(content))
    capsys.readouterr()
    assert main(gate) == 3
    assert "the manifest of classic-control has changed since" in capsys.readouterr().err


# -- the catalogue ---------------------------------------------------------------------------------


def test_the_catalogue_holds_suites_protocols_and_references(capsys: Capture) -> None:
    assert main(["zoo", "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert [preset["name"] for preset in record["presets"]] == preset_names()
    assert [suite["suite"] for suite in record["suites"]] == list(SUITES)
    pong = record["suites"][0]["references"]["ALE/Pong-v5"]
    assert pong == {"random": -20.7, "target": 14.6, "kind": "human", "sources": ["dqn-zoo"]}
    assert main(["zoo", "--suite", "box2d", "--format", "commands"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "axiomrl train --preset dqn-lunarlander",
        "axiomrl train --preset efficientzero-lunarlander",
        "axiomrl train --preset gumbel_muzero-lunarlander",
        "axiomrl train --preset muzero-lunarlander",
        "axiomrl train --preset ppo-lunarlander",
        "axiomrl train --preset sac-lunarlandercontinuous",
        "axiomrl train --preset td3-lunarlandercontinuous",
    ]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (
            ["--suite", "classic"],
            "--suite classic: no such suite; there are atari, box2d, classic-control, memory, minatar, mujoco",
        ),
        (["--suite", "x", "--format", "report", "--runs", "."], "--suite x: no such suite"),
        (["--tag", "x"], "--tag is about runs; add --format report or --format leaderboard"),
        (["--format", "commands", "--output", "x"], "--output is about runs"),
    ],
)
def test_the_catalogue_refuses_what_it_would_ignore(arguments: list[str], sentence: str, capsys: Capture) -> None:
    assert main(["zoo", *arguments]) == 2
    assert sentence in capsys.readouterr().err


def test_a_run_of_a_preset_is_trained_under_its_name(tmp_path: Path) -> None:
    config = load_config(preset="ppo-cartpole", overrides={"total_timesteps": 512, "output_dir": str(tmp_path)})
    train(config)
    (entry,) = group_runs(index_runs([tmp_path]).runs)
    assert entry.preset == "ppo-cartpole"
    assert [(finding.severity, finding.sentence()) for finding in find_drift(entry)] == [
        ("critical", "total_timesteps is 512, preset ppo-cartpole says 100,000")
    ]


def test_the_table_of_suites_is_that_of_the_manifests() -> None:
    expected = [
        [
            manifest.suite,
            str(len(manifest.environments)),
            str(sum(reference is not None for reference in manifest.environments.values())),
            str(len(manifest.presets)),
            manifest.extra or "-",
        ]
        for manifest in load_manifests()
    ]
    assert marked_table(ROOT / "zoo" / "README.md", "suites") == expected
