"""CM channels without a device, whose ids get a device, an address or another channel later."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import threading
import time
from pathlib import Path

import pace
import pytest
from harness.rc_harness import SEND, End, ListenerAndConnector
from harness.verbs_harness import (
    LIMIT,
    Rig,
    counter_value,
    errno_raised_by,
    octet_pattern,
    open_device_without_progress_thread,
    poll,
)

from siwarp._siwarp import ffi, lib
from siwarp.cm import CMID, CMEvent, CMEventChannel, CMEventType, ConnParam
from siwarp.verbs import QP, Error, QPAttr, QPInitAttr, QPState, QPType


@pytest.fixture
def two_devices(two_device_connector: ListenerAndConnector) -> tuple[Rig, Rig]:
    """Two open devices."""
    return two_device_connector.active, two_device_connector.passive


def next_cm_event(channel: CMEventChannel) -> CMEvent:
    event = channel.get_event(LIMIT)
    assert event is not None, "no CM event was received"
    return event


def create_endpoint_and_connect(
    rig: Rig, channel: CMEventChannel, where: tuple[str, int], **param: float
) -> End:
    id = CMID(channel)
    id.set_device(rig.ctx)
    a = End(rig, id, channel, size=4096)
    a.id.connect(where, ConnParam(**param) if param else None)  # type: ignore[arg-type]
    return a


def test_one_cm_channel_delivers_the_events_of_ids_of_two_devices(
    two_devices: tuple[Rig, Rig],
) -> None:
    channel = CMEventChannel()
    doors: list[CMID] = []
    ends: list[End] = []
    for rig in two_devices:
        door = CMID(channel, context=rig)
        door.set_device(rig.ctx)
        door.listen(("127.0.0.1", 0))
        doors.append(door)
    for rig, door in zip(two_devices, doors, strict=True):
        a = create_endpoint_and_connect(rig, channel, door.local_addr)
        request = next_cm_event(channel)
        assert request.type == CMEventType.CONNECT_REQUEST and request.listen_id is door
        b = End(rig, request.id, channel, size=4096)
        b.id.accept()
        ends += [a, b]
        assert {next_cm_event(channel).id for _ in range(2)} == {a.id, b.id}
        a.mem.write(octet_pattern(100))
        b.post_receive(wr_id=1, length=100)
        a.post(SEND, 2, length=100)
        assert poll(b.rcq)[0].byte_len == 100


def test_injected_cm_events_are_delivered_in_order(rig: Rig) -> None:
    channel = CMEventChannel()
    id = CMID(channel)
    id.tell(CMEventType.ADDR_RESOLVED)
    id.tell(CMEventType.ROUTE_ERROR, errno.ENETUNREACH)
    first, second = next_cm_event(channel), next_cm_event(channel)
    assert (first.type, first.status, first.id) == (CMEventType.ADDR_RESOLVED, 0, id)
    assert (second.type, second.status) == (CMEventType.ROUTE_ERROR, errno.ENETUNREACH)
    assert channel.get_event(0) is None
    id.tell(CMEventType.ADDR_RESOLVED)
    # Closing an id also removes its pending events.
    id.close()
    assert channel.get_event(0) is None


def test_calls_that_need_a_device_are_refused_on_a_cm_id_without_a_device(rig: Rig) -> None:
    id = CMID(CMEventChannel())
    qp = ListenerAndConnector(rig).begin_connect().qp
    for call in (
        lambda: id.bind_qp(qp),
        lambda: id.listen(("127.0.0.1", 0)),
        lambda: id.connect(("127.0.0.1", 9)),
        lambda: id.accept(),
        lambda: id.disconnect(),
        lambda: id.local_addr,
    ):
        assert errno_raised_by(call) in (errno.EINVAL, errno.ENOTCONN)


def test_the_device_of_a_cm_id_cannot_be_changed_or_closed(two_devices: tuple[Rig, Rig]) -> None:
    id = CMID(CMEventChannel())
    id.set_device(two_devices[0].ctx)
    id.set_device(two_devices[0].ctx)
    assert errno_raised_by(id.set_device, two_devices[1].ctx) == errno.EINVAL
    assert lib.siw_close_device(two_devices[0].ctx._c_object()) == -errno.EBUSY


def test_migrating_a_cm_id_moves_its_unread_events_to_the_new_channel(rig: Rig) -> None:
    first = CMEventChannel()
    door = CMID(first)
    door.set_device(rig.ctx)
    door.listen(("127.0.0.1", 0))
    door.tell(CMEventType.ADDR_RESOLVED)
    other = CMID(first)
    other.tell(CMEventType.ROUTE_RESOLVED)
    a = create_endpoint_and_connect(rig, CMEventChannel(), door.local_addr)
    door.migrate(CMEventChannel())
    assert next_cm_event(first).id is other
    assert first.get_event(0) is None
    assert next_cm_event(door.channel).type == CMEventType.ADDR_RESOLVED
    request = next_cm_event(door.channel)
    assert request.listen_id is door and request.id.channel is door.channel
    third = CMEventChannel()
    request.id.migrate(third)
    b = End(rig, request.id, third, size=4096)
    b.id.accept()
    assert next_cm_event(third).type == CMEventType.ESTABLISHED
    assert a.next_cm_event().type == CMEventType.ESTABLISHED
    a.id.disconnect()
    assert next_cm_event(third).type == CMEventType.DISCONNECTED


@pytest.mark.parametrize("row", ["read", "move", "cross"])
def test_events_are_read_and_moved_without_the_progress_lock(build_dir: Path, row: str) -> None:
    done = pace.run_command(
        [build_dir / "tests/c/siw-test-events", row],
        capture_output=True,
        text=True,
        seconds=60,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_a_cm_id_cannot_migrate_to_a_channel_of_another_device(
    two_devices: tuple[Rig, Rig],
) -> None:
    id = CMID(CMEventChannel(two_devices[0].ctx))
    assert errno_raised_by(id.migrate, CMEventChannel(two_devices[1].ctx)) == errno.EINVAL
    id.migrate(CMEventChannel())
    id.migrate(CMEventChannel(two_devices[0].ctx))
    id.tell(CMEventType.ADDR_RESOLVED)
    assert next_cm_event(id.channel).id is id


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "0.0.0.0", "::"])
def test_bind_addr_reserves_a_tcp_port_before_the_id_listens(rig: Rig, host: str) -> None:
    id = CMID(CMEventChannel())
    id.bind_addr((host, 0))
    at, port = id.local_addr
    assert at == host and port > 0
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as other, pytest.raises(OSError, match="in use"):
        other.bind((host, port))
    assert errno_raised_by(id.bind_addr, (host, 0)) == errno.EINVAL
    own = ("::1" if family == socket.AF_INET6 else "127.0.0.1", port)
    id.listen_also(rig.ctx, own)
    a = create_endpoint_and_connect(rig, CMEventChannel(), own)
    assert next_cm_event(id.channel).listen_id is id
    a.id.close()


def test_a_cm_id_without_an_address_argument_listens_at_its_bound_address(rig: Rig) -> None:
    id = CMID(CMEventChannel())
    id.bind_addr(("127.0.0.1", 0))
    bound = id.local_addr
    id.set_device(rig.ctx)
    id.listen()
    assert id.local_addr == bound
    a = create_endpoint_and_connect(rig, CMEventChannel(), bound)
    assert next_cm_event(id.channel).listen_id is id
    a.id.close()
    # An id without a bound address cannot listen without an argument.
    assert errno_raised_by(CMID(CMEventChannel(rig.ctx)).listen) == errno.EINVAL


def test_a_port_conflict_is_reported_by_bind_addr_or_listen(rig: Rig) -> None:
    first, second = CMID(CMEventChannel(rig.ctx)), CMID(CMEventChannel(rig.ctx))
    first.bind_addr(("127.0.0.1", 0))
    second.bind_addr(first.local_addr)
    first.listen()
    assert errno_raised_by(second.listen) == errno.EADDRINUSE
    third = CMID(CMEventChannel(rig.ctx))
    assert errno_raised_by(third.bind_addr, first.local_addr) == errno.EADDRINUSE


def test_a_connection_request_belongs_to_the_device_on_which_it_arrived(
    two_devices: tuple[Rig, Rig],
) -> None:
    door = CMID(CMEventChannel())
    door.bind_addr(("::", 0))
    port = door.local_addr[1]
    for rig, host in zip(two_devices, ("127.0.0.1", "::1"), strict=True):
        door.listen_also(rig.ctx, (host, port))
    ends: list[End] = []
    for rig, host in zip(two_devices, ("127.0.0.1", "::1"), strict=True):
        a = create_endpoint_and_connect(rig, CMEventChannel(), (host, port))
        request = next_cm_event(door.channel)
        assert request.listen_id is door
        # The class End binds a queue pair of the device; an id of another device would refuse it.
        b = End(rig, request.id, door.channel, size=4096)
        b.id.accept()
        ends += [a, b]
        assert a.next_cm_event().type == next_cm_event(door.channel).type == CMEventType.ESTABLISHED
    door.close()
    for host in ("127.0.0.1", "::1"):
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection((host, port))


def test_a_thread_waits_for_events_on_a_cm_channel_without_a_device(rig: Rig) -> None:
    channel = CMEventChannel()
    assert channel.get_event(0) is None
    found: list[CMEvent | None] = []
    thread = threading.Thread(target=lambda: found.append(channel.get_event(LIMIT)))
    thread.start()
    id = CMID(channel)
    time.sleep(0.05)
    id.tell(CMEventType.ADDR_RESOLVED)
    thread.join()
    assert found[0] is not None and found[0].id is id
    os.set_blocking(channel.fileno(), False)
    event = ffi.new("struct siw_cm_event *")
    assert lib.siw_cm_get_event(channel._c_object(), event, -1) == -errno.EAGAIN


def test_cm_calls_of_a_forked_child_return_estale(rig: Rig) -> None:
    channel = CMEventChannel()
    id = CMID(channel)
    c_channel, c_id = channel._c_object(), id._c_object()
    pid = os.fork()
    if pid == 0:
        stale = [
            lib.siw_cm_channel_fd(c_channel),
            lib.siw_cm_destroy_id(c_id),
            lib.siw_cm_tell(c_id, 0, 0),
            lib.siw_cm_destroy_channel(c_channel),
        ]
        os._exit(0 if stale == [-errno.ESTALE] * 4 else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    id.tell(CMEventType.ADDR_RESOLVED)
    assert next_cm_event(channel).id is id


def test_a_forced_close_of_a_device_destroys_its_cm_ids_but_not_their_channel(rig: Rig) -> None:
    other = Rig()
    channel = CMEventChannel()
    id = CMID(channel)
    id.set_device(other.ctx)
    id.listen(("127.0.0.1", 0))
    id.tell(CMEventType.ADDR_RESOLVED)
    assert lib.siw_close_device_forced(other.ctx._c_object()) == 0
    assert lib.siw_cm_destroy_id(id._c_object()) == -errno.ESTALE
    assert channel.get_event(0) is None
    second = CMID(channel)
    second.set_device(rig.ctx)
    second.listen(("127.0.0.1", 0))
    second.close()


def create_rc_qp_for_connect_by_qpn(rig: Rig) -> QP:
    cq = rig.create_cq()
    return QP(rig.pd, QPInitAttr(QPType.RC, scq=cq, rcq=cq, by_qpn=True))


def test_a_held_connect_is_completed_with_a_queue_pair_connected_by_qpn(rig: Rig) -> None:
    connector = ListenerAndConnector(rig)
    qp = create_rc_qp_for_connect_by_qpn(rig)
    number = qp.qp_num
    id = CMID(connector.a_channel)
    id.bind_qp(qp)
    assert (qp.qp_num, qp.qp_state) == (number, QPState.INIT)
    id.connect(connector.address, ConnParam(private_data=b"ask", hold=True))
    assert errno_raised_by(id.establish) == errno.EINVAL
    request = connector.next_connection_request()
    b = End(rig, request.id, connector.p_channel, size=4096)
    b.id.accept(ConnParam(private_data=b"answer"))
    event = next_cm_event(connector.a_channel)
    assert event.type == CMEventType.CONNECT_RESPONSE and event.private_data == b"answer"
    assert qp.qp_state == QPState.INIT
    id.establish()
    assert next_cm_event(connector.a_channel).type == CMEventType.ESTABLISHED
    assert b.next_cm_event().type == CMEventType.ESTABLISHED
    assert qp.qp_state == QPState.RTS
    assert errno_raised_by(id.establish) == errno.EINVAL
    id.disconnect()


def test_a_disconnect_of_the_peer_before_a_held_connect_completes_is_reported(rig: Rig) -> None:
    connector = ListenerAndConnector(rig)
    a = connector.begin_connect(ConnParam(hold=True))
    b = End(rig, connector.next_connection_request().id, connector.p_channel, size=4096)
    b.id.accept()
    assert a.next_cm_event().type == CMEventType.CONNECT_RESPONSE
    b.id.close()
    with contextlib.suppress(Error):
        a.id.establish()
        kinds = [a.next_cm_event().type]
        if kinds[0] == CMEventType.ESTABLISHED:
            kinds.append(a.next_cm_event().type)
        assert kinds[-1] == CMEventType.DISCONNECTED
    assert a.qp.qp_state != QPState.RTS


def test_a_cm_id_refuses_a_queue_pair_that_already_connects_by_qpn(rig: Rig) -> None:
    qp = create_rc_qp_for_connect_by_qpn(rig)
    qp.modify(QPAttr(qp_state=QPState.INIT))
    qp.modify(QPAttr(qp_state=QPState.RTR, ah_attr=("127.0.0.1", 0), dest_qp_num=qp.qp_num))
    assert errno_raised_by(CMID(CMEventChannel(rig.ctx)).bind_qp, qp) == errno.EINVAL


def test_the_reason_of_a_cm_call_with_a_null_pointer_names_the_argument(rig: Rig) -> None:
    channel = CMEventChannel()
    id = CMID(channel)
    c_id, c_channel, context = id._c_object(), channel._c_object(), rig.ctx._c_object()
    none, address = ffi.NULL, ffi.new("struct siw_addr *")
    calls = {
        "id": [
            (lib.siw_cm_set_device, none, context),
            (lib.siw_cm_device, none),
            (lib.siw_cm_migrate_id, none, c_channel),
            (lib.siw_cm_set_v6only, none, 1),
            (lib.siw_cm_bind_addr, none, address),
            (lib.siw_cm_listen, none, address, 1),
            (lib.siw_cm_listen_also, none, context, address, 1),
            (lib.siw_cm_tell, none, 0, 0),
            (lib.siw_cm_bind_qp, none, none),
            (lib.siw_cm_connect, none, address, none, none),
            (lib.siw_cm_accept, none, none),
            (lib.siw_cm_establish, none),
            (lib.siw_cm_reject, none, none, 0),
            (lib.siw_cm_disconnect, none),
            (lib.siw_cm_destroy_id, none),
        ],
        "context": [
            (lib.siw_cm_set_device, c_id, none),
            (lib.siw_cm_listen_also, c_id, none, address, 1),
        ],
        "channel": [(lib.siw_cm_migrate_id, c_id, none)],
        "addr": [
            (lib.siw_cm_bind_addr, c_id, none),
            (lib.siw_cm_listen_also, c_id, context, none, 1),
        ],
    }

    def last_error_text() -> str:
        return bytes(ffi.string(lib.siw_reason())).decode()

    for argument, tried in calls.items():
        for call, *arguments in tried:
            ffi.errno = 0
            said = call(*arguments)
            assert -errno.EINVAL in (said, -ffi.errno), call
            assert last_error_text() == f"{argument} is NULL: pass a valid pointer", call


def test_binding_a_cm_id_twice_or_to_an_unknown_address_family_is_refused(rig: Rig) -> None:
    id = CMID(CMEventChannel())
    address = ffi.new("struct siw_addr *")
    address.family = 99
    assert lib.siw_cm_bind_addr(id._c_object(), address) == -errno.EINVAL
    id.bind_addr(("127.0.0.1", 0))
    assert errno_raised_by(id.bind_addr, ("127.0.0.1", 0)) == errno.EINVAL
    assert lib.siw_cm_set_v6only(id._c_object(), 1) == -errno.EINVAL
    # An id on a channel that belongs to a device cannot listen on another device.
    other = Rig()
    of_device = CMID(CMEventChannel(rig.ctx))
    address.family = 0
    listen_also = lib.siw_cm_listen_also
    assert listen_also(of_device._c_object(), other.ctx._c_object(), address, 1) == -errno.EINVAL
    channel_of_other = CMEventChannel(other.ctx)
    assert lib.siw_cm_migrate_id(id._c_object(), channel_of_other._c_object()) == -errno.EINVAL
    assert lib.siw_cm_migrate_id(id._c_object(), id.channel._c_object()) == 0


def test_calls_that_find_an_event_each_time_make_progress() -> None:
    """Progress must not depend on waits: a program that finds an event at each call never waits."""
    rig = open_device_without_progress_thread()
    channel = CMEventChannel(rig.ctx)
    id = CMID(channel)
    for _ in range(32):
        id.tell(CMEventType.ADDR_RESOLVED)
    event = ffi.new("struct siw_cm_event *")
    before = counter_value("epoll_waits")
    for _ in range(32):
        assert lib.siw_cm_get_event(channel._c_object(), event, 1000) == 0
    assert counter_value("epoll_waits") - before >= 4
    id.close()
    channel.close()
    rig.close()
