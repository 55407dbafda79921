"""Rows of the programs of libibverbs, and of pyverbs scripts."""

from __future__ import annotations

from collections.abc import Iterator

from .row import HERE, NOBODY, PINGPONG, PLACES, Row

#: The scripts of pyverbs/, each for one class or a group of classes, and their transport.
SCRIPTS = {
    "device": "-",
    "pd": "RC",
    "mr": "RC",
    "mw": "RC",
    "addr": "UD",
    "cq": "RC",
    "cq_ex": "RC",
    "channel": "RC",
    "rc": "RC",
    "ud": "UD",
    "qp": "RC, UC",
    "qp_ex": "RC, UD",
    "srq": "RC",
    "events": "RC",
    "refused": "-",
    "packets": "-",
    "dmabuf": "RC",
    "cmid": "RC, UD",
}


def single_program_test_rows() -> Iterator[Row]:
    """Yield rows of programs that need no peer."""
    yield Row("ibv_devices", "-", "ibv_devices", shows=r"siw_\w+\s+[0-9a-f]{16}", short=PLACES)
    yield Row("ibv_devinfo -v", "-", "ibv_devinfo -v", shows=r"GID\[\s*0\]:.*RoCE v2", short=PLACES)
    # ibv_asyncwatch runs until it is stopped; exit status 124 of timeout shows that the program was
    # still running.
    yield Row(
        "ibv_asyncwatch",
        "-",
        "sh -c 'timeout -s INT 1 ibv_asyncwatch -d {dev}; test $? = 124'",
        shows=r"async event FD",
        places=(HERE, NOBODY),
        short=(HERE,),
    )
    # Only root can add an address to an interface.
    yield Row(
        "ibv_asyncwatch, an address comes and goes",
        "-",
        "/usr/bin/python3 {abi}/ibverbs/asyncwatch.py {dev}",
        shows=r"both changes were seen",
        places=(HERE,),
        short=(HERE,),
    )


def pingpong_test_rows() -> Iterator[Row]:
    """Yield rows of the pingpong programs; option -c compares received data with sent data."""
    for kind in ("rc", "uc", "ud", "srq"):
        for words, places in (("-g 0", PLACES), ("-g 0 -e", (HERE,)), ("-g 1", (HERE,))):
            command = f"ibv_{kind}_pingpong -d {{dev}} {words} -c -n 300"
            yield Row(
                f"ibv_{kind}_pingpong {words}",
                "RC" if kind == "srq" else kind.upper(),
                command,
                f"{command} {{addr}}",
                shows=r"iters in",
                data="-c",
                port=PINGPONG,
                short=places,
            )
    command = "ibv_rc_pingpong -d {dev} -g 0 -c -N -n 300"
    yield Row(
        "ibv_rc_pingpong -N",
        "RC",
        command,
        f"{command} {{addr}}",
        shows="iters in",
        data="-c",
        port=PINGPONG,
        short=(HERE,),
    )


def pyverbs_test_rows() -> Iterator[Row]:
    """Yield a row for each pyverbs script; each script compares the data that it transfers.

    All scripts except the last have both ends in one process. The script cmid also uses librdmacm.
    """
    for script, transport in SCRIPTS.items():
        yield Row(
            f"pyverbs {script}",
            transport,
            f"/usr/bin/python3 {{abi}}/pyverbs/{script}.py {{dev}}",
            shows=rf"(?m)^{script}: correct$",
            data="script",
            places=(HERE, NOBODY),
            short=(HERE, NOBODY),
        )
    command = "/usr/bin/python3 {abi}/pyverbs/across.py {dev} {own}"
    yield Row(
        "pyverbs across",
        "RC, UD",
        command,
        f"{command} {{addr}}",
        shows=r"(?m)^across: correct$",
        data="script",
        port=PINGPONG,
        short=PLACES,
    )


def rdma_core_test_rows() -> Iterator[Row]:
    """Yield the row of rdma-core's tests of pyverbs, which Debian ships as documentation."""
    yield Row(
        "rdma-core's pyverbs tests",
        "all",
        "/usr/bin/python3 {abi}/pyverbs/rdma_core.py {dev}",
        shows=r"(?m)^rdma_core: correct$",
        data="script",
        places=(HERE, NOBODY),
        short=(HERE,),
        needs="/usr/share/doc/rdma-core/tests",
        seconds=120,
    )
