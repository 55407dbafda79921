"""ECN: ECT(0) on outgoing datagrams, and CE set by an emulated link on the path."""

from __future__ import annotations

import json
import shlex
import sys

import pytest
from cli.cli_harness import run_siwarp_command
from namespaces import wan_harness

pytestmark = pytest.mark.scales

# Program: prints the ECN bits (lowest two bits of TOS or traffic class) of each datagram received.
SINK = """
import json, socket, sys
family, level, name, of = {names}
s = socket.socket(family, socket.SOCK_DGRAM)
s.setsockopt(level, name, 1)
s.bind(("{there}", 7))
while True:
    data, control, _, whom = s.recvmsg(2000, 100)
    bits = [cmsg[2][0] & 3 for cmsg in control if cmsg[:2] == (level, of)]
    s.sendto(json.dumps(bits).encode(), whom)
"""

SOURCE = """
import json, socket, sys
family, level, name = {names}
s = socket.socket(family, socket.SOCK_DGRAM)
s.settimeout(0.2)
s.connect(("{there}", 7))
seen = []
for bits in (0, 1, 2):
    s.setsockopt(level, name, bits)
    for attempt in range(100):
        try:
            s.send(b"x")
            seen.append(json.loads(s.recv(100)))
            break
        except (TimeoutError, ConnectionRefusedError):
            pass
print(json.dumps(seen))
"""

FAMILIES = {
    "10.77.0.2": (
        "socket.AF_INET, socket.IPPROTO_IP, socket.IP_RECVTOS, socket.IP_TOS",
        "socket.AF_INET, socket.IPPROTO_IP, socket.IP_TOS",
    ),
    "fd77::2": (
        "socket.AF_INET6, socket.IPPROTO_IPV6, socket.IPV6_RECVTCLASS, socket.IPV6_TCLASS",
        "socket.AF_INET6, socket.IPPROTO_IPV6, socket.IPV6_TCLASS",
    ),
}


@pytest.fixture(autouse=True)
def skip_without_tun() -> None:
    """Skip the tests on a machine where the emulated link cannot be created."""
    wan_harness.skip_without_tun_device()


def python_command(code: str) -> str:
    return shlex.join([sys.executable, "-c", code])


@pytest.mark.parametrize("there", list(FAMILIES))
@pytest.mark.parametrize(("plan", "expected"), [("", [0, 1, 2]), ("tx:mark=100%", [0, 3, 3])])
def test_a_marking_line_sets_ce_only_on_ecn_capable_packets(
    there: str, plan: str, expected: list[int]
) -> None:
    sink, source = FAMILIES[there]
    code = SOURCE.format(there=there, names=source)
    done = run_siwarp_command(
        *("wan", "--faults", plan or "delay=0.1ms", "--in-b"),
        "exec " + python_command(SINK.format(there=there, names=sink)),
        *("--", sys.executable, "-c", code),
    )
    assert done.returncode == 0, done.stderr
    # The kernel would have dropped a packet with a wrong header checksum.
    assert json.loads(done.stdout) == [[bits] for bits in expected]
