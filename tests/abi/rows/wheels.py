"""Packages of PyPI."""

from __future__ import annotations

from collections.abc import Iterator

from .row import HERE, PLACES, PYPI, Row


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


def killed() -> Iterator[Row]:
    """Ends that are killed while requests are under way: those fail, and who made them says so."""
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
