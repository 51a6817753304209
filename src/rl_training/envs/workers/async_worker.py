"""The worker process of `local_async`: it owns several slots and executes the commands of the run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from typing import Any

import gymnasium as gym
import numpy as np

from rl_training.envs.slot import EnvSlot
from rl_training.envs.step import write_row
from rl_training.envs.vector import fill_masks, private_actions, reset_slots, step_slots
from rl_training.envs.workers.serving import serve_commands
from rl_training.envs.workers.shared_rows import SharedRows, obs_views


def run_worker(
    connection: Connection,
    make: Callable[[], gym.Env[Any, Any]],
    indices: Sequence[int],
    worker: int,
    shared: SharedRows,
) -> None:
    """Execute commands until told to close or until the run's process is gone."""
    serve_commands(connection, lambda: _SlotGroup(make, indices, worker, shared), f"environment worker {worker} failed")


class _SlotGroup:
    """The slots of one worker; its methods are the commands."""

    def __init__(
        self, make: Callable[[], gym.Env[Any, Any]], indices: Sequence[int], worker: int, shared: SharedRows
    ) -> None:
        start, stop = indices[0], indices[-1] + 1
        self._start = start
        self._worker = worker
        self._entered = shared.entered.view()
        self._rows = shared.rows(start, stop)
        self._final_obs = obs_views(shared.final_obs, start, stop)
        self._actions = shared.actions.view()[start:stop]
        self._slots: list[EnvSlot] = []
        for index in indices:
            self._enter(index - start)
            self._slots.append(EnvSlot(make, index))

    def reset(self, seeds: Sequence[int]) -> bool:
        return self._store_masks(reset_slots(self._slots, seeds, self._rows.obs, self._enter))

    def step(self, _: None) -> tuple[list[tuple[int, np.ndarray | None]], bool, list[Any], list[dict[str, float]]]:
        actions = private_actions(self._actions, self._slots[0].action_space)
        rows = self._rows
        step = step_slots(self._slots, actions, rows.obs, rows.reward, self._enter)
        rows.terminated[:] = rows.truncated[:] = False
        for final in step.finals:
            rows.terminated[final.row], rows.truncated[final.row] = final.terminated, final.truncated
            write_row(self._final_obs, final.row, final.obs)
        ended = [(self._start + final.row, final.mask) for final in step.finals]
        return ended, self._store_masks(step.masks), step.episodes, step.metrics

    def _store_masks(self, masks: Sequence[tuple[int, np.ndarray]]) -> bool:
        """Write the masks to shared memory; return whether there are any."""
        if self._rows.action_mask is None or not masks:
            return False
        fill_masks(self._rows.action_mask, masks)
        return True

    def snapshot(self, _: None) -> list[dict[str, Any] | None]:
        return [slot.snapshot() for slot in self._slots]

    def restore(self, states: Sequence[dict[str, Any]]) -> None:
        for slot, state in zip(self._slots, states, strict=True):
            slot.restore(state)

    def close(self) -> None:
        for slot in self._slots:
            slot.close()

    def _enter(self, row: int) -> None:
        self._entered[self._worker] = self._start + row
