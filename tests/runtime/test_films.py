"""Films during training: at their interval, whole or not there, and without any effect on what is learned."""

from __future__ import annotations

import re
import signal
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

import toy_envs  # noqa: F401 - registers its environments
from harness import assert_same_run, json_rows, metric_rows, tiny_config, train_with_stops
from rl_training.errors import AxiomError, MissingExtraError, StorageError
from rl_training.experiment.runs import METRICS, read_metadata
from rl_training.runtime.acting import films, video
from rl_training.runtime.setup.streams import derive_seeds
from rl_training.runtime.workflows import evaluate, resume, train

pytestmark = pytest.mark.skipif(find_spec("imageio_ffmpeg") is None, reason="the extra `video` is not installed")

CARTPOLE: dict[str, Any] = {"env_kwargs": {"max_episode_steps": 20}}
PICTURE: dict[str, Any] = {"env_id": "Test/Picture-v0", "total_timesteps": 320, "eval_interval": 128}


def film_names(run_dir: Path) -> list[str]:
    return sorted((path.name for path in (run_dir / "videos").iterdir()), key=lambda name: int(name.split("_")[1]))


def test_films_are_named_by_their_steps_and_change_nothing_that_is_learned(tmp_path: Path) -> None:
    plain = train(tiny_config(tmp_path / "plain", **PICTURE)).run_dir
    filmed = train(tiny_config(tmp_path / "filmed", **PICTURE, video={"interval": 100, "episodes": 2})).run_dir
    assert_same_run(plain, filmed)
    steps = (128, 224, 320)  # the first steps at or after 100, 200 and 300 at which an update ended
    names = [f"step_{step}__seed{seed}.mp4" for step in steps for seed in derive_seeds(7, "video", step, count=2)]
    assert set(film_names(filmed)) == set(names)
    assert all(path.read_bytes()[4:8] == b"ftyp" for path in (filmed / "videos").iterdir())
    assert not (plain / "videos").exists()


def test_the_time_of_films_is_told(tmp_path: Path) -> None:
    run_dir = train(tiny_config(tmp_path, **PICTURE, video={"interval": 100})).run_dir
    assert json_rows(run_dir / METRICS)[-2]["time_video"] > 0


def test_films_have_seeds_of_their_own(tmp_path: Path) -> None:
    run_dir = train(tiny_config(tmp_path, **PICTURE, video={"interval": 320, "episodes": 2})).run_dir
    filmed = {int(name) for name in re.findall(r"seed(\d+)\.mp4", " ".join(film_names(run_dir)))}
    evaluated = {episode.seed for episode in evaluate(run_dir, num_episodes=50).episodes}
    assert filmed.isdisjoint(evaluated)


def test_a_stopped_and_resumed_run_ends_with_the_same_films(tmp_path: Path) -> None:
    changes: dict[str, Any] = {**CARTPOLE, "video": {"interval": 100}}
    straight = train(tiny_config(tmp_path / "straight", **changes)).run_dir
    stopped = train_with_stops(tiny_config(tmp_path / "stopped", **changes), [21, 50])
    assert_same_run(straight, stopped)
    assert film_names(straight) == film_names(stopped)


@pytest.mark.parametrize("interval", [160, 320])
def test_a_film_that_a_signal_interrupts_is_made_by_the_resumed_run(
    tmp_path: Path, interval: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    changes: dict[str, Any] = {**CARTPOLE, "video": {"interval": interval}}
    straight = train(tiny_config(tmp_path / "straight", **changes)).run_dir
    frame, shown = video._frame, 0

    def interrupting(*args: Any) -> Any:
        nonlocal shown
        shown += 1
        if shown == 5:
            signal.raise_signal(signal.SIGTERM)
        return frame(*args)

    monkeypatch.setattr(video, "_frame", interrupting)
    result = train(tiny_config(tmp_path / "stopped", **changes))
    assert (result.status, result.signal) == ("interrupted", signal.SIGTERM)
    assert not (result.run_dir / "videos").exists()
    assert resume(result.run_dir).status == "completed"
    assert_same_run(straight, result.run_dir)
    assert film_names(straight) == film_names(result.run_dir)


def test_a_film_that_fails_is_reported_and_training_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(*args: Any, **kwargs: Any) -> None:
        raise StorageError("cannot write videos: the disk is full\nand more")

    monkeypatch.setattr(films, "record_episodes", full)
    result = train(tiny_config(tmp_path, **PICTURE, video={"interval": 200}))
    assert result.status == "completed"
    sentence = "no film of step 224 was made, and training goes on: cannot write videos: the disk is full"
    assert caplog.messages.count(sentence) == 1
    assert sentence in read_metadata(result.run_dir)["notices"]


def test_a_mistake_is_found_before_anything_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(AxiomError, match=r"^no video of Test/Unseen-v0 can be made") as caught:
        train(tiny_config(tmp_path, env_id="Test/Unseen-v0", video={"interval": 64}))
    assert caught.value.exit_status == 2
    monkeypatch.setitem(sys.modules, "imageio_ffmpeg", None)
    with pytest.raises(MissingExtraError, match="needs the extra `video`"):
        train(tiny_config(tmp_path, **PICTURE, video={"interval": 64}))
    assert list(tmp_path.iterdir()) == []


def test_a_fork_may_begin_to_film(tmp_path: Path) -> None:
    run_dir = train(tiny_config(tmp_path, **PICTURE)).run_dir
    fork = resume(run_dir, fork=True, total_timesteps=384, set_values=["video={interval: 64}"]).run_dir
    assert [name.split("__")[0] for name in film_names(fork)] == ["step_384"]
    assert metric_rows(fork)
