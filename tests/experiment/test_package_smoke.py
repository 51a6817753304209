"""The package imports instantly, exports what it promises, and its wheel is complete."""

from __future__ import annotations

import os
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

import rl_training
from paths import ROOT
from rl_training import contrib, core, experimental
from rl_training.experiment.configuration.config_files import preset_names
from rl_training.experiment.registry import list_algorithm_specs
from rl_training.experiment.tuning.space_files import space_names
from rl_training.zoo.manifests import load_manifests
from wheels import wheel as wheel

STABLE = {
    "AxiomError",
    "Callback",
    "DefaultExperimentManager",
    "EarlyStopping",
    "TrainConfig",
    "TrainResult",
    "TrainingEvent",
    "__version__",
    "evaluate",
    "load_config",
    "load_policy",
    "resume",
    "train",
}
HEAVY = ("torch", "gymnasium", "numpy", "pydantic", "rich", "yaml")


@pytest.mark.parametrize(
    "statement",
    [
        "import rl_training",
        "import rl_training.core, rl_training.experimental, rl_training.contrib",
        "import rl_training.runtime.setup.doctor",
        "from rl_training.cli import main; assert main(['--version']) == 0",
        "from rl_training.cli import main; assert main(['--help']) == 0",
        "from rl_training.cli import main; assert main(['train', '--help']) == 0",
        "from rl_training.cli import main; assert main(['report', '--help']) == 0",
        "from rl_training.zoo_cli import main; assert main(['--help']) == 0",
    ],
)
def test_nothing_heavy_is_imported_by(statement: str) -> None:
    program = f"{statement}\nimport sys\nprint('loaded:', *(set({HEAVY}) & set(sys.modules)))"
    answer = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert answer.stdout.splitlines()[-1].strip() == "loaded:"


@pytest.mark.parametrize(("set_by_user", "expected"), [({}, "PASSIVE"), ({"OMP_WAIT_POLICY": "ACTIVE"}, "ACTIVE")])
def test_waiting_threads_of_torch_leave_their_cores_unless_the_user_decides(
    set_by_user: dict[str, str], expected: str
) -> None:
    variables = {name: value for name, value in os.environ.items() if name != "OMP_WAIT_POLICY"}
    program = "import rl_training, os; print(os.environ['OMP_WAIT_POLICY'])"
    answer = subprocess.run(
        [sys.executable, "-c", program], env={**variables, **set_by_user}, capture_output=True, text=True, check=True
    )
    assert answer.stdout.strip() == expected


@pytest.mark.parametrize(
    "listing",
    [
        "rl_training.cli import main; main(['algos'])",
        "rl_training.zoo_cli import main; main([])",
        "rl_training.experiment.statistics import bootstrap_interval; bootstrap_interval([1, 2, 3])",
    ],
)
def test_listing_does_not_import_torch(listing: str) -> None:
    program = f"from {listing}\nimport sys\nsys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", program], check=True, capture_output=True)


def test_package_exports_the_stable_names() -> None:
    assert set(rl_training.__all__) == STABLE
    assert set(dir(rl_training)) >= STABLE
    for name in STABLE:
        assert getattr(rl_training, name) is getattr(core, name)


def test_core_adds_the_stable_algorithms() -> None:
    stable = [spec for spec in list_algorithm_specs() if spec.tier == "stable"]
    names = {str(target).partition(":")[2] for spec in stable for target in (spec.algorithm, spec.params)}
    assert set(core.__all__) - STABLE == names
    assert set(dir(core)) >= set(core.__all__)
    assert core.PPOParams().num_steps == 2048


def test_tiers_say_what_they_promise() -> None:
    for module, tier in ((core, "stable"), (experimental, "experimental"), (contrib, "contrib")):
        assert module.__doc__ is not None
        assert f"tier `{tier}`" in module.__doc__


@pytest.mark.parametrize("module", [rl_training, core, experimental, contrib])
def test_unknown_name_is_an_attribute_error_that_names_it(module: object) -> None:
    with pytest.raises(AttributeError, match="NoSuchThing"):
        _ = module.NoSuchThing  # type: ignore[attr-defined]


def test_wheel_holds_presets_type_marker_and_entry_points(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        entry_points = next(name for name in names if name.endswith("entry_points.txt"))
        scripts = archive.read(entry_points).decode()
    for preset in preset_names():
        assert f"rl_training/zoo/presets/{preset}.yaml" in names
    assert "rl_training/zoo/presets/base/atari-ppo.yaml" in names
    assert "rl_training/zoo/presets.lock.json" in names
    for manifest in load_manifests():
        assert f"rl_training/zoo/manifests/{manifest.suite}.yaml" in names
    for algorithm in space_names():
        assert f"rl_training/zoo/spaces/{algorithm}.yaml" in names
    assert {"rl_training/zoo/report.html.jinja", "rl_training/zoo/report.css"} <= names
    assert "rl_training/py.typed" in names
    assert "axiomrl = rl_training.cli:main" in scripts
    assert "axiomrl-zoo = rl_training.zoo_cli:main" in scripts
    assert not any(name.startswith(("tests/", "benchmarks/")) for name in names)


@pytest.mark.slow
def test_wheel_installs_into_an_empty_environment_and_trains(wheel: Path, tmp_path: Path) -> None:
    venv.create(tmp_path / "venv", with_pip=True)
    scripts = tmp_path / "venv" / ("Scripts" if os.name == "nt" else "bin")
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}

    def run(*command: str | Path) -> str:
        answer = subprocess.run(list(map(str, command)), cwd=tmp_path, env=environment, capture_output=True, text=True)
        assert answer.returncode == 0, answer.stderr
        return answer.stdout

    run(scripts / "python", "-m", "pip", "install", "--quiet", "-c", ROOT / "constraints.txt", wheel)
    assert run(scripts / "axiomrl", "--version").strip() == f"axiomrl {rl_training.__version__}"
    findings = run(scripts / "axiomrl", "doctor")
    assert "env_classic_control=works with gymnasium " in findings
    assert f"env_box2d=missing: run `pip install '{wheel}[box2d]'`" in findings
    assert "ppo-cartpole" in run(scripts / "axiomrl-zoo")
    trained = run(scripts / "axiomrl", "train", "--preset", "ppo-cartpole", "--total-timesteps", "512")
    assert "status=completed" in trained
