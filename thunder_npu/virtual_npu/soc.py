"""The Ascend SoCs that the virtual NPU can stand for: core counts, unified buffer, memory, compiler.

Core counts and buffer sizes are BiShengIR's own device specifications (ascendnpu-ir 1.2.0, `bishengir-opt` and
`bishengir-opt-a5` with `--hacc-append-device-spec=target=NAME`); a test compares the table with the installed compiler.
Memory is per device as torch_npu counts devices (one die of a 910_93xx). This module never asks hardware or CANN.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["DEFAULT_SOC", "SOCS", "SoC", "soc_named"]

_GIB = 1 << 30
_UB_A2 = 192 * 1024  # 910B and 910_93xx (Atlas A2, A3)
_UB_A5 = 248 * 1024  # 950


@dataclass(frozen=True)
class SoC:
    """One SoC. `name` is what aclrtGetSocName returns and what bishengir's `--target` takes."""

    name: str
    cube_cores: int
    vector_cores: int
    unified_buffer_bytes: int
    hbm_bytes: int
    a5: bool = False

    @property
    def compiler(self) -> str:
        """Name of the BiShengIR driver program that targets this SoC."""
        return "bishengir-compile-a5" if self.a5 else "bishengir-compile"


def _a2(name: str, cube_cores: int, hbm_gib: int) -> SoC:
    return SoC(name, cube_cores, 2 * cube_cores, _UB_A2, hbm_gib * _GIB)


def _a5(name: str, cube_cores: int, hbm_gib: int) -> SoC:
    return SoC(name, cube_cores, 2 * cube_cores, _UB_A5, hbm_gib * _GIB, a5=True)


SOCS: dict[str, SoC] = {
    soc.name: soc
    for soc in (
        _a2("Ascend910B1", 24, 64),
        _a2("Ascend910B2", 24, 64),
        _a2("Ascend910B2C", 24, 64),
        _a2("Ascend910B3", 20, 64),
        _a2("Ascend910B4", 20, 32),
        _a2("Ascend910B4-1", 20, 64),
        _a2("Ascend910_9362", 20, 64),
        _a2("Ascend910_9372", 20, 64),
        _a2("Ascend910_9381", 24, 64),
        _a2("Ascend910_9382", 24, 64),
        _a2("Ascend910_9391", 24, 64),
        _a2("Ascend910_9392", 24, 64),
        _a5("Ascend950PR_9579", 28, 128),
        _a5("Ascend950PR_9589", 32, 128),
        _a5("Ascend950PR_9599", 36, 128),
        _a5("Ascend950DT_9595", 36, 144),
    )
}

DEFAULT_SOC = "Ascend910B2"


def soc_named(name: str) -> SoC:
    """The SoC called `name`, in any letter case.

    Raises:
        ValueError: no such SoC; the message lists the known names.
    """
    for known, soc in SOCS.items():
        if known.lower() == name.lower():
            return soc
    raise ValueError(f"unknown SoC {name!r}; known: {', '.join(SOCS)}")
