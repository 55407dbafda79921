"""UCX's own measure."""

from __future__ import annotations

from collections.abc import Iterator

from .row import HERE, PLACES, UCX, Row


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
