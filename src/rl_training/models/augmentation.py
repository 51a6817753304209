"""Random image augmentation."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from rl_training.data.observations import Observation
from rl_training.models.encoders import LARGE_IMAGE, DictEncoder, Encoder, ImageEncoder

SHIFT = 4  # pixels, as in Kostrikov et al. 2021 (arXiv 2004.13649)
SMALL_SHIFT = 1  # for small images, where four pixels would be too much


def shift_observation(encoder: Encoder, observation: Observation, generator: torch.Generator) -> Observation:
    """Shift the images among an encoder's observations; other observations stay as they are."""
    if isinstance(observation, dict):
        assert isinstance(encoder, DictEncoder)
        parts = zip(encoder.keys, encoder.encoders, strict=True)
        return {key: _shifted(part, observation[key], generator) for key, part in parts}
    return _shifted(encoder, observation, generator)


def _shifted(encoder: nn.Module, observation: Tensor, generator: torch.Generator) -> Tensor:
    if not isinstance(encoder, ImageEncoder):
        return observation
    if encoder.add_channel:
        return shift_images(observation.unsqueeze(-1), generator).squeeze(-1)
    if encoder.channels_last:
        return shift_images(observation, generator)
    return shift_images(observation.permute(0, 2, 3, 1), generator).permute(0, 3, 1, 2)


def shift_images(images: Tensor, generator: torch.Generator) -> Tensor:
    """Shift each image [B, height, width, channels] by up to four pixels, small ones by one; borders are repeated."""
    count, height, width = images.shape[:3]
    most = SHIFT if min(height, width) >= LARGE_IMAGE else SMALL_SHIFT
    offsets = torch.randint(-most, most + 1, (2, count, 1), generator=generator, device=images.device)
    rows = (torch.arange(height, device=images.device) + offsets[0]).clamp(0, height - 1)  # [B, height]
    columns = (torch.arange(width, device=images.device) + offsets[1]).clamp(0, width - 1)  # [B, width]
    image = torch.arange(count, device=images.device)[:, None, None]
    return images[image, rows[:, :, None], columns[:, None, :]]
