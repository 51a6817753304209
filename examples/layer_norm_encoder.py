"""A user-defined encoder: residual layers with LayerNorm over vectors, before the heads of PPO, DQN, SAC or TD3.

`axiomrl train --algo ppo --env CartPole-v1 --set algo_kwargs.encoder=examples/layer_norm_encoder.py:Residual`
"""

from gymnasium.spaces import Box
from torch import Tensor, nn


class Residual(nn.Module):
    """Maps vectors [B, n] to features [B, width]; `--set algo_kwargs.encoder_kwargs.width=32` makes them fewer."""

    def __init__(self, observation_space: Box, width: int = 64, blocks: int = 2) -> None:
        super().__init__()
        self.width = width
        self.first = nn.Linear(observation_space.shape[0], width)
        self.blocks = nn.ModuleList(nn.Sequential(nn.LayerNorm(width), nn.Linear(width, width)) for _ in range(blocks))

    def forward(self, observation: Tensor) -> Tensor:
        features: Tensor = self.first(observation)
        for block in self.blocks:
            features = features + block(features).relu()
        return features
