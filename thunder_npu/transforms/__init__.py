"""The trace transforms, RepeatCat, SafeSoftmax and SinkRepeat, and the record of what they did.

Thunder is imported first: the names of this package are registered once it is complete.
"""

import thunder  # noqa: F401

from thunder_npu.transforms.repeat_cat import RepeatCat
from thunder_npu.transforms.rewrite import Decision, decisions
from thunder_npu.transforms.sink_repeat import SinkRepeat
from thunder_npu.transforms.softmax import SafeSoftmax

__all__ = ["Decision", "RepeatCat", "SafeSoftmax", "SinkRepeat", "decisions"]
