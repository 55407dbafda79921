"""Rows of the programs of librdmacm, and of perftest programs that use rdma_cm."""

from __future__ import annotations

from collections.abc import Iterator

from .row import HERE, PERFTEST, PLACES, RCOPY, RDMA_CM, RPING, RSOCKET, Row


def rdma_cm_test_rows() -> Iterator[Row]:
    """Yield rows of the RC programs of librdmacm, such as rping."""
    for options, short in (("", PLACES), (" -S 65000", ()), (" -P", ())):
        yield Row(
            f"rping{options}",
            "RC",
            # A persistent rping server (-P) runs until it is killed.
            f"rping -s -a 0.0.0.0 -C 100 -V{options}"
            if "-P" not in options
            else "sh -c 'timeout -s KILL 5 rping -s -P -V; test $? = 137'",
            f"rping -c -a {{addr}} -C 100 -V -v{options.replace(' -P', '')}",
            shows="rdma-ping-99",
            data="-V",
            port=RPING,
            short=short,
        )
    yield Row(
        "ucmatose",
        "RC",
        "ucmatose -c 10 -C 50",
        "ucmatose -c 10 -C 50 -s {addr}",
        shows="return status 0",
        port=RDMA_CM,
        short=PLACES,
    )
    for name in ("rdma_server", "rdma_xserver -c r"):
        client = name.replace("server", "client")
        yield Row(
            name,
            "RC",
            name,
            f"{client} -s {{addr}}",
            shows=r"client: end 0",
            port=RDMA_CM,
            short=(HERE,),
        )
    yield Row(
        "cmtime",
        "RC",
        # The server of cmtime runs until it is stopped or all its peers have exited.
        "sh -c 'timeout 6 cmtime -c 1000; s=$?; test $s = 124 -o $s = 0'",
        "cmtime -c 1000 -s {addr}",
        shows=r"(?m)^connect +:",
        port=RDMA_CM,
        short=(HERE,),
    )


def perftest_rdma_cm_test_row(program: str, env: dict[str, str], short: bool) -> Row:
    """Return a row of a perftest program that connects through rdma_cm (option -R)."""
    command = f"{program} -R -F -n 500"
    return Row(
        f"{program} -R" + (" (iwarp)" if env else ""),
        "RC",
        command,
        f"{command} {{addr}}",
        shows=r"(?m)^ *[0-9]+ +500 ",
        port=PERFTEST,
        short=(HERE,) if short else (),
        env=env,
    )


def perftest_rdma_cm_test_rows() -> Iterator[Row]:
    """Yield rows of perftest programs that connect through rdma_cm, as iWARP RNICs require."""
    for operation in ("send", "write", "read", "atomic"):
        for measure in ("lat", "bw"):
            yield perftest_rdma_cm_test_row(f"ib_{operation}_{measure}", {}, True)
    for program in ("ib_send_lat", "ib_send_bw"):
        yield perftest_rdma_cm_test_row(
            program, {"SIWARP_PERSONA": "iwarp"}, program == "ib_send_lat"
        )


def rsocket_test_rows() -> Iterator[Row]:
    """Yield rows for programs of rsockets, which siwarp forwards to the system's librdmacm."""
    options = "-S 1024 -C 100 -T e"
    yield Row(
        "udpong",
        "UD",
        # The server of udpong runs until it is stopped; without an address it uses the IPv6
        # loopback address.
        f"sh -c 'timeout 8 udpong -b {{addr}} {options}; test $? = 124'",
        f"sh -c 'sleep 1; exec udpong -s {{addr}} {options}'",
        shows=r"(?m)^custom +1k",
        data="-T e",
        short=(HERE,),
    )
    for name in ("rstream", "riostream"):
        yield Row(
            name,
            "RC",
            f"{name} -p {RSOCKET} -S 4096 -C 1000 -T v",
            f"{name} -p {RSOCKET} -S 4096 -C 1000 -T v -s {{addr}}",
            shows=r"(?m)^custom +4k",
            data="-T v",
            port=RSOCKET,
            short=(HERE,),
        )
    yield Row(
        "rcopy",
        "RC",
        # The server of rcopy runs until it is interrupted; its exit status is then 2.
        "sh -c '/usr/bin/python3 {abi}/ucx/until.py closing...done rcopy; test $? = 2'",
        "sh {abi}/libs/rcopy.sh {addr}",
        shows=r"(?m)^rcopy: same",
        data="cmp",
        port=RCOPY,
        short=(HERE,),
    )


#: A fault plan for both ends that also loses datagrams of siwarp's resolution protocol (SIDR).
LOSSY = "--faults loss=1%"


def rdma_cm_ud_test_rows() -> Iterator[Row]:
    """Yield rows of programs with datagram ids and multicast groups of rdma_cm."""
    for lossy in (False, True):
        # UD messages may be lost, but the requests and replies that resolve the queue pair are
        # retransmitted.
        count = 0 if lossy else 10
        yield Row(
            "udaddy, 1% lost" if lossy else "udaddy",
            "UD",
            f"udaddy -c 50 -C {count}",
            f"udaddy -c 50 -C {count} -s {{addr}}",
            shows="return status 0",
            short=(HERE,) if lossy else PLACES,
            options=LOSSY if lossy else "",
        )
    for options, short in (
        ("-m 239.7.7.1 -b {own}", PLACES),
        ("-m 239.7.7.2 -b {own} -o", (HERE,)),
        ("-M ff0e::7:7:1 -b {own6}", (HERE,)),
    ):
        yield Row(
            f"mckey {options.split()[0]}{' -o' if '-o' in options else ''}",
            "UD",
            f"mckey {options.replace(' -o', '')}",
            # A message to a multicast group without members is lost, so the sender waits a second.
            f"sh -c 'sleep 1; mckey {options} -s'",
            shows="return status 0",
            short=short,
        )
    for program in ("ib_send_lat", "ib_send_bw"):
        yield Row(
            f"{program} -R -c UD",
            "UD",
            f"{program} -R -c UD -F -n 500",
            f"{program} -R -c UD -F -n 500 {{addr}}",
            shows=r"#bytes\s+#iterations",
            port=PERFTEST,
            short=(HERE,) if program == "ib_send_lat" else (),
        )
