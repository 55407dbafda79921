"""Rows of UCX's benchmark ucx_perftest and of its demo io_demo."""

from __future__ import annotations

from collections.abc import Iterator

from .row import HERE, IO_DEMO, PLACES, UCX, Row


def ucx_test_rows() -> Iterator[Row]:
    """Yield rows of ucx_perftest over UCX's ud_verbs and rc_verbs, which work with any adapter."""
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


def ucx_ipv6_test_rows() -> Iterator[Row]:
    """Yield rows of ucx_perftest with an IPv6 GID, so that the GRH of UD messages is IPv6."""
    for transport in ("ud_v", "rc_v,ud_v"):
        for test, size in (("tag_lat", 64), ("tag_bw", 65536)):
            command = f"ucx_perftest -t {test} -s {size} -n 500 -w 50"
            yield Row(
                f"ucx_perftest {test} {size} {transport} IPv6",
                "RC, UD" if "," in transport else "UD",
                command,
                f"{command} {{addr}}",
                shows=r"Final:\s+500",
                port=UCX,
                short=PLACES if transport == "ud_v" and test == "tag_lat" else (),
                env={
                    "UCX_TLS": transport,
                    "UCX_NET_DEVICES": "{dev}:1",
                    "UCX_IB_GID_INDEX": "1",
                },
            )


def ucx_rdmacm_test_rows() -> Iterator[Row]:
    """Yield rows of io_demo, which connects UCX by rdma_cm, with tags and with active messages.

    Option -q checks the data. The server runs until it is interrupted, and prints " released" when
    the client disconnects.
    """
    for transport in ("ud_v", "rc_v", "rc_v,ud_v"):
        for api, words in (("tag", ""), ("am", " -A")):
            command = f"io_demo -q -p {IO_DEMO} -d 4096:200000{words}"
            for faults in ("", "loss=1%") if transport == "ud_v" else ("",):
                # Fewer iterations with loss: half of the messages lose a datagram, and UCX detects
                # each loss only by a timer of at least 0.1 s.
                iterations = 150 if faults else 500
                yield Row(
                    f"UCX rdmacm {api} {transport} {faults}".strip(),
                    "RC, UD" if "," in transport else transport[:2].upper(),
                    f"/usr/bin/python3 {{abi}}/ucx/until.py ' released' {command}",
                    f"{command} -i {iterations} -c 1 -n 20 {{addr}}",
                    shows="Client exit with status 'OK'",
                    data="-q",
                    port=IO_DEMO,
                    short=PLACES if transport != "rc_v,ud_v" and not faults else (),
                    env={
                        "UCX_SOCKADDR_TLS_PRIORITY": "rdmacm",
                        "UCX_TLS": transport,
                        "UCX_NET_DEVICES": "{dev}:1",
                    },
                    options=f"--faults {faults}" if faults else "",
                )
