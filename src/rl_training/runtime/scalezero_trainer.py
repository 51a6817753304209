"""Training of ScaleZero: the planning loop over several tasks, with joint searches and gradient steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor

from rl_training.algorithms.planning.scalezero_params import ScaleZeroParams
from rl_training.algorithms.scalezero import ScaleZero
from rl_training.experiment.checkpoints import ResumePoint
from rl_training.experiment.config import TrainConfig, algorithm_params, check_config
from rl_training.experiment.tasks import is_suite, tasks_of
from rl_training.runtime.callbacks import Callback
from rl_training.runtime.parameter_scaling import ParameterScaling
from rl_training.runtime.planning import PlanningLoop, log_replay_ratio, make_planning_collector
from rl_training.runtime.planning_collector import SuiteCollector
from rl_training.runtime.session import TrainingSession, TrainResult


def train_scalezero(
    config: TrainConfig, *, callbacks: Sequence[Callback] = (), checkpoint: ResumePoint | None = None
) -> TrainResult:
    """Train ScaleZero as configured, or continue from a checkpoint."""
    config = check_config(config)
    scaling = make_scaling(config)
    own = [] if scaling is None else [scaling]
    with TrainingSession(config, callbacks=[*own, *callbacks], checkpoint=checkpoint) as session:
        for task in session.setup.tasks:
            task.make_env(gamma=session.params.gamma, raw=True)
        algorithm: ScaleZero = session.setup.make_algorithm(session.streams.initial())
        if scaling is not None:
            scaling.algorithm = algorithm
        collector = SuiteCollector(
            {
                task.task.name: make_planning_collector(session, task, algorithm.actor(task.task.name))
                for task in session.setup.tasks
            }
        )
        log_replay_ratio(session)
        session.start(algorithm, collector, [task.replay for task in collector.tasks.values()])
        loop = SuiteLoop(session, algorithm, collector, scaling)
        while not session.done:
            loop.step()
        return session.result()


def make_scaling(config: TrainConfig) -> ParameterScaling | None:
    """Return the parameter scaling, None if all tasks are trained to the end."""
    params: ScaleZeroParams = algorithm_params(config)
    tasks = tasks_of(config)
    if not params.scales(tasks):
        return None
    stages = params.adapters + 1
    return ParameterScaling(
        tasks,
        adapters=params.adapters,
        stage_steps=params.stage_steps or -(-config.total_timesteps // stages),
        reopen=params.reopen_tasks,
        first_stage_steps=params.first_stage_steps,
    )


class SuiteLoop(PlanningLoop):
    """One joint search and one joint gradient step for all tasks in training."""

    def __init__(
        self,
        session: TrainingSession,
        algorithm: ScaleZero,
        collector: SuiteCollector,
        scaling: ParameterScaling | None,
    ) -> None:
        super().__init__(session, algorithm, [task.replay for task in collector.tasks.values()])
        self.tasks = list(collector.tasks.values())
        self.names: list[str | None] = list(collector.tasks) if is_suite(session.config) else [None]
        self.scaling = scaling

    def collect(self, controls: Mapping[str, float]) -> int:
        """Search, take one step in every environment of the tasks in training and return the number of steps."""
        trained = self.algorithm.trained
        findings = self.algorithm.plan([self.tasks[task].shown() for task in trained], controls, self.draws.search)
        for task in set(range(len(self.tasks))) - set(trained):
            self.session.task_episodes.pop(str(self.names[task]), None)  # old episodes are no longer meaningful
        for task, found in zip(trained, findings, strict=True):
            self.session.count_episodes(self.take(self.tasks[task], found), self.names[task])
        self.show()
        return sum(self.tasks[task].env.num_envs for task in trained)

    def show(self) -> None:
        """Add the metrics of parameter scaling to the rows."""
        self.session.show(
            stage=self.algorithm.stage,
            trainable_parameters=self.algorithm.trainable_parameters,
            **(self.scaling.metrics() if self.scaling is not None else {}),
        )

    def update(self, controls: Mapping[str, float]) -> dict[str, Tensor]:
        """Make one gradient step and return its metrics."""
        trained = self.algorithm.trained
        share = max(1, self.params.batch_size // len(trained))
        batches = {
            task: self.draw_batch(self.tasks[task].replay, self.algorithm.batches[task], share, controls)
            for task in trained
        }
        return self.algorithm.update(batches, controls, self.session.streams["update"])
