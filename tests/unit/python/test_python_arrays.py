"""Work requests and completions in NumPy arrays."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from harness.verbs_harness import (
    Rig,
    assert_counter_grows,
    octet_pattern,
    temporary_settings,
    wait_until,
)
from hypothesis import given, settings
from hypothesis import strategies as st

import siwarp
from siwarp.base.library import ffi
from siwarp.testing import Pair, pair
from siwarp.verbs import (
    AH,
    CQ,
    MR,
    PD,
    QP,
    AccessFlag,
    AHAttr,
    Context,
    Persona,
    QPAttr,
    QPCap,
    QPInitAttr,
    QPType,
    SendFlag,
    WCFlag,
    WCOpcode,
    WCStatus,
    WROpcode,
    arrays,
)

#: More requests than the library posts as one list (64).
MANY = 150
SIZE = 16
ALL = (
    AccessFlag.LOCAL_WRITE
    | AccessFlag.REMOTE_WRITE
    | AccessFlag.REMOTE_READ
    | AccessFlag.REMOTE_ATOMIC
)


def poll_n_completions(cq: CQ, n: int) -> Any:
    """Return the next ``n`` completions of a completion queue as an array."""
    wcs = arrays.wc_array(n)
    got = 0

    def poll_and_check_count() -> bool:
        nonlocal got
        got += cq.poll_array(wcs[got:])
        return got == n

    wait_until(poll_and_check_count)
    return wcs


def set_buffers_of_requests(wrs: Any, mr: MR, at: int = 0, size: int = SIZE) -> Any:
    """Let each request of an array use ``size`` octets of a region, one after another."""
    wrs["wr_id"] = np.arange(len(wrs))
    wrs["addr"] = mr.iova + at + size * np.arange(len(wrs), dtype=np.uint64)
    wrs["length"], wrs["lkey"] = size, mr.lkey
    return wrs


class Loop:
    """A UD queue pair that sends to itself: requests in arrays, and one handle in a list."""

    def __init__(self) -> None:
        self.ctx = Context("127.0.0.1")
        self.pd = PD(self.ctx)
        self.scq, self.rcq = CQ(self.ctx, 512), CQ(self.ctx, 512)
        cap = QPCap(max_send_wr=256, max_recv_wr=256)
        self.qp = QP(self.pd, QPInitAttr(QPType.UD, scq=self.scq, rcq=self.rcq, cap=cap))
        self.qp.to_rts()
        self.mr = MR(self.pd, 2 * MANY * SIZE)
        self.ah = AH(self.pd, self.qp.addr)
        self.ahs = arrays.AHList([self.ah])
        self.sends = set_buffers_of_requests(arrays.send_array(MANY), self.mr)
        self.recvs = set_buffers_of_requests(arrays.recv_array(MANY), self.mr, MANY * SIZE)


@pytest.fixture(name="loop")
def self_sending_ud_qp() -> Iterator[Loop]:
    it = Loop()
    with it.ctx:
        yield it


@pytest.mark.parametrize(
    ("dtype", "struct"),
    [
        (arrays.send_wr_dtype, "struct siw_array_send_wr"),
        (arrays.recv_wr_dtype, "struct siw_array_recv_wr"),
        (arrays.wc_dtype, "struct siw_wc"),
    ],
)
def test_the_dtypes_have_the_layout_of_the_c_structures(dtype: Any, struct: str) -> None:
    c = ffi.new(f"{struct} *")
    assert dtype.itemsize == ffi.sizeof(struct)
    for name, (field, offset) in dtype.fields.items():
        member = ffi.typeof(ffi.addressof(c, name)).item
        assert (offset, field.itemsize) == (ffi.offsetof(struct, name), ffi.sizeof(member)), name


def test_arrays_of_sends_and_receives_carry_each_message(loop: Loop) -> None:
    data = octet_pattern(MANY * SIZE)
    loop.mr.write(data)
    loop.qp.post_recv_array(loop.recvs)
    loop.qp.post_send_array(loop.sends, loop.ahs)
    sent, received = poll_n_completions(loop.scq, MANY), poll_n_completions(loop.rcq, MANY)
    assert sent["wr_id"].tolist() == received["wr_id"].tolist() == list(range(MANY))
    assert not sent["status"].any()
    assert not received["status"].any()
    assert set(sent["opcode"]) == {WCOpcode.SEND}
    assert set(received["opcode"]) == {WCOpcode.RECV}
    assert set(received["byte_len"]) == {SIZE}
    assert set(received["qp_num"]) == set(received["src_qp"]) == {loop.qp.qp_num}
    assert loop.mr.read(MANY * SIZE, MANY * SIZE) == data


def test_a_poll_returns_the_number_of_completions_and_changes_no_other_element(loop: Loop) -> None:
    wcs = arrays.wc_array(4)
    wcs["wr_id"] = 77
    assert loop.rcq.poll_array(wcs) == 0
    assert wcs["wr_id"].tolist() == [77] * 4
    loop.qp.post_recv_array(loop.recvs[:2])
    loop.qp.post_send_array(loop.sends[:2], loop.ahs)
    wait_until(lambda: loop.rcq.pending == 2)
    assert loop.rcq.poll_array(wcs) == 2
    assert wcs["wr_id"].tolist() == [0, 1, 77, 77]


def test_the_array_may_be_changed_after_its_requests_were_posted(loop: Loop) -> None:
    loop.qp.post_recv_array(loop.recvs)
    loop.qp.post_send_array(loop.sends, loop.ahs)
    loop.sends["wr_id"], loop.sends["lkey"], loop.recvs["lkey"] = 99, 0, 0
    assert not poll_n_completions(loop.rcq, MANY)["status"].any()
    assert poll_n_completions(loop.scq, MANY)["wr_id"].tolist() == list(range(MANY))


def test_a_request_of_length_zero_has_no_element(loop: Loop) -> None:
    for wrs in (loop.sends, loop.recvs):
        wrs["length"], wrs["lkey"], wrs["addr"] = 0, 1, 1
    loop.qp.post_recv_array(loop.recvs)
    loop.qp.post_send_array(loop.sends, loop.ahs)
    received = poll_n_completions(loop.rcq, MANY)
    assert not received["status"].any()
    assert not received["byte_len"].any()


def test_read_only_and_unaligned_arrays_of_requests_can_be_posted(loop: Loop) -> None:
    recvs = np.frombuffer(b"-" + loop.recvs.tobytes(), arrays.recv_wr_dtype, offset=1)
    sends = np.frombuffer(b"-" + loop.sends.tobytes(), arrays.send_wr_dtype, offset=1)
    loop.qp.post_recv_array(recvs)
    loop.qp.post_send_array(sends, loop.ahs)
    assert poll_n_completions(loop.rcq, MANY)["wr_id"].tolist() == list(range(MANY))


def test_receives_of_an_array_can_be_posted_to_an_srq() -> None:
    rig = Rig()
    srq = rig.create_srq(max_wr=MANY)
    cq = rig.create_cq(512)
    qp = rig.create_ud_qp(cq, srq=srq)
    mr = rig.reg_mr(MANY * SIZE)
    srq.post_recv_array(set_buffers_of_requests(arrays.recv_array(MANY), mr))
    with pytest.raises(siwarp.LimitError, match=r"index 106 to <SRQ.*all 256 receives") as caught:
        srq.post_recv_array(set_buffers_of_requests(arrays.recv_array(MANY), mr))
    assert caught.value.bad_wr == srq.attr.max_wr - MANY
    qp.post_send_array(
        set_buffers_of_requests(arrays.send_array(3), mr), arrays.AHList([rig.create_ah(qp)])
    )
    wcs = poll_n_completions(cq, 6)
    assert not wcs["status"].any()
    assert wcs["wr_id"][wcs["opcode"] == WCOpcode.RECV].tolist() == [0, 1, 2]
    rig.close()


# ---- address handles


def test_each_request_is_sent_to_the_address_handle_of_its_index(loop: Loop) -> None:
    others = [QP(loop.pd, QPInitAttr(QPType.UD, scq=CQ(loop.ctx))) for _ in range(3)]
    for other in others:
        other.to_rts()
        other.post_recv_array(loop.recvs[:8])
    ahs = arrays.AHList(AH(loop.pd, other.addr) for other in others)
    loop.sends["ah"][:6] = [2, 0, 2, 1, 2, 0]
    loop.sends["imm_data"] = 1000 + loop.sends["wr_id"]
    loop.sends["opcode"] = WROpcode.SEND_WITH_IMM
    loop.qp.post_send_array(loop.sends[:6], ahs)
    for other, expected in zip(others, ([1001, 1005], [1003], [1000, 1002, 1004]), strict=True):
        wcs = poll_n_completions(other.rcq, len(expected))
        assert wcs["imm_data"].tolist() == expected
        assert set(wcs["wc_flags"]) == {WCFlag.WITH_IMM}


def test_a_remote_qpn_of_zero_means_the_qpn_of_the_address_handle(loop: Loop) -> None:
    sharer = QP(loop.pd, QPInitAttr(QPType.UD, scq=CQ(loop.ctx), shared_socket_qp=loop.qp))
    sharer.to_rts()
    for qp in (loop.qp, sharer):
        qp.post_recv_array(loop.recvs[:4])
    sharer.post_send_array(loop.sends[:1], loop.ahs)  # the message arrives at loop.qp
    [request] = wait_until(loop.rcq.poll)
    answer = arrays.AHList([AH(loop.pd, wc=request)])
    loop.qp.post_send_array(loop.sends[1:2], answer)
    received = poll_n_completions(sharer.rcq, 2)
    assert set(received["opcode"]) == {WCOpcode.SEND, WCOpcode.RECV}
    assert received["src_qp"][received["opcode"] == WCOpcode.RECV].tolist() == [loop.qp.qp_num]
    loop.sends["remote_qpn"] = sharer.qp_num
    loop.qp.post_send_array(loop.sends[2:3], loop.ahs)
    assert poll_n_completions(sharer.rcq, 1)["opcode"].tolist() == [WCOpcode.RECV]


def test_requests_with_a_closed_address_handle_are_refused(loop: Loop) -> None:
    second = AH(loop.pd, loop.qp.addr)
    ahs = arrays.AHList([loop.ah, second, second])
    assert (len(ahs), ahs[2]) == (3, second)
    second.close()
    loop.sends["ah"][:3] = [0, 0, 2]
    with pytest.raises(siwarp.Error, match="AHList") as caught:
        loop.qp.post_send_array(loop.sends, ahs)
    assert (caught.value.reason, caught.value.bad_wr) == ("NO_HANDLE", 2)
    assert poll_n_completions(loop.scq, 2)["wr_id"].tolist() == [0, 1]
    with pytest.raises(siwarp.StateError, match="AH is closed"):
        arrays.AHList([second])


def test_a_list_keeps_its_address_handles_alive(loop: Loop) -> None:
    ahs = arrays.AHList([AH(loop.pd, loop.qp.addr)])
    loop.qp.post_recv_array(loop.recvs)
    for _ in range(3):  # creating an AH destroys AHs that Python has collected
        AH(loop.pd, loop.qp.addr)
        loop.qp.post_send_array(loop.sends[:10], ahs)
        assert not poll_n_completions(loop.rcq, 10)["status"].any()


# ---- connected queue pairs, RD


@pytest.fixture
def rc_pair() -> Iterator[Pair]:
    with pair("rc") as ends:
        yield ends


def test_writes_reads_and_atomics_of_an_array_reach_the_peers_memory(rc_pair: Pair) -> None:
    a, b = rc_pair
    there, here = MR(b.pd, 1024, ALL), MR(a.pd, 1024, ALL)
    here.write(octet_pattern(256))
    wrs = arrays.send_array(5)
    wrs["opcode"] = [
        WROpcode.RDMA_WRITE,
        WROpcode.RDMA_READ,
        WROpcode.RDMA_WRITE,
        WROpcode.ATOMIC_FETCH_AND_ADD,
        WROpcode.ATOMIC_CMP_AND_SWP,
    ]
    wrs["addr"] = here.iova + np.array([0, 512, 768, 800, 808], np.uint64)
    wrs["length"] = [256, 256, 8, 8, 8]
    wrs["lkey"], wrs["rkey"] = here.lkey, there.rkey
    wrs["remote_addr"] = there.iova + np.array([0, 0, 512, 512, 512], np.uint64)
    wrs["compare_add"] = [0, 0, 0, 5, 5]
    wrs["swap"] = [0, 0, 0, 0, 9]
    wrs["wr_id"] = np.arange(5)
    a.qp.post_send_array(wrs)
    wcs = poll_n_completions(a.cq, 5)
    assert (wcs["wr_id"].tolist(), wcs["status"].any()) == ([0, 1, 2, 3, 4], False)
    assert there.read(256) == here.read(256, 512) == octet_pattern(256)
    previous = np.frombuffer(here.read(16, 800), np.uint64)
    assert previous.tolist() == [0, 5]
    assert np.frombuffer(there.read(8, 512), np.uint64).tolist() == [9]


def test_flags_of_an_array_are_those_of_its_requests(rc_pair: Pair) -> None:
    a, b = rc_pair
    mr = MR(a.pd, 1024)
    wrs = set_buffers_of_requests(arrays.send_array(9), mr)
    wrs["send_flags"] = 0
    wrs["send_flags"][[3, 8]] = SendFlag.SIGNALED
    a.qp.post_send_array(wrs)
    assert poll_n_completions(a.cq, 2)["wr_id"].tolist() == [3, 8]
    assert set(poll_n_completions(b.cq, 9)["byte_len"]) == {SIZE}


def test_rd_requests_of_an_array_name_their_peer_by_index() -> None:
    with pair("rd") as (a, b), pair("rd", a.device) as (c, _):
        there = [MR(end.pd, 64, ALL) for end in (b, c)]
        here = MR(a.pd, octet_pattern(64), AccessFlag(0))
        wrs = set_buffers_of_requests(arrays.send_array(4), here)
        wrs["opcode"] = WROpcode.RDMA_WRITE
        wrs["ah"] = [1, 0, 1, 0]
        wrs["remote_addr"] = [there[i].iova + SIZE * k for k, i in enumerate(wrs["ah"])]
        wrs["rkey"] = [there[i].rkey for i in wrs["ah"]]
        a.qp.post_send_array(wrs, arrays.AHList(AH(a.pd, end.qp.addr) for end in (b, c)))
        assert not poll_n_completions(a.cq, 4)["status"].any()
        for i, mr in enumerate(there):
            for k in range(4):
                expected = (
                    octet_pattern(64)[SIZE * k :][:SIZE] if wrs["ah"][k] == i else bytes(SIZE)
                )
                assert mr.read(SIZE, SIZE * k) == expected


# ---- wrong arrays

#: Changes of request 100, and the reason with which the request is then refused.
REFUSED_REQUESTS: dict[str, tuple[str, int, str]] = {
    "a masked atomic": ("opcode", WROpcode.MASKED_ATOMIC_FETCH_AND_ADD, "ARRAY_OPCODE"),
    "a bind of a memory window": ("opcode", WROpcode.BIND_MW, "ARRAY_OPCODE"),
    "an unknown opcode": ("opcode", 0xFFFFFFFF, "ARRAY_OPCODE"),
    "an opcode that UD does not have": ("opcode", WROpcode.RDMA_READ, "UD_OPCODE"),
    "inline data": ("send_flags", SendFlag.INLINE, "ARRAY_INLINE"),
    "an unknown flag": ("send_flags", 1 << 31, "UNKNOWN_FLAGS"),
    "an address handle that does not exist": ("ah", 1, "ARRAY_HANDLE"),
}


@pytest.mark.parametrize("what", REFUSED_REQUESTS)
def test_an_array_is_posted_up_to_its_first_invalid_request(loop: Loop, what: str) -> None:
    field, value, reason = REFUSED_REQUESTS[what]
    loop.sends[field][100] = value
    with pytest.raises(siwarp.Error, match="request with index 100 to <QP") as caught:
        loop.qp.post_send_array(loop.sends, loop.ahs)
    assert (caught.value.errno, caught.value.reason) == (errno.EINVAL, reason)
    assert caught.value.bad_wr == 100
    assert poll_n_completions(loop.scq, 100)["wr_id"].tolist() == list(range(100))
    loop.qp.post_send_array(loop.sends[101:102], loop.ahs)
    assert poll_n_completions(loop.scq, 1)["wr_id"].tolist() == [101]


def test_requests_beyond_the_capacity_of_a_queue_are_not_posted(loop: Loop) -> None:
    loop.qp.post_recv_array(loop.recvs)
    with pytest.raises(siwarp.LimitError, match=r"index 106 .*receive queue of 256") as caught:
        loop.qp.post_recv_array(loop.recvs)
    assert caught.value.bad_wr == 256 - MANY
    qp = QP(loop.pd, QPInitAttr(QPType.UD, scq=loop.scq, cap=QPCap(max_send_wr=100)))
    qp.to_rts()
    with pytest.raises(siwarp.LimitError, match="send queue") as caught:
        qp.post_send_array(loop.sends, loop.ahs)
    assert caught.value.bad_wr == qp.cap.max_send_wr < MANY


def test_ud_requests_without_a_list_of_address_handles_are_refused(loop: Loop) -> None:
    with pytest.raises(siwarp.Error, match="AHList") as caught:
        loop.qp.post_send_array(loop.sends)
    assert (caught.value.reason, caught.value.bad_wr) == ("NO_HANDLE", 0)


def test_an_address_outside_of_its_region_fails_the_request(loop: Loop) -> None:
    loop.sends["addr"][1] = 2**64 - 1
    loop.qp.post_send_array(loop.sends[1:2], loop.ahs)
    assert poll_n_completions(loop.scq, 1)["status"].tolist() == [WCStatus.LOC_PROT_ERR]


def copy_misaligned(array: Any) -> Any:
    return np.frombuffer(bytearray(array.nbytes + 1), np.uint8)[1:].view(array.dtype)


def make_read_only(array: Any) -> Any:
    array.flags.writeable = False
    return array


#: Arrays of completions that a poll refuses, with the exception and a part of its message.
WRONG_ARRAYS: dict[str, tuple[Callable[[Any], object], type[Exception], str]] = {
    "a list": (list, TypeError, r"NumPy array, for example arrays.wc_array\(n\), not \["),
    "bytes": (bytes, TypeError, "NumPy array"),
    "of another dtype": (lambda a: a["wr_id"].copy(), TypeError, "uint64"),
    "of requests": (lambda _: arrays.recv_array(4), TypeError, "'lkey'"),
    "of the other byte order": (lambda a: a.view(a.dtype.newbyteorder()), TypeError, "wc_array"),
    "of objects": (lambda a: a.astype(object), TypeError, "object"),
    "of 2 dimensions": (lambda a: a.reshape(2, 2), ValueError, "2 dimensions"),
    "of no dimension": (lambda a: a[:1].reshape(()), ValueError, "0 dimensions"),
    "with gaps": (lambda a: a[::2], ValueError, "not contiguous"),
    "backwards": (lambda a: a[::-1], ValueError, "not contiguous"),
    "read-only": (make_read_only, ValueError, "read-only"),
    "misaligned": (copy_misaligned, ValueError, "not aligned"),
    "empty": (lambda a: a[:0], ValueError, "0 completions"),
}


@pytest.mark.parametrize("what", WRONG_ARRAYS)
def test_a_poll_refuses_an_unsuitable_array(loop: Loop, what: str) -> None:
    change, kind, message = WRONG_ARRAYS[what]
    loop.qp.post_send_array(loop.sends[:1], loop.ahs)
    with pytest.raises(kind, match=message):
        loop.scq.poll_array(change(arrays.wc_array(4)))  # type: ignore[arg-type]
    # The refused poll took no completion.
    assert poll_n_completions(loop.scq, 1)["wr_id"].tolist() == [0]


@pytest.mark.parametrize("what", ["a list", "of another dtype", "of 2 dimensions", "with gaps"])
def test_a_post_refuses_an_unsuitable_array(loop: Loop, what: str) -> None:
    change, kind, _ = WRONG_ARRAYS[what]
    with pytest.raises(kind):
        loop.qp.post_send_array(change(loop.sends[:4]), loop.ahs)  # type: ignore[arg-type]
    with pytest.raises(kind):
        loop.qp.post_recv_array(change(loop.recvs[:4]))  # type: ignore[arg-type]
    loop.qp.post_recv_array(loop.recvs)  # the refused posts used no slot
    loop.qp.post_recv_array(loop.recvs[: 256 - MANY])


def test_an_empty_array_posts_nothing(loop: Loop) -> None:
    loop.qp.post_send_array(loop.sends[:0], loop.ahs)
    loop.qp.post_recv_array(loop.recvs[:0])
    assert loop.scq.poll_array(arrays.wc_array(1)) == 0


@pytest.mark.parametrize("wrong", [[], "127.0.0.1", [("127.0.0.1", 9)], None])
def test_address_handles_of_another_type_are_refused(loop: Loop, wrong: Any) -> None:
    if wrong != []:
        with pytest.raises(TypeError, match="address handles"):
            arrays.AHList(wrong)
    if wrong is not None:
        with pytest.raises(TypeError, match="AHList"):
            loop.qp.post_send_array(loop.sends, wrong)


def test_closed_queues_refuse_arrays(loop: Loop) -> None:
    loop.qp.close()
    for post in (
        lambda: loop.qp.post_send_array(loop.sends, loop.ahs),
        lambda: loop.qp.post_recv_array(loop.recvs),
    ):
        with pytest.raises(siwarp.StateError, match="QP is closed"):
            post()
    loop.scq.close()
    with pytest.raises(siwarp.StateError, match="CQ is closed"):
        loop.scq.poll_array(arrays.wc_array(1))


@given(
    octets=st.binary(min_size=80, max_size=80 * 6),
    opcode=st.sampled_from(list(WROpcode)),
    kind=st.sampled_from(["rc", "uc", "ud", "rd"]),
)
@settings(max_examples=100, deadline=None)
def test_requests_of_random_octets_are_posted_or_refused(
    octets: bytes, opcode: WROpcode, kind: Any
) -> None:
    wrs = np.frombuffer(octets[: len(octets) // 80 * 80], arrays.send_wr_dtype).copy()
    wrs["opcode"][0], wrs["ah"][0] = opcode, 0
    wrs["send_flags"][0] &= SendFlag.FENCE | SendFlag.SIGNALED | SendFlag.SOLICITED
    recvs = np.frombuffer(octets[: len(octets) // 24 * 24], arrays.recv_wr_dtype)
    with pair(kind, receives=0) as (a, b):
        ahs = None if kind in ("rc", "uc") else arrays.AHList([AH(a.pd, b.qp.addr)])
        a.qp.post_recv_array(recvs[:16])
        try:
            a.qp.post_send_array(wrs, ahs)
        except siwarp.Error as e:
            assert e.bad_wr in range(len(wrs))
        a.cq.poll_array(arrays.wc_array(8))


# ---- peers that are killed, or post few receives

#: A process with an RC or RD queue pair that has posted eight receives. Its arguments are the type,
#: and the QPN of its peer. It prints its own QPN (RC) or port (RD).
PEER_PROCESS = """
import sys
from siwarp.verbs import *
kind, peer = sys.argv[1:]
ctx = Context("127.0.0.1")
pd, cq = PD(ctx), CQ(ctx, 64)
mr = MR(pd, 8 * 16)
init = QPInitAttr(QPType[kind], scq=cq, qkey=0)
if kind == "RC":
    init.by_qpn, init.persona = True, Persona.ROCE
else:
    init.addr = ("127.0.0.1", 0)
qp = QP(pd, init)
qp.to_init()
qp.post_recv([RecvWR(i, sg=[mr.sge(16 * i, 16)]) for i in range(8)])
where = AHAttr("127.0.0.1", source="127.0.0.1")
qp.to_rts(QPAttr(ah_attr=where, dest_qp_num=int(peer)) if kind == "RC" else None)
print(qp.qp_num if kind == "RC" else qp.addr[1], flush=True)
sys.stdin.read()
"""


@contextlib.contextmanager
def process_with_peer(rig: Rig, qp: QP) -> Iterator[tuple[subprocess.Popen[str], Any]]:
    """Run a process with a peer of an RC or RD queue pair, and move the queue pair to RTS; yield
    the process and the address handles for requests.
    """
    command = [sys.executable, "-c", PEER_PROCESS, qp.qp_type.name, str(qp.qp_num)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout
        number = int(process.stdout.readline())
        if qp.qp_type == QPType.RC:
            where = AHAttr("127.0.0.1", source="127.0.0.1")
            qp.to_rts(QPAttr(ah_attr=where, dest_qp_num=number))
            yield process, None
        else:
            qp.to_rts()
            yield process, arrays.AHList([rig.create_ah(("127.0.0.1", number))])
        process.kill()


@pytest.mark.parametrize("kind", [QPType.RC, QPType.RD], ids=lambda kind: kind.name)
def test_every_request_of_an_array_completes_once_if_the_peer_is_killed(kind: QPType) -> None:
    with temporary_settings(peer_timeout_ms=300):
        rig = Rig("127.0.0.1")
        cq = rig.create_cq(512)
        addr = None if kind == QPType.RC else ("127.0.0.1", 0)
        qp = rig.create_qp(
            cq,
            qp_type=kind,
            addr=addr,
            max_send_wr=MANY,
            by_qpn=not addr,
            persona=Persona.AUTO if addr else Persona.ROCE,
        )
    qp.to_init()
    mr = rig.reg_mr(MANY * SIZE)
    sends = set_buffers_of_requests(arrays.send_array(MANY), mr)
    with process_with_peer(rig, qp) as (process, ahs):
        qp.post_send_array(sends[:100], ahs)
        # The peer has posted eight receives. An RC peer also stores Sends without a receive.
        assert not poll_n_completions(cq, 8)["status"].any()
        process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, process.pid, os.WSTOPPED)
        qp.post_send_array(sends[100:], ahs)
        process.kill()
        wcs = poll_n_completions(cq, MANY - 8)
    assert wcs["wr_id"].tolist() == list(range(8, MANY))
    failed = (wcs["status"] != 0).astype(int)
    assert failed[-50:].all()
    assert (np.diff(failed) >= 0).all()
    assert cq.poll_array(arrays.wc_array(1)) == 0
    rig.close()


@pytest.mark.parametrize("persona", [Persona.IWARP, Persona.ROCE], ids=lambda p: p.name)
def test_sends_of_an_array_beyond_the_receives_of_an_rc_peer_wait_or_fail(persona: Persona) -> None:
    with pair("rc", receives=0, persona=persona) as (a, b):
        out, into = MR(a.pd, 60 * SIZE), MR(b.pd, 60 * SIZE)
        recvs = set_buffers_of_requests(arrays.recv_array(60), into)
        b.qp.post_recv_array(recvs[:4])
        a.qp.post_send_array(set_buffers_of_requests(arrays.send_array(60), out))
        received = poll_n_completions(b.cq, 4)
        assert (received["wr_id"].tolist(), received["status"].any()) == ([0, 1, 2, 3], False)
        if persona == Persona.ROCE:
            sent = poll_n_completions(a.cq, 4)
            b.qp.post_recv_array(recvs[4:])
            assert not poll_n_completions(b.cq, 56)["status"].any()
            sent = np.concatenate([sent, poll_n_completions(a.cq, 56)])
            assert not sent["status"].any()
        else:
            # With persona iwarp, a Send without a receive ends the connection.
            sent = poll_n_completions(a.cq, 60)
            assert (np.diff((sent["status"] != 0).astype(int)) >= 0).all()
        assert sent["wr_id"].tolist() == list(range(60))


def test_messages_of_an_array_beyond_the_receives_of_a_ud_peer_are_dropped_and_counted() -> None:
    with pair("ud", receives=0) as (a, b):
        out, into = MR(a.pd, 61 * SIZE), MR(b.pd, 5 * SIZE)
        recvs = set_buffers_of_requests(arrays.recv_array(5), into)
        b.qp.post_recv_array(recvs[:4])
        ahs = arrays.AHList([AH(a.pd, b.qp.addr)])
        sends = set_buffers_of_requests(arrays.send_array(61), out)
        sends["opcode"], sends["imm_data"] = WROpcode.SEND_WITH_IMM, np.arange(61)
        with assert_counter_grows("drop_no_buffer", by=56):
            a.qp.post_send_array(sends[:60], ahs)
            assert not poll_n_completions(a.cq, 60)["status"].any()
            assert poll_n_completions(b.cq, 4)["imm_data"].tolist() == [0, 1, 2, 3]
        b.qp.post_recv_array(recvs[4:])
        a.qp.post_send_array(sends[60:], ahs)
        assert poll_n_completions(b.cq, 1)["imm_data"].tolist() == [60]


# ---- without NumPy


def test_the_verbs_work_without_numpy_and_the_module_names_its_package() -> None:
    program = """
import sys
sys.modules["numpy"] = None
from siwarp.verbs import *
with Context("127.0.0.1") as ctx, PD(ctx) as pd, CQ(ctx) as cq:
    qp = QP(pd, QPInitAttr(scq=cq))
    for call in (qp.post_send_array, qp.post_recv_array, cq.poll_array):
        try:
            call([])
        except ImportError as e:
            print(e)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, cwd="/"
    )
    assert done.returncode == 0, done.stderr
    words = "siwarp.verbs.arrays needs NumPy: install it with `pip install siwarp[numpy]`\n"
    assert done.stdout == 3 * words
