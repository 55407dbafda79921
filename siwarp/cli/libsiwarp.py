# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""The C library through ctypes, for the commands that need only Python's standard library.

``siwarp.base.library`` has the same library through cffi. A process loads it only once, so both see
the same settings.
"""

from __future__ import annotations

import ctypes
import functools

from siwarp import _paths

__all__ = ["load_library", "normalize_fault_plan"]

_TEXTS = (
    "siw_version",
    "siw_faults_error",
    "siw_setting_name",
    "siw_setting_env",
    "siw_setting_option",
    "siw_setting_help",
    "siw_settings_advice_for_former_name",
)
_NUMBERS = (
    "siw_setting_default",
    "siw_setting_min",
    "siw_setting_max",
    "siw_setting_value",
)


@functools.cache
def load_library() -> ctypes.CDLL:
    """Return the library, with the types of the functions that the commands call.

    Raises:
        FileNotFoundError: the installation has no library.

    """
    library = ctypes.CDLL(str(_paths.library_path()))
    for name in _TEXTS:
        getattr(library, name).restype = ctypes.c_char_p
    for name in _NUMBERS:
        getattr(library, name).restype = ctypes.c_int64
    library.siw_faults_get.restype = ctypes.c_size_t
    library.siw_faults_get.argtypes = [ctypes.c_char_p, ctypes.c_size_t]
    return library


def normalize_fault_plan(plan: str) -> str:
    """Return a fault plan in siwarp's notation.

    Raises:
        ValueError: the plan is invalid; the text names the clause and the character.

    """
    library = load_library()
    if library.siw_faults_set(plan.encode()):
        raise ValueError(f"invalid fault plan: {library.siw_faults_error().decode()}")
    text = ctypes.create_string_buffer(4096)
    library.siw_faults_get(text, len(text))
    library.siw_faults_clear()
    return text.value.decode()
