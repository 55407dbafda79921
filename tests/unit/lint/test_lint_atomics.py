"""The lint check for compiler-specific atomics, which must find them and accept C11 atomics."""

from __future__ import annotations

import c_atomics
import pytest


@pytest.mark.parametrize(
    "line",
    [
        "\told = __atomic_load_n(&word, order);",
        "\t__sync_synchronize();",
        "\tf(&word, __ATOMIC_RELAXED);",
        "#define LOAD(p) __atomic_load_n(p, 0)",
    ],
)
def test_compiler_specific_atomics_are_found(line: str) -> None:
    assert [number for number, _ in c_atomics.find_atomic_builtins(f"int x;\n{line}\n")] == [2]


def test_c11_atomics_are_accepted() -> None:
    text = "_Atomic int a;\n\tatomic_load_explicit(&a, memory_order_relaxed);\n"
    assert c_atomics.find_atomic_builtins(text) == []
