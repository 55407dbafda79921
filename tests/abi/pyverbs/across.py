"""Two programs exchange their addresses over a socket: RC in both directions, and a datagram.

usage: across.py DEVICE OWN-ADDRESS [ADDRESS OF THE SERVER]
"""

import json
import socket
import sys

from common import QKEY, End, data_pattern, open_device, report_success
from pyverbs.addr import AH, GID, AHAttr, GlobalRoute
from pyverbs.enums import (
    IBV_QPT_UD,
    IBV_SEND_SIGNALED,
    IBV_WR_RDMA_READ,
    IBV_WR_RDMA_WRITE,
)
from pyverbs.wr import SendWR

PORT, SIZE, GRH = 18515, 1000, 40
serves = len(sys.argv) == 3


def connect_socket_to_other_program():
    """Return a socket that is connected to the other program."""
    if not serves:
        return socket.create_connection((sys.argv[3], PORT))
    with socket.create_server((sys.argv[2], PORT)) as listener:
        return listener.accept()[0]


def exchange_values(stream, **mine):
    """Send values to the other program, and return the values received from it."""
    stream.write(json.dumps(mine) + "\n")
    stream.flush()
    return json.loads(stream.readline())


def check_rc_transfers(end, theirs):
    """Post a Write, a Send and a Read, and check the data that the other program wrote and sent."""
    data, other = data_pattern(SIZE, serves), data_pattern(SIZE, not serves)
    end.mr.write(data, SIZE)
    to = theirs["addr"] + 3 * SIZE, theirs["rkey"]
    end.post_request(IBV_WR_RDMA_WRITE, SIZE, to=to, send_flags=IBV_SEND_SIGNALED)
    end.post_request(size=SIZE, send_flags=IBV_SEND_SIGNALED)
    for _ in range(3):  # completions of the Write, the Send, and the receive of the peer's Send
        end.next_completion()
    assert end.mr.read(SIZE, SIZE) == end.mr.read(SIZE, 3 * SIZE) == other
    end.post_request(IBV_WR_RDMA_READ, SIZE, 2 * SIZE, to=to, send_flags=IBV_SEND_SIGNALED)
    end.next_completion()
    assert end.mr.read(SIZE, 2 * SIZE) == data


def check_ud_transfers(end, theirs, way):
    """Send a UD message and check the received UD message, whose data follows the GRH."""
    end.mr.write(data_pattern(SIZE, serves), SIZE)
    wr = SendWR(sg=[end.sge(SIZE)], num_sge=1, send_flags=IBV_SEND_SIGNALED)
    wr.set_wr_ud(AH(end.pd, attr=way), theirs["ud"], QKEY)
    end.qp.post_send(wr)
    sizes = [end.next_completion().byte_len for _ in range(2)]
    assert SIZE + GRH in sizes, sizes
    assert end.mr.read(SIZE, SIZE + GRH) == data_pattern(SIZE, not serves)


with (
    open_device() as ctx,
    connect_socket_to_other_program() as found,
    found.makefile("rw") as stream,
):
    one, other = End(ctx), End(ctx, IBV_QPT_UD)
    one.post_receive(SIZE, SIZE)
    other.post_receive(SIZE + GRH, SIZE)
    gid, numbers = str(ctx.query_gid(port_num=1, index=0)), {"rc": one.qp.qp_num}
    numbers |= {"ud": other.qp.qp_num, "addr": one.mr.buf, "rkey": one.mr.rkey}
    theirs = exchange_values(stream, gid=gid, **numbers)
    way = AHAttr(gr=GlobalRoute(dgid=GID(theirs["gid"]), sgid_index=0), is_global=1, port_num=1)
    one.connect_to_qpn(theirs["rc"], way)
    check_rc_transfers(one, theirs)
    check_ud_transfers(other, theirs, way)
    exchange_values(stream)  # neither program exits before the other one has finished
report_success("across")
