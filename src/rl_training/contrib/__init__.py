"""Contributed algorithms and workflows, tier `contrib`: explicitly experimental.

Anything here may change or be removed without a warning. Nothing is in this tier at present; the stable names are in
`rl_training.core`.
"""

__all__: list[str] = []
