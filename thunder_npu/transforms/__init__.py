"""The trace transforms. Thunder is imported first: the names of this package are registered once it is complete."""

import thunder  # noqa: F401, I001
from thunder_npu.transforms.repeat_cat import RepeatCat
from thunder_npu.transforms.rewrite import Decision, decisions

__all__ = ["Decision", "RepeatCat", "decisions"]
