"""Every emulated operator against the same expression on the CPU: dtypes, strides, broadcasts, empty shapes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import operator_table_nn  # noqa: F401  (adds to OPERATORS)
import operator_table_random
import operator_table_variants
import pytest
from checks import check
from operator_table import OPERATORS

from thunder_npu import virtual_npu

PROMISED = 557
"""How many operators README.md says are checked."""


@pytest.mark.parametrize("name", sorted(OPERATORS))
def test_operator(name: str) -> None:
    check(name, *OPERATORS[name])


@pytest.mark.parametrize("variant", sorted(operator_table_variants.VARIANTS))
def test_operators_of_another_soc_or_mode(variant: str) -> None:
    """Operators that torch_npu chooses on an Atlas A5 or in another mode; each of them in its own process."""
    soc, environment, names = operator_table_variants.VARIANTS[variant]
    script = Path(operator_table_variants.__file__)
    result = subprocess.run(
        [sys.executable, "-m", "thunder_npu.virtual_npu", "--soc", soc, str(script), variant],
        env={**os.environ, **environment}, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert result.returncode == 0, result.stdout + result.stderr
    assert result.stdout.split() == sorted(names)


def test_every_operator_is_checked() -> None:
    checked = {*OPERATORS, *operator_table_random.OPERATORS, *operator_table_variants.OPERATORS}
    print(f"\n{len(checked)} emulated operators are checked against PyTorch on the CPU")
    assert virtual_npu.operators() == checked
    assert len(checked) == PROMISED
