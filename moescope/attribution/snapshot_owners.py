"""What a block of device memory is for, from the stack that allocated it."""

from __future__ import annotations

import re
from collections.abc import Sequence

from moescope.trace.snapshots import Frame

UNKNOWN = "no stack recorded"
OTHER = "other"

_RULES: tuple[tuple[str, str], ...] = (
    ("workspace", r"[Ww]orkspace|cublas|cudnn.*(?:handle|plan)|hipblaslt"),
    ("optimizer", r"torch/optim/|/optimizers?/|optimizer\.py|:_init_state$|:_init_group$|apex/|distributed_optimizer"),
    ("gradients", r"AccumulateGrad|accumulate_grad|:_grad_buffer|param_and_grad_buffer|/reducer\.|:zero_grad$"),
    ("dispatch and combine buffers", r"all_to_all|alltoall|token_dispatcher|deep_ep|:dispatch\w*$|:combine\w*$"),
    ("communication buffers", r"distributed_c10d|_functional_collectives|ProcessGroup|nccl|c10d::|fsdp|all_gather"),
    ("parameters", r"nn/modules/module\.py:(?:_apply|to|cuda|half|bfloat16|to_empty)$|:reset_parameters$|"
     r"nn/modules/\w+\.py:__init__$|torch/nn/init\.py|Parameter"),
    ("gradients of activations",
     r"torch/autograd/(?:graph|__init__|function)\.py|Engine::|evaluate_function|[Bb]ackward"),
    ("activations", r"nn/modules/|nn/functional|torch/_ops\.py|:forward$|:__call__$|:_call_impl$"),
)  # fmt: skip
"""(category, pattern of ``file:function``): a stack belongs to the first category that one of its frames matches."""
_COMPILED = tuple((category, re.compile(pattern)) for category, pattern in _RULES)

_PLUMBING = re.compile(r"(?:^|/)torch/|unwind|CapturedTraceback|PyEval|PyObject|\.(?:cpp|c|cc|cu|h|hpp)$")
"""Files that say nothing about the model."""


def owner(stack: Sequence[Frame]) -> str:
    """The category of a stack, innermost frame first."""
    if not stack:
        return UNKNOWN
    texts = [f"{file}:{function}" for file, _, function in stack]
    return next((category for category, rule in _COMPILED if any(map(rule.search, texts))), OTHER)


def place(stack: Sequence[Frame]) -> str:
    """Where the model asked for the block: the innermost frame that is no plumbing, as ``file:line function``."""
    if not stack:
        return UNKNOWN
    file, line, function = next((frame for frame in stack if not _PLUMBING.search(frame[0])), stack[0])
    short = "/".join(file.replace("\\", "/").split("/")[-2:])
    return f"{short}:{line} {function}"
