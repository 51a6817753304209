"""`axiomrl import-sb3`: the same actions as the model, a run that goes on learning, and files that might do harm."""

from __future__ import annotations

import copy
import io
import json
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml

from cli_parts import Command
from harness import only_run
from rl_training import load_policy
from rl_training.runtime.sb3.importing import import_model
from rl_training.runtime.workflows import evaluate, resume, train

sb3 = pytest.importorskip("stable_baselines3")

NARROW: dict[str, Any] = {"policy_kwargs": {"net_arch": [16, 12]}}
MODELS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "ppo": ("ppo", "CartPole-v1", {"n_steps": 64, "batch_size": 32, "n_epochs": 3}),
    "ppo_relu": ("ppo", "Pendulum-v1", {"policy_kwargs": {"net_arch": [8], "activation_fn": torch.nn.ReLU}}),
    "ppo_sde": ("ppo", "Pendulum-v1", {"use_sde": True, "sde_sample_freq": 4, **NARROW}),
    "ppo_discrete_observation": ("ppo", "FrozenLake-v1", NARROW),
    "dqn": ("dqn", "CartPole-v1", {"learning_starts": 20, "buffer_size": 500, **NARROW}),
    "sac": ("sac", "Pendulum-v1", {"ent_coef": "auto_0.2", "learning_starts": 20, "buffer_size": 500, **NARROW}),
    "sac_sde": ("sac", "Pendulum-v1", {"use_sde": True, "policy_kwargs": {"net_arch": {"pi": [16], "qf": [8, 8]}}}),
    "td3": ("td3", "Pendulum-v1", {"learning_starts": 20, "buffer_size": 500, **NARROW}),
}
SHORT = {"total_timesteps": 256, "eval_episodes": 0, "tracking.tensorboard": False}


def saved(folder: Path, case: str, *, steps: int = 0) -> tuple[Any, Path]:
    """Return a model with random weights, or one trained for some steps, and its file."""
    algo, env_id, options = copy.deepcopy(MODELS[case])  # the models change their options
    model = getattr(sb3, algo.upper())("MlpPolicy", env_id, device="cpu", seed=3, **options)
    if steps:
        model.learn(steps)
    else:
        generator = torch.Generator().manual_seed(1)
        with torch.no_grad():
            for weight in model.policy.parameters():  # biases begin at 0, heads near it
                weight.add_(0.3 * torch.randn(weight.shape, generator=generator))
    model.save(folder / f"{case}.zip")
    return model, folder / f"{case}.zip"


def imported(folder: Path, case: str, path: Path, **changes: Any) -> Path:
    algo, env_id, _ = MODELS[case]
    overrides = {"output_dir": folder / "runs", **SHORT, **changes}
    return import_model(path, algo=algo, env_id=env_id, overrides=overrides).run_dir


@pytest.mark.parametrize("case", MODELS)
def test_the_run_acts_like_the_model_and_goes_on_learning(case: str, tmp_path: Path) -> None:
    model, path = saved(tmp_path, case)
    run = imported(tmp_path, case, path, **{"algo_kwargs.num_steps": 64} if case.startswith("ppo") else {})
    policy = load_policy(run)
    observations = np.stack([model.observation_space.sample() for _ in range(64)])
    expected, _ = model.predict(observations, deterministic=True)
    np.testing.assert_allclose(policy.predict(observations), expected, atol=1e-6)
    before = policy.actor.state_dict()  # type: ignore[attr-defined]
    result = resume(run)
    assert result.status == "completed"
    assert result.metrics["global_step"] == 256
    after = load_policy(run).actor.state_dict()  # type: ignore[attr-defined]
    part = "model" if "model" in before else "actor"
    assert any(not torch.equal(after[part][name], weight) for name, weight in before[part].items())


def test_settings_are_those_of_the_model(tmp_path: Path) -> None:
    run = imported(tmp_path, "ppo", saved(tmp_path, "ppo")[1])
    settings = yaml.safe_load((run / "config.yaml").read_text())["algo_kwargs"]
    expected: dict[str, Any] = {
        "num_steps": 64,
        "minibatch_size": 32,
        "update_epochs": 3,
        "clip_coef": 0.2,
        "learning_rate": 3e-4,
    }
    expected |= {"hidden_sizes": [64, 64], "activation": "tanh", "gae_lambda": 0.95, "target_kl": None}
    assert {key: settings[key] for key in expected} == expected


def test_the_temperature_and_its_kind_are_kept(tmp_path: Path) -> None:
    model, path = saved(tmp_path, "sac")
    run = imported(tmp_path, "sac", path)
    actor: Any = load_policy(run).actor
    assert actor.params.temperature == "auto"
    torch.testing.assert_close(actor.temperature.log.detach(), model.log_ent_coef.detach())


def test_metadata_says_what_is_not_in_the_file(tmp_path: Path) -> None:
    run = imported(tmp_path, "dqn", saved(tmp_path, "dqn")[1])
    notices = " ".join(json.loads((run / "metadata.json").read_text())["notices"])
    assert "VecNormalize keeps its statistics in a file of its own" in notices
    assert "dqn.zip" in notices
    assert "train_freq" in notices


def test_another_run_may_start_with_the_imported_weights(tmp_path: Path) -> None:
    _, path = saved(tmp_path, "td3")
    run = imported(tmp_path, "td3", path)
    from rl_training import load_config

    config = load_config(run / "config.yaml", overrides={"init": run, "output_dir": tmp_path / "more", **SHORT})
    assert train(config).status == "completed"


@pytest.mark.slow
@pytest.mark.parametrize("case", ["ppo", "dqn", "sac", "td3"])
def test_a_trained_model_scores_the_same_over_a_hundred_episodes(case: str, tmp_path: Path) -> None:
    import gymnasium as gym

    model, path = saved(tmp_path, case, steps=2_000)
    result = evaluate(imported(tmp_path, case, path), num_episodes=100)
    env = gym.make(MODELS[case][1])
    for episode in result.episodes:
        observation, _ = env.reset(seed=episode.seed)
        total, ended = 0.0, False
        while not ended:
            action, _ = model.predict(observation, deterministic=True)
            observation, reward, terminated, truncated, _ = env.step(action)
            total, ended = total + float(reward), terminated or truncated
        assert episode.episode_return == pytest.approx(total, rel=1e-3, abs=1e-6)


# -- mistakes and files that might do harm ---------------------------------------------------------------------------


@pytest.fixture(scope="module")
def model_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved(tmp_path_factory.mktemp("model"), "ppo")[1]


def rewritten(path: Path, target: Path, change: Callable[[dict[str, bytes]], None], *, deflated: bool = False) -> Path:
    """Write a copy of a model's file with other entries."""
    with zipfile.ZipFile(path) as archive:
        entries = {name: archive.read(name) for name in archive.namelist()}
    change(entries)
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED if deflated else zipfile.ZIP_STORED) as archive:
        for name, content in entries.items():
            archive.writestr(name, content)
    return target


class Harm:
    """Creates a file if it is unpickled."""

    def __reduce__(self) -> Any:
        return Path.touch, (Path("executed"),)


def _torch_file(value: Any) -> bytes:
    content = io.BytesIO()
    torch.save(value, content)
    return content.getvalue()


def _zip_bomb(entries: dict[str, bytes]) -> None:
    entries["data"] = b"0" * (40 << 20)


def _inner_bomb(entries: dict[str, bytes]) -> None:
    inner = io.BytesIO()
    with zipfile.ZipFile(inner, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("archive/data.pkl", b"0" * (10 << 20))
    entries["policy.pth"] = inner.getvalue()


def _weights(change: Callable[[dict[str, Any]], Any]) -> Callable[[dict[str, bytes]], None]:
    def apply(entries: dict[str, bytes]) -> None:
        state = torch.load(io.BytesIO(entries["policy.pth"]), weights_only=True)
        change(state)
        entries["policy.pth"] = _torch_file(dict(state))

    return apply


def _policy_kwargs(**values: Any) -> Callable[[dict[str, bytes]], None]:
    def apply(entries: dict[str, bytes]) -> None:
        data = json.loads(entries["data"])
        data["policy_kwargs"] = {":type:": "<class 'dict'>", ":serialized:": "gAWV", **values}
        entries["data"] = json.dumps(data).encode()

    return apply


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda e: e.update({"policy.pth": pickle.dumps(Harm())}), "is a bare pickle or damaged"),
        (lambda e: e.update({"policy.pth": _torch_file({"log_std": Harm()})}), "which might execute code"),
        (lambda e: e.update({"pytorch_variables.pth": _torch_file(Harm())}), "which might execute code"),
        (lambda e: e.update({"policy.pth": e["policy.pth"][:-300]}), "is a bare pickle or damaged"),
        (lambda e: e.update({"policy.pth": _torch_file([1, 2])}), "holds no named tensors"),
        (lambda e: e.update({"data": b"{"}), "is not valid JSON"),
        (lambda e: e.update({"data": b"[1]"}), "is not a mapping"),
        (lambda e: e.pop("policy.pth"), "holds no `policy.pth`"),
        (lambda e: e.update({"../../etc/passwd": b"x"}), "leads elsewhere"),
        (lambda e: e.update({"/etc/passwd": b"x"}), "leads elsewhere"),
        (lambda e: e.update({f"entry{number}": b"" for number in range(100)}), "entries"),
        (_inner_bomb, "larger inside than outside"),
        (
            _weights(lambda state: state.update({"features_extractor.cnn.0.weight": torch.zeros(1)})),
            "only MLP policies",
        ),
        (_weights(lambda state: state.pop("value_net.bias")), "holds no weights `value_net.bias`"),
        (_weights(lambda state: state["action_net.bias"].fill_(torch.nan)), "no plain tensor of finite numbers"),
        (
            _weights(lambda state: state.update({"action_net.bias": torch.zeros(1).expand(10**12)})),
            "no plain tensor of finite numbers",
        ),
        (_weights(lambda state: state.update({"action_net.bias": torch.zeros(9)})), "is no linear layer"),
        (
            _policy_kwargs(features_extractor_class="<class 'mine.Own'>"),
            "features_extractor_class=<class 'mine.Own'>, which is not imported",
        ),
        (_policy_kwargs(activation_fn="<class 'torch.nn.modules.activation.Softplus'>"), "only plain MLP policies are"),
    ],
)
def test_what_needs_unpickling_or_is_no_mlp_is_refused_in_a_sentence(
    model_file: Path, tmp_path: Path, axiomrl: Command, change: Callable[[dict[str, bytes]], None], words: str
) -> None:
    path = rewritten(model_file, tmp_path / "changed.zip", change)
    answer = axiomrl("import-sb3", path, "--algo", "ppo", "--env", "CartPole-v1", "--quiet")
    assert answer.status == 2
    assert words in answer.err
    assert answer.err.count("\n") == 1
    assert not (tmp_path / "executed").exists()
    assert not (tmp_path / "runs").exists()


def test_entries_that_would_grow_are_not_read(model_file: Path, tmp_path: Path, axiomrl: Command) -> None:
    path = rewritten(model_file, tmp_path / "bomb.zip", _zip_bomb, deflated=True)
    answer = axiomrl("import-sb3", path, "--algo", "ppo", "--env", "CartPole-v1", "--quiet")
    assert answer.status == 2
    assert "would take 41,943,040 bytes" in answer.err


def test_serialised_settings_are_never_decoded(model_file: Path, tmp_path: Path, axiomrl: Command) -> None:
    import base64

    harm = base64.b64encode(pickle.dumps(Harm())).decode()
    change = _policy_kwargs(**{":serialized:": harm, "net_arch": [64, 64]})
    path = rewritten(model_file, tmp_path / "changed.zip", change)
    answer = axiomrl("import-sb3", path, "--algo", "ppo", "--env", "CartPole-v1")
    assert answer.status == 0
    assert not (tmp_path / "executed").exists()
    assert Path(answer.values()["run_dir"]).resolve() == only_run(tmp_path / "runs").resolve()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--algo", "a2c", "--env", "CartPole-v1"], "models of 'a2c' are not imported"),
        (["--algo", "dqn", "--env", "CartPole-v1"], "is it a model of another algorithm?"),
        (["--algo", "ppo", "--env", "Acrobot-v1"], "name the environment that it was trained in by --env"),
        (["--algo", "ppo", "--env", "CartPool-v1"], "CartPole"),
    ],
)
def test_mistakes_are_one_sentence(
    model_file: Path, tmp_path: Path, axiomrl: Command, arguments: list[str], words: str
) -> None:
    answer = axiomrl("import-sb3", model_file, *arguments, "--quiet")
    assert answer.status == 2
    assert words in answer.err
    assert answer.err.count("\n") == 1
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("content", [b"no zip", b""])
def test_other_files_are_refused(tmp_path: Path, axiomrl: Command, content: bytes) -> None:
    (tmp_path / "model.zip").write_bytes(content)
    for path in ("model.zip", "missing.zip", "."):
        answer = axiomrl("import-sb3", path, "--algo", "ppo", "--env", "CartPole-v1", "--quiet")
        assert answer.status == 2
        assert "model.save(...)" in answer.err
