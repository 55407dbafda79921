"""Fixtures of the tests of the llp layer."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from types import SimpleNamespace

import pytest
from _siwarp_layers import ffi, lib
from unit.llp.llp_harness import (
    LOOPBACK,
    Counters,
    LlpSocket,
    Poller,
    addr_port,
    address_text,
    list_open_descriptors,
    run_code_in_child,
    siw_addr,
    temporary_setting,
    wait_until,
)


@pytest.fixture
def llp_helpers() -> SimpleNamespace:
    """Return a namespace with the helper functions and classes of ``llp_harness``."""
    return SimpleNamespace(
        siw_addr=siw_addr,
        addr_port=addr_port,
        address_text=address_text,
        wait_until=wait_until,
        list_open_descriptors=list_open_descriptors,
        Counters=Counters,
        temporary_setting=temporary_setting,
        Poller=Poller,
        LlpSocket=LlpSocket,
        loopback=LOOPBACK,
        lib=lib,
        ffi=ffi,
        buffer=ffi.buffer,
    )


@pytest.fixture(name="poller")
def llp_poller() -> Iterator[Poller]:
    before = list_open_descriptors()
    p = Poller()
    yield p
    p.close()
    # Every test with a poller also checks for leaked descriptors.
    assert set(list_open_descriptors()) <= set(before)


@pytest.fixture
def run_in_child() -> Callable[[str], None]:
    """A function that runs Python code in a child process and asserts that the code succeeds."""

    def run_code(code: str) -> None:
        done = run_code_in_child(code)
        assert done.returncode == 0, done.stderr

    return run_code


@pytest.fixture
def run_in_namespace() -> Callable[[str, str], None]:
    """A function that runs shell commands and then Python code in a new network namespace."""
    unshare = ["unshare", "-n"] if os.geteuid() == 0 else ["unshare", "-r", "-n"]
    if shutil.which("unshare") is None or shutil.which("ip") is None:
        pytest.skip("needs unshare and ip: apt-get install util-linux iproute2")
    if subprocess.run([*unshare, "true"], capture_output=True, check=False).returncode:
        pytest.skip("needs root, or user namespaces for unprivileged users")

    def run_code(shell: str, code: str) -> None:
        done = run_code_in_child(
            code, *unshare, "sh", "-ec", f'{shell}\nLD_PRELOAD="$KEPT_PRELOAD" exec "$0" "$@"'
        )
        assert done.returncode == 0, done.stderr

    return run_code
