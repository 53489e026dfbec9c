"""The two executors. Thunder is imported first: the names of this package are registered once it is complete."""

import thunder  # noqa: F401
