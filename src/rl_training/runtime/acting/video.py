"""Videos of a policy's episodes, one file each."""

from __future__ import annotations

import contextlib
import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from rl_training.envs.make import make_players
from rl_training.envs.multi_agent.world import World
from rl_training.envs.slot import EnvSlot
from rl_training.errors import AxiomError, EnvironmentFailure, MissingExtraError
from rl_training.experiment.runs import VIDEOS
from rl_training.experiment.storage.files import make_directory, storage_errors
from rl_training.experiment.tasks import Task
from rl_training.runtime.acting.evaluator import play_episodes
from rl_training.runtime.acting.policy import Policy

DEFAULT_FRAMES_PER_SECOND = 30


def record_episodes(
    policy: Policy,
    task: Task,
    seeds: Sequence[int],
    run_dir: Path,
    *,
    step: int,
    label: str = "",
    generator: torch.Generator | None = None,
    interrupted: Callable[[], bool] = lambda: False,
) -> list[Path]:
    """Record one episode per seed in the run's `videos`, with sampled actions if a generator is given.

    `step` and `label` are part of the file names; the label distinguishes several tasks.
    """
    if not seeds:
        return []
    writer_of = _video_writer()
    directory = run_dir / VIDEOS
    slot = _video_slot(task)
    paths = []
    try:
        with storage_errors("videos", directory):
            make_directory(directory)
        fps = int(slot.env.metadata.get("render_fps") or DEFAULT_FRAMES_PER_SECOND)
        for seed in seeds:
            path = directory / f"step_{step}__{label}seed{seed}.mp4"
            with _whole_file(path) as unfinished, contextlib.closing(writer_of(unfinished, fps)) as writer:

                def capture(slot: EnvSlot | World, writer: Any = writer) -> None:
                    writer.append_data(_frame(slot, task.env_id))

                play_episodes(policy, [slot], [seed], generator=generator, on_step=capture, interrupted=interrupted)
            paths.append(path)
    finally:
        slot.close()
    return paths


def check_video(task: Task, seed: int) -> None:
    """Raise an error for a task that cannot be rendered, before its episodes are played."""
    _video_writer()
    slot = _video_slot(task)
    try:
        slot.reset(seed)
        _frame(slot, task.env_id)
    finally:
        slot.close()


def _video_slot(task: Task) -> EnvSlot | World:
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*render_mode")  # reported below if it is a problem
            (slot,) = make_players(task.env_id, task.env_kwargs, mode="evaluation", count=1, render_mode="rgb_array")
    except EnvironmentFailure as error:
        raise _no_pictures(task.env_id, error.__cause__ or error) from error
    return slot


def _frame(slot: EnvSlot | World, env_id: str) -> np.ndarray:
    try:
        frame = slot.env.render()
    except Exception as error:
        raise _no_pictures(env_id, error) from error
    if not isinstance(frame, np.ndarray) or frame.dtype != np.uint8 or frame.ndim != 3 or frame.shape[2] not in (3, 4):
        given = f"{frame.dtype}{list(frame.shape)}" if isinstance(frame, np.ndarray) else type(frame).__name__
        raise _no_pictures(env_id, TypeError(f"render() returned {given}"))
    height, width = frame.shape[0] // 2 * 2, frame.shape[1] // 2 * 2  # the codec needs even sides
    return np.ascontiguousarray(frame[:height, :width])


def _no_pictures(env_id: str, cause: BaseException) -> AxiomError:
    reason = " ".join(f"{type(cause).__name__}: {cause}".split()).removesuffix(":")
    return AxiomError(
        f"no video of {env_id} can be made, it gives no pictures ({reason}); let it take render_mode='rgb_array' and "
        "return an array of uint8 [height, width, 3] from render(), or leave the video out"
    )


@contextlib.contextmanager
def _whole_file(path: Path) -> Iterator[Path]:
    """Yield a temporary path beside `path`, which is renamed to `path` at the end or removed after an error."""
    unfinished = path.with_name(f".{path.stem}.unfinished{path.suffix}")
    try:
        yield unfinished
        with storage_errors("videos", path.parent):
            os.replace(unfinished, path)
    except BaseException:
        unfinished.unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # earlier videos are kept
            path.parent.rmdir()
        raise


def _video_writer() -> Any:
    try:
        import imageio
        import imageio_ffmpeg  # noqa: F401 - imageio's backend for mp4
    except ImportError as error:
        raise MissingExtraError("recording a video", "video") from error

    def writer_of(path: Path, fps: int) -> Any:
        return imageio.get_writer(path, fps=fps, macro_block_size=2)

    return writer_of
