"""Fixtures shared by the DDP tests of RFC 5041."""

from unit.ddp.ddp_harness import DdpPort
from unit.mpa.mpa_harness import make_port_fixture

layer_port = make_port_fixture(DdpPort)
