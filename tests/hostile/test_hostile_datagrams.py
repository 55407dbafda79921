"""Boundary values in every field of a datagram, sent to a live UD queue pair."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator

import pytest
from harness.verbs_harness import Rig, counter_value, octet_pattern, poll, wait_until
from hostile.fields import (
    all_packet_layer_classes,
    boundary_values,
    find_field_of_layer_class,
    list_numeric_fields_of_layers,
)
from hostile.target import CANARY, PAGE, count_open_files
from scapy.packet import Packet, Raw

from siwarp.inspect import DDPDatagram, Opcode, PrivateCode, PrivateHead, UDDatagram, crc32c
from siwarp.verbs import ErrorPolicy, RecvWR, SendWR, WCFlag, WCStatus

QKEY = 0x11223344
RECV = 200
DROPS = (
    "drop_short", "drop_crc", "drop_version", "drop_header", "drop_qn", "drop_opcode", "drop_qkey",
    "drop_no_buffer", "drop_too_long", "err_malformed", "err_stale",
)  # fmt: skip


def expected_datagram_outcome(octets: bytes) -> str:
    """Return the drop counter that must increase, or ``delivered``, or ``too long``."""
    if len(octets) < 18 + 4:
        return "drop_short"
    if crc32c(octets[:-4]).to_bytes(4, "little") != octets[-4:]:
        return "drop_crc"
    if octets[0] & 3 != 1:
        return "drop_version"
    if octets[0] & 0x80:  # UD accepts no tagged segment
        return "drop_header"
    seg = DDPDatagram(octets[:-4])
    whole = seg.l == 1 and seg.mo == 0
    if seg.dest_index:
        return "drop_qn"
    if seg.rv != 1:
        return "drop_version"
    # A queue number other than 0 and 2 is invalid; the source queue pair may have any index.
    if seg.qn & 0xFF0000FD:
        return "drop_qn"
    if seg.qn & 2:  # an error message, which refers to no message that was sent
        if seg.opcode != Opcode.TERMINATE or not whole:
            return "drop_qn"
        return "err_stale" if is_valid_error_message(octets[18:-4]) else "err_malformed"
    if seg.q_key != QKEY:
        return "drop_qkey"
    if not whole:
        return "drop_header"
    if seg.opcode not in (Opcode.SEND, Opcode.SEND_SE) and not private_send_header_length(octets):
        return "drop_opcode"
    return "too long" if user_payload(octets)[1] > RECV else "delivered"


def private_send_header_length(octets: bytes) -> int:
    """Return the number of octets that precede the user's data: 8 in a private Send with
    Immediate.
    """
    if octets[1] & 15 != Opcode.PRIVATE or len(octets) < 18 + 8 + 4:
        return 0
    return 8 if octets[18] in list(PrivateCode) else 0


def user_payload(octets: bytes) -> tuple[bytes, int]:
    """Return the user's octets in a datagram, and their number."""
    own = octets[18 + private_send_header_length(octets) : -4]
    return own, len(own)


def is_valid_error_message(octets: bytes) -> bool:
    """Return whether the octets are a Terminate with M and D set and a complete quoted header."""
    if not 6 < len(octets) <= 52 or octets[2] & 0xC0 != 0xC0:
        return False
    return len(octets) >= (20 if octets[6] & 0x80 else 24)


class UdTarget:
    """A UD queue pair with receives between canaries, a good peer, and a hostile socket."""

    def __init__(self, grh: bool) -> None:
        self.rig = Rig()
        self.grh = 40 if grh else 0
        # The destination address for the attacker and the good peer; with every_addr it is not the
        # default address of the device.
        self.host = "::1" if grh else "127.0.0.1"
        self.memory = bytearray([CANARY]) * (3 * PAGE)
        self.mr = self.rig.reg_mr(memoryview(self.memory)[PAGE : 2 * PAGE])
        # With error policy ERROR, a sender that knows the Q_Key could end the queue pair.
        self.qp = self.rig.create_ud_qp(
            addr=None if grh else ("127.0.0.1", 0),
            qkey=QKEY,
            error_policy=ErrorPolicy.MESSAGE,
            grh=grh,
            every_addr=grh,
        )
        self.good = self.rig.create_ud_qp(addr=("127.0.0.1", 0), qkey=QKEY)
        self.ah = self.rig.create_ah(self.qp)
        self.out = self.rig.reg_mr(bytearray(b"good"))
        self.sock = socket.socket(socket.AF_INET6 if grh else socket.AF_INET, socket.SOCK_DGRAM)
        self.files = count_open_files()
        self.posted = False

    def attack_and_check(self, octets: bytes, what: str) -> None:
        want = expected_datagram_outcome(octets)
        image = bytearray([CANARY]) * (3 * PAGE)
        self.memory[:] = image
        if not self.posted:
            self.post_one_receive()
        self.posted = True
        before = {name: counter_value(name) for name in DROPS}
        self.sock.sendto(octets, (self.host, self.qp.addr[1]))
        try:
            if want in ("delivered", "too long"):
                (wc,) = poll(self.qp.rcq)
                self.posted = False
                good = want == "delivered"
                assert wc.status == (WCStatus.SUCCESS if good else WCStatus.LOC_LEN_ERR)
                own, n = user_payload(octets)
                assert (wc.wr_id, wc.byte_len) == (5, n + (self.grh if good else 0))
                with_imm = good and private_send_header_length(octets) > 0
                flags = WCFlag.GRH if good and self.grh else 0
                assert wc.wc_flags == (flags | WCFlag.WITH_IMM if with_imm else flags)
                if with_imm:
                    assert struct.pack("=I", wc.imm_data) == octets[22:26]
                if good:
                    grh = self.expected_grh(len(octets))
                    image[PAGE + 100 : PAGE + 100 + len(grh) + n] = grh + own
            else:
                wait_until(
                    lambda: self.qp.rcq.poll(1) == [] and counter_value(want) == before[want] + 1
                )
            grown = {n for n in DROPS if counter_value(n) != before[n]}
            assert grown == {
                "delivered": set(), "too long": {"drop_too_long"}
            }.get(want, {want}), grown  # fmt: skip
            assert self.memory == image, "memory outside the receive has changed"
        except AssertionError as e:
            raise AssertionError(f"{what}: {want}, but {e}\n{octets.hex()}") from e
        self.check_good_peer_served()

    def post_one_receive(self) -> None:
        self.qp.post_recv(RecvWR(5, sg=[self.mr.sge(100, self.grh + RECV)]))

    def expected_grh(self, octets: int) -> bytes:
        """Return the GRH of a datagram from the attacker, or no octets if the queue pair has
        none.
        """
        loopback = bytes(15) + b"\1"
        head = struct.pack(">IHBB", 6 << 28, 8 + octets, 17, 64)
        return head + loopback + loopback if self.grh else b""

    def check_good_peer_served(self) -> None:
        if not self.posted:
            self.post_one_receive()
        self.posted = False
        self.good.post_send(SendWR(9, sg=[self.out.sge()], ah=self.ah, remote_qkey=QKEY))
        assert poll(self.good.scq)[0].ok
        (wc,) = poll(self.qp.rcq)
        assert (wc.wr_id, wc.status, wc.byte_len) == (5, WCStatus.SUCCESS, self.grh + 4)
        assert self.mr.read(4, 100 + self.grh) == b"good" and count_open_files() <= self.files


@pytest.fixture(scope="module", params=[False, True], ids=["plain", "grh, every address"])
def ud_target(request: pytest.FixtureRequest) -> Iterator[UdTarget]:
    made = UdTarget(request.param)
    yield made
    made.sock.close()
    made.rig.close()


def build_ud_datagram(n: int = 50) -> Packet:
    return UDDatagram(segment=DDPDatagram(q_key=QKEY) / Raw(octet_pattern(n, 3)))


@pytest.mark.parametrize(
    ("layer", "name"), list_numeric_fields_of_layers("DDPDatagram", "UDDatagram")
)
def test_boundary_values_in_each_field_of_a_datagram_have_the_expected_outcome(
    ud_target: UdTarget, layer: str, name: str
) -> None:
    sound = UDDatagram(bytes(build_ud_datagram()))
    at = sound.segment if layer == "DDPDatagram" else sound
    for value in boundary_values(find_field_of_layer_class(layer, name), int(at.getfieldval(name))):
        packet = build_ud_datagram()
        (packet.segment if layer == "DDPDatagram" else packet).setfieldval(name, value)
        ud_target.attack_and_check(bytes(packet), f"{layer}.{name}={value:#x}")


@pytest.mark.parametrize(
    ("layer", "name"), list_numeric_fields_of_layers("PrivateHead", "DDPDatagram")
)
def test_boundary_values_in_each_field_of_a_private_message_have_the_expected_outcome(
    ud_target: UdTarget, layer: str, name: str
) -> None:
    head = (
        DDPDatagram(q_key=QKEY, opcode=Opcode.PRIVATE)
        / PrivateHead(data=7)
        / Raw(octet_pattern(50))
    )
    for value in boundary_values(
        find_field_of_layer_class(layer, name),
        int(head[all_packet_layer_classes()[layer]].getfieldval(name)),
    ):
        segment = head.copy()
        segment[all_packet_layer_classes()[layer]].setfieldval(name, value)
        ud_target.attack_and_check(
            bytes(UDDatagram(segment=segment)), f"private message: {name}={value:#x}"
        )


@pytest.mark.parametrize("n", [0, 1, 7, 8, 9, 8 + RECV, 8 + RECV + 1, 65_485])
def test_private_messages_of_boundary_lengths_have_the_expected_outcome(
    ud_target: UdTarget, n: int
) -> None:
    payload = (bytes(PrivateHead(data=7)) + octet_pattern(n))[:n]
    segment = DDPDatagram(q_key=QKEY, opcode=Opcode.PRIVATE) / Raw(payload)
    ud_target.attack_and_check(
        bytes(UDDatagram(segment=segment)), f"a private message of {n} octets"
    )


def test_the_segment_is_the_only_field_of_a_datagram_that_is_not_numeric() -> None:
    for name in ("DDPDatagram", "UDDatagram"):
        others = {f.name for f in all_packet_layer_classes()[name].fields_desc} - {
            n for _, n in list_numeric_fields_of_layers(name)
        }
        assert others == {"DDPDatagram": set(), "UDDatagram": {"segment"}}[name]


def test_datagrams_truncated_at_every_octet_have_the_expected_outcome(ud_target: UdTarget) -> None:
    whole = bytes(build_ud_datagram(6))
    for n in range(len(whole)):
        ud_target.attack_and_check(whole[:n], f"{n} of {len(whole)} octets, the CRC lost")
    segment = whole[:-4]
    for n in range(len(segment) + 1):
        octets = segment[:n] + crc32c(segment[:n]).to_bytes(4, "little")
        ud_target.attack_and_check(octets, f"{n} of {len(segment)} octets, a CRC of their own")


@pytest.mark.parametrize("n", [0, 1, RECV - 1, RECV, RECV + 1, 1400, 65_485])
def test_payloads_near_the_receive_length_and_the_maximum_have_the_expected_outcome(
    ud_target: UdTarget, n: int
) -> None:
    ud_target.attack_and_check(bytes(build_ud_datagram(n)), f"{n} octets")


def test_a_datagram_with_an_additional_octet_after_the_crc_is_dropped(ud_target: UdTarget) -> None:
    ud_target.attack_and_check(bytes(build_ud_datagram(6)) + b"\0", "an octet behind the CRC")
