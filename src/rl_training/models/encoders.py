"""Encoders turn observations of any supported space into features [B, width]."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
import torch
from gymnasium import Space, spaces
from torch import Tensor, nn

from rl_training.envs.spaces import SMALLEST_IMAGE, image_layout, observation_kind
from rl_training.errors import ConfigError
from rl_training.models.layers import convolution, linear

IMAGE_FEATURES = 512
IMAGE_FEATURES_IN_DICT = 256
SMALL_IMAGE_FEATURES = 128
LARGE_IMAGE = 36  # smallest side in pixels of an image with more than one convolution
NATURE_IMAGE = 64  # smallest side in pixels for the network of Mnih et al., which leaves a single point of 42
# Filters, kernel, stride and padding of each layer.
_NATURE_LAYERS = ((32, 8, 4, 0), (64, 4, 2, 0), (64, 3, 1, 0))
_HALVING_LAYERS = ((32, 3, 2, 1),) * 4
_SMALL_LAYERS = ((16, 3, 1, 0),)


class VectorEncoder(nn.Module):
    """Flattens numeric observations and one-hot encodes discrete ones; it has no weights."""

    def __init__(self, space: Space[Any]) -> None:
        super().__init__()
        self.choices: tuple[int, ...] = ()
        self.starts: tuple[int, ...] = ()
        if isinstance(space, spaces.Discrete):
            self.choices, self.starts = (int(space.n),), (int(space.start),)
        elif isinstance(space, spaces.MultiDiscrete):
            self.choices = tuple(space.nvec.flatten().tolist())
            self.starts = tuple(space.start.flatten().tolist())
        self.width: int = sum(self.choices) or int(np.prod(space.shape or (1,)))

    def forward(self, observation: Tensor) -> Tensor:
        """Return features [B, width]."""
        if self.choices:
            columns = observation.reshape(observation.shape[0], -1).long()  # [B, variables]
            parts = [
                nn.functional.one_hot(columns[:, variable] - start, n)
                for variable, (n, start) in enumerate(zip(self.choices, self.starts, strict=True))
            ]
            return torch.cat(parts, dim=1).float()
        flat = observation if observation.dim() == 2 else observation.reshape(observation.shape[0], -1)
        return flat if flat.dtype == torch.float32 else flat.float()


class ImageEncoder(nn.Module):
    """Convolutions over images with channels first, last or absent.

    Images from 64 pixels a side on use the network of Mnih et al. 2015 (Nature 518), which leaves few points of smaller
    ones; those use that of Pathak et al. 2017 (arXiv 1705.05363), four layers that halve the sides. Images below 36
    pixels use that of Young & Tian 2019 (arXiv 1903.03176): one layer of 16 filters, then 128 features.
    """

    only_rows: slice | None = None
    """Rows of a batch to convolve, where the features of the others do not matter."""

    def __init__(
        self, space: Space[Any], width: int, *, orthogonal: bool, generator: torch.Generator, key: str = ""
    ) -> None:
        super().__init__()
        layout = image_layout(space.shape or ())
        self.add_channel = layout.channel_axis is None
        self.channels_last = layout.channel_axis == "last"
        self.bytes = space.dtype == np.uint8
        side = min(layout.height, layout.width)
        if side < SMALLEST_IMAGE:
            where = f" `{key}`" if key else ""
            raise ConfigError(
                f"the image observation{where} of {layout.height}x{layout.width} pixels is too small for the "
                f"convolutions; use at least {SMALLEST_IMAGE}x{SMALLEST_IMAGE} "
                "(gymnasium.wrappers.ResizeObservation), or give it as float32 to make it a vector"
            )
        self.large = side >= LARGE_IMAGE
        self.width: int = width if self.large else min(width, SMALL_IMAGE_FEATURES)
        self.convolutions = nn.ModuleList()
        channels = layout.channels
        for filters, kernel, stride, padding in _layers(side):
            self.convolutions.append(
                convolution(channels, filters, kernel, stride, padding, orthogonal=orthogonal, generator=generator)
            )
            channels = filters
        with torch.no_grad():
            flat = self._convolve(torch.zeros(1, *layout[:3])).shape[1]
        self.output = linear(flat, self.width, orthogonal=orthogonal, generator=generator)

    def _convolve(self, image: Tensor) -> Tensor:
        for layer in self.convolutions:
            image = torch.relu_(layer(image))  # in place: these are the largest arrays of a gradient step
        return image.flatten(1)

    def forward(self, observation: Tensor) -> Tensor:
        """Return features [B, width] of images of bytes, which are divided by 255, or of booleans."""
        image = observation.unsqueeze(1) if self.add_channel else observation
        if self.channels_last:
            image = image.permute(0, 3, 1, 2)
        return torch.relu(self.output(self._flat_features(image)))

    def _flat_features(self, image: Tensor) -> Tensor:
        """Return what the convolutions make of images, zeros for those that do not matter."""
        if self.only_rows is None:
            return self._convolve(self._numbers(image))
        own = self._convolve(self._numbers(image[self.only_rows]))
        features = own.new_zeros(len(image), own.shape[1])
        features[self.only_rows] = own
        return features

    def _numbers(self, image: Tensor) -> Tensor:
        """Return images [B, C, H, W] as float32, bytes divided by 255, in the memory layout of the convolutions."""
        last = self.wants_channels_last(image)
        numbers = image.to(torch.float32, memory_format=torch.channels_last if last else torch.preserve_format)
        return numbers.div_(255.0) if self.bytes else numbers

    def wants_channels_last(self, image: Tensor) -> bool:
        """Return whether the channels of an image should lie beside each other in memory."""
        # On processors the gradient of the first large convolution takes a quarter of the time.
        return self.large and image.device.type == "cpu"


def _layers(side: int) -> tuple[tuple[int, int, int, int], ...]:
    """Return filters, kernel, stride and padding of the convolutions of images whose smaller side is given."""
    if side >= NATURE_IMAGE:
        return _NATURE_LAYERS
    return _HALVING_LAYERS if side >= LARGE_IMAGE else _SMALL_LAYERS


class DictEncoder(nn.Module):
    """Encodes every entry of a flat Dict separately and concatenates the features in the order of the space."""

    def __init__(self, space: spaces.Dict, *, orthogonal: bool, generator: torch.Generator) -> None:
        super().__init__()
        self.keys = tuple(space.keys())
        encoders = [
            make_encoder(
                space[key], image_width=IMAGE_FEATURES_IN_DICT, orthogonal=orthogonal, generator=generator, key=key
            )
            for key in self.keys
        ]
        self.encoders = nn.ModuleList(encoders)
        self.width: int = sum(encoder.width for encoder in encoders)

    def forward(self, observation: dict[str, Tensor]) -> Tensor:
        """Return features [B, width]."""
        parts = [encoder(observation[key]) for key, encoder in zip(self.keys, self.encoders, strict=True)]
        return torch.cat(parts, dim=1)


Encoder = VectorEncoder | ImageEncoder | DictEncoder


def make_encoder(
    space: Space[Any],
    *,
    orthogonal: bool,
    generator: torch.Generator,
    image_width: int = IMAGE_FEATURES,
    key: str = "",
) -> Encoder:
    """Return the encoder for an observation space."""
    if isinstance(space, spaces.Dict):
        return DictEncoder(space, orthogonal=orthogonal, generator=generator)
    if observation_kind(space) == "image":
        return ImageEncoder(space, image_width, orthogonal=orthogonal, generator=generator, key=key)
    return VectorEncoder(space)


class EncoderFactory(Protocol):
    """Makes the encoder of a network for an observation space."""

    def __call__(self, space: Space[Any], *, orthogonal: bool, generator: torch.Generator) -> Any:
        """Return a module with an int `width` that maps observations [B, ...] to features [B, width]."""


def has_weights(encoder: nn.Module) -> bool:
    """Return whether the encoder has trainable weights."""
    return any(True for _ in encoder.parameters())


def convolves(encoder: nn.Module) -> bool:
    """Return whether this is one of the package's own encoders, with convolutions."""
    return has_weights(encoder) and all(type(part) in (ImageEncoder, VectorEncoder) for part in _parts(encoder))


def image_encoders(encoder: Any) -> list[ImageEncoder]:
    """Return the convolutions of one of the package's own encoders; there are none in others."""
    return [part for part in _parts(encoder) if type(part) is ImageEncoder]


def _parts(encoder: Any) -> list[Any]:
    return list(encoder.encoders) if type(encoder) is DictEncoder else [encoder]


def arranged(encoder: nn.Module | None, observation: Any) -> Any:
    """Return observations [B, ...] that an encoder is to see several times, in the memory layout that it wants.

    Changing the layout of many bytes once takes a fraction of the time that it takes for each batch of numbers.
    """
    if isinstance(encoder, DictEncoder):
        parts = dict(zip(encoder.keys, encoder.encoders, strict=True))
        return {key: arranged(parts.get(key), part) for key, part in observation.items()}
    if not isinstance(encoder, ImageEncoder) or encoder.channels_last or observation.dim() != 4:
        return observation
    wanted = encoder.wants_channels_last(observation)
    return observation.contiguous(memory_format=torch.channels_last) if wanted else observation
