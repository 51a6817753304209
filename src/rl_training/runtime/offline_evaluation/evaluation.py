"""Off-policy evaluation of a checkpoint: its policy's value, estimated from a dataset alone."""

from __future__ import annotations

import logging
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from rl_training.algorithms.evaluation.action_features import ActionFeatures
from rl_training.algorithms.evaluation.fitted_q import FittedQParams
from rl_training.algorithms.evaluation.importance_sampling import discounted_sum, pad_episodes
from rl_training.data.datasets.columns import DatasetColumns, load_columns
from rl_training.data.datasets.dataset import Dataset, open_dataset
from rl_training.data.datasets.episode import LOG_PROB
from rl_training.envs.spaces import same_form
from rl_training.errors import AxiomError, DatasetError, StorageError
from rl_training.experiment.checkpoints import Checkpoint, resolve_checkpoint, verify_checkpoint
from rl_training.experiment.config import TrainConfig, algorithm_params
from rl_training.experiment.own_code.run_code import checkpoint_config, warn_of_changed_code
from rl_training.experiment.runs import utc_now
from rl_training.experiment.tasks import choose_task
from rl_training.runtime.acting.policy import Policy, policies_from_checkpoint
from rl_training.runtime.datasets.progress import progress_of
from rl_training.runtime.offline_evaluation.estimates import (
    WeightedEpisodes,
    estimate_all,
    fitted_q_estimate,
    mean_of,
)
from rl_training.runtime.offline_evaluation.fitting import FittedValues, QFitting, returns_to_go
from rl_training.runtime.offline_evaluation.policy_outputs import PolicyOutputs, policy_outputs
from rl_training.runtime.offline_evaluation.support import (
    Evidence,
    action_agreement,
    doubts_about_value,
    doubts_about_weights,
)
from rl_training.runtime.recording.sinks import JsonLines
from rl_training.runtime.setup.streams import Streams, derive_seeds
from rl_training.runtime.setup.threads import threads_of
from rl_training.runtime.setup.torch_setup import TorchSetup

logger = logging.getLogger("rl_training")

UPDATES = 10_000
"""Gradient steps of fitted Q evaluation unless others are asked for."""
RECORDS = "offline_evaluations.jsonl"
"""The file in the run directory with one row per off-policy evaluation."""


@dataclass(frozen=True)
class OfflineEvaluation:
    """The result of an off-policy evaluation."""

    checkpoint_path: Path
    run_dir: Path
    dataset: str
    metrics: dict[str, Any]
    doubts: tuple[str, ...] = ()
    """Reasons not to believe the estimates, each a sentence."""
    left_out: tuple[str, ...] = ()
    """Estimates that could not be made, and why."""


@dataclass(frozen=True)
class Settings:
    """How an off-policy evaluation is made."""

    gamma: float
    updates: int
    seed: int
    stochastic: bool


@dataclass
class _Notes:
    """What the result has to say besides numbers."""

    doubts: list[str] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)


def evaluate_offline(
    checkpoint: str | Path,
    dataset: str | Path,
    *,
    updates: int = UPDATES,
    gamma: float | None = None,
    seed: int | None = None,
    task: str | None = None,
    stochastic: bool = False,
    device: str = "auto",
    trust_code: bool = False,
    quiet: bool = True,
) -> OfflineEvaluation:
    """Estimate the value of a checkpoint's policy from a dataset, given by its id or path; no environment is made.

    `gamma` and `seed` are those of the run by default. The result is also appended to `offline_evaluations.jsonl` in
    the run directory. `trust_code` permits the execution of other people's code that the checkpoint names; unless
    `quiet`, progress is reported on stderr.
    """
    sound = verify_checkpoint(resolve_checkpoint(Path(checkpoint)))
    config = checkpoint_config(sound, trust_code=trust_code)
    settings = _settings(config, updates=updates, gamma=gamma, seed=seed, stochastic=stochastic)
    data = open_dataset(dataset)
    policies = policies_from_checkpoint(sound, config, device=device, trust_code=trust_code)
    warn_of_changed_code(config, sound)
    policy = policies[choose_task(list(policies), task)]
    _check_fit(policy, data)
    if policy.memory_size:
        raise AxiomError(
            "the policy has a memory (algo_kwargs.recurrent): what it does depends on the whole episode, and values "
            "are fitted here to single observations; evaluate it in its environment by `axiomrl eval`"
        )
    columns = load_columns(data)
    target = policy.actor.device
    with TorchSetup(threads=threads_of(sound), deterministic=config.deterministic, device=target):
        metrics, notes = evaluate_columns(policy, columns, settings, quiet=quiet)
    if policy.plans:
        notes.left_out.append("the search: a planning policy is evaluated by its policy network alone")
    result = OfflineEvaluation(
        checkpoint_path=sound.path,
        run_dir=sound.run_dir,
        dataset=data.name,
        metrics={"global_step": sound.step, **metrics},
        doubts=tuple(notes.doubts),
        left_out=tuple(notes.left_out),
    )
    _store(result, sound, data, settings, task)
    return result


def evaluate_columns(
    policy: Policy,
    columns: DatasetColumns,
    settings: Settings,
    *,
    quiet: bool = True,
    params: FittedQParams | None = None,
) -> tuple[dict[str, Any], _Notes]:
    """Return the estimates of a policy's value, and what there is to say about them."""
    gamma, notes = settings.gamma, _Notes()
    # Not the run's own streams: evaluations must not repeat the numbers that training used.
    streams = Streams(derive_seeds(settings.seed, "offline evaluation")[0], policy.actor.device)
    features = ActionFeatures(policy.action_space, np.asarray(columns.action))
    rows = len(columns) + len(columns.first)
    with progress_of("the policy's actions", rows, "observations", quiet=quiet) as progress:
        generator = streams["policy"] if settings.stochastic else None
        outputs = policy_outputs(policy, columns, features, generator=generator, advance=progress.add)
    log_ratio = _log_ratio(columns, outputs, notes, stochastic=settings.stochastic)
    fitting = QFitting(policy, columns, features, outputs, gamma=gamma, streams=streams, params=params)
    with progress_of("fitted Q evaluation", settings.updates, "updates", quiet=quiet) as progress:
        fitting.fit(settings.updates, progress.add)
    fitted = fitting.values(everywhere=log_ratio is not None)
    draws = streams.numpy("bootstrap")
    value = fitted_q_estimate(fitted.initial, draws)
    behaviour, dataset_values = _behaviour(columns, gamma, draws)
    weighted, effective = _weighted(columns, log_ratio, fitted, gamma, draws)
    evidence = Evidence(
        episodes=len(columns.first),
        agreement=action_agreement(columns, features, outputs),
        value=value.value,
        interval=value.interval,
        residual=fitted.residual,
        dataset_values=dataset_values,
        effective_episodes=effective,
    )
    metrics = {
        **value.as_metrics("fqe"),
        **weighted,
        **behaviour,
        **_judge(evidence, notes),
        "gamma": gamma,
        "fqe_updates": settings.updates,
        "dataset_episodes": len(columns.first),
        "dataset_steps": len(columns),
    }
    return metrics, notes


def _judge(evidence: Evidence, notes: _Notes) -> dict[str, Any]:
    """Return how well the data supports the estimates, and note the doubts."""
    about_value, about_weights = doubts_about_value(evidence), doubts_about_weights(evidence)
    notes.doubts += about_value + about_weights
    judged: dict[str, Any] = {"support": "thin" if about_value else "adequate"}
    if evidence.effective_episodes is not None:
        judged["importance_support"] = "thin" if about_weights else "adequate"
        judged["effective_episodes"] = evidence.effective_episodes
    return {**judged, "action_agreement": evidence.agreement, "fqe_residual": evidence.residual}


def _settings(
    config: TrainConfig, *, updates: int, gamma: float | None, seed: int | None, stochastic: bool
) -> Settings:
    if gamma is None:
        gamma = float(getattr(algorithm_params(config), "gamma", 0.99))
        where = "the run's gamma"
    else:
        where = "--gamma"
    if not 0 <= gamma < 1:
        raise AxiomError(
            f"{where}: a policy's value needs a discount of at least 0 and below 1, got {gamma:g}; give --gamma 0.99"
        )
    if updates < 1:
        raise AxiomError(f"--updates: must be an integer >= 1, got {updates}")
    base = config.seed if seed is None else seed
    if base < 0:
        raise AxiomError(f"--seed: must be an integer >= 0, got {base}")
    return Settings(gamma=gamma, updates=updates, seed=base, stochastic=stochastic)


def _check_fit(policy: Policy, data: Dataset) -> None:
    for kind in ("observation", "action"):
        learned, there = getattr(policy, f"{kind}_space"), getattr(data, f"{kind}_space")
        if not same_form(learned, there):
            raise DatasetError(
                f"the {kind} space of the dataset {data.name} is {there}, and the policy has learned with {learned}; "
                "give a dataset of the policy's environment"
            )


def _log_ratio(
    columns: DatasetColumns, outputs: PolicyOutputs, notes: _Notes, *, stochastic: bool
) -> np.ndarray | None:
    """Return log pi(a|s) - log b(a|s) [N] of the dataset's actions, or None and a note why there is none."""
    behaviour = columns.infos.get(LOG_PROB)
    why = None
    if behaviour is None or behaviour.ndim != 1:
        why = (
            f"the dataset does not contain the behaviour's log-probabilities (infos `{LOG_PROB}`); `axiomrl dataset "
            "record --stochastic` records them"
        )
    elif outputs.log_prob is None:
        why = (
            "this policy does not know the probabilities of its actions"
            if stochastic
            else "a deterministic policy has no density over continuous actions; --stochastic evaluates the policy "
            "that samples"
        )
    if why is not None:
        notes.left_out.append(f"importance sampling and doubly robust: {why}")
        return None
    assert behaviour is not None
    assert outputs.log_prob is not None
    if not np.isfinite(behaviour).all():
        raise DatasetError(
            f"the dataset's infos `{LOG_PROB}` hold NaN or infinity; `axiomrl dataset check` shows in which episodes"
        )
    ratio: np.ndarray = outputs.log_prob - behaviour
    return ratio


def _behaviour(
    columns: DatasetColumns, gamma: float, draws: np.random.Generator
) -> tuple[dict[str, float | None], np.ndarray]:
    """Return what the behaviour itself reached, and its value in every episode [E]."""
    episodes = len(columns.first)
    lengths = np.bincount(columns.episode)
    starts = np.cumsum(lengths) - lengths
    values = returns_to_go(columns, gamma)[starts]
    discounted = discounted_sum(pad_episodes(np.asarray(columns.reward, dtype=np.float64), lengths), gamma)
    own = estimate_all({"behaviour": mean_of(values)}, episodes, draws)
    return {
        **own["behaviour"].as_metrics("behaviour"),
        "behaviour_discounted_return": float(discounted.mean()),
        "behaviour_return_mean": float(columns.episode_returns.mean()),
    }, values


def _weighted(
    columns: DatasetColumns,
    log_ratio: np.ndarray | None,
    fitted: FittedValues,
    gamma: float,
    draws: np.random.Generator,
) -> tuple[dict[str, float | None], float | None]:
    """Return the estimates with importance weights and their effective episodes; nothing without ratios."""
    if log_ratio is None:
        return {}, None
    episodes = WeightedEpisodes.of(columns, log_ratio, fitted, gamma=gamma)
    metrics: dict[str, float | None] = {}
    for name, found in estimate_all(episodes.estimators(), len(columns.first), draws).items():
        metrics |= found.as_metrics(name)
    return metrics, episodes.effective_episodes


def _store(
    result: OfflineEvaluation, checkpoint: Checkpoint, data: Dataset, settings: Settings, task: str | None
) -> None:
    """Append the result to the run's file; a run directory that cannot be written to is no reason to lose it."""
    row = {
        "evaluated_at_utc": utc_now(),
        "checkpoint": checkpoint.path.name,
        **({} if task is None else {"task": task}),
        "dataset": data.name,
        "dataset_sha256": data.fingerprint,
        **asdict(settings),
        **result.metrics,
        "doubts": list(result.doubts),
        "left_out": list(result.left_out),
    }
    try:
        file = JsonLines(checkpoint.run_dir / RECORDS)
        try:
            file.write(row)
        finally:
            file.close()
    except StorageError as error:
        logger.warning("the result is not stored: %s", error)
