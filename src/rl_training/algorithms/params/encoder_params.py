"""Parameters of every algorithm that accepts a user-defined encoder."""

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
    """A user-defined encoder, `package.module:Name` or `path/to/file.py:Name`; null: the built-in encoder."""
    encoder_kwargs: dict[str, Any] = field(default_factory=dict)
    """Keyword arguments of that encoder, besides the observation space."""

    def encoder_problems(self) -> list[str]:
        """Return an error message for each invalid encoder setting."""
        if self.encoder is None and self.encoder_kwargs:
            return [
                "algo_kwargs.encoder_kwargs: there is no encoder to pass them to; set algo_kwargs.encoder, or leave "
                "them out"
            ]
        if self.encoder is not None and not all(self.encoder.rpartition(":")[::2]):
            return [
                f"algo_kwargs.encoder: `{self.encoder}` names no module; write package.module:NAME or "
                "path/to/file.py:NAME"
            ]
        return [f"algo_kwargs.encoder_kwargs: {problem.text}" for problem in check_plain(self.encoder_kwargs, ())]
