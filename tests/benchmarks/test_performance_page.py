"""The tables of the page on performance are those of the stored summaries."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import limits
from documents.docs_pages import ROOT, marked_section
from pages import render_performance, result_tables
from records import RESULTS, processor_model
from render_results import render_results

SPEED = {
    "benchmark": "speed-ppo",
    "command": "python benchmarks/speed.py --only ppo --rounds 3",
    "settings": "CartPole-v1",
    "clock": "processor time",
    "ratios": {"stable-baselines3": {"median": 3.456, "smallest": 3.0, "largest": 4.0}},
    "missing": ["CleanRL is not installed"],
    "versions": {"axiomrl": "0.1.0"},
    "machine": {"processor": "x86_64", "python": "3.11"},
}
GROWTH = {
    **SPEED,
    "benchmark": "speed-scaling",
    "growth": [
        {"algo": "dqn", "axis": "width", "value": 64, "ours_microseconds_per_step": 300.0, "ours_growth": 1.0},
        {
            "algo": "dqn",
            "axis": "replay",
            "value": 1_000_000,
            "ours_microseconds_per_step": 450.0,
            "ours_growth": 1.5,
            "stable_baselines3_microseconds_per_step": 900.0,
            "stable_baselines3_growth": 1.2,
        },
    ],
}
LIMITS: dict[str, Any] = {
    "benchmark": "limits",
    "settings": "one thread",
    "clock": "the clock",
    "command": "python benchmarks/limits.py --rounds 5",
    "cases": [
        {
            "algo": "sac",
            "update_microseconds": 6_000,
            "products_microseconds": 3_600,
            "share_of_products": 0.6,
            "gflops_of_products": 150.0,
            "collect_microseconds_per_step": 400.0,
        }
    ],
    "versions": {"axiomrl": "0.1.0"},
    "machine": {"processor": "x86_64", "python": "3.11"},
}


def _store(folder: Path, *summaries: dict[str, Any]) -> None:
    for summary in summaries:
        (folder / f"{summary['benchmark']}.json").write_text(json.dumps(summary))


def test_the_page_shows_what_is_stored() -> None:
    page = ROOT / "docs" / render_performance.PAGE
    assert marked_section(page, "results") == render_performance.render_performance(RESULTS)


def test_ratios_growth_and_limits_have_their_tables(tmp_path: Path) -> None:
    saved = {**SPEED, "benchmark": "speed-checkpoints", "share_of_training": {"ppo": 0.025, "dqn": 0.001}}
    _store(tmp_path, SPEED, GROWTH, LIMITS, saved, {"benchmark": "random_scores"})
    text = render_performance.render_performance(tmp_path)
    assert "| ppo | stable-baselines3 | 3.46 (3.00..4.00) |" in text
    assert "| dqn | width of both hidden layers | 64 | 300.0 | 1.0 | - | - |" in text
    assert "| dqn | transitions in the replay | 1,000,000 | 450.0 | 1.5 | 900.0 | 1.2 |" in text
    assert (
        "Checkpoints, ten per training, take 2.5% of ppo's, 0.1% of dqn's time in the trainings measured here." in text
    )
    assert "| sac | 6,000 | 3,600 | 60% | 150.0 | 400.0 |" in text
    source = "| speed-ppo | `python benchmarks/speed.py --only ppo --rounds 3` | CartPole-v1 | processor time |"
    assert f"{source} CleanRL is not installed |" in text


def test_targets_stand_beside_what_was_reached(tmp_path: Path) -> None:
    def summary(name: str, rounds: int, **medians: float) -> dict[str, Any]:
        ratios = {ratio: {"median": value, "smallest": value, "largest": value} for ratio, value in medians.items()}
        command = f"python benchmarks/speed.py --only {name} --rounds {rounds}"
        return {**SPEED, "benchmark": f"speed-{name}", "command": command, "ratios": ratios}

    reached = {**summary("ppo", 5, SBX=2.5), "clocks": {"SBX": "the clock"}}
    missed = summary("ppo-long", 5, SBX=2.49)
    _store(tmp_path, reached, missed, summary("dqn", 3, **{"stable-baselines3": 6.0}))
    text = render_performance.render_performance(tmp_path)
    assert "| ppo | stable-baselines3 | 5 | not measured yet | - | - |" in text
    assert "| ppo | SBX | 2.5 | 2.50 (2.50..2.50) | 5 | yes |" in text
    assert "| ppo-long | SBX | 2.5 | 2.49 (2.49..2.49) | 5 | no |" in text
    assert "| dqn | stable-baselines3 | 5 | 6.00 (6.00..6.00) | 3 | too few rounds |" in text
    assert "| processor time (SBX: the clock) |" in text


def test_preparation_is_told_apart_for_every_side_that_has_it(tmp_path: Path) -> None:
    rounds = [
        {"seed": seed, "sbx": {"preparation_seconds": seconds}, "cleanrl": {}} for seed, seconds in ((1, 5), (2, 7))
    ]
    _store(tmp_path, {**SPEED, "rounds": rounds}, {**SPEED, "benchmark": "speed-sweep", "rounds": [{"serial": 2.0}]})
    text = render_performance.render_performance(tmp_path)
    table = text.split("### Before the first counted step")[1].split("###")[0]
    assert [line for line in table.splitlines() if line.startswith("| ")][1:] == ["| ppo | sbx | 6.00 (5.00..7.00) |"]


def test_limits_show_an_older_commit_beside_the_present(tmp_path: Path) -> None:
    case: Any = LIMITS["cases"][0]
    then = {"update_microseconds": 9_000, "share_of_products": 0.4, "collect_microseconds_per_step": 500.0}
    _store(tmp_path, {**LIMITS, "cases": [{**case, "before": then}], "before": "c893a59"})
    text = render_performance.render_performance(tmp_path)
    assert "| sac | 6,000 | 3,600 | 60% | 150.0 | 400.0 | 9,000 | 40% | 500.0 |" in text
    assert "Then: at commit c893a59, measured in turn with the present." in text


def test_a_page_with_several_benchmarks_names_them(tmp_path: Path) -> None:
    ratio = {"median": 2.0, "smallest": 2.0, "largest": 2.0}
    rates = {"steps_per_second": 30.0, "steps_per_second_of_the_clock": 20.0}
    half = {"steps_per_second": 15.0, "steps_per_second_of_the_clock": 10.0}
    entry = {
        **SPEED,
        "algo": "ppo",
        "ratios": {"peer": ratio, "peer by the clock": ratio},
        "clocks": {"peer by the clock": "the clock"},
        "sides": {"peer": ["ours", "peer"], "peer by the clock": ["ours", "peer"]},
        "rounds": [{"seed": 1, "ours": rates, "peer": half}],
        "total_timesteps": 1_000,
    }
    _store(tmp_path, entry)
    assert "| peer | 2.00 | 2.00 | 2.00 | 1 | 1,000 | 30 | 15 |" in render_results(tmp_path, ["ppo"])
    _store(tmp_path, {**entry, "benchmark": "speed-ppo-long", "settings": "long rollouts"})
    text = render_results(tmp_path, ["ppo"])
    assert "| ppo-long | peer by the clock | 2.00 | 2.00 | 2.00 | 1 | 1,000 | 20 | 10 |" in text
    assert "Settings: ppo-long: long rollouts; ppo: CartPole-v1." in text
    assert text.count("CleanRL is not installed.") == 1
    assert "python benchmarks/speed.py --only ppo-long" in text


def test_the_products_of_a_pass_are_those_of_its_layers() -> None:
    # Two networks 3 -> 5 -> 1 on 7 rows: forward, by the weights, by the inputs of the second layer.
    one = limits.Pass(2, (3, 5, 1), 7, by_weights=True, by_inputs=True)
    assert one.products() == [(2, 7, 3, 5), (2, 7, 5, 1), (2, 3, 7, 5), (2, 5, 7, 1), (2, 7, 1, 5)]
    _, operations = limits.seconds_of_products([one, limits.Pass(1, (2, 2), 2, share=0.5)], repeats=1)
    assert operations == 2 * 2 * (7 * 15 + 7 * 5 + 7 * 15 + 7 * 5 + 7 * 5) + 0.5 * 2 * 8


def test_an_actor_that_climbs_its_critics_needs_the_slope_of_their_first_layer() -> None:
    one = limits.Pass(2, (3, 5, 1), 7, by_inputs=True, by_actions=True)
    assert one.products() == [(2, 7, 3, 5), (2, 7, 5, 1), (2, 7, 1, 5), (2, 7, 5, 3)]
    assert [one.by_actions for one in limits.CASES["sac"].passes] == [False, False, False, True, False]
    assert [one.by_actions for one in limits.CASES["td3"].passes] == [False, False, False, True, False]


def test_limits_are_stored_where_all_are_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "measure", lambda algo, effort: {"algo": algo, "rounds": effort.rounds})
    file = tmp_path / "limits.json"
    limits.main(["--quick", "--output", str(file)])
    limits.main(["--algo", "sac", "--output", str(file)])
    assert not file.exists()
    limits.main(["--rounds", "2", "--output", str(file)])
    stored = json.loads(file.read_text())
    assert stored["command"] == "python benchmarks/limits.py --rounds 2"
    assert stored["cases"] == [{"algo": algo, "rounds": 2} for algo in limits.CASES]
    assert {"torch", "axiomrl"} <= stored["versions"].keys()


def test_machines_of_old_and_new_summaries_are_told(tmp_path: Path) -> None:
    old = {"machine": {"processor": "x86_64", "python": "3.11"}}
    new = {"machine": {"processor": "x86_64", "model": "Some CPU", "cores": 2, "python": "3.11"}}
    assert result_tables.machine([old]) == "Python 3.11 on x86_64"
    assert result_tables.machine([old, new]) == "Python 3.11 on x86_64 and x86_64 (Some CPU, 2 cores)"
    file = tmp_path / "cpuinfo"
    file.write_text("processor\t: 0\nmodel name\t: Some CPU: fast\nprocessor\t: 1\nmodel name\t: Other\n")
    assert processor_model(file) == "Some CPU: fast"


@pytest.mark.parametrize("name", limits.CASES)
def test_cases_name_the_networks_that_their_presets_have(name: str) -> None:
    from rl_training.experiment.config import algorithm_params
    from rl_training.experiment.configuration.config_files import load_config

    case = limits.CASES[name]
    params: Any = algorithm_params(load_config(preset=case.preset, set_values=case.changes))
    assert {one.sizes[1:-1] for one in case.passes} == {tuple(params.hidden_sizes or (64, 64))}
    batches = {one.batch for one in case.passes}
    assert min(batches) == (params.minibatch_size if name == "ppo" else params.batch_size)
