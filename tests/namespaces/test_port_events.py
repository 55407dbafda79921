"""Asynchronous events of a port: link down and up, addresses added and removed."""

from __future__ import annotations

import json
import os
import select
import time
from collections.abc import Iterator

import pytest
from namespaces.ns_harness import V4, V6, Namespace, finish

LIMIT = 20.0  # time limit in seconds for an event

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


class Watcher:
    """A process in the namespace that reports the asynchronous events of its device."""

    def __init__(self, ns: Namespace) -> None:
        self.ns = ns
        self.process = ns.python(WATCHER, ns.v4, str(os.geteuid()))
        self._read = b""  # octets received after the last complete line
        assert self.line() == "open"

    def line(self) -> object:
        assert self.process.stdout is not None
        fd = self.process.stdout.fileno()
        # Reads the descriptor, not the buffered file: two lines may arrive at once, and select()
        # does not see the file's buffer.
        while b"\n" not in self._read:
            ready, _, _ = select.select([fd], [], [], LIMIT)
            assert ready, f"nothing told within {LIMIT} s"
            more = os.read(fd, 4096)
            assert more, self.process.communicate(timeout=LIMIT)[1]
            self._read += more
        text, _, self._read = self._read.partition(b"\n")
        return json.loads(text)

    def until(self, kind: str) -> tuple[bool, list[str]]:
        """Read up to the next event of this kind; return whether the port is up, and the
        addresses.
        """
        end = time.monotonic() + LIMIT
        while time.monotonic() < end:
            told = self.line()
            assert isinstance(told, list)
            if told[:2] == [kind, 1]:
                return told[2], told[3]
        raise AssertionError(f"no {kind} within {LIMIT} s")

    def address(self, address: str, there: bool) -> None:
        """Read events until one reports that the device has this address, or no longer has it."""
        end = time.monotonic() + LIMIT
        while (address in self.until("GID_CHANGE")[1]) != there:
            assert time.monotonic() < end

    def end(self) -> None:
        self.process.kill()
        self.process.communicate(timeout=LIMIT)


@pytest.fixture
def ns() -> Iterator[Namespace]:
    """Provide a namespace with both ends of a veth pair: "port", which has the addresses, and
    "other".
    """
    made = Namespace("port", V4[0], V6[0])
    try:
        made.ip("link", "add", "port", "type", "veth", "peer", "name", "other")
        made.ip("link", "set", "other", "up")
        made.set_up()
        yield made
    finally:
        made.close()


@pytest.fixture
def watcher(ns: Namespace) -> Iterator[Watcher]:
    made = Watcher(ns)
    yield made
    made.end()


def test_a_link_that_goes_down_and_up_is_told_as_often_as_it_does(
    ns: Namespace, watcher: Watcher
) -> None:
    # The link is set down by the administrator, or loses its carrier.
    for link in ("port", "other"):
        ns.ip("link", "set", link, "down")
        assert watcher.until("PORT_ERR")[0] is False
        ns.ip("link", "set", link, "up")
        assert watcher.until("PORT_ACTIVE")[0] is True


def test_addresses_that_come_and_go_are_told_with_the_new_ones_there(
    ns: Namespace, watcher: Watcher
) -> None:
    for address in ("192.0.2.77", "2001:db8::77"):
        ns.ip("addr", "add", f"{address}/32", "dev", "port", *(["nodad"] if ":" in address else []))
        watcher.address(address, True)
        ns.ip("addr", "del", f"{address}/32", "dev", "port")
        watcher.address(address, False)


def test_what_happens_to_another_interface_is_not_told(ns: Namespace, watcher: Watcher) -> None:
    ns.ip("addr", "add", "198.51.100.1/24", "dev", "lo")
    ns.ip("link", "set", "lo", "down")
    ns.ip("link", "set", "lo", "up")
    ns.ip("addr", "add", "192.0.2.78/32", "dev", "port")
    seen: list[object] = []
    while not seen or "192.0.2.78" not in str(seen[-1]):
        seen.append(watcher.line())
    # The link-local address of the watched interface may be added at the same time.
    assert all(isinstance(told, list) and told[0] == "GID_CHANGE" for told in seen), seen
    assert "198.51.100.1" not in str(seen)


def test_an_interface_that_is_removed_is_an_error_of_the_port(
    ns: Namespace, watcher: Watcher
) -> None:
    ns.ip("link", "del", "port")
    assert watcher.until("PORT_ERR")[0] is False
    assert watcher.process.poll() is None


def test_news_that_the_kernel_had_no_room_for_are_made_up_by_looking(ns: Namespace) -> None:
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
    process = ns.python(code, ns.v4, SIWARP_PROGRESS_THREAD="0")
    told, up = finish(process)
    assert sorted(told) == ["GID_CHANGE", "PORT_ERR"]
    assert up is False


def test_a_queue_pair_made_after_the_address_changed_is_bound_to_the_new_one(
    ns: Namespace,
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
    process = ns.python(code, ns.v4)
    assert finish(process) == "192.0.2.9"
