"""Videos of a policy's episodes, one file each."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from rl_training.envs.make import make_slots
from rl_training.envs.slot import EnvSlot
from rl_training.errors import AxiomError, MissingExtraError
from rl_training.experiment.checkpoints import Checkpoint
from rl_training.experiment.files import storage_errors
from rl_training.experiment.tasks import Task
from rl_training.runtime.evaluator import play_episodes
from rl_training.runtime.policy import Policy

DEFAULT_FRAMES_PER_SECOND = 30


def record_episodes(
    policy: Policy,
    task: Task,
    seeds: Sequence[int],
    checkpoint: Checkpoint,
    *,
    label: str = "",
    generator: torch.Generator | None = None,
) -> list[Path]:
    """Film one episode per seed for the run's `videos`, with sampled actions where a generator is given.

    `label` tells the files of several tasks apart.
    """
    if not seeds:
        return []
    writer_of = _video_writer()
    directory = checkpoint.run_dir / "videos"
    with storage_errors("videos", directory):
        directory.mkdir(exist_ok=True)
    (slot,) = make_slots(task.env_id, task.env_kwargs, mode="evaluation", count=1, render_mode="rgb_array")
    paths = []
    try:
        fps = int(slot.env.metadata.get("render_fps") or DEFAULT_FRAMES_PER_SECOND)
        for seed in seeds:
            path = directory / f"step_{checkpoint.step}__{label}seed{seed}.mp4"
            with writer_of(path, fps) as writer:

                def capture(slot: EnvSlot, writer: Any = writer) -> None:
                    writer.append_data(_frame(slot, task.env_id))

                play_episodes(policy, [slot], [seed], generator=generator, on_step=capture)
            paths.append(path)
    finally:
        slot.close()
    return paths


def _frame(slot: EnvSlot, env_id: str) -> np.ndarray:
    frame = slot.env.render()
    if not isinstance(frame, np.ndarray):
        raise AxiomError(f"{env_id} does not render pictures (render mode rgb_array), so no video can be made")
    height, width = frame.shape[0] // 2 * 2, frame.shape[1] // 2 * 2  # the codec wants even sides
    return np.ascontiguousarray(frame[:height, :width])


def _video_writer() -> Any:
    try:
        import imageio
        import imageio_ffmpeg  # noqa: F401 - imageio's backend for mp4
    except ImportError as error:
        raise MissingExtraError("recording a video", "video") from error

    def writer_of(path: Path, fps: int) -> Any:
        return imageio.get_writer(path, fps=fps, macro_block_size=2)

    return writer_of
