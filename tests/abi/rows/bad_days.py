"""Rows in which an end is killed, the CPUs are busy, or TCP streams are delayed and split."""

from __future__ import annotations

from collections.abc import Iterator

from .row import CABLE, HERE, PERFTEST, PINGPONG, UCX, Row


def fault_test_rows() -> Iterator[Row]:
    """Yield rows in which an end is killed, all CPUs are busy, or TCP streams are delayed."""
    endless = {
        # With -b both ends of ib_send_bw and ib_write_bw send. As with adapters, an end that waits
        # for data does not detect the death of its peer. Therefore ibv_rc_pingpong and ib_write_lat
        # are not included, in which an end may be killed while the other one has nothing to send.
        "ib_send_bw -b": ("ib_send_bw -d {dev} -F -b -D 3000", PERFTEST, "RC"),
        "ib_write_bw -b": ("ib_write_bw -d {dev} -F -b -D 3000", PERFTEST, "RC"),
        "ib_read_bw": ("ib_read_bw -d {dev} -F -D 3000", PERFTEST, "RC"),
        "ucx_perftest rc_v": ("ucx_perftest -t tag_lat -n 1000000000", UCX, "RC"),
        "ucx_perftest ud_v": ("ucx_perftest -t tag_lat -n 1000000000", UCX, "UD"),
    }
    for name, (command, port, transport) in endless.items():
        # Over UD only UCX detects a dead peer, by default after five minutes.
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
                short=(HERE,) if name == "ib_send_bw -b" else (),
                env=env if "ucx" in name else {},
                kill=end,
                # A dead peer is reported after 3 s (VERBS.md), unless a program sets a longer
                # time-out.
                seconds=30 if "ucx" in name else 6,
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
