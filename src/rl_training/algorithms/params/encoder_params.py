"""The parameters of every algorithm whose encoder can be one of the user's own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from rl_training.experiment.configuration.fork_rules import NETWORKS, rules
from rl_training.experiment.configuration.validation import check_plain


@dataclass(frozen=True)
class EncoderParams:
    """Which module turns observations into features (docs/extending.md, "A network of your own")."""

    __pydantic_config__: ClassVar[dict[str, Any]] = {"extra": "forbid", "use_attribute_docstrings": True}
    on_fork: ClassVar[Mapping[str, str]] = rules(NETWORKS, "encoder", "encoder_kwargs")

    encoder: str | None = None
    """Encoder of your own, `package.module:Name` or `path/to/file.py:Name`; null takes the one for the observations."""
    encoder_kwargs: dict[str, Any] = field(default_factory=dict)
    """Arguments of that encoder besides the observation space."""

    def encoder_problems(self) -> list[str]:
        """Return the repairs for an encoder that cannot be meant."""
        if self.encoder is None and self.encoder_kwargs:
            return [
                "algo_kwargs.encoder_kwargs: there is no encoder that takes them; set algo_kwargs.encoder, or leave "
                "them out"
            ]
        if self.encoder is not None and not all(self.encoder.rpartition(":")[::2]):
            return [
                f"algo_kwargs.encoder: `{self.encoder}` names no module; write package.module:NAME or "
                "path/to/file.py:NAME"
            ]
        return [f"algo_kwargs.encoder_kwargs: {problem.text}" for problem in check_plain(self.encoder_kwargs, ())]
