"""Devices, ports, GIDs."""

import sys

from common import open_device, report_success
from pyverbs.device import get_device_list

assert sys.argv[1].encode() in [found.name for found in get_device_list()]
with open_device() as ctx:
    attr = ctx.query_device()
    assert attr.max_qp > 0 and attr.max_cqe >= 256 and attr.max_sge >= 6
    assert attr.phys_port_cnt == 1
    port = ctx.query_port(1)
    assert port.state == 4 and port.link_layer == 2
    table = ctx.query_gid_table(16)
    assert len(table) >= 2, table
    for entry in table:
        assert entry.gid_type == 2, entry  # RoCE v2
    assert ctx.query_pkey(1, 0) == 0xFFFF
    for index in range(2):
        assert ":" in str(ctx.query_gid(1, index))
report_success("device")
