"""Detecting and replacing a virtual machine whose kernel has failed, tested with a fake guest."""

from __future__ import annotations

from typing import Any, cast

import pytest
from interop import vm
from interop.conftest import GuestPool

BUG = "[   12.345678] kernel BUG at drivers/infiniband/core/iwcm.c:969!"


class FakeGuest:
    """A fake guest with the interface that the interop harness uses."""

    version, accelerator = "6.1.192-2", "none"

    def __init__(self) -> None:
        self.console, self.closed = "interop: ready\n", False

    def find_kernel_fault(self) -> str:
        return vm.find_kernel_fault(self.console)

    def close(self) -> None:
        self.closed = True


@pytest.mark.parametrize(
    "line",
    [
        BUG,
        "[    1.000000] BUG: kernel NULL pointer dereference, address: 0000000000000008",
        "[    1.000000] Oops: 0002 [#1] PREEMPT SMP NOPTI",
        "[    1.000000] general protection fault, probably for non-canonical address: 0000",
        "[    1.000000] Kernel panic - not syncing: Fatal exception",
    ],
)
def test_a_kernel_fault_is_found_in_the_console_of_a_guest(line: str) -> None:
    assert (
        vm.find_kernel_fault(f"interop: ready\n{line}\n[    1.1] Modules linked in: siw\n") == line
    )


def test_console_messages_of_the_siw_driver_are_not_kernel_faults() -> None:
    assert (
        vm.find_kernel_fault("interop: ready\n[ 1.0] siw: MPA: CRC error\n[ 1.1] siw: DEBUG: x\n")
        == ""
    )


def test_a_guest_is_kept_while_its_kernel_has_no_fault() -> None:
    guests = GuestPool(lambda: cast(Any, FakeGuest()))
    first = guests.get_or_boot_guest()
    assert guests.end_guest_if_its_kernel_is_faulty() == ""
    assert guests.get_or_boot_guest() is first


def test_a_guest_whose_kernel_failed_is_replaced_for_the_next_test() -> None:
    guests = GuestPool(lambda: cast(Any, FakeGuest()))
    first = cast(Any, guests.get_or_boot_guest())
    first.console += BUG
    assert guests.end_guest_if_its_kernel_is_faulty() == BUG
    assert first.closed
    second = guests.get_or_boot_guest()
    assert second is not first
    assert guests.end_guest_if_its_kernel_is_faulty() == ""
    assert guests.booted == ["6.1.192-2 (none)"] * 2
