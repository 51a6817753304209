"""A user-defined stop rule and metric in a single file.

`axiomrl train --preset ppo-cartpole --set 'callbacks=[{use: examples/own_callback.py:StopWhenSteady, target: 450}]'`
"""

from collections.abc import Mapping
from typing import Any

from rl_training import Callback, TrainingEvent


class StopWhenSteady(Callback):
    """Ends a run once the mean training return has stayed at its target for some rows, and logs their number."""

    def __init__(self, target: float, rows: int = 3) -> None:
        self.target, self.rows, self.reached = target, rows, 0

    def on_update_end(self, event: TrainingEvent) -> None:
        if "train_return_mean" in event.metrics:  # not every update writes a row
            self.reached = self.reached + 1 if event.metrics["train_return_mean"] >= self.target else 0
            event.log("rows_at_target", self.reached)
            if self.reached >= self.rows:
                event.request_stop(f"the return stayed at {self.target:g} for {self.rows} rows")

    def state_dict(self) -> dict[str, Any]:  # saved with every checkpoint, so that a resumed run continues the count
        return {"reached": self.reached}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.reached = state["reached"]
