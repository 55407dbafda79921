"""Rows of PyPI packages that use verbs."""

from __future__ import annotations

from collections.abc import Iterator

from .row import HERE, PLACES, PYPI, Row


def wheel_test_rows() -> Iterator[Row]:
    """Yield rows of ibverbs (opens libibverbs.so.1 with dlopen) and peercache (linked to it).

    peercache is also linked to librdmacm.so.1, but calls no function of that library; the library
    of the system is loaded.
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


def wheel_rows_with_killed_end() -> Iterator[Row]:
    """Yield rows in which an end is killed while the other end has requests in flight."""
    script = "{python} {abi}/pypi/ibverbs_exchange.py {dev}"
    for end in ("server", "client"):
        yield Row(
            f"PyPI ibverbs, {end} killed",
            "RC",
            script,
            f"{script} {{addr}}",
            port=PYPI,
            places=(HERE,),
            short=(HERE,) if end == "server" else (),
            env={"ENDLESS": "1"},
            wheel="ibverbs==2026.10.22",
            kill=end,
        )
    script = "{python} {abi}/pypi/peercache_exchange.py {dev}"
    yield Row(
        "PyPI peercache, server killed",
        "RC",
        script,
        f"{script} {{addr}} endless",
        port=PYPI,
        places=(HERE,),
        short=(HERE,),
        wheel="peercache==0.8.4",
        kill="server",
    )
