"""libfabric's own benchmark, over its verbs provider."""

from __future__ import annotations

from collections.abc import Iterator

from .row import FI_PINGPONG, HERE, NOBODY, PLACES, Row

#: Provider, endpoint type, transport, and whether the endpoint tolerates packet loss: connections
#: over TCP do, and so does rxd, which retransmits lost UD messages.
ENDPOINTS = (
    ("verbs", "msg", "RC", True),
    ("verbs", "dgram", "UD", False),
    ("verbs;ofi_rxm", "rdm", "RC", True),
    ("verbs;ofi_rxd", "rdm", "UD", True),
)


def fi_pingpong_test_rows() -> Iterator[Row]:
    """Yield rows of fi_pingpong with every size up to 1 MiB, or up to the maximum datagram.

    The rows for rxm also test that the program ends: rxm creates event channels at the addresses of
    recently destroyed channels, and must not hang at exit because a new channel is mistaken for a
    destroyed channel (programs/cm_bad.c, check_new_channel_at_old_address).
    """
    for provider, endpoint, transport, _ in ENDPOINTS:
        # Datagrams that do not fit into the receiver's socket are lost, and fi_pingpong waits for
        # each lost datagram.
        checked = "" if endpoint == "dgram" else " -c"
        for words, env in (
            ("", {}),
            (" -m tagged", {}),
            (" (iwarp)", {"SIWARP_PERSONA": "iwarp"}),
            (" -6", {}),
        ):
            if (words == " -m tagged") > (endpoint == "rdm") or (env and transport == "UD"):
                continue
            said = "" if env else words
            command = f"fi_pingpong -p '{provider}' -e {endpoint}{checked}{said}"
            yield Row(
                f"fi_pingpong {provider} {endpoint}{words}",
                transport + (" iwarp" if env else ""),
                command,
                f"{command} {{addr6}}" if words == " -6" else f"{command} {{addr}}",
                shows=r"(?m)^1k .*" if endpoint == "dgram" else r"(?m)^1m +10 +=10",
                data=checked.strip() or "-",
                port=FI_PINGPONG,
                short=PLACES if not words else (),
                env=env,
            )
    for provider, endpoint, transport, repeats in ENDPOINTS:
        if not repeats:
            continue
        faults = "loss=1%" if transport == "UD" else "short=30%,delay=0.1ms"
        # libfabric's rxd has no thread. As gdb shows, also with libfabric's udp provider below rxd,
        # the server sleeps in read(2) after the last message of a size was lost, or the client
        # sleeps in read(2) without acknowledging, and the server retransmits for minutes.
        known = "fi_pingpong waits at its control connection, where rxd repeats and answers nothing"
        command = f"fi_pingpong -p '{provider}' -e {endpoint} -c"
        yield Row(
            f"fi_pingpong {provider} {endpoint} {faults}",
            transport,
            command,
            f"{command} {{addr}}",
            shows=r"(?m)^1m +10 +=10",
            data="-c",
            port=FI_PINGPONG,
            short=(HERE,) if transport == "RC" else (),
            options=f"--faults {faults}",
            known=known if transport == "UD" else "",
            seconds=120,
        )


def killed_libfabric_test_rows() -> Iterator[Row]:
    """Yield rows in which one end of fi_pingpong is killed and requests of the other are flushed.

    Endpoints of type rdm are excluded: they have no connection, so a receive waits for any sender.
    """
    command = "fi_pingpong -p verbs -e msg -S 64 -I 1000000000"
    for end in ("server", "client"):
        yield Row(
            f"fi_pingpong verbs msg, {end} killed",
            "RC",
            command,
            f"{command} {{addr}}",
            port=FI_PINGPONG,
            places=(HERE, NOBODY),
            short=(HERE,) if end == "server" else (),
            kill=end,
            seconds=6,
        )
