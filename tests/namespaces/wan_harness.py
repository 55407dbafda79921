"""What tests of `siwarp wan` share."""

from __future__ import annotations

import os

import pytest


def need_line() -> None:
    """Fail with what to do where the line cannot be made; some kernels have no such device."""
    if os.environ.get("SANITIZER") == "tsan":
        pytest.skip("the relay has one thread, and a shell under ThreadSanitizer's library crashes")
    if os.geteuid() != 0:
        pytest.fail("this needs root: run `sudo make test`", pytrace=False)
    try:
        os.close(os.open("/dev/net/tun", os.O_RDWR))
    except OSError as e:
        pytest.skip(f"no line between namespaces without /dev/net/tun: {e}")
