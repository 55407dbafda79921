"""Rows of test programs for Gloo and librpma, and of DAPL, qperf, fio and Mooncake."""

from __future__ import annotations

from collections.abc import Iterator

from .row import CABLE, HERE, PLACES, PYPI, Row

RPMA, DTEST, DTESTSRQ, DAPLTEST, QPERF, FIO = 7204, 15828, 45248, 17223, 19765, 7300
MOONCAKE_WHEEL = "mooncake-transfer-engine-non-cuda==0.3.13.post1"


def gloo_test_rows() -> Iterator[Row]:
    """Yield rows of Gloo's all-reduce with all ranks on one host or in two namespaces."""
    ranks = "sh {abi}/libs/gloo_ranks.sh {work}/libs-gloo"
    for count, short in ((2, PLACES), (4, (HERE,))):
        yield Row(
            f"libgloo all-reduce -n {count}",
            "RC",
            f"{ranks} {{dev}} {count} 3 {{over_dev}}",
            shows=rf"rank {count - 1} of {count}: sums correct",
            data="program",
            places=(HERE, "nobody"),
            short=tuple(place for place in short if place != CABLE),
        )
    for count in (2, 4):
        yield Row(
            f"libgloo all-reduce -n {count} across",
            "RC",
            f"{ranks} {{dev}} {count} 3 {{over_dev}} {{over}}",
            shows=rf"rank {count - 1} of {count}: sums correct",
            data="program",
            places=(CABLE,),
            short=(CABLE,),
        )
    yield Row(
        "libgloo all-reduce -n 4, a rank killed",
        "RC",
        f"{ranks} {{dev}} 4 100000000 {{over_dev}}",
        places=(HERE,),
        short=(HERE,),
        kill="rank",
        # A rank that only waits for the killed rank fails after Gloo's time-out of 10 s.
        seconds=30,
    )


def rpma_test_definitions() -> Iterator[Row]:
    """Yield rows of librpma with Writes, flushes, Reads, atomic Writes and messages."""
    both = "{work}/libs-rpma", f"{{addr}} {RPMA}"
    for env in ({}, {"SIWARP_PERSONA": "iwarp"}):
        yield Row(
            "librpma write, flush, read" + (" (iwarp)" if env else ""),
            "RC",
            f"{both[0]} server {both[1]} 50",
            f"{both[0]} client {both[1]} 50",
            shows=r"(?m)^rpma: correct$",
            data="program",
            port=RPMA,
            short=(HERE,) if env else PLACES,
            env=env,
        )
    for end in ("server", "client"):
        yield Row(
            f"librpma, {end} killed",
            "RC",
            f"{both[0]} server {both[1]} 100000000",
            f"{both[0]} client {both[1]} 100000000",
            port=RPMA,
            places=(HERE, CABLE),
            short=(HERE,) if end == "server" else (),
            kill=end,
            seconds=10,
        )


def dapl_test_rows() -> Iterator[Row]:
    """Yield rows of DAPL's dtest with queue pairs connected by rdma_cm, or by GID and QPN."""
    for name, short in (("ofa", PLACES), ("scm", ())):
        words = f"sh {{abi}}/libs/dapl.sh {name} {{dev}} dtest -P siwarp -B 20 -b 65536"
        yield Row(
            f"dapl dtest ({name})",
            "RC",
            words,
            f"{words} -h {{addr}}",
            shows=r"Test Complete. PASSED",
            data="program",
            port=DTEST,
            short=short,
        )


def dapl_srq_and_thread_test_rows() -> Iterator[Row]:
    """Yield rows of DAPL's tests with shared receive queues and with threads."""
    run = "sh {abi}/libs/dapl.sh ofa {dev}"
    # The test has only one connection, because DAPL tracks the receives of an SRQ in a ring and
    # assumes that receives complete in order. With several connections, the first connection to
    # begin a message may be the last to complete it; DAPL would then report that receive with the
    # cookie of a receive that was posted one full ring later.
    words = f"{run} dtestsrq -P siwarp -c 1 -B 20 -b 4096"
    yield Row(
        "dapl dtestsrq",
        "RC",
        f"{words} -s",
        f"{words} -h {{addr}}",
        shows=r"RC SRQ Test Complete\.",
        port=DTESTSRQ,
        short=(HERE,),
    )
    both = f"-D siwarp -n {DAPLTEST}"
    operations = "client SR 4096 2 server SR 4096 2 client RW 65536 server RR 65536"
    test = f"dapltest -T T -s {{addr}} {both} -V -t 2 -w 2 -i 100 {operations}"
    yield Row(
        "dapl dapltest",
        "RC",
        f"{run} dapltest -T S {both}",
        # The server of dapltest runs until the client sends the quit command (-T Q).
        f"{run} sh -c '{test} && dapltest -T Q -s {{addr}} {both}'",
        shows=r"(?m)^Total RDMA Write +: +[1-9]",
        data="-V",
        port=DAPLTEST,
        short=(HERE,),
    )


def qperf_test_rows() -> Iterator[Row]:
    """Yield rows of qperf, whose client selects the measurements and ends the server."""
    tests = "rc_lat rc_bw rc_bi_bw rc_rdma_write_lat rc_rdma_write_bw rc_rdma_read_lat"
    atomics = "rc_rdma_read_bw rc_compare_swap_mr rc_fetch_add_mr ver_rc_compare_swap"
    for what in ("rc_lat rc_bw", f"{tests} {atomics} ver_rc_fetch_add"):
        short = what == "rc_lat rc_bw"
        yield Row(
            f"qperf -cm1 {what if short else 'all of RC'}",
            "RC",
            "qperf",
            f"qperf {{addr}} -cm1 -t 1 {what} quit",
            shows=r"(?s)latency.*bw",
            data="ver_ tests" if not short else "-",
            port=QPERF,
            short=(HERE,) if short else (),
        )


def fio_test_cases() -> Iterator[Row]:
    """Yield rows of fio's engine rdma; --rw=write selects the initiator, --rw=read the target."""
    # fio uses threads here, because a hanging program is killed with its session, but each process
    # of fio has a separate session.
    common = f"--thread --ioengine=rdma --port={FIO} --bs=64k --size=64m --iodepth=8"
    for verb in ("write", "read", "send"):
        yield Row(
            f"fio rdma {verb}",
            "RC",
            f"fio --name=target {common} --rw=read",
            f"fio --name=asks {common} --hostname={{addr}} --verb={verb} --rw=write",
            shows=r"WRITE: bw=",
            port=FIO,
            places=(HERE,) if verb == "send" else PLACES,
            short=(HERE,),
            known="its target has Sends that find no receive fail at once (rnr_retry_count 0), and "
            "nothing holds its client back; then both wait for ever"
            if verb == "send"
            else "",
            seconds=10 if verb == "send" else 60,
        )


def mooncake_test_rows() -> Iterator[Row]:
    """Yield rows of Mooncake's transfer engine: its Python module and its benchmark."""
    script = "{python} {abi}/pypi/mooncake_exchange.py {dev}"
    # Each worker of a transfer engine polls continuously, so each engine has only one worker.
    env = {"MC_WORKERS_PER_CTX": "1"}
    wheel = {"wheel": MOONCAKE_WHEEL, "env": env}
    yield Row(
        "PyPI mooncake transfer_engine",
        "RC",
        script,
        f"{script} {{addr}}",
        shows=r"(?m)^mooncake: correct$",
        data="script",
        port=PYPI,
        short=PLACES,
        **wheel,
    )
    yield Row(
        "PyPI mooncake import without rdma-core",
        "-",
        "sh {abi}/libs/without_rdma_core.sh {python} -c 'import mooncake.engine, mooncake.store'",
        shows="imported",
        places=(HERE,),
        short=(HERE,),
        **wheel,
    )
    ask = "sh {abi}/libs/mooncake_bench.sh {python} {dev} {own}"
    for kill in ("", "server"):
        for operation in ("read", "write"):
            yield Row(
                f"PyPI mooncake bench {operation}" + (", target killed" if kill else ""),
                "RC",
                ask,
                f"{ask} {operation} {30 if kill else 2}",
                shows=r"Test completed: .* throughput",
                places=(HERE, CABLE) if kill else PLACES,
                short=(HERE,) if operation == "write" else (),
                kill=kill,
                seconds=20 if kill else 60,
                **wheel,
            )
