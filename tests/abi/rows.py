"""What ``make abi`` runs: a program, on which transport, and what shows that it worked."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

#: Both ends here as root; the same as nobody; an end in each of two network namespaces.
HERE, NOBODY, CABLE = "here", "nobody", "cable"
PLACES = (HERE, NOBODY, CABLE)


@dataclass(frozen=True)
class Row:
    """A program, or two: a server and a client that is given the server's address.

    In the words stand ``{dev}``, ``{addr}`` (the server's), ``{work}`` (the folder of what the
    runner compiles and copies), ``{abi}`` (tests/abi, copied to a place that all may read),
    ``{python}`` (of the environment that has the row's ``wheel``), and ``{over}``, which runs what
    follows in the second namespace, where the device is ``{over_dev}``.
    """

    name: str
    transport: str
    server: str
    client: str = ""
    #: A regular expression in the output of the client, or of the only program.
    shows: str = ""
    #: Who looks at the data that came: "-c", "script"; "-" where the program has no such check.
    data: str = "-"
    #: The TCP port on which the server waits for its client.
    port: int = 0
    #: Where it is run at all, and where in the short form.
    places: tuple[str, ...] = PLACES
    short: tuple[str, ...] = ()
    env: dict[str, str] = field(default_factory=dict)
    #: A folder that not every installation has: without it the row is skipped.
    needs: str = ""
    #: What pip installs into an environment of the row's own; without it the row is skipped.
    wheel: str = ""
    #: Options of siwarp run.
    options: str = ""
    #: Which end is killed, by SIGKILL, when it has run for a second: "server", "client", or "rank"
    #: for a process of an MPI. The other end must end by itself then, and not with status 0.
    kill: str = ""
    #: Whether every CPU has something else to do meanwhile.
    busy: bool = False
    #: Why it may fail, with no fault of siwarp's: left out of the short form; the long one runs it,
    #: says how it went, and does not fail for it.
    known: str = ""
    seconds: float = 60


LAUNCHERS = {
    "mpich": "mpirun.mpich -n {n} {{work}}/mpi-mpich",
    "openmpi": "mpirun.openmpi --allow-run-as-root --oversubscribe --mca pml ucx "
    "--mca btl ^openib -n {n} {{work}}/mpi-openmpi",
}
#: The scripts of pyverbs/, each for a class or a group of them, and what they move data by.
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
}
PINGPONG, PERFTEST, UCX, PYPI = 18515, 18515, 13337, 18616
RPING, RDMA_CM, RSOCKET = 7174, 7471, 7571


def alone() -> Iterator[Row]:
    """Programs that talk to nobody."""
    yield Row("ibv_devices", "-", "ibv_devices", shows=r"siw_\w+\s+[0-9a-f]{16}", short=PLACES)
    yield Row("ibv_devinfo -v", "-", "ibv_devinfo -v", shows=r"GID\[\s*0\]:.*RoCE v2", short=PLACES)
    # It watches until it is stopped: timeout's status says that it still did.
    yield Row(
        "ibv_asyncwatch",
        "-",
        "sh -c 'timeout -s INT 1 ibv_asyncwatch -d {dev}; test $? = 124'",
        shows=r"async event FD",
        places=(HERE, NOBODY),
        short=(HERE,),
    )


def pingpongs() -> Iterator[Row]:
    """The examples of libibverbs; -c compares what came with what was sent."""
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


def perftest() -> Iterator[Row]:
    """perftest, which connects its queue pairs over a TCP connection of its own."""

    def row(
        program: str, qp: str, words: str = "", short: tuple[str, ...] = (), **more: str
    ) -> Row:
        # What is not acknowledged is lost where it does not fit into a socket's buffer, and
        # perftest waits for each message: as many as it sends are to fit.
        lossy = program == "ib_send_bw" and qp in ("UC", "UD")
        size = 64 if lossy or program.endswith("_lat") else 65536
        sized = "" if words.startswith(("-a", "-s")) or "atomic" in program else f" -s {size}"
        shown = 8388608 if words == "-a" and qp != "UD" else 2 if words == "-a" else size
        shown = 65536 if words.startswith("-s") else shown
        shown = 8 if "atomic" in program else shown
        # 23 sizes up to 8 MiB: fewer of each.
        times = 20 if words == "-a" else 200
        command = f"{program} -d {{dev}} -F -c {qp}{sized} -n {times} {words}".strip()
        times *= {"-q 4": 4, "-q 2": 2}.get(words, 1)
        env = {"SIWARP_PERSONA": more["persona"]} if "persona" in more else {}
        name = f"{program} -c {qp} {words}".strip() + (" (iwarp)" if env else "")
        return Row(
            name,
            qp,
            command,
            f"{command} {{addr}}",
            shows=rf"(?m)^\s*{shown}\s+{times}\s",
            port=PERFTEST,
            short=short,
            env=env,
            known=more.get("known", ""),
            seconds=180 if words == "-a" else 60,
        )

    # An adapter receives as fast as the wire sends. Here the receiver is a thread that another
    # program may hold up, while the sender fills its socket; UC and UD repeat nothing.
    lost = "a long or quick burst finds the receiver's socket full; perftest waits for each message"
    yield row("ib_send_bw", "UC", "-s 65536", known=lost)
    for op, qps in (("send", "RC UC UD"), ("write", "RC UC"), ("read", "RC"), ("atomic", "RC")):
        for what in ("lat", "bw"):
            program = f"ib_{op}_{what}"
            for qp in qps.split():
                unsafe = qp == "UC" or (program == "ib_send_bw" and qp == "UD")
                everywhere = qp == "RC" and op in ("send", "write")
                yield row(program, qp, short=PLACES if everywhere else (HERE,))
                if op != "atomic":
                    if op != "write":  # perftest has no events for Writes
                        yield row(program, qp, "-e", short=(HERE,) if op == "send" else ())
                    yield row(program, qp, "-x 1", short=())
                    yield row(program, qp, "-a", **({"known": lost} if unsafe else {}))
                if op in ("send", "write"):
                    yield row(program, qp, "-I 64", short=(HERE,) if qp == "RC" else ())
                if what == "bw":
                    yield row(program, qp, "-b" if op != "atomic" else "-q 2", short=())
                    yield row(program, qp, "-q 4", short=(HERE,) if op != "atomic" else ())
                if qp == "RC" and op in ("send", "write", "read"):
                    # Of an RNIC perftest expects -R: without it, its receiver stays in RTR and
                    # posts RDMA Writes there, which verbs refuse.
                    refused = "perftest's receiver posts Writes in RTR, where verbs refuse them"
                    known = {"known": refused} if program == "ib_send_bw" else {}
                    yield row(program, qp, persona="iwarp", short=(HERE,), **known)


def ucx() -> Iterator[Row]:
    """UCX over the two transports that take any adapter."""
    for transport in ("ud_v", "rc_v"):
        for test, size in (("tag_lat", 64), ("tag_bw", 65536), ("tag_bw", 1 << 20)):
            command = f"ucx_perftest -t {test} -s {size} -n 500 -w 50"
            yield Row(
                f"ucx_perftest {test} {size} {transport}",
                transport[:2].upper(),
                command,
                f"{command} {{addr}}",
                shows=r"Final:\s+500",
                port=UCX,
                short=PLACES if size == 64 else (HERE,) if size == 65536 else (),
                env={"UCX_TLS": transport, "UCX_NET_DEVICES": "{dev}:1"},
            )


def mpi_across() -> Iterator[Row]:
    """MPICH with a rank in each of two namespaces; Open MPI's want a remote shell for that."""
    rank = "-n 1 -env UCX_NET_DEVICES {{{dev}}}:1 {over} {{work}}/mpi-mpich {what}"
    for transport in ("ud_v", "rc_v,ud_v"):
        for what in ("hello", "ring 200000", "alltoall 20000"):
            ranks = [
                rank.format(dev="dev", over="", what=what),
                rank.format(dev="over_dev", over="{over}", what=what),
            ]
            yield Row(
                f"mpich across {what.split()[0]} {transport}",
                "RC, UD" if "rc" in transport else "UD",
                f"mpirun.mpich {' : '.join(ranks)}",
                shows=rf"{what.split()[0]} of 2 ranks: data correct",
                data="program",
                places=(CABLE,),
                short=(CABLE,) if what == "ring 200000" else (),
                env={"UCX_TLS": transport},
                seconds=120,
            )


def mpi() -> Iterator[Row]:
    """Two MPIs over UCX, all ranks in one namespace."""
    for name, launcher in LAUNCHERS.items():
        for transport in ("ud_v", "rc_v,ud_v"):
            for ranks in (2, 4, 8):
                for what in ("hello", "ring 200000", "alltoall 20000"):
                    short = ranks == 2 or (ranks == 4 and what == "hello" and transport == "ud_v")
                    places = (HERE, NOBODY) if what == "ring 200000" else (HERE,)
                    yield Row(
                        f"{name} -n {ranks} {what.split()[0]} {transport}",
                        "RC, UD" if "rc" in transport else "UD",
                        f"{launcher.format(n=ranks)} {what}",
                        shows=rf"{what.split()[0]} of {ranks} ranks: data correct",
                        data="program",
                        places=(HERE, NOBODY),
                        short=places if short else (),
                        env={"UCX_TLS": transport, "UCX_NET_DEVICES": "{dev}:1"},
                        seconds=120,
                    )


def pyverbs() -> Iterator[Row]:
    """Scripts of our own for each class of pyverbs; each compares what it moves.

    The manager of connections (cmid) is librdmacm's.
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


def rdma_core() -> Iterator[Row]:
    """rdma-core's own tests of pyverbs: documentation, to Debian, which small images leave out."""
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


def wheels() -> Iterator[Row]:
    """Packages of PyPI that use verbs: one opens libibverbs.so.1 itself, one is linked to it.

    peercache is linked to librdmacm.so.1 as well, though it calls nothing of it: the system's does.
    """
    for name, version in (("ibverbs", "2026.10.22"), ("peercache", "0.8.4")):
        for env in ({}, {"SIWARP_PERSONA": "iwarp"}):
            script = f"{{python}} {{abi}}/pypi/{name}_exchange.py {{dev}}"
            yield Row(
                f"PyPI {name}" + (" (iwarp)" if env else ""),
                "RC, UD" if name == "ibverbs" else "RC",
                script,
                f"{script} {{addr}}",
                shows=rf"(?m)^{name}: correct$",
                data="script",
                port=PYPI,
                short=() if env else PLACES,
                env=env,
                wheel=f"{name}=={version}",
            )


def watched() -> Iterator[Row]:
    """Under memcheck at both ends (an error is exit status 99), under gdb, and beside jemalloc."""
    memcheck = "valgrind -q --error-exitcode=99 --fair-sched=yes"
    for kind in ("rc", "uc", "ud", "srq"):
        for words in ("", " -e"):
            command = f"{memcheck} ibv_{kind}_pingpong -d {{dev}} -g 0 -c -n 20{words}"
            yield Row(
                f"valgrind ibv_{kind}_pingpong{words}",
                "RC" if kind == "srq" else kind.upper(),
                command,
                f"{command} {{addr}}",
                shows="20 iters in",
                data="-c",
                port=PINGPONG,
                places=(HERE,),
                short=(HERE,) if kind == "rc" else (),
                seconds=120,
            )
    yield Row(
        "valgrind ibv_devinfo -v",
        "-",
        f"{memcheck} ibv_devinfo -v",
        shows=r"GID\[\s*0\]:.*RoCE v2",
        places=(HERE, NOBODY),
        seconds=120,
    )
    yield Row(
        "gdb ibv_devices",
        "-",
        "gdb -q -batch -ex run -ex quit --args ibv_devices",
        shows=r"(?s)siw_\w+\s+[0-9a-f]{16}.*exited normally",
        places=(HERE,),
        short=(HERE,),
    )
    programs = {
        "ibv_rc_pingpong": ("ibv_rc_pingpong -d {dev} -g 0 -c -n 300", "300 iters in", "-c"),
        "ib_write_lat": ("ib_write_lat -d {dev} -F -n 200 -s 64", r"\s64\s+200\s", "-"),
        "ib_send_bw -c UD": ("ib_send_bw -d {dev} -F -c UD -n 200 -s 64", r"\s64\s+200\s", "-"),
    }
    for name, (command, shows, data) in programs.items():
        under = f"gdb -q -batch -ex run --args {command}"
        both = {"port": PINGPONG, "transport": "UD" if "UD" in name else "RC", "data": data}
        yield Row(
            f"gdb {name}",
            server=under,
            client=f"{under} {{addr}}",
            shows=rf"(?s)(?=.*{shows})(?=.*exited normally)",
            places=(HERE,),
            short=(HERE,) if name == "ibv_rc_pingpong" else (),
            **both,
        )
        yield Row(
            f"jemalloc {name}",
            server=command,
            client=f"{command} {{addr}}",
            # What its malloc did, each process says as it ends.
            shows=rf"(?s)(?=.*{shows})(?=.*Begin jemalloc statistics)",
            short=(HERE,) if name == "ibv_rc_pingpong" else (),
            env={"LD_PRELOAD": "libjemalloc.so.2", "MALLOC_CONF": "stats_print:true"},
            **both,
        )


def rdma_cm() -> Iterator[Row]:
    """The programs of rdma_cm, and perftest that connects by it."""
    for options, short in (("", PLACES), (" -S 65000", ()), (" -P", ())):
        yield Row(
            f"rping{options}",
            "RC",
            # A persistent server (-P) serves until it is stopped.
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
        # It serves until it is stopped, unless all its peers have gone before.
        "sh -c 'timeout 6 cmtime -c 1000; s=$?; test $s = 124 -o $s = 0'",
        "cmtime -c 1000 -s {addr}",
        shows=r"(?m)^connect +:",
        port=RDMA_CM,
    )
    for program in ("ib_send_lat", "ib_write_bw", "ib_read_bw", "ib_send_bw"):
        yield Row(
            f"{program} -R",
            "RC",
            f"{program} -R -F -n 500",
            f"{program} -R -F -n 500 {{addr}}",
            shows=r"#bytes\s+#iterations",
            port=PERFTEST,
            short=(HERE,) if program == "ib_send_lat" else (),
        )
    yield Row(
        "ib_send_lat -R",
        "RC iwarp",
        "ib_send_lat -R -F -n 500",
        "ib_send_lat -R -F -n 500 {addr}",
        shows=r"#bytes\s+#iterations",
        port=PERFTEST,
        env={"SIWARP_PERSONA": "iwarp"},
    )


def bad_days() -> Iterator[Row]:
    """An end that is killed, a machine that has no time, a network that loses and corrupts."""
    endless = {
        "ibv_rc_pingpong": ("ibv_rc_pingpong -d {dev} -g 0 -n 1000000000", PINGPONG, "RC"),
        # With -b both send: who only receives is told nothing, as by adapters.
        "ib_send_bw -b": ("ib_send_bw -d {dev} -F -b -D 3000", PERFTEST, "RC"),
        "ib_write_lat": ("ib_write_lat -d {dev} -F -D 3000", PERFTEST, "RC"),
        "ib_read_bw": ("ib_read_bw -d {dev} -F -D 3000", PERFTEST, "RC"),
        "ucx_perftest rc_v": ("ucx_perftest -t tag_lat -n 1000000000", UCX, "RC"),
        "ucx_perftest ud_v": ("ucx_perftest -t tag_lat -n 1000000000", UCX, "UD"),
    }
    for name, (command, port, transport) in endless.items():
        # Over UD it is UCX that gives a peer up: after five minutes, if nobody says otherwise.
        env = {
            "UCX_TLS": f"{transport.lower()}_v",
            "UCX_NET_DEVICES": "{dev}:1",
            "UCX_UD_TIMEOUT": "5s",
        }
        for end in ("server", "client"):
            yield Row(
                f"{name}, {end} killed",
                transport,
                command,
                f"{command} {{addr}}",
                port=port,
                places=(HERE, CABLE),
                short=(HERE,) if name in ("ibv_rc_pingpong", "ib_send_bw -b") else (),
                env=env if "ucx" in name else {},
                kill=end,
                # VERBS.md: after 3 s, since no program of these has a longer time-out.
                seconds=30 if "ucx" in name else 6,
            )
    for name, launcher in LAUNCHERS.items():
        yield Row(
            f"{name} -n 2, a rank killed",
            "UD",
            f"{launcher.format(n=2)} ring 1000 1000000000",
            places=(HERE,),
            short=(HERE,),
            env={"UCX_TLS": "ud_v", "UCX_NET_DEVICES": "{dev}:1"},
            kill="rank",
            seconds=30,
        )
    for kind in ("rc", "uc", "ud"):
        command = f"ibv_{kind}_pingpong -d {{dev}} -g 0 -c -n 300"
        yield Row(
            f"ibv_{kind}_pingpong, both CPUs busy",
            kind.upper(),
            command,
            f"{command} {{addr}}",
            shows="300 iters in",
            data="-c",
            port=PINGPONG,
            places=(HERE, CABLE),
            short=(HERE,) if kind == "rc" else (),
            busy=True,
        )
    command = "ibv_rc_pingpong -d {dev} -g 0 -c -n 300"
    yield Row(
        "ibv_rc_pingpong, streams in pieces",
        "RC",
        command,
        f"{command} {{addr}}",
        shows="300 iters in",
        data="-c",
        port=PINGPONG,
        short=(HERE,),
        options="--faults short=30%,delay=0.2ms,jitter=1ms",
    )
    # UCX repeats what UD lost, so a program on it notices nothing.
    for faults in ("loss=1%", "dup=1%,reorder=1%", "corrupt=1%"):
        for name, launcher in LAUNCHERS.items():
            yield Row(
                f"{name} -n 2 ring ud_v {faults}",
                "UD",
                f"{launcher.format(n=2)} ring 200000",
                shows="ring of 2 ranks: data correct",
                data="program",
                places=(HERE, NOBODY),
                short=(HERE,) if faults == "loss=1%" else (),
                env={"UCX_TLS": "ud_v", "UCX_NET_DEVICES": "{dev}:1"},
                options=f"--faults {faults}",
                seconds=120,
            )


def rsockets() -> Iterator[Row]:
    """Programs of rsockets, which are the system's librdmacm's, on ids of ours."""
    for name in ("rstream", "riostream"):
        yield Row(
            name,
            "RC",
            f"{name} -p {RSOCKET} -S 4096 -C 1000 -T v",
            f"{name} -p {RSOCKET} -S 4096 -C 1000 -T v -s {{addr}}",
            shows=r"(?m)^custom +4k",
            data="-T v",
            port=RSOCKET,
            short=(HERE,) if name == "rstream" else (),
        )


def rows() -> list[Row]:
    """Return the whole table."""
    checks = (alone, pingpongs, perftest, ucx, mpi, mpi_across, pyverbs, rdma_core, wheels, watched)
    groups = (*checks, rdma_cm, rsockets, bad_days)
    return [row for group in groups for row in group()]
