"""Every tunable of thunder-npu: its name, type, default and meaning.

An option is a keyword of ``thunder.jit`` (a Thunder compile option); behind it stands an environment variable
(``THUNDER_NPU_`` + the name in upper case), behind that the default. This module decides nothing else.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

UNLIMITED = -1
_TRUE = frozenset({"1", "true", "yes", "on"})
_FALSE = frozenset({"0", "false", "no", "off"})


@dataclass(frozen=True)
class Option:
    """One tunable. ``minimum`` bounds integer options; booleans have none."""

    name: str
    default: bool | int
    meaning: str
    minimum: int | None = None

    @property
    def env(self) -> str:
        """The environment variable that stands behind the compile option."""
        return f"THUNDER_NPU_{self.name.upper()}"

    def check(self, value: Any, source: str) -> bool | int:
        """``value`` if it is of the option's type and in its range.

        Raises:
            TypeError: the value is of another type (a bool is not an int here, nor an int a bool).
            ValueError: the integer is below ``minimum``.
        """
        kind = type(self.default)
        if type(value) is not kind:
            raise TypeError(f"{source}: {self.name} takes {_KINDS[kind]}, got {value!r}")
        if self.minimum is not None and value < self.minimum:
            raise ValueError(f"{source}: {self.name} takes an integer of at least {self.minimum}, got {value!r}")
        return value

    def parse(self, text: str) -> bool | int:
        """The value that the environment variable's ``text`` spells.

        Raises:
            ValueError: the text spells no value of the option's type, or one out of its range.
        """
        word = text.strip().lower()
        if isinstance(self.default, bool):
            if word not in _TRUE | _FALSE:
                raise ValueError(f"environment variable {self.env} takes 1 or 0 (true/false), got {text!r}")
            return word in _TRUE
        try:
            number = int(word)
        except ValueError:
            raise ValueError(f"environment variable {self.env} takes an integer, got {text!r}") from None
        return self.check(number, f"environment variable {self.env}")


_KINDS = {bool: "True or False", int: "an integer"}

OPTIONS: dict[str, Option] = {
    o.name: o
    for o in (
        # Measured on a 910B2 for torch_npu's Inductor backend: at vocabulary widths a Triton softmax is 2.5 to 2.8
        # times slower than aclnn's; rows that fit its persistent-reduction budget are not.
        Option(
            "softmax_aclnn_max_fuse_numel",
            256,
            "softmax rows wider than this go to aclnn, all others to Triton; 0: no routing by width, always Triton",
            minimum=0,
        ),
        Option(
            "log_softmax_aclnn_fallback",
            True,
            "log_softmax and its backward always go to aclnn; False: by width, like softmax",
        ),
        Option(
            "safe_softmax_aclnn_fallback",
            True,
            "rewrite the mask-composite softmax to the routed softmax; False: leave _safe_softmax to ATen",
        ),
        Option(
            "safe_softmax_keep_guard",
            True,
            "a fully masked row gives zeros and zero gradient on every route; False: a plain softmax, NaN there",
        ),
        Option("repeat_cat", True, "rewrite cat/stack of one tensor to expand + reshape"),
        Option(
            "realize_tail_bcast",
            True,
            "write a broadcast over a short last axis out as its own tensor before a fused region reads it",
        ),
        # On a 910B3 a fused broadcast over a last axis of length 8 took 4 µs, over one of length 4 more than 60 µs:
        # scalar code.
        Option(
            "tail_bcast_min_vec",
            8,
            "last axes of length n with 1 < n < this count as short for realize_tail_bcast",
            minimum=0,
        ),
        Option("fusion", True, "fuse what stands beside a narrow softmax into regions; False: each operator alone"),
        Option(
            "fusion_fuel",
            UNLIMITED,
            "stop after this many regions, forward first, to find the one that makes a number wrong; -1: no limit",
            minimum=UNLIMITED,
        ),
        Option(
            "thunderfx_npu_inductor",
            False,
            "thunderfx gives what Thunder does not take, on an npu, to torch_npu's own Inductor; False: eager runs it",
        ),
        Option(
            "fusion_float32_inside",
            False,
            "a fused region keeps intermediate results in float32 where eager rounds them to float16 or bfloat16",
        ),
    )
}


def resolve(name: str, compile_options: Mapping[str, Any]) -> Any:
    """The value of option ``name``: compile option, else environment variable, else default.

    Raises:
        KeyError: there is no such option.
        TypeError, ValueError: the value given is wrong; the message names the option and the value.
    """
    option = OPTIONS[name]
    given = compile_options.get(name)
    if given is not None:
        return option.check(given, "compile option")
    text = os.environ.get(option.env)
    return option.default if text is None else option.parse(text)


def get(name: str) -> Any:
    """The value of option ``name`` for the compilation under way (outside of one: environment, else default).

    Inside a compilation the query is recorded, so that ``thunder.last_compile_options`` lists the option as used.
    Raises as :func:`resolve` does.
    """
    from thunder.core.compile_data import get_compile_option

    return resolve(name, {name: get_compile_option(name, OPTIONS[name].meaning)})


OTHER_VARIABLES = ("CACHE_DIR", "TEST_DEVICE")
"""What stands behind ``THUNDER_NPU_`` in environment variables that are no options: of the cache, of the tests."""

# Thunder's own options that begin with the name of one of ours.
_THUNDERS = frozenset({"fusion_type"})


def check_all(compile_options: Mapping[str, Any]) -> None:
    """Refuse what would otherwise be ignored or found late: misspelt names and wrong values.

    A compile option is taken for a misspelt one of ours if one name begins with the other, or if they differ by at most
    two insertions, deletions or replacements of a letter; so are environment variables that begin with
    ``THUNDER_NPU_``. Any other name is somebody else's.

    Raises:
        TypeError: a misspelt compile option, with the nearest name; or a value of another type than its option's.
        ValueError: a misspelt environment variable, with the nearest name; or a value out of its option's range.
    """
    for given in compile_options:
        if given not in OPTIONS and given not in _THUNDERS and (name := nearest(given, OPTIONS)):
            raise TypeError(f"thunder.jit got an unknown compile option {given!r}: did you mean {name!r}?")
    variables = {o.env for o in OPTIONS.values()} | {f"THUNDER_NPU_{name}" for name in OTHER_VARIABLES}
    for given in os.environ:
        if given.startswith("THUNDER_NPU_") and given not in variables and (name := nearest(given, variables)):
            raise ValueError(f"unknown environment variable {given}: did you mean {name}?")
    for name in OPTIONS:
        resolve(name, compile_options)


def nearest(given: str, names: Iterable[str]) -> str | None:
    """The name that ``given`` is most likely a misspelling of, whatever the case of its letters; None if of none."""
    near = {}
    for name in names:
        one, other = given.lower(), name.lower()
        distance = _edit_distance(one, other)
        if one.startswith(other) or other.startswith(one) or distance <= 2:
            near[name] = distance
    return min(near, key=lambda name: (near[name], name), default=None)


def _edit_distance(one: str, other: str) -> int:
    """Levenshtein's distance."""
    row = [*range(len(other) + 1)]
    for i, a in enumerate(one, 1):
        diagonal, row[0] = row[0], i
        for j, b in enumerate(other, 1):
            diagonal, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, diagonal + (a != b))
    return row[-1]
