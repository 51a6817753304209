"""Traces a policy and writes it as ONNX or as a program of torch, without the exporters' messages."""

from __future__ import annotations

import contextlib
import io
import logging
import warnings
from collections.abc import Iterator
from typing import Any, Literal

import torch

from rl_training.deploy import ACTION, NEXT_STATE
from rl_training.errors import AxiomError, MissingExtraError
from rl_training.runtime.export.policy_module import PolicyModule

Format = Literal["onnx", "pt2"]
_BATCH = "batch"
_LOGGERS = ("torch.onnx", "torch.export", "torch._export", "onnxscript", "onnx_ir")


def check_packages(format: Format) -> None:
    """Raise an error if the packages for a format are missing."""
    if format == "onnx":
        try:
            import onnx  # noqa: F401
            import onnxruntime  # noqa: F401
            import onnxscript  # noqa: F401
        except ImportError as error:
            raise MissingExtraError("axiomrl export", "export") from error


def exported_content(module: PolicyModule, format: Format) -> bytes:
    """Return the content of the exported file."""
    try:
        with _quiet(), torch.no_grad():
            program = _traced(module)
            return _onnx(program, module) if format == "onnx" else _pt2(program)
    except AxiomError:
        raise
    except Exception as error:  # the exporters raise errors of many kinds
        cause = " ".join(f"{type(error).__name__}: {error}".split())
        if module.generator is not None:
            raise AxiomError(
                f"sampled actions of this policy cannot be exported ({cause:.300}); leave --stochastic out"
            ) from error
        raise AxiomError(
            f"the policy cannot be exported ({cause:.300}); its networks and its algorithm's `choose` and `env_action` "
            "must not depend on the values of tensors"
        ) from error


def _traced(module: PolicyModule) -> Any:
    rows = torch.export.Dim(_BATCH, min=1)
    example = module.example()
    program = torch.export.export(module, example, dynamic_shapes=(tuple({0: rows} for _ in example),), strict=False)
    # Weights are views of one buffer, with those of networks that do not act.
    for name, constant in program.constants.items():
        if isinstance(constant, torch.Tensor):
            program.constants[name] = constant.detach().clone(memory_format=torch.contiguous_format)
    return program


def _pt2(program: Any) -> bytes:
    content = io.BytesIO()
    torch.export.save(program, content)
    return content.getvalue()


def _onnx(program: Any, module: PolicyModule) -> bytes:
    import onnx_ir

    exported: Any = torch.onnx.export(
        program,
        input_names=[one.name for one in module.inputs],
        output_names=[ACTION, NEXT_STATE] if module.remembers else [ACTION],
        dynamo=True,
        verbose=False,
    )
    for value in (*exported.model.graph.inputs, *exported.model.graph.outputs):
        value.shape = onnx_ir.Shape([_BATCH, *list(value.shape)[1:]])
    content: bytes = exported.model_proto.SerializeToString()
    return content


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Silence warnings and messages of the exporters; what matters is checked on the file that they write."""
    loggers = [logging.getLogger(name) for name in _LOGGERS]
    levels = [logger.level for logger in loggers]
    nowhere = io.StringIO()
    with warnings.catch_warnings(), contextlib.redirect_stdout(nowhere), contextlib.redirect_stderr(nowhere):
        warnings.simplefilter("ignore")
        try:
            for logger in loggers:
                logger.setLevel(logging.CRITICAL)
            yield
        finally:
            for logger, level in zip(loggers, levels, strict=True):
                logger.setLevel(level)
