"""What a training uses, imported and ready: a sweep's processes are forked from a server that has imported this.

Importing takes longer than a short training, and so does what numba does before its first call.
"""

from __future__ import annotations

import contextlib
import gc

import tensorboard.compat.proto.event_pb2
import tensorboard.compat.proto.summary_pb2
import tensorboard.summary.writer.event_file_writer  # noqa: F401

import rl_training.runtime.off_policy
import rl_training.runtime.offline
import rl_training.runtime.on_policy
import rl_training.runtime.planning  # noqa: F401
from rl_training.runtime.setup.acceleration import prepare_kernels

with contextlib.suppress(ImportError):
    prepare_kernels()
gc.freeze()  # it all stays: no process need search it for garbage, and so copy the memory that it lies in
