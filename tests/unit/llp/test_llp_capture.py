"""Captures, whose content is checked by scapy, which recomputes each checksum."""

from __future__ import annotations

import os
import random
import re
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from _siwarp_layers import ffi, lib
from scapy.layers.inet import IP, TCP, UDP
from scapy.layers.inet6 import IPv6
from scapy.layers.l2 import Ether
from scapy.packet import Packet
from scapy.utils import PcapReader
from unit.llp.llp_harness import (
    LOOPBACK,
    LlpSocket,
    Poller,
    addr_port,
    run_code_in_child,
    siw_addr,
    wait_until,
)

from siwarp.inspect import tcp_streams

EBUSY, ESPIPE, ENOENT = 16, 29, 2
FRAME_MAX = 1 << 18
OCTETS = random.Random(3).randbytes(200_000)


@contextmanager
def capture_to_file(path: Path) -> Iterator[Path]:
    assert lib.siw_capture_open(str(path).encode()) == 0
    try:
        yield path
    finally:
        lib.siw_capture_close()


def read_packets(path: Path) -> list[Packet]:
    """Return the packets of the file, and assert that scapy builds each packet identically."""
    packets = []
    with PcapReader(str(path)) as reader:
        while True:
            try:
                packets.append(reader.read_packet(size=FRAME_MAX))
            except EOFError:
                break
    for packet in packets:
        assert_scapy_rebuilds_packet(packet)
    return packets


def assert_scapy_rebuilds_packet(packet: Packet) -> None:
    assert isinstance(packet, Ether)
    anew = packet.copy()
    for layer, fields in (
        (IP, ("len", "chksum", "ihl")),
        (IPv6, ("plen",)),
        (UDP, ("len", "chksum")),
        (TCP, ("chksum", "dataofs")),
    ):
        found = anew.getlayer(layer)
        for name in fields if found is not None else ():
            assert getattr(found, name) is not None
            delattr(found, name)
    assert bytes(anew) == bytes(packet.original), packet.summary()
    assert packet.wirelen == len(packet.original)


def packet_comment(packet: Packet) -> str | None:
    found = getattr(packet, "comments", None) or getattr(packet, "comment", None)
    if isinstance(found, list):
        found = found[0]
    return found.decode() if isinstance(found, bytes) else found


def packet_flow(packet: Packet) -> tuple[str, int, str, int]:
    ip = packet.getlayer(IP) or packet.getlayer(IPv6)
    return ip.src, ip.payload.sport, ip.dst, ip.payload.dport


def transport_payload(packet: Packet) -> bytes:
    return bytes((packet.getlayer(UDP) or packet.getlayer(TCP)).payload)


def receive_datagram(poller: Poller, sock: LlpSocket) -> bytes:
    poller.poll_until_ready(sock, 20000)
    rv, octets, _ = sock.recvfrom()
    assert rv >= 0
    return octets


@pytest.mark.parametrize("family", ["v4", "v6"])
def test_a_capture_contains_each_datagram_as_sent_and_as_received(
    poller: Poller, tmp_path: Path, family: str
) -> None:
    host = LOOPBACK[family]
    a, b = poller.open_udp(host), poller.open_udp(host)
    longest = 65507 if family == "v4" else 65527
    sent = [OCTETS[:n] for n in (0, 1, 2, 3, 1000, 1001, longest)]
    with capture_to_file(tmp_path / "x.pcapng") as path:
        for octets in sent:
            half = len(octets) // 3
            assert a.sendto(b.local_addr(), octets[:half], octets[half:]) == 0
            assert receive_datagram(poller, b) == octets
    packets = read_packets(path)
    assert [transport_payload(p) for p in packets] == [octets for octets in sent for _ in range(2)]
    there = (host, addr_port(a.local_addr()), host, addr_port(b.local_addr()))
    assert {packet_flow(p) for p in packets} == {there}
    times = [float(p.time) for p in packets]
    assert times == sorted(times)
    assert [packet_comment(p) for p in packets] == [None] * len(packets)


def test_a_capture_contains_the_datagrams_of_a_batch(poller: Poller, tmp_path: Path) -> None:
    a, b = poller.open_udp(), poller.open_udp()
    with capture_to_file(tmp_path / "x.pcapng") as path:
        buf = ffi.from_buffer(OCTETS)
        rv = lib.siw_llp_udp_send_batch(a.c, b.local_addr(), buf, 2500, 1000)
        assert rv == 0
    assert [transport_payload(p) for p in read_packets(path)] == [
        OCTETS[:1000],
        OCTETS[1000:2000],
        OCTETS[2000:2500],
    ]


def test_a_capture_has_the_local_address_towards_the_peer_for_a_wildcard_socket(
    poller: Poller, tmp_path: Path
) -> None:
    a, b = poller.open_udp("0.0.0.0"), poller.open_udp("127.0.0.1")
    with capture_to_file(tmp_path / "x.pcapng") as path:
        assert a.sendto(b.local_addr(), b"x") == 0
    assert packet_flow(read_packets(path)[0]) == (
        "127.0.0.1",
        addr_port(a.local_addr()),
        "127.0.0.1",
        addr_port(b.local_addr()),
    )


def test_a_captured_dropped_datagram_has_the_reason_as_its_comment(
    poller: Poller, tmp_path: Path
) -> None:
    names = [ffi.string(lib.siw_counter_name(i)).decode() for i in range(lib.siw_counters_count())]
    drops = [i for i, name in enumerate(names) if name.startswith("drop_")]
    a, b = poller.open_udp(), poller.open_udp()
    with capture_to_file(tmp_path / "x.pcapng") as path:
        for i in drops:
            a.sendto(b.local_addr(), OCTETS[:i])
            receive_datagram(poller, b)
            lib.siw_capture_note_drop_reason(i)
            # Only the first reason is recorded in the capture as the reason of the drop.
            lib.siw_capture_note_drop_reason(i)
        a.sendto(b.local_addr(), b"good")
        receive_datagram(poller, b)
    packets = read_packets(path)
    assert len(packets) == 2 * len(drops) + 2
    told = [packet_comment(p) for p in packets[1::2]]
    assert all(packet_comment(p) is None for p in packets[::2])
    assert told[-1] is None
    for i, text in zip(drops, told, strict=False):
        assert text is not None
        assert text.startswith(f"{names[i]}: ")
        assert text == f"{names[i]}: " + ffi.string(lib.siw_counter_help(i)).decode().removeprefix(
            "datagrams dropped: "
        )


def test_a_capture_note_of_a_thread_is_added_to_the_datagram_of_that_thread(tmp_path: Path) -> None:
    pollers = [Poller() for _ in range(4)]
    names = {
        name: i
        for i in range(lib.siw_counters_count())
        if (name := ffi.string(lib.siw_counter_name(i)).decode())
    }
    which = ["drop_crc", "drop_qn", "drop_qkey", "drop_opcode"]

    def send_and_note_drop_reason(poller: Poller, name: str) -> None:
        a, b = poller.open_udp(), poller.open_udp()
        for _ in range(50):
            assert a.sendto(b.local_addr(), name.encode()) == 0
            assert receive_datagram(poller, b) == name.encode()
            lib.siw_capture_note_drop_reason(names[name])

    with capture_to_file(tmp_path / "x.pcapng") as path:
        threads = [
            threading.Thread(target=send_and_note_drop_reason, args=(poller, name))
            for poller, name in zip(pollers, which, strict=True)
        ]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
    for poller in pollers:
        poller.close()
    packets = read_packets(path)
    assert len(packets) == 4 * 50 * 2
    noted = [
        (transport_payload(p).decode(), packet_comment(p)) for p in packets if packet_comment(p)
    ]
    assert len(noted) == 200
    assert all(text is not None and text.startswith(f"{name}:") for name, text in noted)


def transfer_stream(poller: Poller, a: LlpSocket, b: LlpSocket, octets: bytes) -> None:
    """Send all octets from ``a`` to ``b`` and assert that ``b`` receives them."""
    sent, got = 0, b""
    for _ in range(100000):
        if sent < len(octets):
            rv = a.send(octets[sent : sent + 5], octets[sent + 5 : sent + 150_000])
            assert rv > 0 or rv == -11
            sent += max(rv, 0)
        rv, part = b.recv(3, 100_000)
        got += part
        if len(got) == len(octets):
            break
    assert got == octets


def assert_sequence_numbers_continue(packets: list[Packet]) -> None:
    """Assert that the sequence and acknowledgement numbers of each TCP direction continue."""
    following: dict[tuple[Any, ...], int] = {}
    for packet in packets:
        tcp = packet[TCP]
        here = packet_flow(packet)
        back = (*here[2:], *here[:2])
        if here in following:
            assert tcp.seq == following[here], packet.summary()
        if tcp.flags.A:
            assert tcp.ack == following[back], packet.summary()
        else:
            assert str(tcp.flags) == "S"
        following[here] = (
            tcp.seq + len(transport_payload(packet)) + int(tcp.flags.S) + int(tcp.flags.F)
        ) % (1 << 32)


@pytest.mark.parametrize("family", ["v4", "v6"])
def test_a_tcp_stream_within_one_process_is_captured_once_from_syn_to_fin(
    poller: Poller, tmp_path: Path, family: str
) -> None:
    with capture_to_file(tmp_path / "x.pcapng") as path:
        a, b = poller.connected_pair(LOOPBACK[family])
        transfer_stream(poller, a, b, OCTETS)
        transfer_stream(poller, b, a, OCTETS[:1000])
        name = addr_port(a.local_addr())
        a.close()
        wait_until(lambda: b.recv()[0] == 0)
        b.close()
    packets = read_packets(path)
    assert_sequence_numbers_continue(packets)
    flags = [str(p[TCP].flags) for p in packets]
    assert flags[:3] == ["S", "SA", "A"]
    assert flags.count("FA") == 2
    assert "R" not in "".join(flags)
    streams = {d.source_port: octets for d, octets in tcp_streams(packets).items()}
    assert streams.pop(name) == OCTETS
    assert list(streams.values()) == [OCTETS[:1000]]
    # No octet of the stream occurs a second time.
    assert sum(len(transport_payload(p)) for p in packets) == len(OCTETS) + 1000
    assert max(len(p.original) for p in packets) <= 65535


@pytest.mark.parametrize("who", ["accepted", "connected"])
def test_a_tcp_stream_to_another_program_is_captured_in_both_directions(
    poller: Poller, tmp_path: Path, who: str
) -> None:
    with capture_to_file(tmp_path / "x.pcapng") as path:
        if who == "accepted":
            listener = poller.listen()
            peer = socket.create_connection(("127.0.0.1", addr_port(listener.local_addr())))
            ours = wait_until(lambda: poller.try_to_accept(listener))
        else:
            with socket.create_server(("127.0.0.1", 0)) as server:
                ours = poller.connect(siw_addr("127.0.0.1", server.getsockname()[1]))
                peer, _ = server.accept()
            wait_until(lambda: ours.connect_result() == 0)
        there = peer.getsockname()[1]
        assert ours.send(b"question") == 8
        assert peer.recv(100) == b"question"
        peer.sendall(b"answer")
        wait_until(lambda: ours.recv()[1] == b"answer")
        peer.close()
        wait_until(lambda: ours.recv()[0] == 0)
        ours.close()
    packets = read_packets(path)
    assert_sequence_numbers_continue(packets)
    assert (packet_flow(packets[0])[3] == there) == (who == "connected")
    assert sorted(tcp_streams(packets).values()) == [b"answer", b"question"]
    assert [transport_payload(p) for p in packets if transport_payload(p)] == [
        b"question",
        b"answer",
    ]
    assert " ".join(str(p[TCP].flags) for p in packets) == "S SA A PA PA FA A FA A"


def test_each_direction_of_a_captured_tcp_stream_has_its_own_initial_sequence_number(
    poller: Poller, tmp_path: Path
) -> None:
    with capture_to_file(tmp_path / "x.pcapng") as path:
        listener = poller.listen()
        for _ in range(2):
            a = poller.connect(listener.local_addr())
            wait_until(lambda: poller.try_to_accept(listener))
            wait_until(lambda a=a: a.connect_result() == 0)
    firsts = {packet_flow(p): p[TCP].seq for p in read_packets(path) if "S" in str(p[TCP].flags)}
    assert len(firsts) == 4 == len(set(firsts.values()))


def test_the_capture_of_an_aborted_tcp_stream_ends_with_a_reset(
    poller: Poller, tmp_path: Path
) -> None:
    with capture_to_file(tmp_path / "x.pcapng") as path:
        a, b = poller.connected_pair()
        lib.siw_llp_tcp_set_abortive_close(a.c)
        a.close()
        wait_until(lambda: b.recv()[0] == -104)
        b.close()
    flags = [str(p[TCP].flags) for p in read_packets(path)]
    assert flags == ["S", "SA", "A", "RA"]


def test_a_capture_started_amid_a_connection_has_no_handshake_and_only_later_data(
    poller: Poller, tmp_path: Path
) -> None:
    a, b = poller.connected_pair()
    transfer_stream(poller, a, b, b"before")
    with capture_to_file(tmp_path / "x.pcapng") as path:
        transfer_stream(poller, a, b, b"after")
    transfer_stream(poller, a, b, b"past")
    packets = read_packets(path)
    assert b"".join(transport_payload(p) for p in packets) == b"after"
    assert all(not p[TCP].flags.S for p in packets)


def test_a_capture_names_the_network_interface_of_each_packet(
    poller: Poller, tmp_path: Path
) -> None:
    a, b = poller.open_udp("127.0.0.1"), poller.open_udp("::1")
    with capture_to_file(tmp_path / "x.pcapng") as path:
        a.sendto(a.local_addr(), b"4")
        b.sendto(b.local_addr(), b"6")
    names = {p.sniffed_on for p in read_packets(path)}
    assert names == {"lo"}


def test_a_second_capture_is_refused_and_a_new_one_overwrites_its_file(
    poller: Poller, tmp_path: Path
) -> None:
    a = poller.open_udp()
    path = tmp_path / "x.pcapng"
    with capture_to_file(path):
        assert lib.siw_capture_open(str(tmp_path / "y.pcapng").encode()) == -EBUSY
        a.sendto(a.local_addr(), b"first")
    a.sendto(a.local_addr(), b"between")
    with capture_to_file(path):
        a.sendto(a.local_addr(), b"second")
    assert [transport_payload(p) for p in read_packets(path)] == [b"second"]
    assert not (tmp_path / "y.pcapng").exists()
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_capture_to_an_unusable_path_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    try:
        assert lib.siw_capture_open(str(tmp_path / "pipe").encode()) == -ESPIPE
    finally:
        os.close(reader)
    assert lib.siw_capture_open(str(tmp_path / "no/where").encode()) == -ENOENT
    assert lib.siw_capture_open(b"x" * 5000) == -36
    lib.siw_capture_close()


def test_percent_p_in_a_capture_path_is_replaced_by_the_process_id(tmp_path: Path) -> None:
    with capture_to_file(tmp_path / "a-%p-b-%p.pcapng"):
        pass
    assert [p.name for p in tmp_path.iterdir()] == [f"a-{os.getpid()}-b-{os.getpid()}.pcapng"]


@pytest.mark.parametrize("name", ["x.pcapng", "x-%p.pcapng", "bare"])
def test_a_forked_child_writes_its_own_capture_file(tmp_path: Path, name: str) -> None:
    poller = Poller()
    a = poller.open_udp()
    with capture_to_file(tmp_path / name):
        where = a.local_addr()
        a.sendto(where, b"parent 1")
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                # siwarp has closed the inherited sockets in the child.
                own = Poller().open_udp()
                status = 0 if own.sendto(where, b"child") == 0 else 2
            finally:
                os._exit(status)
        assert os.waitpid(pid, 0)[1] == 0
        a.sendto(a.local_addr(), b"parent 2")
    poller.close()
    mine = tmp_path / name.replace("%p", str(os.getpid()))
    child = {"x.pcapng": f"x-{pid}.pcapng", "x-%p.pcapng": f"x-{pid}.pcapng", "bare": f"bare-{pid}"}
    assert [transport_payload(p) for p in read_packets(mine)] == [b"parent 1", b"parent 2"]
    assert [transport_payload(p) for p in read_packets(tmp_path / child[name])] == [b"child"]


def test_a_failed_write_ends_the_capture_and_a_new_capture_can_be_opened(tmp_path: Path) -> None:
    # Sealing a memory file against growth makes the capture fail midway, like a full disk.
    done = run_code_in_child(f"""
import fcntl
fd = os.memfd_create("x", os.MFD_ALLOW_SEALING)
poller = Poller()
a = poller.open_udp()
assert lib.siw_capture_open(b"/proc/self/fd/%d" % fd) == 0
for i in range(10):
    if i == 4:
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_GROW)
    assert a.sendto(a.local_addr(), b"x" * 100) == 0
assert poller.poll_until_ready(a) and all(a.recvfrom()[0] == 100 for _ in range(10))
with open("{tmp_path}/x.pcapng", "wb") as copy:
    copy.write(os.pread(fd, 1 << 20, 0))
assert lib.siw_capture_open(b"{tmp_path}/y.pcapng") == 0
assert a.sendto(a.local_addr(), b"again") == 0
lib.siw_capture_close()
poller.close()
""")
    assert done.returncode == 0, done.stderr
    (line,) = done.stderr.splitlines()
    assert re.fullmatch(
        r"siwarp: the capture to /proc/self/fd/\d+ ends here: writing to its file: .+", line
    )
    assert [transport_payload(p) for p in read_packets(tmp_path / "x.pcapng")] == [b"x" * 100] * 4
    assert [transport_payload(p) for p in read_packets(tmp_path / "y.pcapng")] == [b"again"]


def test_a_capture_ends_at_the_size_of_siwarp_capture_mb(tmp_path: Path) -> None:
    done = run_code_in_child(f"""
os.environ["SIWARP_CAPTURE_MB"] = "1"
poller = Poller()
a = poller.open_udp()
assert lib.siw_capture_open(b"{tmp_path}/x.pcapng") == 0
for _ in range(40):
    assert a.sendto(a.local_addr(), b"x" * 60000) == 0
    assert poller.poll_until_ready(a) and a.recvfrom()[0] == 60000
poller.close()
""")
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("SIWARP_CAPTURE_MB") == len(done.stderr.splitlines()) == 1
    assert 900_000 < (tmp_path / "x.pcapng").stat().st_size <= 1_000_000
    assert {len(transport_payload(p)) for p in read_packets(tmp_path / "x.pcapng")} == {60000}


def test_a_file_size_limit_ends_the_capture_but_not_the_traffic(tmp_path: Path) -> None:
    done = run_code_in_child(f"""
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
poller = Poller()
a = poller.open_udp()
assert lib.siw_capture_open(b"{tmp_path}/x.pcapng") == 0
for _ in range(10):
    assert a.sendto(a.local_addr(), b"x" * 100) == 0
assert poller.poll_until_ready(a) and all(a.recvfrom()[0] == 100 for _ in range(10))
poller.close()
""")
    assert done.returncode == 0, done.stderr
    line = f"siwarp: the capture to {tmp_path}/x.pcapng ends here: the file has reached the "
    assert [text.startswith(line) for text in done.stderr.splitlines()] == [True]
    packets = read_packets(tmp_path / "x.pcapng")
    assert [transport_payload(p) for p in packets] == [b"x" * 100] * len(packets)
    assert 2 <= len(packets) < 10
