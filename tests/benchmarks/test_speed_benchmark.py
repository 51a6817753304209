"""The speed command stores what it measured as it goes, says what is missing, and its guard names what fell."""

from __future__ import annotations

import itertools
import json
import sys
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import speed
from peers import cleanrl_scripts, lightzero_search
from records import RESULTS, SB3, versions_beside, why_missing
from rl_training.experiment.configuration.config_files import load_config
from rl_training.install_hint import install_hint
from speed_cases import (
    env_speed,
    scaling_speed,
    search_speed,
    seeds_speed,
    training_side,
    training_speed,
)
from speed_cases.speed_guard import fallen
from speed_cases.speed_parts import Benchmark, Effort, Outcome, alternate, quickest
from speed_cases.training_cases import CASES


class Measured:
    """A benchmark whose ratios are made up, one measurement after another."""

    def __init__(self, name: str, *ratios: dict[str, float], missing: tuple[str, ...] = ()) -> None:
        self.name = name
        self.efforts: list[Effort] = []
        self._ratios: Iterator[dict[str, float]] = iter(ratios)
        self._missing = list(missing)

    def measure(self, effort: Effort) -> Outcome:
        self.efforts.append(effort)
        ratios = {name: [value] * effort.rounds for name, value in next(self._ratios).items()}
        return Outcome(ratios, self._missing, {"rounds": []})


def benchmark(name: str, measure: Callable[[Effort], Outcome]) -> Benchmark:
    return Benchmark(name, measure, lambda effort: "one thread")


def run(results: Path, *arguments: str, measured: list[Measured]) -> int:
    return speed.main(arguments, {one.name: benchmark(one.name, one.measure) for one in measured}, results)


def store(results: Path, name: str, **ratios: float) -> None:
    stored = {"settings": "one thread", "clock": "processor time"}
    (results / f"speed-{name}.json").write_text(
        json.dumps({**stored, "ratios": {ratio: {"median": value} for ratio, value in ratios.items()}})
    )


def test_a_fall_of_24_percent_is_tolerated_and_one_of_26_is_not() -> None:
    stored = {"peer": {"median": 2.0}, "other": {"median": 1.0}}
    assert fallen(stored, {"peer": [1.52], "other": [3.0]}) == {}
    assert fallen(stored, {"peer": [1.48], "other": [3.0]}) == {"peer": "fell by 26%, from 2.00 to 1.48"}


def test_one_slow_round_is_no_fall() -> None:
    assert fallen({"peer": {"median": 2.0}}, {"peer": [2.0, 0.1, 1.9]}) == {}


def test_the_guard_fails_and_names_what_fell_twice(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store(tmp_path, "ppo", sb3=2.0, cleanrl=2.0)
    store(tmp_path, "dqn", sb3=2.0)
    ppo = Measured("ppo", {"sb3": 1.48, "cleanrl": 1.52}, {"sb3": 1.4, "cleanrl": 1.0})
    dqn = Measured("dqn", {"sb3": 2.2})
    assert run(tmp_path, "--check", measured=[ppo, dqn]) == 1
    said = capsys.readouterr().out
    assert "ppo: below the bar, so measured once more: sb3\n" in said
    # What stood the first time is not judged by the second.
    assert said.splitlines()[-1] == "ppo: sb3 fell by 30%, from 2.00 to 1.40"
    assert json.loads((tmp_path / "speed-ppo.json").read_text())["ratios"]["sb3"] == {"median": 2.0}


def test_a_fall_that_does_not_come_again_is_noise(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store(tmp_path, "ppo", sb3=2.0)
    ppo = Measured("ppo", {"sb3": 1.0}, {"sb3": 1.9})
    assert run(tmp_path, "--check", measured=[ppo]) == 0
    said = capsys.readouterr().out
    assert "ppo: below the bar, so measured once more: sb3\n" in said
    assert said.splitlines()[-1] == "No ratio fell by more than a quarter below the stored one."


def test_what_cannot_be_compared_is_said_and_does_not_fail(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store(tmp_path, "search", torch=5.0, mctx=1.5)
    store(tmp_path, "sweep", jobs=1.8)
    (tmp_path / "speed-sweep.json").write_text(
        (tmp_path / "speed-sweep.json").read_text().replace("one thread", "ten threads")
    )
    new = Measured("new", {"peer": 1.0})
    search = Measured("search", {"torch": 5.0}, missing=("mctx is not installed: pip install mctx",))
    sweep = Measured("sweep", {"jobs": 0.1})
    assert run(tmp_path, "--check", measured=[new, search, sweep]) == 0
    said = capsys.readouterr().out.splitlines()
    assert "new: nothing is stored to compare with; run without --check first" in said
    assert not new.efforts
    assert not sweep.efforts
    assert "search: mctx is not installed: pip install mctx" in said
    assert "search: not measured here: mctx" in said
    assert "sweep: what is stored was measured in another way; run without --check to store it anew" in said


def test_a_check_that_compares_nothing_fails(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store(tmp_path, "search", mctx=1.5)
    measured = [Measured("new", {"peer": 1.0}), Measured("search", {"torch": 5.0})]
    assert run(tmp_path, "--check", measured=measured) == 1
    last = capsys.readouterr().out.splitlines()[-1]
    assert last == "Nothing could be compared, so the check says nothing: run without --check to store ratios first."


@pytest.mark.parametrize(
    ("given", "advice"),
    [
        (["--check"], "--check --only second"),
        (["--check", "--rounds", "2"], "--check --rounds 2 --only second"),
        (["--quick"], "--quick --only second"),
        (["--before", "older"], "--before older --only second"),
    ],
)
def test_going_on_keeps_how_it_was_begun(
    given: list[str], advice: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(effort: Effort) -> Outcome:
        raise KeyboardInterrupt

    store(tmp_path, "first", peer=2.0)
    store(tmp_path, "second", peer=2.0)
    first = Measured("first", {"peer": 2.0})
    benchmarks = {"first": benchmark("first", first.measure), "second": benchmark("second", interrupted)}
    with pytest.raises(KeyboardInterrupt):
        speed.main(given, benchmarks, tmp_path)
    last = capsys.readouterr().out.splitlines()[-1]
    assert last == f"stopped in second; to go on: python benchmarks/speed.py {advice}"


def test_every_summary_is_stored_as_its_benchmark_ends(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def interrupted(effort: Effort) -> Outcome:
        assert (tmp_path / "speed-first.json").exists()
        raise KeyboardInterrupt

    first = Measured("first", {"peer": 2.0})
    benchmarks = {
        "first": benchmark("first", first.measure),
        "second": benchmark("second", interrupted),
        "third": benchmark("third", interrupted),
    }
    with pytest.raises(KeyboardInterrupt):
        speed.main([], benchmarks, tmp_path)
    stored = json.loads((tmp_path / "speed-first.json").read_text())
    assert stored["ratios"] == {"peer": {"median": 2.0, "smallest": 2.0, "largest": 2.0}}
    assert stored["command"] == "python benchmarks/speed.py --only first --rounds 5"
    assert {"settings", "clock", "missing", "rounds", "versions", "machine"} <= set(stored)
    assert "to go on: python benchmarks/speed.py --only second --only third" in capsys.readouterr().out


def test_a_quick_look_measures_everything_and_stores_nothing(tmp_path: Path) -> None:
    measured = [Measured(name, {"peer": 1.0}) for name in speed.BENCHMARKS]
    assert run(tmp_path, "--quick", measured=measured) == 0
    assert [one.efforts for one in measured] == [[Effort(1, quick=True)]] * len(speed.BENCHMARKS)
    assert not list(tmp_path.iterdir())
    assert set(speed.BENCHMARKS) == {
        *("ppo", "ppo-long", "ppo-halfcheetah", "ppo-pong", "recurrent", "dqn", "sac", "td3", "efficientzero"),
        *("seeds", "sweep"),
        *(
            "search",
            "environments",
            "startup",
            "checkpoints",
            "scaling",
            "priorities",
            "export",
            "td3_bc",
            "iql",
            "tune",
        ),
    }


def test_what_compared_nothing_is_not_stored(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store(tmp_path, "ppo", sb3=2.0)
    assert run(tmp_path, measured=[Measured("ppo", {}, missing=("sb3 is not installed",))]) == 0
    assert "ppo: nothing could be compared, so nothing is stored" in capsys.readouterr().out
    assert json.loads((tmp_path / "speed-ppo.json").read_text())["ratios"] == {"sb3": {"median": 2.0}}


def test_a_ratio_may_have_a_clock_of_its_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    outcome = Outcome({"peer": [2.0], "other": [3.0]}, clocks={"other": "the clock"})
    speed.main([], {"ppo": benchmark("ppo", lambda effort: outcome)}, tmp_path)
    *_, peer, other = capsys.readouterr().out.splitlines()
    assert peer.split() == ["ppo", "peer", "2.00", "(2.00..2.00)", "processor", "time"]
    assert other.split() == ["ppo", "other", "3.00", "(3.00..3.00)", "the", "clock"]
    stored = json.loads((tmp_path / "speed-ppo.json").read_text())
    assert (stored["clock"], stored["clocks"]) == ("processor time", {"other": "the clock"})


def test_the_order_of_the_sides_alternates() -> None:
    called: list[str] = []

    def side(name: str) -> Any:
        return lambda number: called.append(f"{name}{number}") or float(number)  # type: ignore[func-returns-value]

    rows = alternate({"a": side("a"), "b": side("b")}, 3)
    assert called == ["a1", "b1", "b2", "a2", "a3", "b3"]
    assert [list(row) for row in rows] == [["a", "b"]] * 3


def test_missing_peers_are_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(cleanrl_scripts, "FOLDER", tmp_path / "cleanrl")
    monkeypatch.setattr(lightzero_search, "FOLDER", tmp_path / "lightzero")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    lightzero_search.why_missing.cache_clear()
    nothing = Effort(0, quick=True, before=tmp_path / "before")
    said: dict[str, list[str]] = {}
    for name in CASES:
        outcome = training_speed.measure(name, nothing)
        assert outcome.ratios == {}
        said[name] = [reason.split(": ")[0] for reason in outcome.missing]
    sb3, sbx, cleanrl = (f"{peer} is not installed" for peer in ("stable-baselines3", "SBX", "CleanRL"))
    assert said == {
        **{name: [sb3, sbx, f"{cleanrl} in build/cleanrl"] for name in ("ppo", "dqn", "sac")},
        **{name: [sb3, sbx] for name in ("ppo-long", "td3")},
        "ppo-halfcheetah": ["MuJoCo is not installed"],
        "ppo-pong": ["Atari games are not installed"],
        "recurrent": ["sb3-contrib is not installed"],
        "efficientzero": ["no older checkout is there"],
    }
    assert training_speed.measure("ppo-long", nothing).missing[1] == f"{sbx}: {install_hint('bench')}"
    assert seeds_speed.measure(nothing).missing == [f"{sb3}: {install_hint('bench')}"]
    monkeypatch.setattr(search_speed, "RULES", {})
    assert [reason.split(" is ")[0] for reason in search_speed.measure(nothing).missing] == ["mctx", "LightZero"]
    lightzero_search.why_missing.cache_clear()


def test_a_script_that_does_not_run_is_said_with_its_reason(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    script = tmp_path / "cleanrl" / "cleanrl" / "ppo.py"
    script.parent.mkdir(parents=True)
    script.write_text("import a_module_that_nobody_has\n")
    monkeypatch.setattr(cleanrl_scripts, "FOLDER", tmp_path / "cleanrl")
    reason = cleanrl_scripts.why_missing("ppo")
    assert reason is not None
    assert reason.startswith("CleanRL's ppo.py does not run here: ModuleNotFoundError")


def test_the_speed_of_a_script_is_read_between_its_first_and_last_mark(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    # Ten marks, so nine intervals of 256 steps; a second of the processor and four of the clock pass between questions.
    body = "print('hello')\nfor _ in range(10): print('SPS: 1'); print('global_step=256')\nprint('goodbye')\n"
    script = tmp_path / "cleanrl" / "ppo.py"
    script.parent.mkdir()
    script.write_text(body)
    monkeypatch.setattr(cleanrl_scripts, "FOLDER", tmp_path)
    monkeypatch.setattr("psutil.Process.cpu_times", _counting())
    monkeypatch.setattr(cleanrl_scripts, "time", types.SimpleNamespace(perf_counter=itertools.count(7, 4).__next__))
    config = load_config(preset="ppo-cartpole")
    assert cleanrl_scripts.run(config, tmp_path) == (256, 64)
    script.write_text("raise SystemExit('broken')\n")
    with pytest.raises(RuntimeError, match="broken"):
        cleanrl_scripts.run(config, tmp_path)


def _counting() -> Any:
    """Return a processor that needs a second per question."""
    seconds = iter(range(100))

    class Times:
        def __init__(self) -> None:
            self.user, self.system = float(next(seconds)), 0.0

    return lambda process: Times()


def test_cleanrl_gets_the_numbers_of_the_configuration() -> None:
    given = cleanrl_scripts.arguments(load_config(preset="ppo-cartpole", overrides={"seed": 3}))
    assert given[:8] == ["--env-id", "CartPole-v1", "--seed", "3", "--total-timesteps", "100000", "--cuda", "False"]
    for words in ("--num-envs 8", "--num-steps 32", "--num-minibatches 1", "--update-epochs 20", "--anneal-lr True"):
        assert words in " ".join(given)
    for name in ("dqn", "sac"):
        case = CASES[name]
        settings = (*case.settings, *case.sides["cleanrl"].changes)
        given = cleanrl_scripts.arguments(load_config(preset=case.preset, set_values=settings))
        assert "--learning-starts 1000" in " ".join(given)
    with pytest.raises(ValueError, match=r"CleanRL has no hidden_sizes \(64, 64\), loss huber, max_grad_norm 10.0"):
        cleanrl_scripts.arguments(load_config(preset="dqn-cartpole", set_values=CASES["dqn"].settings))


@pytest.mark.parametrize(
    ("name", "change", "problem"),
    [
        ("ppo", "algo_kwargs.optimizer_eps=1e-8", "optimizer_eps 1e-08"),
        ("ppo", "algo_kwargs.learning_rate_schedule={type: linear, end: 1e-4}", "learning_rate that ends at 0.0001"),
        ("ppo", "env_kwargs.normalize_observation=true", "normalize_observation"),
        ("dqn", "algo_kwargs.double=true", "double True"),
        ("dqn", "algo_kwargs.activation=tanh", "activation tanh"),
        ("dqn", "algo_kwargs.epsilon_warmup_steps=10", "warm-up of epsilon"),
        ("dqn", "num_envs=2", "num_envs 2"),
        ("sac", "algo_kwargs.policy_delay=2", "policy_delay 2"),
        ("sac", "algo_kwargs.critic_hidden_sizes=[64]", r"critic_hidden_sizes \(64,\)"),
        ("sac", "algo_kwargs.temperature_init=0.5", "temperature_init 0.5"),
        ("sac", "algo_kwargs.use_sde=true", "use_sde True"),
    ],
)
def test_what_cleanrl_lacks_is_refused(name: str, change: str, problem: str) -> None:
    case = CASES[name]
    settings = (*case.settings, *case.sides["cleanrl"].changes, change)
    with pytest.raises(ValueError, match=f"CleanRL has no {problem}"):
        cleanrl_scripts.arguments(load_config(preset=case.preset, set_values=settings))


def test_both_sides_can_train_every_case_and_every_point(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pytest.importorskip("stable_baselines3")
    monkeypatch.chdir(tmp_path)  # MuJoCo writes its warnings to where it is
    from peers.stable_baselines3_models import make_peer

    for case in CASES.values():
        if SB3 in case.sides and not any(map(why_missing, case.needs)):
            make_peer(case.config(case.sides[SB3], 1, Effort(1), "runs")).get_env().close()
    for row in scaling_speed.points(Effort(1)):
        assert [point.value for point in row] == list(scaling_speed.AXES[row[0].axis])
        for point in row:
            config = point.config(1, Effort(1), "runs")
            assert config.num_envs == (point.value if point.axis == "environments" else 8 if point.algo == "ppo" else 1)


def test_rates_leave_out_the_warm_up_and_the_first_update() -> None:
    marks = training_side.Marks([0, 10, 11, 12, 15], [0.0, 5.0, 9.0, 10.0, 11.0], [0.0, 1.0, 2.0, 3.0, 10.0])
    assert marks.rates(left_out=10) == (4 / 2.0, 4 / 8.0)


def test_preparation_is_what_the_first_updates_took_longer_than_later_ones() -> None:
    # The first counted mark is at step 12, after 30 seconds; two of its steps learned, at four seconds each.
    seconds = [100.0, 101.0, 102.0, 130.0, 142.0]
    marks = training_side.Marks([0, 0, 10, 12, 15], seconds, [0.0, 1.0, 2.0, 3.0, 4.0])
    assert marks.preparation(warm_up=10, left_out=11) == 30 - 2 * 4
    assert marks.preparation(warm_up=0, left_out=11) == 0  # noise makes no negative time


@pytest.mark.parametrize("name", speed.BENCHMARKS)
def test_what_is_stored_can_be_checked(name: str) -> None:
    path = RESULTS / f"speed-{name}.json"
    if not path.exists():
        pytest.skip(f"{name} was not measured yet")
    stored = json.loads(path.read_text())
    assert stored["ratios"]
    assert all(ratio["median"] > 0 for ratio in stored["ratios"].values())
    program, script, *words = stored["command"].split()
    assert (program, script) == ("python", "benchmarks/speed.py")
    options, measured = speed._parse(words, speed.BENCHMARKS), speed.BENCHMARKS[name]
    assert options.only == [name]
    assert (stored["settings"], stored["clock"]) == (measured.settings(Effort(options.rounds)), measured.clock)


def test_the_quickest_call_counts_by_the_clock_that_is_given() -> None:
    ticks = iter([0.0, 5.0, 10.0, 12.0, 20.0, 23.0])
    assert quickest(lambda: None, 3, lambda: next(ticks)) == 2.0


def test_peers_in_folders_of_their_own_tell_their_versions(tmp_path: Path) -> None:
    assert versions_beside(tmp_path) == {}
    metadata = tmp_path / "lightzero" / "lightzero-0.2.0.dist-info" / "METADATA"
    metadata.parent.mkdir(parents=True)
    metadata.write_text("Metadata-Version: 2.1\nName: LightZero\nVersion: 0.2.0\n")
    assert versions_beside(tmp_path) == {"LightZero": "0.2.0"}


def test_an_environment_that_envpool_lacks_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(env_speed, "why_missing", lambda package: None)
    pool = types.SimpleNamespace(list_all_envs=lambda: ["CartPole-v1", "LunarLander-v2"])
    monkeypatch.setitem(sys.modules, "envpool", pool)
    found = env_speed.pooled_tasks(["CartPole-v1", "LunarLander-v3"])
    assert found == (["CartPole-v1"], ["EnvPool has no LunarLander-v3"])


def test_mctx_is_compared_by_the_clock_on_both_sides(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search_speed, "why_missing", lambda package: None)
    monkeypatch.setattr(search_speed, "mctx_search", lambda *given: lambda: None)
    monkeypatch.setattr(search_speed, "SIZES", ((1, 2),))
    outcome = search_speed.measure(Effort(1, quick=True))
    (row, _) = outcome.details["rounds"]
    assert outcome.ratios["muzero 1x2: mctx"] == [row["compiled_by_the_clock"] / row["mctx"]]
    assert outcome.ratios["muzero 1x2: torch"] == [row["compiled"] / row["torch"]]
    assert not any("clock" in name for name in outcome.ratios)
