"""pyverbs: a message and its answer over a connection of rdma_cm, between two processes.

    python pyverbs_cm.py server HOST PORT   answers one message
    python pyverbs_cm.py client HOST PORT   sends one, prints the answer

The program imports siwarp.pyverbs. With ``pyverbs`` instead, it runs on RDMA adapters.
"""

import sys

import siwarp.pyverbs.cm_enums as ce
import siwarp.pyverbs.enums as e
from siwarp.pyverbs.cmid import CMID, AddrInfo
from siwarp.pyverbs.qp import QPCap, QPInitAttr

SIZE = 256


def make_queue_pair_init_attributes() -> QPInitAttr:
    """Return the attributes for a connection's queue pair."""
    return QPInitAttr(qp_type=e.IBV_QPT_RC, cap=QPCap(max_recv_wr=1))


def run_server(host: str, port: str) -> None:
    """Accept one connection, and answer its message."""
    where = AddrInfo(src=host, src_service=port, port_space=ce.RDMA_PS_TCP, flags=ce.RAI_PASSIVE)
    with CMID(creator=where, qp_init_attr=make_queue_pair_init_attributes()) as listener:
        listener.listen()
        print("listens", flush=True)
        with listener.get_request() as conn:
            memory = conn.reg_msgs(SIZE)
            conn.post_recv(memory)
            conn.accept()
            came = conn.get_recv_comp()
            text = memory.read(came.byte_len, 0).decode()
            print(f"got {text!r}")
            memory.write(f"{text} yourself", came.byte_len + len(" yourself"))
            conn.post_send(memory, length=came.byte_len + len(" yourself"))
            conn.get_send_comp()
            conn.disconnect()


def run_client(host: str, port: str) -> None:
    """Connect, send a message, print the answer."""
    where = AddrInfo(src=host, dst=host, dst_service=port, port_space=ce.RDMA_PS_TCP)
    with CMID(creator=where, qp_init_attr=make_queue_pair_init_attributes()) as conn:
        memory = conn.reg_msgs(SIZE)
        answer = conn.reg_msgs(SIZE)
        conn.post_recv(answer)
        conn.connect()
        memory.write("hello", len("hello"))
        conn.post_send(memory, length=len("hello"))
        conn.get_send_comp()
        print(answer.read(conn.get_recv_comp().byte_len, 0).decode())
        conn.disconnect()


if __name__ == "__main__":
    ends = {"server": run_server, "client": run_client}
    if len(sys.argv) != 4 or sys.argv[1] not in ends:
        sys.exit(__doc__)
    ends[sys.argv[1]](*sys.argv[2:])
