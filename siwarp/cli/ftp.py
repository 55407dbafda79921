# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""``siwarp ftp``: a server for ordinary FTP clients, and transfers with resume."""

from __future__ import annotations

import contextlib
import ftplib
import importlib.util
import json
import logging
import secrets
import signal
import ssl
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from siwarp.base import show
from siwarp.base.numeric import resolve_to_numeric
from siwarp.cli.adts_key import parse_channel_list

if TYPE_CHECKING:
    from siwarp.ulp.ftp.url import Location

__all__ = ["app"]

app = typer.Typer(no_args_is_help=True, help="Serve a directory to FTP clients, or copy files.")

#: Exit statuses, with rsync's numbers where their meanings fit.
REFUSED, CONNECTION, FILE, PROTOCOL, PARTIAL, TIMEOUT = 5, 10, 11, 12, 23, 30

_TLSOption = Annotated[
    bool, typer.Option("--tls", help="Protect the connections with TLS (AUTH TLS).")
]
_CAOption = Annotated[
    str | None,
    typer.Option("--ca", metavar="FILE", help="Certificates to trust instead of the system's."),
]
_ChannelOption = Annotated[
    str,
    typer.Option(
        "--channel",
        metavar="LIST",
        help="The transports to try, in this order, if the server is siwarp's: rd, rc, ud, tcp.",
    ),
]
_ActiveOption = Annotated[
    bool,
    typer.Option(
        "--active", help="Let the server open the data connections, at a port of this machine."
    ),
]
_JSONOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@app.callback()
def _ftp_group_callback() -> None:
    """Serve a directory to FTP clients, or copy files."""


@app.command()
def serve(
    directory: Annotated[
        Path, typer.Argument(metavar="DIR", help="The directory that clients see as /.")
    ],
    write: bool = typer.Option(
        False, "--write", help="Let clients upload, delete, rename and create."
    ),
    addr: str = typer.Option("127.0.0.1", "--addr", help="The address to listen on."),
    port: int = typer.Option(
        2121, "--port", "-p", min=0, max=65535, help="TCP port; 0 selects a free one."
    ),
    users: Annotated[
        Path | None,
        typer.Option(
            "--users",
            metavar="FILE",
            help="A line NAME:PASSWORD for each user; default: user siwarp, with a new password.",
        ),
    ] = None,
    workers: int = typer.Option(2, "--workers", min=1, max=64, help="Number of processes."),
    certificate: str | None = typer.Option(
        None, "--certificate", metavar="FILE", help="PEM file with a certificate: offer AUTH TLS."
    ),
    private_key: str | None = typer.Option(
        None,
        "--private-key",
        metavar="FILE",
        help="PEM file with the private key; default: it is in the file of the certificate.",
    ),
    require_tls: bool = typer.Option(
        False, "--require-tls", help="Admit only clients that use AUTH TLS."
    ),
    verbose: bool = typer.Option(
        False, "--verbose", "-v", help="Report each login and each transfer on standard error."
    ),
    as_json: _JSONOption = False,
) -> None:
    """Serve a directory to FTP clients: curl, lftp, wget, web browsers, Python's ftplib.

    Clients can only read unless --write is given. Passwords and files are not encrypted unless the
    client uses TLS. Each process serves many clients. Symbolic links in the directory are listed,
    but not followed. Needs the extra siwarp[ftp].
    """
    if importlib.util.find_spec("pyftpdlib") is None or importlib.util.find_spec("OpenSSL") is None:
        raise OSError("the FTP server needs two more packages: pip install 'siwarp[ftp]'")
    from siwarp.base.stop import StopEvent
    from siwarp.ulp.ftp.server import TLS, Server
    from siwarp.ulp.ftp.users import read_users

    if certificate is None and (private_key is not None or require_tls):
        raise typer.BadParameter("needs --certificate", param_hint="--private-key, --require-tls")
    logging.basicConfig(
        level=logging.INFO if verbose else logging.WARNING, format="siwarp: %(message)s"
    )
    stop = StopEvent()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    passwords = {"siwarp": secrets.token_urlsafe(12)}
    try:
        if users is not None:
            passwords = read_users(users)
        server = Server(
            directory,
            passwords,
            host=resolve_to_numeric(addr),
            port=port,
            writable=write,
            workers=workers,
            tls=TLS(certificate, private_key, require_tls) if certificate else None,
        )
    except ValueError as e:
        raise OSError(str(e)) from None
    _print_listening_address(server.address, None if users else passwords["siwarp"], write, as_json)
    server.run(stop)


def _print_listening_address(
    address: tuple[str, int], password: str | None, write: bool, as_json: bool
) -> None:
    """Print where the server listens, and the password of the user siwarp, if that user exists."""
    host, port = address
    if as_json:
        told: dict[str, Any] = {"addr": host, "port": port, "write": write}
        if password is not None:
            told |= {"user": "siwarp", "password": password}
        print(json.dumps(told), flush=True)
        return
    login = f"siwarp:{password}@" if password else ""
    shown = f"[{host}]" if ":" in host else host
    access = "clients may write" if write else "read-only"
    print(f"ftp://{login}{shown}:{port}/ ({access}). Ctrl-C ends the server", flush=True)


@app.command()
def get(
    url: Annotated[str, typer.Argument(metavar="URL", help="ftp://USER:PASSWORD@HOST:PORT/PATH")],
    file: Annotated[
        Path | None, typer.Argument(metavar="[FILE]", help="Default: the name in the URL.")
    ] = None,
    channel: _ChannelOption = "rd,rc,tcp",
    active: _ActiveOption = False,
    tls: _TLSOption = False,
    ca: _CAOption = None,
    as_json: _JSONOption = False,
) -> None:
    """Copy a file from an FTP server. The same command continues an interrupted copy.

    User and password may also be in ~/.netrc. The file gets its name when it is complete, and the
    modification time that it has at the server. The exit status is 5 if the login was refused, 10
    if the connection failed, 11 after an error of a local file, 12 after a wrong reply, 20 after
    Ctrl-C, 23 if the server refuses a file, 30 after a time-out.
    """
    from siwarp.ulp.adts.tree import Tree
    from siwarp.ulp.ftp import transfer

    location = _parse_ftp_url(url)
    name = location.path.rpartition("/")[2]
    if file is None or file.is_dir():
        file = (file or Path()) / name
    if not name or not file.name:
        raise typer.BadParameter("names a directory: see siwarp ftp mirror", param_hint="URL")
    with _exit_with_message_on_error(), _open_connection(location, tls, ca, channel, active) as ftp:
        remote = transfer.stat_file(ftp, location.path)
        with (
            Tree(file.parent, writable=True) as tree,
            show.show_progress_bar(file.name, remote.size) as step,
        ):
            size = transfer.download_file(ftp, location.path, tree, file.name, remote, step)
    _print_copied(as_json, size, str(file))


@app.command()
def put(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The local file.")],
    url: Annotated[
        str, typer.Argument(metavar="URL", help="A URL that ends with / names a directory.")
    ],
    resume: bool = typer.Option(
        False,
        "--resume",
        help="Continue a shorter file at the server. Only the sizes are compared.",
    ),
    channel: _ChannelOption = "rd,rc,tcp",
    active: _ActiveOption = False,
    tls: _TLSOption = False,
    ca: _CAOption = None,
    as_json: _JSONOption = False,
) -> None:
    """Copy a file to an FTP server.

    The exit statuses are those of siwarp ftp get.
    """
    from siwarp.ulp.adts.tree import Tree
    from siwarp.ulp.ftp import transfer

    location = _parse_ftp_url(url)
    path = location.path
    if not path or path.endswith("/"):
        path += file.name
    with (
        _exit_with_message_on_error(),
        Tree(file.parent) as tree,
        contextlib.closing(tree.open_for_send(file.name)) as source,
        _open_connection(location, tls, ca, channel, active) as ftp,
        show.show_progress_bar(file.name, source.entry.size) as step,
    ):
        keep_time = "MFMT" in transfer.list_server_features(ftp)
        size = transfer.upload_file(
            ftp, source, path, resume=resume, keep_time=keep_time, progress=step
        )
    _print_copied(as_json, size, path)


@app.command()
def mirror(
    source: Annotated[str, typer.Argument(metavar="SOURCE", help="A directory, or a URL.")],
    destination: Annotated[
        str, typer.Argument(metavar="DESTINATION", help="A URL, or a directory.")
    ],
    delete: bool = typer.Option(
        False, "--delete", help="Delete files that only the destination has."
    ),
    channel: _ChannelOption = "rd,rc,tcp",
    active: _ActiveOption = False,
    tls: _TLSOption = False,
    ca: _CAOption = None,
    as_json: _JSONOption = False,
) -> None:
    """Copy a directory from an FTP server, or to one, and skip files that are equal.

    Files with equal sizes and times are skipped. Symbolic links are not copied. The exit statuses
    are those of siwarp ftp get; 23 also means that some files were not copied.
    """
    from siwarp.ulp.adts.tree import Tree
    from siwarp.ulp.ftp import transfer
    from siwarp.ulp.ftp.url import is_ftp_url

    down = is_ftp_url(source)
    if down == is_ftp_url(destination):
        raise typer.BadParameter("give one URL and one directory", param_hint="SOURCE, DESTINATION")
    location = _parse_ftp_url(source if down else destination)
    directory = Path(destination if down else source)
    with _exit_with_message_on_error():
        if down:
            directory.mkdir(exist_ok=True)
        with (
            Tree(directory, writable=down) as tree,
            _open_connection(location, tls, ca, channel, active) as ftp,
        ):
            job = transfer.Mirror(ftp, tree, delete=delete)
            path = location.path.rstrip("/") or "."
            if down:
                job.download(path)
            else:
                job.upload(path)
    if as_json:
        names = ("copied", "skipped", "deleted", "octets")
        failed = [{"path": path, "reason": reason} for path, reason in job.failures]
        show.print_json({name: getattr(job, name) for name in names} | {"failed": failed})
    else:
        for path, reason in job.failures:
            text = show.escape_control_characters(f"{path}: {reason}")
            print(f"siwarp: {text}", file=sys.stderr)
        show.print_line(
            f"{job.copied} copied ({job.octets} octets), {job.skipped} equal, "
            f"{job.deleted} deleted, {len(job.failures)} failed"
        )
    if job.failures:
        sys.exit(PARTIAL)


def _parse_ftp_url(url: str) -> Location:
    from siwarp.ulp.ftp.url import parse_url

    try:
        return parse_url(url)
    except ValueError as e:
        raise typer.BadParameter(str(e), param_hint="URL") from None


@contextlib.contextmanager
def _open_connection(
    location: Location, tls: bool, ca: str | None, channel: str, active: bool
) -> Iterator[ftplib.FTP]:
    """Yield a connection that is logged in; errors of connecting end the command."""
    from siwarp.ulp.ftp.url import connect

    if ca is not None and not tls:
        raise typer.BadParameter("needs --tls", param_hint="--ca")
    channels: list[Any] = parse_channel_list(channel)
    where = f"{location.host}:{location.port}"
    try:
        ftp = connect(location, tls, ca, channels, active)
    except TimeoutError:
        _exit_with_error(TIMEOUT, f"{where}: no answer; check the address and the firewall")
    except ssl.SSLError as e:
        _exit_with_error(
            CONNECTION, f"{where}: {e.reason or e}: check --ca and the name in the URL"
        )
    except ftplib.error_perm as e:
        _exit_with_error(REFUSED, f"{where}: the server refuses user {location.user}: {e}")
    except (OSError, EOFError) as e:
        _exit_with_error(CONNECTION, f"{where}: {e or 'the server has closed the connection'}")
    try:
        yield ftp
        with contextlib.suppress(OSError, EOFError, ftplib.Error):
            ftp.quit()
    finally:
        ftp.close()


@contextlib.contextmanager
def _exit_with_message_on_error() -> Iterator[None]:
    """Print a message for an error of the block, and end the command with an exit status."""
    again = "; the same command continues"
    try:
        yield
    except KeyboardInterrupt:
        _exit_with_error(20, f"interrupted{again}")
    except ftplib.error_perm as e:
        _exit_with_error(PARTIAL, str(e))
    except ftplib.error_temp as e:
        # 45x: the server has no space, or cannot open the file now.
        _exit_with_error(PARTIAL if str(e).startswith("45") else CONNECTION, f"{e}{again}")
    except ftplib.Error as e:
        _exit_with_error(PROTOCOL, f"a reply that is not FTP's: {e}")
    except EOFError:
        _exit_with_error(CONNECTION, f"the server has closed the connection{again}")
    except TimeoutError:
        _exit_with_error(TIMEOUT, f"no answer for a minute{again}")
    except (ConnectionError, ssl.SSLError) as e:
        _exit_with_error(CONNECTION, f"the connection was lost: {e}{again}")
    except OSError as e:
        where = f"{e.filename}: " if e.filename is not None else ""
        _exit_with_error(FILE, f"{where}{e.strerror or e}")


def _exit_with_error(status: int, text: str) -> Any:
    print(f"siwarp: {show.escape_control_characters(text)}", file=sys.stderr)
    sys.exit(status)


def _print_copied(as_json: bool, octets: int, path: str) -> None:
    if as_json:
        show.print_json({"path": path, "octets": octets})
    elif show.is_terminal_output():
        show.print_line(f"{path}: {octets} octets")
