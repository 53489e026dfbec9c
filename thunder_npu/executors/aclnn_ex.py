"""The executor "aclnn": wide rows, log_softmax and attention go to CANN's aclnn operators through torch_npu."""

from __future__ import annotations

from thunder.extend import OperatorExecutor, register_executor

from thunder_npu.executors import aten, attention
from thunder_npu.executors.gradient_rules import GradientRules
from thunder_npu.executors.softmax_family import Implementation, register


class AclnnExecutor(GradientRules, OperatorExecutor):
    """Claims single symbols."""


aclnn_ex = AclnnExecutor("aclnn")
register_executor(aclnn_ex)
register(
    aclnn_ex,
    {
        "softmax": Implementation(aten.softmax, aten.softmax_backward),
        "log_softmax": Implementation(aten.log_softmax, aten.log_softmax_backward),
        "safe_softmax": Implementation(aten.safe_softmax, aten.softmax_backward),
    },
)
attention.register(aclnn_ex)
