"""The benchmark of offline learning makes datasets as documented, and gives both sides the same data and settings."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

import offline
from documents.docs_pages import ROOT, marked_section
from learning import Job, command
from offline_cases.cells import CELLS
from offline_cases.relations import RELATIONS, Relation, store_relations
from offline_cases.sources import KINDS, SOURCES, dataset_command, find_run, medium_step, random_score
from pages.render_offline import relation_blocks, render_datasets
from peers.d3rlpy_models import arrays, peer_settings
from records import D3RLPY
from rl_training.algorithms.offline.bc import BCParams
from rl_training.algorithms.offline.iql import IQLParams
from rl_training.data.datasets.columns import DatasetColumns
from rl_training.experiment.configuration.config_files import load_config

TORQUE = spaces.Box(-2.0, 2.0, (1,), np.float32)


def run_of(source: Any, folder: Path, scores: list[float], status: str = "completed") -> Path:
    """Write what a finished run leaves of its evaluations, one for every thousand steps."""
    run_dir = folder / f"{source.algo}__{source.env_id}__seed{source.seed}__20260101T000000Z"
    run_dir.mkdir(parents=True)
    (run_dir / "metadata.json").write_text(json.dumps({"status": status}))
    rows = [
        {"event": "eval", "global_step": 1000 * (number + 1), "eval_return_mean": score}
        for number, score in enumerate(scores)
    ]
    (run_dir / "metrics.jsonl").write_text("\n".join(map(json.dumps, [{"event": "train"}, *rows])))
    return run_dir


def test_the_medium_policy_is_the_first_that_is_a_third_of_the_way_from_random_to_final(tmp_path: Path) -> None:
    source = SOURCES["pendulum"]
    assert random_score(source.env_id) == pytest.approx(-1230.65, abs=0.01)
    # A third of the way from -1,230.65 to -150 is -870.4.
    run_dir = run_of(source, tmp_path, [-1200.0, -871.0, -870.0, -900.0, -150.0])
    assert medium_step(source, run_dir) == 3000


def test_datasets_come_from_the_medium_checkpoint_its_replay_and_the_final_policy(tmp_path: Path) -> None:
    source = SOURCES["pendulum"]
    run_dir = run_of(source, tmp_path, [-1200.0, -500.0, -150.0])
    commands = {kind: " ".join(dataset_command(source, kind, run_dir)) for kind in KINDS}
    medium, final = run_dir / "checkpoints" / "step_2000", run_dir
    assert commands == {
        "random": f"dataset record --checkpoint {final} --steps 20000 --random --name pendulum/random-v0 --quiet",
        "medium": f"dataset record --checkpoint {medium} --steps 20000 --stochastic --name pendulum/medium-v0 --quiet",
        "medium-replay": f"dataset replay {medium} --name pendulum/medium-replay-v0 --quiet",
        "expert": f"dataset record --checkpoint {final} --steps 20000 --stochastic --name pendulum/expert-v0 --quiet",
    }


def test_an_interrupted_source_is_not_used(tmp_path: Path) -> None:
    source = SOURCES["pendulum"]
    run_of(source, tmp_path, [-150.0], status="interrupted")
    assert find_run(source, tmp_path) is None


def test_pendulum_checkpoints_are_where_the_episodes_of_all_environments_end() -> None:
    words = " ".join(SOURCES["pendulum"].train)
    assert "--num-envs 4" in words
    assert "checkpoint_interval=1600" in words
    assert 1600 % (4 * 200) == 0


def test_every_cell_is_a_preset_and_repeated_by_its_command() -> None:
    for cells in CELLS.values():
        for cell in cells:
            job = Job(cell, "ours", 1, Path("runs"), 3)
            assert job.config().dataset is not None
            assert command(cell, "ours", [1]) == f"python benchmarks/offline.py --only {cell.name}"
            assert offline._parse(["--only", cell.name]).only == [cell.name]


def test_d3rlpy_gets_the_numbers_of_the_preset() -> None:
    settings = peer_settings(load_config(preset="td3_bc-pendulum"), TORQUE)
    assert settings["config"] == "TD3PlusBCConfig"
    assert settings["encoders"] == {"actor_": [64, 64], "critic_": [64, 64]}
    assert (settings["action_bounds"], settings["action_size"]) == ([[-2.0], [2.0]], 1)
    assert settings["arguments"] == {
        "batch_size": 256,
        "actor_learning_rate": 0.001,
        "critic_learning_rate": 0.001,
        "gamma": 0.99,
        "tau": 0.005,
        "n_critics": 2,
        "target_smoothing_sigma": 0.2,
        "target_smoothing_clip": 0.5,
        "alpha": 10.0,
        "update_actor_interval": 2,
    }
    iql = peer_settings(load_config(preset="iql-pendulum"), TORQUE)
    assert (iql["cosine"], iql["arguments"]["weight_temp"]) == (["actor_"], 3.0)
    bc = peer_settings(load_config(preset="bc-cartpole"), spaces.Discrete(2))
    assert (bc["config"], bc["action_bounds"], bc["action_size"]) == ("DiscreteBCConfig", None, 2)


def test_every_compared_cell_can_be_set_in_d3rlpy() -> None:
    for task, cells in CELLS.items():
        for cell in cells:
            if D3RLPY in cell.sides:
                space = spaces.Discrete(2) if task == "cartpole" else TORQUE
                peer_settings(Job(cell, D3RLPY, 1, Path("runs"), 3).config(), space)


def test_options_that_d3rlpy_lacks_are_refused() -> None:
    changed = load_config(preset="td3_bc-pendulum", set_values=("algo_kwargs.critic_layer_norm=true",))
    with pytest.raises(ValueError, match="d3rlpy has no critic_layer_norm True"):
        peer_settings(changed, TORQUE)


def two_episodes() -> DatasetColumns:
    """Return an episode of two steps that was truncated, and a better one of one step that terminated."""
    return DatasetColumns(
        observation=np.arange(5, dtype=np.float32)[:, None],
        place=np.array([0, 1, 3]),
        action=np.array([[0.5], [1.0], [-1.0]], np.float32),
        reward=np.array([-2.0, -2.0, 1.0], np.float32),
        terminated=np.array([False, False, True]),
        truncated=np.array([False, True, False]),
        episode=np.array([0, 0, 1], np.int32),
        episode_returns=np.array([-4.0, 1.0]),
        first=np.array([0, 3]),
    )


def test_the_peer_bootstraps_a_truncated_episode_from_its_final_observation() -> None:
    given = arrays(two_episodes(), BCParams())
    assert given["observations"].ravel().tolist() == [0.0, 1.0, 3.0]
    assert given["next_observations"].ravel().tolist() == [1.0, 2.0, 4.0]
    assert given["terminals"].ravel().tolist() == [0.0, 0.0, 1.0]
    assert all(array.dtype == np.float32 and array.ndim == 2 for array in given.values())


def test_the_peer_gets_scaled_rewards_and_the_best_episodes_as_ours() -> None:
    scaled = arrays(two_episodes(), IQLParams(reward_shift=3.0))
    assert scaled["rewards"].ravel().tolist() == [-397.0, -397.0, 203.0]  # returns differ by 5
    best = arrays(two_episodes(), BCParams(top_fraction=0.5))
    assert best["observations"].ravel().tolist() == [3.0]


# -- relations -------------------------------------------------------------------------------------


def store(folder: Path, name: str, scores: list[float]) -> None:
    runs = [{"seed": seed, "eval_return_mean": score} for seed, score in enumerate(scores, start=1)]
    (folder / f"{name}.json").write_text(json.dumps({"runs": runs}))


@pytest.fixture
def nothing_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "datasets"))
    results = tmp_path / "results"
    results.mkdir()
    return results


def holds(relation: Relation, results: Path) -> bool:
    list(store_relations([relation], results))
    (found,) = json.loads((results / "offline-relations.json").read_text())["relations"]
    return bool(found["holds"])


def test_one_result_beats_another_if_their_intervals_do_not_overlap(nothing_recorded: Path) -> None:
    store(nothing_recorded, "worse", [-900.0, -910.0, -920.0, -930.0, -940.0])
    store(nothing_recorded, "better", [-500.0, -510.0, -520.0, -530.0, -540.0])
    store(nothing_recorded, "mixed", [-500.0, -850.0, -920.0, -950.0, -990.0])
    assert holds(Relation("beats", "better", "worse"), nothing_recorded)
    assert not holds(Relation("beats", "mixed", "worse"), nothing_recorded)
    assert not holds(Relation("beats", "worse", "better"), nothing_recorded)


def test_imitation_and_failure_are_measured_on_the_way_from_random_to_the_behaviour(nothing_recorded: Path) -> None:
    known = {"datasets": {"pendulum/expert-v0": {"return_mean": -130.65}}, "relations": []}  # 1,100 above random
    (nothing_recorded / "offline-relations.json").write_text(json.dumps(known))
    store(nothing_recorded, "near", [-180.0] * 5)
    store(nothing_recorded, "far", [-700.0] * 5)
    store(nothing_recorded, "further", [-1000.0] * 5)
    assert holds(Relation("imitates", "near", "pendulum/expert-v0"), nothing_recorded)
    assert not holds(Relation("imitates", "far", "pendulum/expert-v0"), nothing_recorded)
    assert not holds(Relation("fails", "near", "pendulum/expert-v0"), nothing_recorded)
    assert holds(Relation("fails", "further", "pendulum/expert-v0"), nothing_recorded)


def test_a_peer_is_matched_if_ours_scores_higher_nearly_half_of_the_time(nothing_recorded: Path) -> None:
    store(nothing_recorded, "ours", [1.0, 2.0, 3.0, 4.0, 5.0])
    store(nothing_recorded, "alike", [1.0, 2.0, 3.0, 4.0, 5.0])
    store(nothing_recorded, "above", [3.0, 4.0, 5.0, 6.0, 7.0])
    assert holds(Relation("matches", "ours", "alike"), nothing_recorded)
    assert not holds(Relation("matches", "ours", "above"), nothing_recorded)


def test_half_of_the_steps_are_compared_with_an_evaluation_on_the_way(nothing_recorded: Path) -> None:
    store(nothing_recorded, "half", [340.0, 350.0, 360.0])
    curves = [[[500, score], [1000, 900.0]] for score in (300.0, 350.0, 390.0)]
    runs = [{"seed": seed, "eval_return_mean": 900.0, "evaluations": curve} for seed, curve in enumerate(curves)]
    (nothing_recorded / "whole.json").write_text(json.dumps({"runs": runs}))
    assert holds(Relation("reaches", "half", "whole", at_step=500), nothing_recorded)
    assert not holds(Relation("reaches", "half", "whole"), nothing_recorded)


def test_what_is_not_stored_is_left_out_of_relations_and_pages(nothing_recorded: Path) -> None:
    assert list(store_relations(RELATIONS, nothing_recorded)) == []
    assert relation_blocks(nothing_recorded, ["bc"]) == []
    store(nothing_recorded, "bc-pendulum-top10", [2.0, 3.0, 4.0])
    store(nothing_recorded, "bc-pendulum-replay", [1.0, 2.0, 3.0])
    assert len(list(store_relations(RELATIONS, nothing_recorded))) == 1
    _, table = relation_blocks(nothing_recorded, ["bc"])
    assert table[-1].startswith("| `bc-pendulum-top10` | 3 | 3.00 [")
    assert table[-1].endswith("| yes |")
    assert relation_blocks(nothing_recorded, ["iql"]) == []


def test_the_table_of_datasets_is_the_stored_one() -> None:
    stored = render_datasets(ROOT / "benchmarks" / "results")
    shown = marked_section(ROOT / "docs" / "datasets.md", "results")
    assert shown == stored, "datasets.md is out of date; run: python benchmarks/render_results.py"
