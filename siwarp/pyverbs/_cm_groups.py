# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""Multicast groups of a connection id (``pyverbs.cmid.CMID``).

Joining an IP multicast group needs no permission, so a join raises its event immediately. The queue
pair is attached to the group when the program gets the event.
"""

from __future__ import annotations

import errno
from abc import abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING

from siwarp.cm import id as cm
from siwarp.pyverbs import cm_enums as ce
from siwarp.pyverbs._cm_device import is_multicast_address
from siwarp.pyverbs._cm_param import AddrInfo, JoinMCAttrEx
from siwarp.pyverbs.base import Wrapper, convert_errors, raise_unsupported
from siwarp.pyverbs.pyverbs_error import PyverbsRDMAError
from siwarp.verbs.errors import Error

if TYPE_CHECKING:
    from siwarp.pyverbs.addr import AHAttr
    from siwarp.pyverbs.qp import QP

_ALL_MEMBERS = 0xFFFFFF
_MASKS = ce.RDMA_CM_JOIN_MC_ATTR_ADDRESS | ce.RDMA_CM_JOIN_MC_ATTR_JOIN_FLAGS


@dataclass
class _Group:
    host: str
    send_only: bool
    event_delivered: bool = False
    member: bool = False


class Groups(Wrapper[cm.CMID]):
    """Multicast operations of a connection id."""

    _QKEY: int
    _qp: QP | None

    def _init_groups(self) -> None:
        self._groups: list[_Group] = []
        self._last_joined_group: _Group | None = None

    @property
    @abstractmethod
    def _is_ud(self) -> bool: ...

    @abstractmethod
    def _address_vector_to(self, host: str) -> AHAttr: ...

    @abstractmethod
    def _wait_if_synchronous(self) -> None: ...

    def join_multicast(
        self,
        addr: AddrInfo | None = None,
        mc_attr: JoinMCAttrEx | None = None,
        context: object = None,
    ) -> None:
        """Join a multicast group, which raises the event MULTICAST_JOIN immediately.

        Raises:
            PyverbsRDMAError: the address is not a multicast address, or the id is not for datagrams
                (EINVAL).

        """
        flags = int(ce.RDMA_MC_JOIN_FLAG_FULLMEMBER)
        if mc_attr is not None:
            if mc_attr.comp_mask & ~_MASKS or mc_attr.join_flags > 1:
                raise_unsupported(
                    "such join options", "members are full members or send-only full members"
                )
            if mc_attr.comp_mask & ce.RDMA_CM_JOIN_MC_ATTR_JOIN_FLAGS:
                flags = mc_attr.join_flags
            addr = mc_attr._addr
        host = self._find_group_address(addr)
        if not self._is_ud:
            raise PyverbsRDMAError(
                "Failed to join: the CMID is not a datagram id (RDMA_PS_UDP)", errno.EINVAL
            )
        send_only = flags == ce.RDMA_MC_JOIN_FLAG_SENDONLY_FULLMEMBER
        self._groups.append(_Group(host, send_only))
        with convert_errors("Failed to join multicast"):
            self._native().tell(cm.CMEventType.MULTICAST_JOIN)
        self._wait_if_synchronous()

    @staticmethod
    def _find_group_address(addr: AddrInfo | None) -> str:
        ends = [] if addr is None else [one[0] for one in (addr._src, addr._dst) if one]
        found = next((host for host in ends if is_multicast_address(host)), None)
        if found is None:
            raise PyverbsRDMAError("The address is not a multicast address", errno.EINVAL)
        return found

    def _handle_multicast_join(self) -> int | None:
        """Attach the queue pair to a joined group; return the event, or None for a left group."""
        group = next((one for one in self._groups if not one.event_delivered), None)
        if group is None:
            return None
        group.event_delivered, self._last_joined_group = True, group
        if self._qp is not None and not group.send_only:
            try:
                self._qp._native().attach_mcast(group.host)
            except Error:
                return int(ce.RDMA_CM_EVENT_MULTICAST_ERROR)
            group.member = True
        return int(ce.RDMA_CM_EVENT_MULTICAST_JOIN)

    def _destination_of_last_joined_group(self) -> tuple[int, int, AHAttr] | None:
        """Return QPN, Q_Key and address vector for sending to the last joined group."""
        if self._last_joined_group is None:
            return None
        return _ALL_MEMBERS, self._QKEY, self._address_vector_to(self._last_joined_group.host)

    def leave_multicast(self, addr: AddrInfo) -> None:
        """Leave a multicast group.

        Raises:
            PyverbsRDMAError: the id has not joined the group (EADDRNOTAVAIL).

        """
        host = self._find_group_address(addr)
        group = next((one for one in self._groups if one.host == host), None)
        if group is None:
            raise PyverbsRDMAError(
                f"Failed to leave {host}: the CMID has not joined this group", errno.EADDRNOTAVAIL
            )
        self._groups.remove(group)
        if group.member and self._qp is not None and not self._qp._is_closed:
            with convert_errors("Failed to leave multicast"):
                self._qp._native().detach_mcast(group.host)
