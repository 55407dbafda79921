"""Rows of programs that connect by rdma_cm and end with an error after their peer was killed.

VERBS.md lists the programs that do not end after the death of their peer, with the reason.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from .libs import DAPLTEST, DTEST, FIO, QPERF
from .row import CABLE, HERE, IO_DEMO, PERFTEST, RDMA_CM, RPING, RSOCKET, Row

DAPL = "sh {abi}/libs/dapl.sh ofa {dev}"
#: Runs a server until it has printed a text about the killed client, then interrupts the server,
#: which would otherwise wait for further clients.
UNTIL = "/usr/bin/python3 {abi}/ucx/until.py"
IWARP = {"SIWARP_PERSONA": "iwarp"}
UCX = {"UCX_SOCKADDR_TLS_PRIORITY": "rdmacm", "UCX_TLS": "rc_v"}


@dataclass(frozen=True)
class Pair:
    """A server and a client that run for minutes, and the ends that rows may kill."""

    name: str
    server: str
    client: str
    port: int
    ends: tuple[str, ...] = ("server", "client")
    #: Expected output of a survivor that ends with exit status 0 although its peer was killed.
    quiet: str = ""


def perftest_rdma_cm_program_pair(program: str) -> Pair:
    """Return the server and client commands of a perftest program that connects by rdma_cm."""
    words = f"{program} -R -F -D 300"
    return Pair(f"{program} -R", words, f"{words} {{addr}}", PERFTEST)


def rdma_core_program_pairs() -> Iterator[Pair]:
    """Yield server and client commands of programs of librdmacm and perftest."""
    yield Pair("rping", "rping -s", "rping -c -a {addr}", RPING, quiet="DISCONNECT EVENT")
    # ucmatose does not check the status of completions.
    words = "ucmatose -C 4000 -S 4000000"
    yield Pair("ucmatose", words, f"{words} -s {{addr}}", RDMA_CM, quiet="test complete")
    words = f"rstream -p {RSOCKET} -S 4096 -C 100000000"
    yield Pair("rstream", words, f"{words} -s {{addr}}", RSOCKET, ("server",))
    # With persona iwarp a Write completes when TCP has accepted it, so only the event DISCONNECTED
    # reports the loss of the peer.
    yield Pair("rstream (iwarp)", words, f"{words} -s {{addr}}", RSOCKET, ("server",))
    yield from map(perftest_rdma_cm_program_pair, ("ib_send_lat", "ib_write_bw", "ib_read_bw"))


def non_rdma_core_program_pairs() -> Iterator[Pair]:
    """Yield server and client commands of programs of UCX, qperf, DAPL and fio."""
    server = f"io_demo -q -p {IO_DEMO}"
    client = f"{server} -i 1000000000 -c 1 -n 20 {{addr}}"
    yield Pair("UCX rdmacm", server, client, IO_DEMO, ("server",))
    server = f"{UNTIL} ' released' {server}"
    yield Pair("UCX rdmacm", server, client, IO_DEMO, ("client",), "released")
    server = f"{UNTIL} 'WR flush failure' qperf"
    yield Pair("qperf -cm1", server, "qperf {addr} -cm1 -t 300 rc_lat", QPERF, ("client",))
    both = f"-D siwarp -n {DAPLTEST}"
    server = f"dapltest -T S {both}"
    client = f"{DAPL} dapltest -T T -s {{addr}} {both} -i 100000000"
    client += " client SR 4096 server SR 4096"
    # The server of dapltest waits for further clients after a client has been killed.
    server = f"{DAPL} {server}"
    yield Pair("dapl dapltest", server, client, DAPLTEST, ("server",), "Test Error: ")
    both = f"--thread --ioengine=rdma --port={FIO} --bs=64k --size=64m --iodepth=8"
    both = f"fio {both} --time_based --runtime=300"
    server = f"{both} --name=target --rw=read"
    client = f"{both} --name=asks --hostname={{addr}} --verb=write --rw=write"
    yield Pair("fio rdma write", server, client, FIO, ("client",), "Run status group 0")


def killed_endpoint_test_rows() -> Iterator[Row]:
    """Yield rows in which one end of a pair is killed during data transfer."""
    for pair in (*rdma_core_program_pairs(), *non_rdma_core_program_pairs()):
        for end in pair.ends:
            yield Row(
                f"{pair.name}, {end} killed",
                "RC",
                pair.server,
                pair.client,
                port=pair.port,
                places=(HERE, CABLE),
                short=(HERE,),
                env=UCX if "UCX" in pair.name else IWARP if "iwarp" in pair.name else {},
                kill=end,
                quiet=pair.quiet,
                seconds=20,
            )


def killed_during_connect_test_cases() -> Iterator[Row]:
    """Yield rows of short programs, one of which gdb kills at a connection call."""
    for name, run, client, quiet, port in (
        ("rdma_server", "", "rdma_client -s {addr}", "end 0", RDMA_CM),
        ("rdma_xserver -c r", "", "rdma_xclient -c r -s {addr}", "end 0", RDMA_CM),
        ("cmtime -c 1000", "", "cmtime -c 1000 -s {addr}", "destroy", RDMA_CM),
        ("dapl dtest", f"{DAPL} ", "dtest -P siwarp -h {addr}", "Test Complete. FAILED", DTEST),
    ):
        server = "dtest -P siwarp" if run else name
        for end, function in (("server", "rdma_accept"), ("client", "rdma_connect")):
            # DAPL does not wait after rdma_connect, so a killed client might not have sent its
            # connection request. The server of cmtime runs until it is stopped.
            if end == "client" and (run or "cmtime" in name):
                continue
            call = 500 if "cmtime" in name else 1
            at = {end: f"sh {{abi}}/libs/killed_at.sh {function} {call} "}
            yield Row(
                f"{name}, {end} killed",
                "RC",
                run + at.get("server", "") + server,
                run + at.get("client", "") + client,
                port=port,
                places=(HERE, CABLE),
                short=(HERE,),
                kill=end,
                itself=True,
                quiet=quiet,
                seconds=20,
            )
