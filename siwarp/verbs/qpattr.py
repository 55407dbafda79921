# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""What a queue pair is made with, and the attributes that can be changed."""

from __future__ import annotations

import socket
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from siwarp.verbs._ffi import Address
from siwarp.verbs.ah import AHAttr
from siwarp.verbs.cq import CQ
from siwarp.verbs.enums import ErrorPolicy, Persona, QPAttrMask, QPType
from siwarp.verbs.srq import SRQ

if TYPE_CHECKING:
    from siwarp.verbs.qp import QP

__all__ = ["QPAttr", "QPCap", "QPInitAttr"]


@dataclass
class QPCap:
    """How much a queue pair holds: requests, elements of one request, octets sent inline."""

    max_send_wr: int = 128
    max_recv_wr: int = 128
    max_send_sge: int = 1
    max_recv_sge: int = 1
    max_inline_data: int = 0


@dataclass
class QPInitAttr:
    """What a queue pair is made with (``struct siw_qp_init_attr``).

    Attributes:
        qp_type: RC, UC, UD or RD.
        scq, rcq: where sends and receives complete; one queue may be both.
        cap: what it holds; ``QP.cap`` is what was granted.
        sq_sig_all: every send request completes visibly, signalled or not.
        srq: the shared receive queue whose receives it uses; it has none of its own then.
        crc: UC, UD, RD: ``False`` sends zero in the CRC field and does not check it; both ends must
            agree.
        addr: UC, UD, RD: (host, port) to bind; the default is the device's first address and a free
            port.
        persona: RC: when a send completes: ``Persona.IWARP`` when TCP took it, ``ROCE`` when the
            peer has it; ``AUTO`` is setting ``persona``, or else ``IWARP``.
        keep_unexpected: RC: Sends that find no receive wait for one, with any persona, up to
            setting ``rnr_octets`` here and then at the peer; the peer's orderly end is reported
            after the last of them.
        by_qpn: RC: ``modify`` connects it, by the peer's address and QPN, to one that is made so,
            too; else a ``CMID`` does. The device listens at the TCP port in its QPN.
        grh: UD: 40 octets of GRH, in RoCE v2's form, lie in front of each message in its receive:
            its IPv6 header, or 20 octets of zero and its IPv4 header. ``WC.byte_len`` counts them.
        every_addr: UD, UC: it is bound to every address of the device, on one port; ``addr`` is
            ``None``, or ``("", port)``. ``WC.destination`` says where a message came to; an ``AH``
            (UC: ``ah_attr``) with a ``source`` says where messages leave.
        private_messages: RC: the peer is siwarp, and its program says so of this end: Send with
            Immediate may be posted, and persona ``ROCE`` needs no Reads to know what the peer has.
            Only needed where the start-up does not tell (setting ``mpa_announce`` is 0). Setting
            ``private_messages`` says so of all. From ``query``: whether the peer is known to be
            siwarp.
        qkey: UD, RD: the Q_Key that it goes to INIT with if ``modify`` gives none there; ``None``:
            that of all queue pairs of this process that are given none, which is setting ``qkey``,
            or else a random number. A peer in another process is told it (``query()``) or given
            the same by ``SIWARP_QKEY``.
        error_policy: UD, RD: what happens when a sender that has its Q_Key breaks the rules:
            ``ErrorPolicy.ERROR`` (or ``"error"``) moves the queue pair to the error state,
            ``MESSAGE`` only notes the error; ``AUTO`` is setting ``error_policy``, or else
            ``MESSAGE`` on RD, for members of multicast groups and with Q_Key 0, and ``ERROR`` for
            others. Under ``ERROR`` only the Q_Key protects against strangers, so it must not be
            0. ``errors()`` names the sender.
        shared_socket_qp: UD: a UD QP of the same context whose socket this one uses too, up to 256
            in all; each has an index, bits 16 to 23 of its ``qp_num``. ``addr`` must be ``None``,
            and ``crc`` as in that one.
        max_write_records: UD, RD: Write-Records that this end may receive at a time, at most 1024;
            0, the default, refuses all. The receive CQ needs room for half as many additional
            completions. On RD, once half as many wait to be polled, their senders wait.
        max_peers: RD: how many peers it remembers at most; 0: setting ``rd_peers``.
        peer_timeout: RD: seconds of silence after which a peer with a response due counts as lost;
            0: setting ``peer_timeout_ms``, and ``rd_meet_ms`` for one beyond this machine that does
            not answer a first message.
        qp_context: any value of the caller's.

    """

    qp_type: int = QPType.UD
    qp_context: Any = None
    cap: QPCap = field(default_factory=QPCap)
    scq: CQ | None = None
    rcq: CQ | None = None
    sq_sig_all: bool = False
    crc: bool = True
    addr: Address | None = None
    srq: SRQ | None = None
    persona: int = Persona.AUTO
    keep_unexpected: bool = False
    by_qpn: bool = False
    grh: bool = False
    every_addr: bool = False
    private_messages: bool = False
    max_write_records: int = 0
    error_policy: int | str = ErrorPolicy.AUTO
    qkey: int | None = None
    shared_socket_qp: QP | None = None
    max_peers: int = 0
    peer_timeout: float = 0.0


@dataclass
class QPAttr:
    """Attributes of a queue pair to modify: ``None`` leaves one as it is (``struct siw_qp_attr``).

    Attributes:
        qp_state: the state to go to.
        cur_qp_state: take the step only from this state.
        en_sqd_async_notify: with state SQD: an event tells when the send queue is drained.
        qkey: UD, UC: the Q_Key that incoming messages must have; on UC, sent messages have it, too.
        qp_access_flags: RC, UC: what the peer may do.
        max_rd_atomic: RC: RDMA Reads this end has outstanding at the most (ORD).
        max_dest_rd_atomic: RC: RDMA Reads the peer may have outstanding here (IRD).
        rnr_retry, min_rnr_timer: RC, persona roce: how long a Send waits for a receive: the
            sender's ``rnr_retry`` (0 to 7, 7 for ever and the default) times the time that the
            receiver's ``min_rnr_timer``, a code of InfiniBand (0 to 31; 12 is 0.64 ms and the
            default), means. Of a sender that is not siwarp the receiver's ``rnr_retry`` counts.
            RD: the same, but the sender measures the time.
        ah_attr: UC, and RC with ``by_qpn``, with state RTR, which needs it: where the peer is, an
            ``AHAttr`` or (host, port). RC: its port does not count, and its ``source`` is this
            end's address.
        dest_qp_num: UC, with state RTR: the peer's number, whose low 16 bits are its UDP port; the
            default is the port in ``ah_attr``. RC with ``by_qpn``: the same, and needed.
        path_mtu: UC, with state RTR: octets of payload in one datagram at the most, 256 or more,
            or 1 to 5 for libibverbs' 256 to 4096; the default and the most is what the route
            carries.
        rq_psn, sq_psn: UC, with states RTR and RTS: the PSN of the first datagram received, and of
            the first one sent; 0 by default. The peer has them the other way round.
        timeout, retry_cnt: RC with ``by_qpn``, with state RTS: a request without a peer fails with
            RETRY_EXC_ERR after 4.096 us times 2 to the ``timeout`` (0 to 31; 0: never), times
            ``retry_cnt`` + 1 (0 to 7), but not before 3 s.
        rate_limit: UD, UC, to or in states RTS and SQD: the most that this end sends, in kbit/s of
            UDP's payload; 0: no limit. What is beyond it waits in the send queue. In any time t it
            is at most the rate times t + 2 ms, and a datagram.
        fd: UC and UD, with state INIT: a bound UDP socket (or its descriptor) that the queue pair
            takes over and closes; its port becomes the QPN.
        sq_draining: in a query's result: in SQD, some requests that were begun are not complete.

    """

    qp_state: int | None = None
    cur_qp_state: int | None = None
    en_sqd_async_notify: bool | None = None
    qkey: int | None = None
    qp_access_flags: int | None = None
    max_rd_atomic: int | None = None
    max_dest_rd_atomic: int | None = None
    rnr_retry: int | None = None
    min_rnr_timer: int | None = None
    fd: socket.socket | int | None = None
    ah_attr: AHAttr | Address | None = None
    dest_qp_num: int | None = None
    path_mtu: int | None = None
    rq_psn: int | None = None
    sq_psn: int | None = None
    timeout: int | None = None
    retry_cnt: int | None = None
    rate_limit: int | None = None
    sq_draining: bool | None = None

    _MASKS: ClassVar[dict[str, QPAttrMask]] = {
        "qp_state": QPAttrMask.STATE,
        "cur_qp_state": QPAttrMask.CUR_STATE,
        "en_sqd_async_notify": QPAttrMask.EN_SQD_ASYNC_NOTIFY,
        "qkey": QPAttrMask.QKEY,
        "qp_access_flags": QPAttrMask.ACCESS_FLAGS,
        "max_rd_atomic": QPAttrMask.MAX_QP_RD_ATOMIC,
        "max_dest_rd_atomic": QPAttrMask.MAX_DEST_RD_ATOMIC,
        "rnr_retry": QPAttrMask.RNR_RETRY,
        "min_rnr_timer": QPAttrMask.MIN_RNR_TIMER,
        "fd": QPAttrMask.FD,
        "ah_attr": QPAttrMask.AV,
        "dest_qp_num": QPAttrMask.DEST_QPN,
        "path_mtu": QPAttrMask.PATH_MTU,
        "rq_psn": QPAttrMask.RQ_PSN,
        "sq_psn": QPAttrMask.SQ_PSN,
        "timeout": QPAttrMask.TIMEOUT,
        "retry_cnt": QPAttrMask.RETRY_CNT,
        "rate_limit": QPAttrMask.RATE_LIMIT,
    }

    @property
    def mask(self) -> QPAttrMask:
        """The attributes that are not ``None``."""
        mask = QPAttrMask(0)
        for name, bit in self._MASKS.items():
            if getattr(self, name) is not None:
                mask |= bit
        return mask
