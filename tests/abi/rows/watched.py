"""Rows of programs under valgrind's memcheck and under gdb, and with jemalloc."""

from __future__ import annotations

from collections.abc import Iterator

from .row import HERE, NOBODY, PINGPONG, Row


def debugging_tool_test_rows() -> Iterator[Row]:
    """Yield rows with both ends under memcheck (errors: exit status 99), gdb, or with jemalloc."""
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
        places=(HERE, NOBODY),
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
            short=(HERE,) if name == "ibv_rc_pingpong" else (),
            **both,
        )
        yield Row(
            f"jemalloc {name}",
            server=command,
            client=f"{command} {{addr}}",
            # Each process prints the statistics of jemalloc when it exits.
            shows=rf"(?s)(?=.*{shows})(?=.*Begin jemalloc statistics)",
            short=(HERE,) if name == "ibv_rc_pingpong" else (),
            env={"LD_PRELOAD": "libjemalloc.so.2", "MALLOC_CONF": "stats_print:true"},
            **both,
        )
