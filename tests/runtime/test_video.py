"""`eval --video`: whole files or none, and a sentence where an environment gives no pictures."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any, cast

import gymnasium as gym
import numpy as np
import pytest

from harness import tiny_config
from rl_training.errors import AxiomError, EnvironmentFailure
from rl_training.runtime.workflows import evaluate, train

pytestmark = pytest.mark.skipif(find_spec("imageio_ffmpeg") is None, reason="the extra `video` is not installed")


class Unseen(gym.Env[Any, Any]):
    """Nothing to look at."""

    observation_space = gym.spaces.Box(-1, 1, (1,), np.float32)
    action_space = gym.spaces.Discrete(2)
    steps = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.steps = 0
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        return np.zeros(1, np.float32), 1.0, self.steps == 3, False, {}


class Picture(Unseen):
    """Shows `frame`, or nothing where it is None; after two steps it may break."""

    metadata = {"render_modes": ["rgb_array"]}  # noqa: RUF012
    frame: Any = np.zeros((64, 64, 3), np.uint8)
    breaks = False

    def __init__(self, render_mode: str | None = None) -> None:
        self.render_mode = render_mode

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        if self.breaks and self.render_mode is not None and self.steps == 2:
            raise RuntimeError("the floor gave way")
        return super().step(action)

    def render(self) -> Any:
        return self.frame


class Renderless(Picture):
    """Takes a render mode and has no render."""

    render = gym.Env.render


for environment in (Unseen, Picture, Renderless):
    gym.register(f"Test/{environment.__name__}-v0", entry_point=cast("Any", environment))


def trained(name: str, tmp_path: Any) -> Any:
    return train(tiny_config(tmp_path, env_id=f"Test/{name}-v0", total_timesteps=32, eval_episodes=0)).run_dir


@pytest.mark.parametrize(
    ("name", "frame", "reason"),
    [
        ("Unseen", None, "takes no arguments"),
        ("Renderless", None, "NotImplementedError"),
        ("Picture", None, "render() returned NoneType"),
        ("Picture", [np.zeros((4, 4, 3), np.uint8)], "render() returned list"),
        ("Picture", np.zeros((64, 64), np.uint8), "render() returned uint8[64, 64]"),
    ],
)
def test_an_environment_without_pictures_is_refused_before_anything_is_played(
    name, frame, reason, tmp_path, monkeypatch
):
    monkeypatch.setattr(Picture, "frame", frame)
    run_dir = trained(name, tmp_path)
    monkeypatch.setattr("rl_training.runtime.workflows.evaluate_tasks", lambda *args, **kwargs: pytest.fail("played"))
    with pytest.raises(AxiomError, match=rf"^no video of Test/{name}-v0 can be made, it gives no pictures") as caught:
        evaluate(run_dir, num_episodes=1, video_episodes=1)
    assert reason in str(caught.value)
    assert "Traceback" not in str(caught.value)
    assert caught.value.exit_status == 2
    assert not (run_dir / "videos").exists()


def test_a_video_is_whole_or_not_there(tmp_path, monkeypatch):
    run_dir = trained("Picture", tmp_path)
    (video,) = evaluate(run_dir, num_episodes=1, video_episodes=1).video_paths
    assert [path.name for path in (run_dir / "videos").iterdir()] == [video.name]
    assert video.read_bytes()[4:8] == b"ftyp"
    monkeypatch.setattr(Picture, "breaks", True)
    with pytest.raises(EnvironmentFailure, match="the floor gave way"):
        evaluate(run_dir, num_episodes=1, video_episodes=1, seed=99)
    assert [path.name for path in (run_dir / "videos").iterdir()] == [video.name]
