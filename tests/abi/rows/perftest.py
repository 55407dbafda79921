"""perftest over RC, UC and UD."""

from __future__ import annotations

from collections.abc import Iterator

from .row import HERE, PERFTEST, PLACES, Row


def perftest_test_rows() -> Iterator[Row]:
    """Yield rows of perftest programs that exchange addresses over a separate TCP connection."""

    def perftest_test_row(
        program: str, qp: str, words: str = "", short: tuple[str, ...] = (), **more: str
    ) -> Row:
        # UC and UD messages that do not fit into the receiver's socket buffer are lost, and
        # perftest waits for each lost message. The size is chosen so that all messages fit.
        lossy = program == "ib_send_bw" and qp in ("UC", "UD")
        size = 64 if lossy or program.endswith("_lat") else 65536
        sized = "" if words.startswith(("-a", "-s")) or "atomic" in program else f" -s {size}"
        shown = 8388608 if words == "-a" and qp != "UD" else 2 if words == "-a" else size
        shown = 65536 if words.startswith("-s") else shown
        shown = 8 if "atomic" in program else shown
        # With -a perftest measures 23 sizes up to 8 MiB, so each size has fewer iterations.
        times = 20 if words == "-a" else 200
        command = f"{program} -d {{dev}} -F -c {qp}{sized} -n {times} {words}".strip()
        times *= 4 if words == "-q 4" else 1
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

    # An adapter receives as fast as the wire sends. The receiver of siwarp is a thread that other
    # programs may delay while the sender fills the receiver's socket; UC and UD do not retransmit.
    lost = "a long or quick burst finds the receiver's socket full; perftest waits for each message"
    yield perftest_test_row("ib_send_bw", "UC", "-s 65536", known=lost)
    for op, qps in (("send", "RC UC UD"), ("write", "RC UC"), ("read", "RC"), ("atomic", "RC")):
        for what in ("lat", "bw"):
            program = f"ib_{op}_{what}"
            for qp in qps.split():
                unsafe = qp == "UC" or (program == "ib_send_bw" and qp == "UD")
                everywhere = qp == "RC" and op in ("send", "write")
                yield perftest_test_row(program, qp, short=PLACES if everywhere else (HERE,))
                if op != "write":  # perftest has no events for Writes
                    yield perftest_test_row(
                        program, qp, "-e", short=(HERE,) if op == "send" else ()
                    )
                if op != "atomic":
                    yield perftest_test_row(program, qp, "-x 1", short=())
                    yield perftest_test_row(
                        program, qp, "-a", **({"known": lost} if unsafe else {})
                    )
                if op in ("send", "write"):
                    yield perftest_test_row(
                        program, qp, "-I 64", short=(HERE,) if qp == "RC" else ()
                    )
                if what == "bw":
                    yield perftest_test_row(program, qp, "-b", short=())
                    yield perftest_test_row(
                        program, qp, "-q 4", short=(HERE,) if op != "atomic" else ()
                    )
                # perftest expects option -R for an iWARP RNIC. Without -R, the receiver stays in
                # RTR and posts RDMA Writes, which verbs refuse in RTR; UC is also affected, and UD
                # has no Writes.
                refused = "perftest's receiver posts Writes in RTR, where verbs refuse them"
                known = {"known": refused} if program == "ib_send_bw" else {}
                quick = (HERE,) if qp == "RC" and op != "atomic" else ()
                yield perftest_test_row(program, qp, persona="iwarp", short=quick, **known)
