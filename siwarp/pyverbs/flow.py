# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""Flow steering, which siwarp does not support: ``pyverbs.flow``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from siwarp.pyverbs import enums as e
from siwarp.pyverbs._field import UInt
from siwarp.pyverbs.base import PyverbsCM, PyverbsObject, PyverbsRDMAErrno, raise_unsupported
from siwarp.pyverbs.pyverbs_error import PyverbsError, PyverbsRDMAError

if TYPE_CHECKING:
    from siwarp.pyverbs.qp import QP
    from siwarp.pyverbs.spec import Spec

__all__ = [
    "Flow",
    "FlowAction",
    "FlowAttr",
    "PyverbsError",
    "PyverbsRDMAErrno",
    "PyverbsRDMAError",
]


class FlowAttr(PyverbsObject):
    """Description of the Ethernet frames that a flow steers."""

    num_of_specs = UInt(8)
    type = UInt(32)
    priority = UInt(16)
    port = UInt(8)
    flags = UInt(32)
    specs: list[Spec] = []  # noqa: RUF012  __init__ replaces it

    def __init__(
        self,
        num_of_specs: int = 0,
        flow_type: int = e.IBV_FLOW_ATTR_NORMAL,
        priority: int = 0,
        port: int = 1,
        flags: int = 0,
    ) -> None:
        self.num_of_specs, self.type, self.priority = num_of_specs, flow_type, priority
        self.port, self.flags = port, flags
        self.specs = []


class Flow(PyverbsCM):
    """A rule that steers Ethernet frames to a queue pair.

    Raises:
        PyverbsRDMAError: always (EOPNOTSUPP).

    """

    def __init__(self, qp: QP, flow_attr: FlowAttr) -> None:
        raise_unsupported(
            "Flow", "flow steering applies to Ethernet frames, which sockets do not provide"
        )


class FlowAction(PyverbsObject):
    """An action of an adapter on the frames of a flow; base class of vendors' classes."""
