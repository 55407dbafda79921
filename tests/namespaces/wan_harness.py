"""Helpers shared by the tests of `siwarp wan`."""

from __future__ import annotations

import os

import pytest


def skip_without_tun_device() -> None:
    """Skip the test if no emulated link can be created, because some kernels have no tun device."""
    if os.environ.get("SANITIZER") == "tsan":
        pytest.skip("the relay has one thread, and a shell under ThreadSanitizer's library crashes")
    try:
        os.close(os.open("/dev/net/tun", os.O_RDWR))
    except OSError as e:
        pytest.skip(f"no line between namespaces without /dev/net/tun: {e}")
