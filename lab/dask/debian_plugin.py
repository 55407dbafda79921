# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""A pytest plugin, loaded by the unpacked Python of debian.py: distributed's TCP comm is siwarp's.

Tests that do not apply to siw:// are skipped, each with its reason.
"""

from __future__ import annotations

import os
import runpy
from typing import Any

# The compiled module is found as in the checkout's own environment.
runpy.run_path(os.environ["SIWARP_LOADER"])["init"]()

import distributed  # noqa: E402
import pytest  # noqa: E402
from distributed.comm import tcp  # noqa: E402
from distributed.comm.registry import backends  # noqa: E402

from siwarp.ulp.dask import comm as siw  # noqa: E402

TLS = "siw:// has no TLS"
NO_SCHEME = "distributed's listen() takes an address without a scheme as tcp://"
STREAM = "replaces methods of the stream of tornado that a TCP comm has"
#: Tests that do not apply to siw://, by name without parameters, and the reasons.
NOT_APPLICABLE = {
    "test_tls_specific": TLS,
    "test_tls_client_server_ipv4": TLS,
    "test_tls_client_server_ipv6": TLS,
    "test_tls_reject_certificate": TLS,
    "test_tls_comm_closed_implicit": TLS,
    "test_tls_comm_closed_explicit": TLS,
    "test_tls_repr": TLS,
    "test_tls_adresses": TLS,
    "test_default_client_server_ipv4": NO_SCHEME,
    "test_default_client_server_ipv6": NO_SCHEME,
    "test_comm_closed_on_write_error": STREAM,
    "test_ucx_client_server": "tests UCX, whose Python package Debian does not have",
}

# The tests derive classes from these, as well as listen and connect by addresses.
tcp.TCP = siw._SIWComm
tcp.TCPConnector = siw._SIWConnector
tcp.TCPListener = siw._SIWListener
tcp.TCPBackend = siw.Backend
backends["siw"] = siw.Backend()


def pytest_report_header() -> str:
    """Return the line that pytest prints first."""
    return f"dask.distributed {distributed.__version__}, siw:// in place of tcp://"


def pytest_collection_modifyitems(items: list[Any]) -> None:
    """Skip the tests that do not apply, and leave out the repetitions with asyncio's TCP comm."""
    items[:] = [
        item
        for item in items
        if getattr(item, "callspec", None) is None or item.callspec.params.get("tcp") != "asyncio"
    ]
    if unknown := NOT_APPLICABLE.keys() - {item.originalname for item in items}:
        raise pytest.UsageError(f"no such test: {', '.join(sorted(unknown))}")
    for item in items:
        if reason := NOT_APPLICABLE.get(item.originalname):
            item.add_marker(pytest.mark.skip(reason=reason))
            # pytest looks up fixtures even for a skipped test, and that for UCX does not exist.
            item.fixturenames.clear()
