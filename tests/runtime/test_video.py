"""`eval --video`: whole files or none, and a sentence where an environment gives no pictures."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest

from harness import tiny_config
from rl_training.errors import AxiomError, EnvironmentFailure
from rl_training.runtime.workflows import evaluate, train
from toy_envs import Picture

pytestmark = pytest.mark.skipif(find_spec("imageio_ffmpeg") is None, reason="the extra `video` is not installed")


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
