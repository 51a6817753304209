"""Records the episodes of a policy as a dataset; an interrupted recording goes on where it was."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from rl_training.data.datasets.episode import Episode
from rl_training.data.datasets.location import check_id, datasets_root
from rl_training.data.datasets.safe_hdf5 import import_h5py
from rl_training.data.datasets.writer import Description, EpisodeFile, check_new
from rl_training.envs.lookup import find_spec
from rl_training.envs.make import make_slots
from rl_training.envs.slot import EnvSlot
from rl_training.errors import AxiomError
from rl_training.experiment.checkpoints import Checkpoint, resolve_checkpoint, verify_checkpoint
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.configuration.env_params import env_params
from rl_training.experiment.own_code.run_code import admit_code, checkpoint_config, loaded_from, warn_of_changed_code
from rl_training.experiment.tasks import Task, choose_task
from rl_training.runtime.acting.evaluator import check_fit
from rl_training.runtime.acting.policy import Policy, policies_from_checkpoint
from rl_training.runtime.datasets.behaviour import Behaviour, BehaviourPolicy
from rl_training.runtime.datasets.origin import as_plain, default_stem, environment_spec, minari_entries, origin_of
from rl_training.runtime.datasets.progress import progress_of
from rl_training.runtime.datasets.rounds import play_round
from rl_training.runtime.datasets.unfinished import UnfinishedRecording, unfinished_request
from rl_training.runtime.setup.size_limits import check_observation_size, observation_bytes
from rl_training.runtime.setup.threads import threads_of
from rl_training.runtime.setup.torch_setup import TorchSetup

logger = logging.getLogger("rl_training")

ROUND_STEPS = 20_000
"""A round begins no episode after so many steps; a killed recording loses at most one round."""
DEFAULT_ENVS = 16
_MEMORY = 2 << 30  # bytes of observations of the episodes in progress; not the free memory, which may change
_USUAL_LIMIT = 10_000  # steps of an episode without a known limit


@dataclass(frozen=True)
class RecordRequest:
    """What is to be recorded."""

    checkpoint: Path
    steps: int | None = None
    """Whole episodes until they have so many steps."""
    episodes: int | None = None
    behaviour: Behaviour = field(default_factory=Behaviour)
    name: str | None = None
    seed: int | None = None
    task: str | None = None
    num_envs: int | None = None
    device: str = "cpu"

    def check(self) -> None:
        """Raise an error for values that cannot be recorded."""
        if (self.steps is None) == (self.episodes is None):
            raise AxiomError("give --steps or --episodes: how much is to be recorded")
        for flag, value, least in (
            ("--steps", self.steps, 1),
            ("--episodes", self.episodes, 1),
            ("--num-envs", self.num_envs, 1),
            ("--seed", self.seed, 0),
        ):
            if value is not None and value < least:
                raise AxiomError(f"{flag}: must be an integer >= {least}, got {value}")
        if not 0.0 <= self.behaviour.epsilon <= 1.0:
            raise AxiomError(f"--epsilon: must be a probability from 0 to 1, got {self.behaviour.epsilon}")
        if self.name is not None:
            check_id(self.name)


@dataclass(frozen=True)
class Recorded:
    """A dataset that was made."""

    name: str
    path: Path
    episodes: int
    steps: int


def record(request: RecordRequest, *, quiet: bool = False, trust_code: bool = False) -> Recorded:
    """Play episodes of a checkpoint's policy and write them as a dataset."""
    request.check()
    import_h5py()
    checkpoint = verify_checkpoint(resolve_checkpoint(request.checkpoint))
    config = checkpoint_config(checkpoint, trust_code=trust_code)
    admit_code(config, loaded_from(checkpoint, trust_code=trust_code), callbacks=False)
    warn_of_changed_code(config, checkpoint)
    policies = policies_from_checkpoint(checkpoint, config, device=request.device, trust_code=trust_code)
    task = choose_task(list(policies), request.task)
    check_observation_size(task)
    policy = policies[task]
    wanted = _identity(request, checkpoint, config, task, policy)
    name = request.name or _default_name(config, task, request.behaviour, wanted)
    check_new(name)
    with UnfinishedRecording(name, wanted) as recording:
        try:
            with TorchSetup(
                threads=threads_of(checkpoint), deterministic=config.deterministic, device=policy.actor.device
            ):
                _play(recording, wanted, BehaviourPolicy(policy, request.behaviour), task, quiet=quiet)
        except KeyboardInterrupt:
            logger.warning(
                "%s steps of %s are kept; the same command goes on there", f"{recording.steps:,}", recording.name
            )
            raise
        origin = {**origin_of("record", checkpoint, config, task, "evaluation"), **wanted}
        described = (
            f"{task.env_id} played by {config.algo} (run {checkpoint.run_dir.name}, step {checkpoint.step}): "
            f"{request.behaviour.words}"
        )
        recording.publish(
            Description(
                name,
                policy.observation_space,
                policy.action_space,
                origin,
                environment_spec(task, "evaluation"),
                minari_entries(config, task, described),
            ),
            episodes=request.episodes,
            steps=request.steps,
        )
    return recorded(name)


def recorded(name: str) -> Recorded:
    """Return a dataset that was just made."""
    from rl_training.data.datasets.dataset import open_dataset

    made = open_dataset(datasets_root() / name)
    return Recorded(made.name, made.path, made.total_episodes, made.total_steps)


def _identity(
    request: RecordRequest, checkpoint: Checkpoint, config: TrainConfig, task: Task, policy: Policy
) -> dict[str, Any]:
    """Return all that the episodes depend on: an unfinished recording goes on only if it is the same."""
    origin = origin_of("record", checkpoint, config, task, "evaluation")
    return as_plain(
        {
            "checkpoint_sha256": origin["checkpoint_sha256"],
            "env_id": task.env_id,
            "env_kwargs": origin["env_kwargs"],
            "versions": origin["versions"],
            "behaviour": request.behaviour.kind,
            "epsilon": request.behaviour.epsilon,
            "steps": request.steps,
            "episodes": request.episodes,
            "seed": config.seed if request.seed is None else request.seed,
            "num_envs": request.num_envs or _fitting_envs(request, task, policy),
            "device": str(policy.actor.device),
        }
    )


def _fitting_envs(request: RecordRequest, task: Task, policy: Policy) -> int:
    """Return the default number of environments: fewer for few episodes, and for long ones of large observations."""
    known = env_params(task.env_kwargs, "evaluation").max_episode_steps or find_spec(task.env_id).max_episode_steps
    in_memory = _MEMORY // max(observation_bytes(policy.observation_space) * (known or _USUAL_LIMIT), 1)
    asked = request.episodes
    if request.steps is not None and known is not None:
        asked = math.ceil(request.steps / known)  # at least so many; episodes beyond the steps are played in vain
    return max(1, min(in_memory, DEFAULT_ENVS, asked or DEFAULT_ENVS))


def _default_name(config: TrainConfig, task: Task, behaviour: Behaviour, wanted: dict[str, Any]) -> str:
    """Return the first version that is free, or whose recording this command began."""
    stem = default_stem(config, task, behaviour.label)
    version = 0
    while True:
        name = f"{stem}-v{version}"
        if not (datasets_root() / name).exists() and unfinished_request(name) in (None, wanted):
            return name
        version += 1


def _play(
    recording: UnfinishedRecording, wanted: dict[str, Any], actor: BehaviourPolicy, task: Task, *, quiet: bool
) -> None:
    """Play the rounds that are missing."""
    steps, episodes = wanted["steps"], wanted["episodes"]

    def missing() -> bool:
        return recording.steps < steps if steps is not None else recording.episodes < episodes

    if recording.rounds:
        logger.info(
            "going on with %s after %s steps in %s episodes",
            recording.name, f"{recording.steps:,}", f"{recording.episodes:,}",
        )  # fmt: skip
    if not missing():
        return
    unit, done = ("steps", recording.steps) if steps is not None else ("episodes", recording.episodes)
    with progress_of(f"recording {recording.name}", steps or episodes, unit, done=done, quiet=quiet) as progress:

        def stepped(count: int) -> None:
            if steps is not None:
                progress.add(count)

        def begins(begun: int, taken: int) -> bool:
            if taken >= ROUND_STEPS:
                return False
            if steps is not None:
                return bool(recording.steps + taken < steps)
            return bool(recording.episodes + begun < episodes)

        while missing():
            first = recording.episodes
            # New environments, because some remember more than their seed says.
            with _slots(task, wanted["num_envs"]) as slots, recording.next_round() as file:
                check_fit(actor.policy, slots[0], task.env_id)
                play_round(
                    actor,
                    slots,
                    seed=wanted["seed"],
                    number=len(recording.rounds),
                    first=first,
                    wanted=begins,
                    on_step=stepped,
                    on_episode=partial(_add, file, first),
                )
            if episodes is not None:
                progress.add(recording.episodes - first)


def _add(file: EpisodeFile, first: int, index: int, episode: Episode) -> None:
    file.add(episode, number=index - first)


@contextmanager
def _slots(task: Task, count: int) -> Iterator[list[EnvSlot]]:
    slots = make_slots(task.env_id, task.env_kwargs, mode="evaluation", count=count)
    try:
        yield slots
    finally:
        for slot in slots:
            slot.close()
