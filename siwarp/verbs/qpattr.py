# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""The attributes with which a queue pair is created, and those that can be changed later."""

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
    """Capacities of a queue pair: requests, scatter/gather elements per request, inline octets."""

    max_send_wr: int = 128
    max_recv_wr: int = 128
    max_send_sge: int = 1
    max_recv_sge: int = 1
    max_inline_data: int = 0


@dataclass
class QPInitAttr:
    """The attributes with which a queue pair is created (``struct siw_qp_init_attr``).

    Attributes:
        qp_type: RC, UC, UD or RD.
        scq, rcq: the completion queues of sends and of receives; may be the same queue.
        cap: the requested capacities; ``QP.cap`` has the granted ones.
        sq_sig_all: every send request produces a completion, signalled or not.
        srq: the shared receive queue that supplies receives; the queue pair then has no receive
            queue of its own.
        crc: UC, UD, RD: ``False`` sends zero in the CRC field and does not check it; both ends must
            use the same value.
        addr: UC, UD, RD: (host, port) to bind to; the default is the device's first address and a
            free port.
        persona: RC: when a send completes: with ``Persona.IWARP`` when TCP has accepted it, with
            ``ROCE`` when the peer has received it; ``AUTO`` is the setting ``persona``, or
            ``IWARP`` if that is 0.
        keep_unexpected: RC: Sends that find no receive wait for one, with any persona, up to the
            setting ``rnr_octets`` at this end and then at the peer; the peer's orderly end is
            reported after the last of these Sends.
        by_qpn: RC: ``modify`` connects the queue pair, by the peer's address and QPN, to another
            queue pair with ``by_qpn``; without it a ``CMID`` connects. The device listens at the
            TCP port in the QPN, on each of its addresses, also on those that it gains later.
        grh: UD: each message is preceded in its receive by 40 octets of GRH, in RoCE v2's form: the
            message's IPv6 header, or 20 octets of zero and its IPv4 header. ``WC.byte_len``
            includes them.
        every_addr: UD, UC: bind to every address of the device, on one port; ``addr`` is ``None``,
            or ``("", port)``. ``WC.destination`` is the address at which a message arrived; the
            ``source`` of an ``AH`` (UC: of ``ah_attr``) is the address from which messages are
            sent.
        private_messages: RC: the program asserts that the peer is siwarp and that the peer's
            program asserts the same of this end: Send with Immediate may then be posted, and
            persona ``ROCE`` needs no Reads to find out what the peer has received. Needed only if
            the start-up does not announce siwarp (setting ``mpa_announce`` 0). In the
            result of ``query``: whether the peer is known to be siwarp.
        qkey: UD, RD: the Q_Key set at INIT if ``modify`` sets none; ``None``: the process's default
            Q_Key, which is the setting ``qkey`` or else a random number. A peer in another process
            needs the same Q_Key: send it to the peer (``query()``), or start the peer with it in
            ``SIWARP_QKEY``.
        error_policy: UD, RD: the reaction to a sender with the right Q_Key that violates the
            protocol: ``ErrorPolicy.ERROR`` (or ``"error"``) moves the queue pair to the error
            state, ``MESSAGE`` only queues the error; ``AUTO`` is the setting ``error_policy``, or
            else ``MESSAGE`` for RD, for members of multicast groups and with Q_Key 0, and ``ERROR``
            otherwise. With ``ERROR`` only the Q_Key protects against strangers, so it must not be
            0. ``errors()`` names the sender.
        shared_socket_qp: UD: a UD QP of the same context whose socket this queue pair shares, up to
            256 in total; each has an index, bits 16 to 23 of its ``qp_num``. ``addr`` must be
            ``None``, and ``crc`` the same in all.
        max_write_records: UD, RD: number of Write-Records that this end can receive at a time, at
            most 1024; 0, the default, refuses all. The receive CQ needs room for half as many
            additional completions. On RD, once half as many are waiting to be polled, further
            senders wait.
        max_peers: RD: maximum number of peers with stored state; 0: the setting ``rd_peers``.
        peer_timeout: RD: seconds of silence after which a peer that owes a response counts as lost;
            0: the setting ``peer_timeout_ms``, and ``rd_handshake_timeout_ms`` for a peer on
            another machine that does not answer the first message.
        qp_context: any value chosen by the program.

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
    """Attributes of a queue pair to modify (``struct siw_qp_attr``); ``None`` changes nothing.

    Attributes:
        qp_state: the state to move to.
        cur_qp_state: make the transition only if this is the current state.
        en_sqd_async_notify: with state SQD: an event reports when the send queue is drained.
        qkey: UD, UC: the Q_Key required in incoming messages; on UC, also that of sent messages.
        qp_access_flags: RC, UC: the operations permitted to the peer.
        max_rd_atomic: RC: maximum outstanding RDMA Reads of this end (ORD).
        max_dest_rd_atomic: RC: maximum outstanding RDMA Reads of the peer (IRD).
        rnr_retry, min_rnr_timer: RC, persona roce: how long a Send waits for a receive: the
            sender's ``rnr_retry`` (0 to 7; 7, the default, means forever) times the duration that
            the receiver's ``min_rnr_timer`` encodes (an InfiniBand code, 0 to 31; the default 12 is
            0.64 ms). If the sender is not siwarp, the receiver's ``rnr_retry`` is used. RD: the
            same, but the sender measures the time.
        ah_attr: UC, and RC with ``by_qpn``: required with state RTR: the peer's address, as an
            ``AHAttr`` or (host, port). RC: the port is ignored, and ``source`` is this end's
            address.
        dest_qp_num: UC, with state RTR: the peer's QPN, whose low 16 bits are its UDP port; the
            default is the port in ``ah_attr``. RC with ``by_qpn``: the same, and required.
        path_mtu: UC, with state RTR: maximum payload of one datagram in octets, 256 or more, or 1
            to 5 for libibverbs' 256 to 4096; the default and the maximum is the route's.
        rq_psn, sq_psn: UC, with states RTR and RTS: the PSN of the first datagram received, and of
            the first datagram sent; 0 by default. At the peer the two values are exchanged.
        timeout, retry_cnt: RC with ``by_qpn``, with state RTS: a request without a peer fails with
            RETRY_EXC_ERR after 4.096 us times 2 to the power of ``timeout`` (0 to 31; 0: never),
            times ``retry_cnt`` + 1 (0 to 7), but not before 3 s.
        rate_limit: UD, UC, to or in states RTS and SQD: maximum send rate of this end in kbit/s of
            UDP payload; 0: no limit. Excess requests wait in the send queue. In any time t the
            octets sent are at most the rate times t + 2 ms, plus one datagram.
        fd: UC and UD, with state INIT: a bound UDP socket (or its descriptor) that the queue pair
            takes over and closes; its port becomes the QPN.
        sq_draining: in the result of a query: in SQD, some started requests are not complete.

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
        """The mask of the attributes that are not ``None``."""
        mask = QPAttrMask(0)
        for name, bit in self._MASKS.items():
            if getattr(self, name) is not None:
                mask |= bit
        return mask
