"""Environments in worker processes, with the same results as in one process."""

from __future__ import annotations

import os
import pickle
import time
from collections.abc import Callable, Sequence
from multiprocessing import util
from typing import Any

import gymnasium as gym
import numpy as np

from rl_training.envs.slot import EnvSlot
from rl_training.envs.step import Episode, Obs, StepBatch, copy_obs
from rl_training.envs.vector import slot_states, with_final_masks
from rl_training.envs.workers.async_worker import run_worker
from rl_training.envs.workers.processes import CLOSE_SECONDS, WorkerProcess, end_workers, fresh_processes
from rl_training.envs.workers.shared_rows import SharedRows, obs_views
from rl_training.errors import ConfigError, EnvironmentFailure, RunFailure

# A worker imports its packages and makes its environments before its first reply.
_STARTUP_SECONDS = 60.0


class AsyncVectorEnv:
    """Slots in worker processes that write observations, rewards and flags to shared memory.

    If a worker raises, dies or does not reply within `worker_timeout` seconds, all workers are stopped and an
    `EnvironmentFailure` names the cause, the environment and its seed; NaN raises a `NonFiniteError`.
    """

    def __init__(
        self,
        make: Callable[[], gym.Env[Any, Any]],
        num_envs: int,
        *,
        num_workers: int | None = None,
        worker_timeout: float = 60.0,
    ) -> None:
        probe = EnvSlot(make, 0)
        self.observation_space, self.action_space = probe.observation_space, probe.action_space
        probe.close()
        self.num_envs = num_envs
        self._timeout = worker_timeout
        self._seeds: list[int | None] = [None] * num_envs
        self._workers: list[WorkerProcess] = []
        # Also runs when the object is deleted or the interpreter exits: workers ignore SIGTERM, and multiprocessing
        # would wait for them forever.
        self._stop = util.Finalize(self, end_workers, args=(self._workers,), exitpriority=100)

        num_workers = min(num_workers or os.cpu_count() or 1, num_envs)
        context = fresh_processes("rl_training.envs.workers.async_worker")
        self._shared = SharedRows.allocate(context, self.observation_space, self.action_space, num_envs, num_workers)
        self._rows = self._shared.rows(0, num_envs)
        self._final_obs = obs_views(self._shared.final_obs, 0, num_envs)
        self._actions = self._shared.actions.view()
        self._entered = self._shared.entered.view()
        for number, rows in enumerate(np.array_split(np.arange(num_envs), num_workers)):
            self._start_worker(context, make, [int(row) for row in rows], number)
        self._gather(max(worker_timeout, _STARTUP_SECONDS), starting=True)

    def reset(self, seeds: Sequence[int]) -> tuple[Obs, np.ndarray | None]:
        if len(seeds) != self.num_envs:
            raise ValueError(f"{len(seeds)} seeds for {self.num_envs} environments")
        self._seeds = [int(seed) for seed in seeds]
        masked = self._command("reset", [self._seeds[worker.start : worker.stop] for worker in self._workers])
        return copy_obs(self._rows.obs), self._masks(masked)

    def step(self, actions: np.ndarray) -> StepBatch:
        self._actions[...] = actions
        ended: list[tuple[int, np.ndarray | None]] = []
        episodes: list[Episode] = []
        masked: list[bool] = []
        metrics: list[dict[str, float]] = []
        for worker_ended, worker_masked, worker_episodes, worker_metrics in self._command("step"):
            ended += worker_ended
            episodes += worker_episodes
            masked.append(worker_masked)
            metrics += worker_metrics
        # Copied, because the workers overwrite these rows in the next step.
        obs, masks = copy_obs(self._rows.obs), self._masks(masked)
        return StepBatch(
            obs,
            self._rows.reward.copy(),
            self._rows.terminated.copy(),
            self._rows.truncated.copy(),
            self._with_finals(obs, [row for row, _ in ended]),
            masks,
            episodes,
            with_final_masks(masks, ended, self.num_envs),
            metrics,
        )

    def state_dict(self) -> dict[str, Any] | None:
        states = [state for chunk in self._command("snapshot") for state in chunk]
        return None if any(state is None for state in states) else {"slots": states}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        states = slot_states(state, self.num_envs)
        self._seeds = [slot_state["seed"] for slot_state in states]
        self._command("restore", [states[worker.start : worker.stop] for worker in self._workers])

    def close(self) -> None:
        for worker in self._workers:
            worker.send("close")
        deadline = time.monotonic() + CLOSE_SECONDS
        for worker in self._workers:
            worker.process.join(max(0.0, deadline - time.monotonic()))
        self._stop()

    def _start_worker(
        self, context: Any, make: Callable[[], gym.Env[Any, Any]], indices: list[int], number: int
    ) -> None:
        ours, theirs = context.Pipe()
        process = context.Process(
            target=run_worker,
            args=(theirs, make, indices, number, self._shared),
            name=f"environments-{indices[0]}-{indices[-1]}",
            daemon=True,
        )
        try:
            process.start()
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            ours.close()
            self._stop()
            raise ConfigError(
                f"execution_backend: the environment cannot be sent to a worker process ({error}); register "
                "it with an importable entry point such as `package.module:Class`, or use `local_sync`"
            ) from error
        finally:
            theirs.close()
        self._workers.append(WorkerProcess(process, ours, indices[0], indices[-1] + 1))

    def _command(self, command: str, arguments: Sequence[Any] | None = None) -> list[Any]:
        """Send every worker its command and return their results in order."""
        if not self._workers:
            raise EnvironmentFailure("the environments are closed")
        for number, worker in enumerate(self._workers):
            if not worker.send(command, None if arguments is None else arguments[number]):
                self._fail(EnvironmentFailure(self._death(number)))
        return self._gather(self._timeout)

    def _gather(self, seconds: float, *, starting: bool = False) -> list[Any]:
        deadline = time.monotonic() + seconds
        results = []
        for number, worker in enumerate(self._workers):
            try:
                if not worker.connection.poll(max(0.0, deadline - time.monotonic())):
                    self._fail(
                        EnvironmentFailure(
                            f"{self._name(number)} did not answer within {seconds:g} seconds and was stopped; "
                            "if it is slow rather than stuck, raise `env_kwargs.worker_timeout`"
                        )
                    )
                succeeded, result = worker.connection.recv()
            except (EOFError, OSError):
                self._fail(EnvironmentFailure(self._death(number, starting=starting)))
            if not succeeded:
                self._fail(result)
            results.append(result)
        return results

    def _fail(self, error: RunFailure) -> None:
        self._stop()
        raise error

    def _death(self, number: int, *, starting: bool = False) -> str:
        cause = self._workers[number].cause_of_death()
        if starting:
            cause += "; a script that trains with `local_async` needs its code under `if __name__ == '__main__':`"
        return f"the worker process of {self._name(number)} {cause}"

    def _name(self, number: int) -> str:
        index = int(self._entered[number])
        return f"environment {index} (seed {self._seeds[index]})"

    def _masks(self, masked: Sequence[bool]) -> np.ndarray | None:
        """Return a copy of the masks; `masked` says which workers wrote theirs."""
        if self._rows.action_mask is None or not any(masked):
            return None
        masks = self._rows.action_mask.copy()
        for worker, written in zip(self._workers, masked, strict=True):
            if not written:  # its rows are from an earlier step
                masks[worker.start : worker.stop] = True
        return masks

    def _with_finals(self, obs: Obs, ended: list[int]) -> Obs:
        if not ended:
            return obs
        final_obs: Obs = copy_obs(obs)
        if isinstance(final_obs, dict):
            assert isinstance(self._final_obs, dict)
            for key, part in final_obs.items():
                part[ended] = self._final_obs[key][ended]
        else:
            assert isinstance(self._final_obs, np.ndarray)
            final_obs[ended] = self._final_obs[ended]
        return final_obs
