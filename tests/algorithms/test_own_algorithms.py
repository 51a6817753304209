"""An algorithm of the user's own goes wherever one of this package's does, by `module:SPEC` or by an entry point."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch

from cli_parts import Command, assert_refused
from harness import assert_same_run, metric_rows, only_run, stopped_after
from own_algorithms import EXAMPLES, SMALL, SMALL_PPO, write_algorithms
from own_code import copy_run
from rl_training import load_policy
from rl_training.errors import AxiomError, UntrustedCodeError
from rl_training.experiment.checkpoints import LATEST, MANIFEST, pointed
from rl_training.experiment.own_code import user_code
from rl_training.experiment.runs import read_metadata
from rl_training.runtime.recording.metrics import RunningMeans
from rl_training.runtime.workflows import evaluate, resume
from sweep_runs import only_summary, run_dirs

Forget = Callable[[], None]


@pytest.fixture
def own(axiomrl: Command, tmp_path: Path, new_process: Forget) -> Command:
    """The command line in a directory that holds the user's algorithms."""
    write_algorithms(tmp_path)
    return axiomrl


def trained(own: Command, algo: str, *arguments: object) -> Path:
    small = SMALL_PPO if "ppo" in algo else SMALL
    answer = own("train", "--algo", algo, *small, *arguments)
    assert answer.status == 0, answer.err
    return Path(answer.values()["run_dir"]).absolute()


@pytest.mark.parametrize(("name", "lines"), [("reinforce.py", 60), ("ppo_with_penalty.py", 25)])
def test_the_examples_are_small(name: str, lines: int) -> None:
    assert len((EXAMPLES / name).read_text().splitlines()) < lines


def test_its_parameters_are_shown_as_those_of_the_package(own: Command) -> None:
    shown = own("algos", "reinforce:SPEC")
    assert shown.status == 0
    assert "reinforce (contrib): REINFORCE." in shown.out
    assert "baseline_coef: a number >= 0; default 0.5\n    Weight of the baseline's squared error" in shown.out
    assert "learning_rate: a number > 0; default 0.0003" in shown.out


@pytest.mark.parametrize("algo", ["reinforce.py:SPEC", "ppo_with_penalty:SPEC"])
def test_it_trains_and_its_run_is_used_like_any_other(
    algo: str, own: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, new_process: Forget
) -> None:
    run_dir = trained(own, algo, "--set", "eval_interval=32")
    module = algo.partition(":")[0].removesuffix(".py")
    assert run_dir.name.startswith(f"{algo.replace(':', '-').replace('_', '-')}__CartPole-v1__seed0__")
    metadata = read_metadata(run_dir)
    (record,) = metadata["user_code"]
    assert (record["name"], record["file"]) == (algo, str(tmp_path / f"{module}.py"))
    reason = "PenaltyPPO.loss is not that of PPO" if "ppo" in algo else "Reinforce has no kernel"
    assert metadata["acceleration"] == {"kernel": None, "reason": reason}
    row = next(row for row in metric_rows(run_dir) if row["event"] == "train")
    assert "penalty" in row if "ppo" in algo else {"loss_policy", "loss_total", "gradient_norm"} <= set(row)

    new_process()
    for command in (["report"], ["leaderboard", "--min-seeds", "1"]):
        shown = own(*command, "runs")
        assert shown.status == 0, shown.err
        assert f"{algo.replace(':', '-').replace('_', '-')}-CartPole-v1" in shown.out
    assert module not in sys.modules, "a report imports no code"

    monkeypatch.chdir(tmp_path.parent)
    assert evaluate(run_dir).metrics["eval_episodes"] == 1
    new_process()
    assert load_policy(run_dir).predict([0.0, 0.0, 0.0, 0.0]) in (0, 1)
    new_process()
    assert resume(run_dir, total_timesteps=96).metrics["global_step"] == 96


@pytest.mark.parametrize("algo", ["reinforce:SPEC", "ppo_with_penalty.py:SPEC"])
def test_it_resumes_exactly(algo: str, own: Command, new_process: Forget) -> None:
    straight = trained(own, algo, "--output-dir", "straight")
    with stopped_after(1):
        small = SMALL_PPO if "ppo" in algo else SMALL
        own("train", "--algo", algo, *small, "--output-dir", "stopped")
    stopped = only_run(Path("stopped"))
    assert read_metadata(stopped)["status"] == "interrupted"
    new_process()
    assert own("resume", "--checkpoint", stopped).status == 0
    assert_same_run(straight, stopped)


def test_it_is_swept_over_seeds_and_continued(own: Command, new_process: Forget) -> None:
    assert own("train", "--algo", "reinforce.py:SPEC", *SMALL, "--seeds", "1,2").status == 0
    path = only_summary(Path("runs"))
    assert path.name.startswith("benchmark_summary__reinforce.py-SPEC__CartPole-v1__")
    summary = json.loads(path.read_text())
    summary["runs"][1] = {"seed": 2, "status": "pending"}
    path.write_text(json.dumps(summary))
    new_process()
    assert own("train", "--continue", path).status == 0
    assert all(read_metadata(run)["status"] == "completed" for run in run_dirs(path).values())


@pytest.mark.slow
def test_it_is_swept_in_processes(own: Command) -> None:
    answer = own("train", "--algo", "ppo_with_penalty.py:SPEC", *SMALL_PPO, "--seeds", "1,2", "--jobs", "2")
    assert answer.status == 0, answer.err
    for run in run_dirs(only_summary(Path("runs"))).values():
        assert read_metadata(run)["user_code"][0]["name"] == "ppo_with_penalty.py:SPEC"


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("baseline_coeff=1", "algo_kwargs.baseline_coeff: unknown key; did you mean `baseline_coef`?"),
        ("baseline_coef=-1", "algo_kwargs.baseline_coef: must be a number >= 0, got -1"),
        ("baseline_coef=much", "algo_kwargs.baseline_coef: must be a number >= 0, got 'much'"),
        ("unruled=13", "algo_kwargs.unruled: 13 brings bad luck; take 12"),
        ("n_steps=5", "algo_kwargs.n_steps: unknown key; it is called `num_steps` here"),
        ("learning_rate_schedule=linea", "algo_kwargs.learning_rate_schedule: must be"),
    ],
)
def test_its_parameters_are_checked_as_those_of_the_package(setting: str, words: str, own: Command) -> None:
    assert_refused(own("train", "--algo", "wrong:STRICT", *SMALL, "--set", f"algo_kwargs.{setting}"), words)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("NUMBER", "algo: `wrong:NUMBER` is an object of the type int and no AlgorithmSpec; write SPEC = Algorithm"),
        ("Strict", "algo: `wrong:Strict` is Strict and no AlgorithmSpec"),
        ("STRIC", "algo: `wrong` has no `STRIC`; did you mean `STRICT`?"),
        ("NO_LOOP", "algo: reinforce: there is no loop `on_polcy`; did you mean `on_policy`"),
        ("SOME_LOOP", "there is no loop `xyz`; the loops are on_policy, off_policy, planning"),
        ("PLAIN", "the parameters Plain are no dataclass; write @dataclass(frozen=True) above a subclass of OnPolicy"),
        ("LONE", "the parameters Lone lack what the loop needs; write @dataclass(frozen=True) above a subclass of"),
        ("FORGOTTEN", "the parameters Forgotten have no field extra, because their class is no dataclass; write @data"),
        ("OTHER_LOOP", "the parameters ReinforceParams lack what the loop needs"),
        ("OTHER_BASE", "the algorithm Plain is no class that the on_policy loop can train; make it a subclass of OnP"),
        ("AN_INSTANCE", "the algorithm an object of the type int is no class"),
        ("MISSING", "algo: the specification names `reinforce:Nothing`, which cannot be imported"),
        ("NO_MODULE", "algo: the specification names `no_such_module:Nothing`, which cannot be imported"),
        (
            "SPACES",
            "action_spaces must be a tuple of some of Discrete, MultiDiscrete, MultiBinary, Box, got ('Discret'",
        ),
        ("TEXT", "action_spaces must be a tuple of some of"),
    ],
)
def test_a_wrong_specification_is_answered_with_its_repair(name: str, words: str, own: Command) -> None:
    assert_refused(own("train", "--algo", f"wrong:{name}", *SMALL), words)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        (
            "VECTOR",
            "`update` returned the metric `reward` as a tensor of shape (16, 2); return a tensor with one number",
        ),
        ("NUMBERS", "`update` returned the metric `reward` as float; return a tensor with one number, shape ()"),
        ("RESERVED", "`update` returned a metric called `event`, which every row has already; rename it"),
    ],
)
def test_a_metric_that_is_none_ends_the_run_with_its_repair(name: str, words: str, own: Command) -> None:
    answer = own("train", "--algo", f"wrong:{name}", *SMALL)
    assert (answer.status, "Traceback" in answer.err) == (1, False)
    assert words in answer.err
    assert read_metadata(only_run(Path("runs")))["status"] == "failed"


@pytest.mark.parametrize(
    ("algo", "words"),
    [
        ("no_algo:SPEC", "algo: cannot import `no_algo` of `no_algo:SPEC`"),
        ("no/algo.py:SPEC", "there is no file"),
        ("pppo", "algo: unknown algorithm `pppo`; did you mean `ppo`"),
        ("zzzzz", "install the package that offers it, or name your own as module:SPEC"),
    ],
)
def test_a_name_that_means_nothing_is_said(algo: str, words: str, own: Command) -> None:
    assert_refused(own("train", "--algo", algo, *SMALL), words)


def test_a_fork_changes_what_has_a_rule_and_nothing_else(own: Command, new_process: Forget) -> None:
    run_dir = trained(own, "wrong:STRICT")
    new_process()
    fork = ["resume", "--checkpoint", run_dir, "--fork", "--total-timesteps", "96", "--set"]
    assert own(*fork, "algo_kwargs.baseline_coef=0.1").status == 0
    for setting, reason in (
        ("unruled=2", "algo_kwargs.unruled: must stay 1, because nothing says that a checkpoint can go on with"),
        ("num_steps=8", "algo_kwargs.num_steps: must stay 16, because the unfinished rollout"),
        ("hidden_sizes=[4]", "algo_kwargs.hidden_sizes: must stay [8], because the networks"),
    ):
        answer = own(*fork, f"algo_kwargs.{setting}")
        assert answer.status == 2
        assert reason in answer.err


def test_a_run_starts_with_the_weights_of_another(own: Command, new_process: Forget) -> None:
    first = trained(own, "reinforce:SPEC")
    new_process()
    second = trained(own, "reinforce:SPEC", "--init", first)
    assert read_metadata(second)["parent"]["kind"] == "init"
    answer = own("train", "--algo", "ppo_with_penalty:SPEC", *SMALL_PPO, "--init", first)
    assert answer.status == 2
    assert "holds weights of reinforce:SPEC, and this run trains ppo_with_penalty:SPEC" in answer.err


# -- names out of loaded files ---------------------------------------------------------------------


def test_a_missing_module_is_named(own: Command, tmp_path: Path, new_process: Forget) -> None:
    run_dir = trained(own, "reinforce:SPEC")
    (tmp_path / "reinforce.py").unlink()
    for enter in (evaluate, resume, load_policy):
        new_process()
        with pytest.raises(AxiomError, match="algo: cannot import `reinforce` of `reinforce:SPEC`: it is not install"):
            enter(run_dir)
    assert own("report", "runs").status == 0


def test_a_changed_file_is_said(
    own: Command, tmp_path: Path, new_process: Forget, caplog: pytest.LogCaptureFixture
) -> None:
    run_dir, file = trained(own, "reinforce:SPEC"), tmp_path / "reinforce.py"
    file.write_text(file.read_text() + "\n# another line\n")
    uses: list[Callable[..., object]] = [evaluate, load_policy, partial(resume, total_timesteps=96)]
    for use in uses:
        new_process()
        with pytest.raises(UntrustedCodeError, match="which has changed since a training of yours used it"):
            use(run_dir)
        new_process()
        caplog.clear()
        use(run_dir, trust_code=True)
        assert f"{file}, the code of `reinforce:SPEC`, has changed since the checkpoint" in caplog.text
    assert any("has changed since the checkpoint" in said for said in read_metadata(run_dir)["notices"])


def rename_algorithm(run_dir: Path, algo: str) -> None:
    """Let the newest checkpoint of a run name another algorithm, as somebody else may have made it."""
    checkpoint = pointed(run_dir, LATEST)
    assert checkpoint is not None
    manifest = json.loads((checkpoint / MANIFEST).read_text())
    manifest["config"]["algo"] = algo
    (checkpoint / MANIFEST).write_text(json.dumps(manifest))


def write_trap(path: Path) -> Path:
    sprung = path.with_suffix(".sprung")
    path.write_text(f"open({str(sprung)!r}, 'w').close()\n{(EXAMPLES / 'ppo_with_penalty.py').read_text()}")
    return sprung


@pytest.mark.parametrize("algo", ["evil:SPEC", "evil.py:SPEC", "{place}/evil.py:SPEC"])
def test_an_algorithm_that_a_loaded_file_names_is_not_executed(
    algo: str, finished_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, new_process: Forget
) -> None:
    gift = copy_run(finished_run, tmp_path / "gift" / "run")
    sprung = write_trap(gift.parent / "evil.py")
    rename_algorithm(gift, algo.format(place=gift.parent))
    monkeypatch.chdir(gift.parent)
    monkeypatch.setattr(sys, "path", ["", str(gift.parent), *sys.path])
    for enter in (evaluate, resume, load_policy):
        with pytest.raises(UntrustedCodeError, match=r"algo: .*evil\.py, which is not installed and was not used"):
            enter(gift)
    assert not sprung.exists()
    load_policy(gift, trust_code=True)
    assert sprung.exists()


@pytest.mark.parametrize("algo", ["os:system", "subprocess:Popen", "builtins:exec"])
def test_a_loaded_name_means_nothing_but_a_specification(
    algo: str, finished_run: Path, tmp_path: Path, new_process: Forget
) -> None:
    gift = copy_run(finished_run, tmp_path / "gift" / "run")
    rename_algorithm(gift, algo)
    for enter in (evaluate, resume, load_policy):
        with pytest.raises(UntrustedCodeError, match="is no AlgorithmSpec"):
            enter(gift)


def test_a_sweep_that_is_continued_executes_no_algorithm_of_its_summary(
    axiomrl: Command, tmp_path: Path, new_process: Forget
) -> None:
    assert axiomrl("train", "--algo", "ppo", *SMALL_PPO, "--seeds", "1").status == 0
    path = only_summary(Path("runs"))
    summary = json.loads(path.read_text())
    summary["config"]["algo"] = "evil:SPEC"
    summary["runs"][0] = {"seed": 1, "status": "pending"}
    path.write_text(json.dumps(summary))
    sprung = write_trap(tmp_path / "evil.py")
    answer = axiomrl("train", "--continue", path)
    assert answer.status == 2
    assert f"algo: `evil:SPEC` comes out of sweep {path} and means the code in {tmp_path / 'evil.py'}" in answer.err
    assert not sprung.exists()
    assert axiomrl("train", "--continue", path, "--trust-code").status == 0
    assert sprung.exists()


# -- entry points ----------------------------------------------------------------------------------


@pytest.fixture
def installed(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> Callable[[str, str, str], Path]:
    """A function that installs a package with an entry point: its name, that of the algorithm, and `module:SPEC`."""

    def install(package: str, algo: str, target: str) -> Path:
        site = tmp_path_factory.mktemp("site")
        about = site / f"{package}-1.0.dist-info"
        about.mkdir()
        (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
        (about / "entry_points.txt").write_text(f"[axiomrl.algorithms]\n{algo} = {target}\n")
        monkeypatch.syspath_prepend(str(site))
        return site

    return install


def test_an_installed_package_offers_an_algorithm_by_name(
    axiomrl: Command, installed: Callable[[str, str, str], Path], new_process: Forget
) -> None:
    site = installed("their-package", "their_reinforce", "their_package:SPEC")
    (site / "their_package.py").write_text((EXAMPLES / "reinforce.py").read_text())
    listed = axiomrl("algos")
    assert "their_reinforce  contrib       Of an installed package: their_package:SPEC.\n" in listed.out
    assert "their_package" not in sys.modules, "a list imports nothing"
    assert "baseline_coef" in axiomrl("algos", "their_reinforce").out
    assert "did you mean `their_reinforce`" in axiomrl("algos", "their_reinforc").err
    run_dir = trained(axiomrl, "their_reinforce")
    assert run_dir.name.startswith("their_reinforce__CartPole-v1__")
    assert read_metadata(run_dir)["algo"] == "their_reinforce"
    sys.modules.pop("their_package")
    user_code._uses.clear()
    assert evaluate(run_dir).metrics["eval_episodes"] == 1
    assert load_policy(run_dir).predict([0.0, 0.0, 0.0, 0.0]) in (0, 1)
    assert resume(run_dir, total_timesteps=96).status == "completed"
    sys.modules.pop("their_package")


def test_two_packages_with_an_algorithm_of_one_name_are_told_apart(
    axiomrl: Command, installed: Callable[[str, str, str], Path], new_process: Forget
) -> None:
    installed("one", "same", "one_package:SPEC")
    installed("two", "same", "two_package:SPEC")
    installed("three", "ppo", "three_package:SPEC")
    answer = axiomrl("algos", "same")
    assert_refused(answer, "several packages offer an algorithm `same`: one_package:SPEC, two_package:SPEC; name one")
    assert axiomrl("algos").out.count("\nppo  ") == 1, "the package's own names stay its own"


# -- the parts -------------------------------------------------------------------------------------


def test_metrics_of_an_algorithm_keep_no_graph() -> None:
    means, weight = RunningMeans(), torch.ones((), requires_grad=True)
    for _ in range(2):
        means.add({"loss": weight * 2})
    assert not any(total.requires_grad for total in means.state_dict()["sums"].values())
    assert means.means() == {"loss": 2.0}


def test_exports_are_complete_and_imported_on_first_use() -> None:
    program = (
        "import sys, rl_training.extend, rl_training.experiment\n"
        "assert not {'torch', 'gymnasium', 'numpy'} & set(sys.modules)\n"
        "for module in (rl_training.extend, rl_training.experiment):\n"
        "    for name in module.__all__: getattr(module, name)\n"
        "    assert set(module.__all__) <= set(dir(module))\n"
        "from rl_training.extend import *\n"
        "from rl_training.experiment import *\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
