"""The page of results shows what is stored and nothing else, and so do its pictures."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from documents.docs_pages import ROOT, marked_section, read_page
from learning import EVALUATION_EPISODES, Job, result_path
from learning_suites import MEMORY, PROOF, SHOWN, Cell
from pages import render_memory
from pages.aggregate import AGGREGATE, GAP, IQM, describe, read_aggregate
from pages.comparisons import Comparison, environments, read_comparisons
from pages.headlines import headlines, render_headlines
from pages.long_trainings import long_training_blocks
from pages.render_comparison import plot_path, render_comparison, simulators, write_comparison
from pages.render_games import picture_path, pictured_games
from records import OURS, RESULTS, SB3
from render_results import BEGIN, END
from rl_training.envs.lookup import find_spec
from rl_training.runtime.run_utils import serialize_train_config

DOCS = ROOT / "docs"
PPO, DQN = Cell("ppo-cartpole"), Cell("dqn-cartpole")
LANDER = Cell("ppo-lunarlander", ("total_timesteps=400_000",), "short")
MUZERO = Cell("muzero-cartpole", sides=(OURS,))
needs_matplotlib = pytest.mark.skipif(
    importlib.util.find_spec("matplotlib") is None, reason="pictures need the extra `plot`"
)


def store(folder: Path, cell: Cell, side: str, scores: list[float], **changed: Any) -> None:
    """Store a made-up summary whose seeds come in reverse order."""
    runs = [
        {
            "seed": seed,
            "steps": 1000,
            "seconds": 60.0 * seed,
            "evaluations": [[500, score - seed], [1000, score]],
            "eval_return_mean": score,
            "eval_return_std": 0.0,
            "eval_episodes": 100,
        }
        for seed, score in enumerate(scores, start=1)
    ]
    summary = {
        "comparison": cell.preset,
        "side": side,
        "changes": cell.changes,
        "runs": runs[::-1],
        "command": "python benchmarks/learning.py --suite full",
        "config": serialize_train_config(Job(cell, side, 1, Path("runs"), 100).config()),
        "versions": {"axiomrl": "0.1.0", "torch": "2.13.0", "stable_baselines3": "2.7.0", "mujoco": "3.2"},
        "machine": {"python": "3.11.7", "processor": "x86_64"},
    }
    result_path(cell, side, folder).write_text(json.dumps(summary | changed))


def page(folder: Path, *cells: Cell) -> list[str]:
    return render_comparison(read_comparisons(cells, folder)).splitlines()


def committed() -> list[Comparison]:
    return read_comparisons(SHOWN, RESULTS)


def drawn_environments() -> dict[str, list[Comparison]]:
    found = environments(committed())
    return {env_id: those for env_id, those in found.items() if any(entry.runs for c in those for entry in c.entries)}


# -- made-up results -------------------------------------------------------------------------------


def test_the_numbers_are_those_of_the_stored_seeds(tmp_path: Path) -> None:
    # Of five scores the outer two are left out: (200 + 300 + 400) / 3 and (210 + 220 + 350) / 3.
    store(tmp_path, PPO, OURS, [100.0, 200.0, 300.0, 400.0, 500.0])
    store(tmp_path, PPO, SB3, [350.0, 110.0, 220.0, 210.0, 400.0])
    lines = page(tmp_path, PPO)
    # 0, 1, 3, 4.5 and 5 of the peer's five lie below each of ours, the tie at 400 counted half: 13.5 of 25 pairs.
    overview = r"\| CartPole-v1 \| PPO \| 300\.0 \[.*\] \| 260\.0 \[.*\] \| 0\.54 \[(0\.\d\d), (\d\.\d\d)\] \| 5, 5 \|"
    (found,) = (match for line in lines if (match := re.fullmatch(overview, line)))
    assert float(found[1]) < 0.54 < float(found[2])
    detail = (
        r"\| PPO, ours \| 1,000 \| 5 \| 300\.0 \[.*\] \| 300\.0 \| 100\.0 \| 500\.0 \| - \| 3\.0 "
        r"\| 1: 100\.0, 2: 200\.0, 3: 300\.0, 4: 400\.0, 5: 500\.0 \|"
    )
    assert sum(re.fullmatch(detail, line) is not None for line in lines) == 1
    assert "Finished, with all planned seeds on both sides: 1 of 1 comparisons. Below 0.45: none." in lines


def test_a_probability_below_the_line_is_marked(tmp_path: Path) -> None:
    # 1, 1, 2, 2 and 5 of the peer's five lie below each of ours: 11 of 25 pairs.
    store(tmp_path, PPO, OURS, [1.0, 2.0, 3.0, 4.0, 5.0])
    store(tmp_path, PPO, SB3, [0.5, 2.5, 4.1, 4.2, 4.5])
    lines = page(tmp_path, PPO)
    (overview,) = (line for line in lines if line.startswith("| CartPole-v1 | PPO |"))
    assert re.search(r"\| 0\.44 \[0\.\d\d, \d\.\d\d\] \*\*below 0\.45\*\* \|", overview)
    assert any(line.endswith("Below 0.45: PPO on CartPole-v1.") for line in lines)


def test_what_is_missing_is_said_and_not_filled_in(tmp_path: Path) -> None:
    store(tmp_path, PPO, OURS, [500.0] * 5)
    store(tmp_path, PPO, SB3, [480.0, 490.0])
    store(tmp_path, MUZERO, OURS, [500.0] * 5)
    alone = dataclasses.replace(DQN, label="alone", sides=(OURS,))
    lines = page(tmp_path, PPO, DQN, MUZERO, alone)
    assert "| CartPole-v1 | DQN | nothing yet | not trained | - | 0 of 5 |" in lines
    assert "| CartPole-v1 | PPO | 500.0 [500.0, 500.0] | 485.0 | - | 5, 2 of 5 |" in lines
    assert "| CartPole-v1 | DQN | nothing yet | nothing yet | - | 0 of 5, 0 of 5 |" in lines
    assert "| CartPole-v1 | MuZero | 500.0 [500.0, 500.0] | no counterpart | - | 5 |" in lines
    assert "| DQN, stable-baselines3 | - | 0 of 5 | nothing yet | - | - | - | - | - | - |" in lines
    assert "Finished, with all planned seeds on both sides: 0 of 2 comparisons." in lines
    assert not any("dqn-cartpole" in line for line in lines)


def test_an_environment_without_results_has_no_picture(tmp_path: Path) -> None:
    store(tmp_path, PPO, OURS, [500.0])
    pictures = [line for line in page(tmp_path, PPO, LANDER) if line.startswith("![")]
    assert pictures == ["![Learning curves and final scores on CartPole-v1](plots/CartPole-v1.svg)"]


def test_processor_time_is_shown_for_the_seeds_that_have_it(tmp_path: Path) -> None:
    store(tmp_path, PPO, OURS, [500.0, 500.0, 500.0])
    path = result_path(PPO, OURS, tmp_path)
    summary = json.loads(path.read_text())
    for run, seconds in zip(summary["runs"], (30.0, 90.0), strict=False):
        run["cpu_seconds"] = seconds
    path.write_text(json.dumps(summary))
    (line,) = (line for line in page(tmp_path, PPO) if line.startswith("| PPO, ours |"))
    assert "| 1.0 (of 2 seeds) | 2.0 |" in line


def test_every_source_is_named_with_seeds_changes_command_versions_and_machine(tmp_path: Path) -> None:
    store(tmp_path, LANDER, SB3, [200.0, 210.0])
    name = "stable_baselines3-ppo-lunarlander-short.json"
    assert (
        f"| [{name}](../benchmarks/results/{name}) | LunarLander-v3 | stable-baselines3 | 1, 2 | 100 "
        "| `total_timesteps=400_000` | `python benchmarks/learning.py --suite full` "
        "| axiomrl 0.1.0, stable_baselines3 2.7.0, torch 2.13.0 | Python 3.11.7 on x86_64 |"
    ) in page(tmp_path, LANDER)


def test_sides_with_other_settings_are_refused(tmp_path: Path) -> None:
    store(tmp_path, PPO, OURS, [500.0])
    config = serialize_train_config(Job(PPO, SB3, 1, Path("runs"), 100).config())
    store(tmp_path, PPO, SB3, [500.0], config=config | {"algo_kwargs": config["algo_kwargs"] | {"gamma": 0.5}})
    with pytest.raises(ValueError) as raised:
        page(tmp_path, PPO)
    assert str(raised.value) == "the sides of ppo-cartpole were trained with another algo_kwargs.gamma"


def test_a_seed_that_is_stored_twice_is_refused(tmp_path: Path) -> None:
    store(tmp_path, PPO, OURS, [500.0], runs=[{"seed": 1}, {"seed": 1}])
    with pytest.raises(ValueError) as raised:
        page(tmp_path, PPO)
    assert "holds a seed twice: its seeds are [1, 1]" in str(raised.value)


# -- all environments together ---------------------------------------------------------------------


def test_scores_are_joined_on_the_scale_of_each_environment(tmp_path: Path) -> None:
    # CartPole's scale is 22.2 to 475, the lander's -181.71 to 200.
    store(tmp_path, PPO, OURS, [475.0, 475.0, 22.2])
    store(tmp_path, PPO, SB3, [22.2, 22.2, 22.2])
    store(tmp_path, LANDER, OURS, [200.0, 200.0, 200.0, 200.0])
    store(tmp_path, LANDER, SB3, [-181.71, 200.0, 200.0])
    aggregate = read_aggregate(read_comparisons([PPO, LANDER, MUZERO], tmp_path))
    assert aggregate is not None
    assert aggregate.run_count == 13
    assert aggregate.scores[OURS] == {
        "PPO, CartPole-v1": pytest.approx([1.0, 1.0, 0.0]),
        "PPO, LunarLander-v3": pytest.approx([1.0] * 4),
    }
    # Of seven runs the worst and the best are left out.
    assert aggregate.estimate(IQM, OURS).value == pytest.approx(1.0)
    assert aggregate.estimate(GAP, OURS).value == pytest.approx(1 / 7)
    assert aggregate.estimate(GAP, SB3).value == pytest.approx(4 / 6)
    # CartPole: two of three win against all, one ties with all; the lander: wins in a third of pairs, ties in the rest.
    assert aggregate.improvement().value == pytest.approx(((2 + 0.5) / 3 + (1 + 2 * 0.5) / 3) / 2)


def test_of_several_budgets_the_longest_that_both_sides_have_counts(tmp_path: Path) -> None:
    longer = Cell("ppo-lunarlander", ("total_timesteps=900_000",), "long", suite="proof")
    longest = Cell("ppo-lunarlander", ("total_timesteps=950_000",), "longest", suite="proof")
    for cell in (LANDER, longer):
        for side in (OURS, SB3):
            store(tmp_path, cell, side, [1.0, 2.0, 3.0])
    store(tmp_path, longest, OURS, [1.0, 2.0, 3.0])
    aggregate = read_aggregate(read_comparisons([LANDER, longer, longest], tmp_path))
    assert aggregate is not None
    assert [one.cell for one in aggregate.comparisons] == [longer]


def test_nothing_to_join_is_left_out(tmp_path: Path) -> None:
    store(tmp_path, PPO, OURS, [475.0, 475.0])
    assert read_aggregate(read_comparisons([PPO], tmp_path)) is None
    assert "## All environments together" not in page(tmp_path, PPO)


def test_long_trainings_have_a_section_of_their_own_and_published_figures_beside_them(tmp_path: Path) -> None:
    long = Cell("ppo-lunarlander", ("total_timesteps=1_000_000",), "1m", suite="proof")
    assert not read_comparisons([long], tmp_path)
    store(tmp_path, LANDER, OURS, [1.0])
    store(tmp_path, long, OURS, [230.0, 250.0])
    lines = page(tmp_path, LANDER, long)
    assert "### LunarLander-v3 at 1M steps" in lines
    (shown,) = (line for line in lines if "RL Zoo, benchmark.md" in line)
    assert "| 1,000,000 | 240.0 ± 14.1 (2 seeds) | 242.1 ± 31.8 |" in shown
    assert shown.endswith("| **below** |")


def test_an_algorithms_page_says_which_long_trainings_were_killed_and_which_fall_short(tmp_path: Path) -> None:
    lander, breakout = (
        next(cell for cell in PROOF if cell.name == name) for name in ("ppo-lunarlander-1m", "ppo-minatarbreakout-1m")
    )
    assert not long_training_blocks(tmp_path, ["ppo"])
    store(tmp_path, lander, OURS, [230.0, 250.0])
    store(tmp_path, breakout, OURS, [1.0])
    path = result_path(lander, OURS, tmp_path)
    summary = json.loads(path.read_text())
    summary["runs"][1]["resumed_at_steps"] = [50_000]
    path.write_text(json.dumps(summary))
    _, table, (sentence,) = long_training_blocks(tmp_path, ["ppo"])
    assert "| 240.0 ± 14.1 (2 seeds) | 1 of 2 | 242.1 ± 31.8 (RL Zoo, benchmark.md) |" in table[2]
    assert "| 28.0 after 10,000,000 steps (README of gymnax) |" in table[3]
    assert sentence.endswith("same number of steps: `ppo-lunarlander` at 1,000,000 steps (RL Zoo, benchmark.md).")
    store(tmp_path, lander, OURS, [250.0])
    assert long_training_blocks(tmp_path, ["ppo"])[-1][0].endswith(": none.")
    assert not long_training_blocks(tmp_path, ["dqn"])


# -- pictures --------------------------------------------------------------------------------------


@needs_matplotlib
def test_the_same_results_give_the_same_picture_and_others_another(tmp_path: Path) -> None:
    pictures = []
    for name, last in (("first", 300.0), ("second", 300.0), ("third", 301.0)):
        folder = tmp_path / name
        folder.mkdir()
        store(folder, PPO, OURS, [100.0, 200.0, last])
        store(folder, PPO, SB3, [150.0])
        write_comparison([PPO, LANDER], folder, folder)
        assert [file.name for file in (folder / "plots").iterdir()] == ["CartPole-v1.svg"]
        pictures.append((folder / plot_path("CartPole-v1")).read_bytes())
    assert pictures[0] == pictures[1] != pictures[2]


@needs_matplotlib
def test_a_picture_shows_curves_with_bands_and_every_seed(tmp_path: Path) -> None:
    from pages.result_plots import draw

    store(tmp_path, PPO, OURS, [100.0, 200.0, 300.0])
    store(tmp_path, PPO, SB3, [150.0, 160.0])
    (comparison,) = read_comparisons([PPO], tmp_path)
    curves, finals = draw("CartPole-v1", comparison.entries).axes
    ours, peer = curves.lines
    assert (ours.get_label(), peer.get_label()) == ("PPO, ours", "PPO, stable-baselines3")
    assert (ours.get_linestyle(), peer.get_linestyle()) == ("-", "--")
    assert ours.get_color() == peer.get_color()
    assert ours.get_xydata().tolist() == [[500, 198], [1000, 200]]  # type: ignore[union-attr]
    assert len(curves.collections) == 1, "two seeds have no band"
    assert [list(line.get_xdata()) for line in finals.lines] == [[100, 200, 300], [150, 160]]  # type: ignore[arg-type]
    assert [text.get_text() for text in finals.get_yticklabels()] == ["PPO, ours", "PPO, stable-baselines3"]


@needs_matplotlib
def test_the_legend_says_how_many_seeds_have_curves(tmp_path: Path) -> None:
    from pages.result_plots import draw

    store(tmp_path, PPO, OURS, [100.0, 200.0])
    path = result_path(PPO, OURS, tmp_path)
    summary = json.loads(path.read_text())
    del summary["runs"][0]["evaluations"]
    path.write_text(json.dumps(summary))
    (comparison,) = read_comparisons([PPO], tmp_path)
    curves, _ = draw("CartPole-v1", comparison.entries[:1]).axes
    assert [line.get_label() for line in curves.lines] == ["PPO, ours (1 of 2 seeds)"]


@needs_matplotlib
def test_algorithms_look_different_on_every_environment(tmp_path: Path) -> None:
    from pages.result_plots import style_of

    for found in environments(read_comparisons(SHOWN, RESULTS)).values():
        styles = [style_of(comparison.entries[0].algorithm) for comparison in found]
        assert len(set(styles)) == len(styles)


def test_trainings_of_other_lengths_share_a_picture_only_where_their_cells_say_so(tmp_path: Path) -> None:
    cells = [cell for cell in PROOF if cell.beside_other_lengths and not cell.variant]
    for cell in cells:
        store(tmp_path, cell, OURS, [1.0])
    apart = [dataclasses.replace(cell, beside_other_lengths=False) for cell in cells]
    together = environments(read_comparisons(cells, tmp_path))
    assert [one.algo for one in together["MinAtar/Breakout-v1"]] == ["ppo", "dqn", "gumbel_muzero", "rainbow"]
    assert len({one.steps for one in together["MinAtar/Breakout-v1"]}) == 3
    assert all(
        len({one.steps for one in found}) == 1 for found in environments(read_comparisons(apart, tmp_path)).values()
    )


def test_the_page_needs_no_matplotlib(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert page(tmp_path, PPO)


# -- the committed page ----------------------------------------------------------------------------


def test_the_page_is_what_the_stored_results_say() -> None:
    assert read_page(DOCS / "results.md") == render_comparison(committed()), (
        "the page is out of date; run: python benchmarks/render_results.py"
    )


def test_the_table_of_tasks_that_need_a_memory_is_what_the_stored_results_say() -> None:
    section = read_page(DOCS / render_memory.PAGE).split(BEGIN)[1].split(END)[0].strip()
    assert section == render_memory.render_memory(MEMORY, RESULTS), "run: python benchmarks/render_results.py"


def test_tasks_that_need_a_memory_are_shown_beside_the_peer_and_stacked_observations(tmp_path: Path) -> None:
    beside, stacked = MEMORY[0], next(cell for cell in MEMORY if cell.label == "stacked")
    store(tmp_path, beside, OURS, [400.0, 500.0, 500.0])
    store(tmp_path, beside, SB3, [100.0, 300.0, 450.0])
    store(tmp_path, stacked, OURS, [200.0])
    page = render_memory.render_memory((beside, stacked), tmp_path)
    task, ours = "| `CartPoleNoVel-v1` |", "3 | 466.7 [400.0, 500.0] | 466.7 | 400.0 | 500.0 |"
    assert f"{task} memory, RL Zoo's settings | ours | 1,000 | {ours}" in page
    assert f"{task} memory, RL Zoo's settings | sb3-contrib | 1,000 | 3 | 283.3 [100.0, 450.0] | 283.3 |" in page
    assert f"{task} the last four observations | ours | 1,000 | 1 | 200.0 | 200.0 | 200.0 | 200.0 |" in page
    # Eight of nine pairs of seeds.
    assert "Probability of improvement over sb3-contrib's recurrent PPO: `CartPoleNoVel-v1` 0.89 [" in page
    assert render_memory.render_memory(MEMORY, tmp_path / "empty") == "No results are stored yet."


@needs_matplotlib
def test_the_pictures_are_those_of_the_stored_results() -> None:
    from pages import board_plot
    from pages.result_plots import fingerprint

    drawn = drawn_environments()
    games = pictured_games(RESULTS)
    pictures = [Path(plot_path(place)).name for place in (*drawn, AGGREGATE)]
    pictures += [Path(picture_path(entry)).name for entry in games]
    assert sorted(file.name for file in (DOCS / "plots").glob("*.svg")) == sorted(pictures)
    for env_id, found in drawn.items():
        # Not the bytes, which may change with matplotlib's version.
        assert f"results {fingerprint(found)}" in read_page(DOCS / plot_path(env_id)), (
            f"the picture of {env_id} is out of date; run: python benchmarks/render_results.py"
        )
    for entry in games:
        assert f"results {board_plot.fingerprint(entry)}" in read_page(DOCS / picture_path(entry))


@needs_matplotlib
def test_all_comparisons_together_are_those_of_the_stored_results() -> None:
    from pages.aggregate_plot import fingerprint

    aggregate = read_aggregate(committed())
    assert aggregate is not None
    assert json.loads((RESULTS / "aggregate.json").read_text()) == describe(aggregate)
    assert f"results {fingerprint(aggregate)}" in read_page(DOCS / plot_path(AGGREGATE))


@pytest.mark.parametrize("cell", SHOWN, ids=lambda cell: f"{cell.preset}{cell.label and '-'}{cell.label}")
def test_every_shown_file_tells_where_its_numbers_come_from(cell: Cell) -> None:
    for entry in [entry for comparison in read_comparisons([cell], RESULTS) for entry in comparison.entries]:
        if not entry.runs:
            continue
        summary, name = entry.summary, entry.path.name
        assert f"]({Path('..', 'benchmarks', 'results', name).as_posix()})" in read_page(DOCS / "results.md")
        assert all(run["eval_episodes"] == EVALUATION_EPISODES for run in entry.runs)
        assert summary["command"].startswith("python benchmarks/learning.py ")
        assert {"python", "processor"} <= summary["machine"].keys()
        simulator = simulators(entry.env_id)
        assert simulator or str(find_spec(entry.env_id).entry_point).startswith("gymnasium.envs.classic_control")
        packages = ["torch", "gymnasium", *simulator, "stable_baselines3" if entry.side == SB3 else "axiomrl"]
        assert [package for package in packages if not summary["versions"].get(package)] == [], f"{name} lacks versions"


# -- the README's section --------------------------------------------------------------------------


def test_the_readme_shows_the_stored_results() -> None:
    shown = marked_section(ROOT / "README.md", "results")
    assert shown == render_headlines(RESULTS), "README.md is out of date; run: python benchmarks/render_results.py"


def test_a_headline_is_the_first_training_of_an_algorithm_on_an_environment(tmp_path: Path) -> None:
    first, second = (cell for cell in PROOF if cell.preset == "ppo-hopper")
    other = next(cell for cell in PROOF if cell.preset == "sac-hopper")
    for cell, score in ((second, 100.0), (other, 200.0)):
        store(tmp_path, cell, OURS, [score])
    assert [one.cell for one in headlines(read_comparisons(PROOF, tmp_path))] == [second, other]
    store(tmp_path, first, OURS, [300.0, 500.0])
    store(tmp_path, first, SB3, [50.0])
    assert [one.cell for one in headlines(read_comparisons(PROOF, tmp_path))] == [first, other]
    lines = render_headlines(tmp_path).splitlines()
    assert any("| 1,000,000 | 400.0 ± 141.4 (2 seeds) | 50.0 (1 seed) |" in line for line in lines)
    assert not any("100.0" in line or "comparisons with stable-baselines3 and" in line for line in lines[5:])
