"""Asynchronous events of a port: link down and up, addresses added and removed."""

from __future__ import annotations

import json
import os
import select
import time
from collections.abc import Iterator

import pytest
from namespaces.ns_harness import V4, V6, Namespace, wait_for_json_output

LIMIT = 20.0  # the time limit in seconds for an event

# Program: opens the device as an ordinary user, even if the tests run as root, and prints each of
# its asynchronous events with the port state and the addresses at that time.
WATCHER = """
import json, os, sys
from siwarp.verbs import *
if sys.argv[2] == "0":
    os.setgid(65534)
    os.setuid(65534)
with Context(sys.argv[1]) as ctx:
    print(json.dumps("open"))
    while True:
        with ctx.get_async_event() as event:
            now = ctx.query_info()
            print(json.dumps([event.event_type.name, event.port_num, now.up, now.addresses]))
"""


class EventWatcher:
    """A process in the namespace that reports the asynchronous events of its device."""

    def __init__(self, veth_pair_namespace: Namespace) -> None:
        self.veth_pair_namespace = veth_pair_namespace
        self.process = veth_pair_namespace.start_python(
            WATCHER, veth_pair_namespace.v4, str(os.geteuid())
        )
        # The octets that were received after the last complete line.
        self._read = b""
        assert self.read_event() == "open"

    def read_event(self) -> object:
        assert self.process.stdout is not None
        fd = self.process.stdout.fileno()
        # The loop reads the descriptor and not the buffered file: two lines may arrive at the same
        # time, and select() does not see the buffer of the file.
        while b"\n" not in self._read:
            ready, _, _ = select.select([fd], [], [], LIMIT)
            assert ready, f"no event arrived within {LIMIT} s"
            more = os.read(fd, 4096)
            assert more, self.process.communicate(timeout=LIMIT)[1]
            self._read += more
        text, _, self._read = self._read.partition(b"\n")
        return json.loads(text)

    def wait_for_event(self, kind: str) -> tuple[bool, list[str]]:
        """Read up to the next event of this type; return whether the port is up, and the
        addresses.
        """
        end = time.monotonic() + LIMIT
        while time.monotonic() < end:
            event = self.read_event()
            assert isinstance(event, list)
            if event[:2] == [kind, 1]:
                return event[2], event[3]
        raise AssertionError(f"no {kind} within {LIMIT} s")

    def wait_for_address_change(self, address: str, present: bool) -> None:
        """Read events until one reports that the device has this address, or no longer has it."""
        end = time.monotonic() + LIMIT
        while (address in self.wait_for_event("GID_CHANGE")[1]) != present:
            assert time.monotonic() < end

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate(timeout=LIMIT)


@pytest.fixture
def veth_pair_namespace() -> Iterator[Namespace]:
    """Yield a namespace with both ends of a veth pair: "port", which has the addresses, and
    "other".
    """
    made = Namespace("port", V4[0], V6[0])
    try:
        made.run_ip("link", "add", "port", "type", "veth", "peer", "name", "other")
        made.run_ip("link", "set", "other", "up")
        made.configure_interfaces()
        yield made
    finally:
        made.close()


@pytest.fixture
def event_watcher(veth_pair_namespace: Namespace) -> Iterator[EventWatcher]:
    made = EventWatcher(veth_pair_namespace)
    yield made
    made.kill()


def test_each_time_a_link_goes_down_or_up_a_port_event_is_raised(
    veth_pair_namespace: Namespace, event_watcher: EventWatcher
) -> None:
    # The link is set down by the administrator, or loses its carrier.
    for link in ("port", "other"):
        veth_pair_namespace.run_ip("link", "set", link, "down")
        assert event_watcher.wait_for_event("PORT_ERR")[0] is False
        veth_pair_namespace.run_ip("link", "set", link, "up")
        assert event_watcher.wait_for_event("PORT_ACTIVE")[0] is True


def test_an_added_or_removed_address_raises_an_event_and_updates_the_address_list(
    veth_pair_namespace: Namespace, event_watcher: EventWatcher
) -> None:
    for address in ("192.0.2.77", "2001:db8::77"):
        veth_pair_namespace.run_ip(
            "addr", "add", f"{address}/32", "dev", "port", *(["nodad"] if ":" in address else [])
        )
        event_watcher.wait_for_address_change(address, True)
        veth_pair_namespace.run_ip("addr", "del", f"{address}/32", "dev", "port")
        event_watcher.wait_for_address_change(address, False)


def test_changes_of_another_interface_raise_no_event(
    veth_pair_namespace: Namespace, event_watcher: EventWatcher
) -> None:
    veth_pair_namespace.run_ip("addr", "add", "198.51.100.1/24", "dev", "lo")
    veth_pair_namespace.run_ip("link", "set", "lo", "down")
    veth_pair_namespace.run_ip("link", "set", "lo", "up")
    veth_pair_namespace.run_ip("addr", "add", "192.0.2.78/32", "dev", "port")
    seen: list[object] = []
    while not seen or "192.0.2.78" not in str(seen[-1]):
        seen.append(event_watcher.read_event())
    # The link-local address of the watched interface may be added at the same time.
    assert all(isinstance(event, list) and event[0] == "GID_CHANGE" for event in seen), seen
    assert "198.51.100.1" not in str(seen)


def test_removing_the_interface_raises_a_port_error_event(
    veth_pair_namespace: Namespace, event_watcher: EventWatcher
) -> None:
    veth_pair_namespace.run_ip("link", "del", "port")
    assert event_watcher.wait_for_event("PORT_ERR")[0] is False
    assert event_watcher.process.poll() is None


def test_changes_that_overflow_the_netlink_buffer_are_found_by_a_query(
    veth_pair_namespace: Namespace,
) -> None:
    code = """
import json, subprocess, sys
from siwarp.verbs import *
def ip(*args, text=""):
    subprocess.run(["ip", *args], input=text, text=True, check=True)
with Context(sys.argv[1]) as ctx:
    # Nobody serves the device meanwhile, and the socket's buffer is soon full.
    flood = [f"addr add 198.51.{i >> 8}.{i & 255}/32 dev port" for i in range(1500)]
    ip("-batch", "-", text="\\n".join(flood))
    ip("link", "set", "port", "down")
    kinds = []
    while (event := ctx.get_async_event(0.3)) is not None:
        kinds.append(event.event_type.name)
        event.ack()
    now = ctx.query_info()
    print(json.dumps([kinds, now.up]))
"""
    process = veth_pair_namespace.start_python(
        code, veth_pair_namespace.v4, SIWARP_PROGRESS_THREAD="0"
    )
    told, up = wait_for_json_output(process)
    assert sorted(told) == ["GID_CHANGE", "PORT_ERR"]
    assert up is False


def test_a_queue_pair_created_after_an_address_change_is_bound_to_the_new_address(
    veth_pair_namespace: Namespace,
) -> None:
    code = """
import json, subprocess, sys
from siwarp.verbs import *
with Context(sys.argv[1]) as ctx, PD(ctx) as pd, CQ(ctx) as cq:
    subprocess.run(["ip", "addr", "flush", "dev", "port"], check=True)
    subprocess.run(["ip", "addr", "add", "192.0.2.9/24", "dev", "port"], check=True)
    while ctx.query_info().addresses[:1] != ("192.0.2.9",):
        with ctx.get_async_event(20) as event:
            assert event.event_type == EventType.GID_CHANGE, event
    print(json.dumps(QP(pd, QPInitAttr(QPType.UD, scq=cq)).addr[0]))
"""
    process = veth_pair_namespace.start_python(code, veth_pair_namespace.v4)
    assert wait_for_json_output(process) == "192.0.2.9"
