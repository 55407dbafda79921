# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""The handshake of a session over its rendezvous: HELLO, AUTH and CHANNEL of both ends.

Nothing about the peer is believed, and nothing but one small unit is kept for it, before it has
proved that it knows the key.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from siwarp.base import system
from siwarp.ulp.adts import auth, endpoints, wire
from siwarp.ulp.adts.channel import Acceptor, Cause, Channel, ChannelEnded, Invitation, Limits
from siwarp.ulp.adts.credit import MIN_INITIATOR_WINDOW, Role
from siwarp.ulp.adts.endpoints import open_channel, use_rendezvous_as_channel
from siwarp.ulp.adts.session import (
    FILES,
    IDLE_S,
    ADTSError,
    ended_error,
    format_address,
    receive_message,
    send_message,
)
from siwarp.ulp.adts.wire import UNIT_HEADER_SIZE, ChannelKind, ErrorCode, Message
from siwarp.verbs import Address, LimitError

__all__ = [
    "CHANNELS",
    "HANDSHAKE_S",
    "Agreement",
    "admit_initiator",
    "initiate_session",
    "parse_channels",
]

#: Kinds of channels by name, in the order of preference.
CHANNELS = {
    "rd": ChannelKind.RD,
    "rc": ChannelKind.RC,
    "ud": ChannelKind.UD,
    "tcp": ChannelKind.TCP,
}
_NAMES: dict[ChannelKind, endpoints.Kind] = {
    ChannelKind.RD: "rd",
    ChannelKind.RC: "rc",
    ChannelKind.UD: "ud",
}
#: Seconds within which a peer must have proved that it knows the key: two round trips of a bad
#: line, with some lost packets.
HANDSHAKE_S = 10.0
#: Seconds within which the initiator must have opened a channel: its attempts of 3 s for each kind.
CHANNEL_S = 30.0
#: Seconds for which a peer waits until other sessions have given back credits that they do not use,
#: which are asked back after 5 s. It is less than HANDSHAKE_S, after which the initiator gives up.
RECEIVES_S = 7.0


@dataclass(frozen=True)
class Agreement:
    """The parameters of a session on which both ends have agreed."""

    #: The session's channel, which on TCP is the rendezvous itself.
    channel: Channel
    rendezvous: Channel
    files: int
    idle: int
    #: For each kind of channel that could not be opened, a sentence with the reason.
    refused: tuple[str, ...] = ()


def parse_channels(names: Sequence[str]) -> tuple[ChannelKind, ...]:
    """Return the kinds of channels with these names.

    Raises:
        ValueError: a name is unknown, or there is none.

    """
    unknown = [name for name in names if name not in CHANNELS]
    if unknown or not names:
        raise ValueError(
            f"unknown channel {unknown[0]!r}: use rd, rc, ud or tcp"
            if unknown
            else "give a channel"
        )
    return tuple(dict.fromkeys(CHANNELS[name] for name in names))


def _make_hello(kinds: tuple[ChannelKind, ...], limits: Limits, window: int) -> wire.Hello:
    return wire.Hello(
        min_version=wire.VERSION,
        max_version=wire.VERSION,
        nonce=auth.make_nonce(),
        channels=kinds,
        unit_size=limits.unit,
        window=window,
        files=FILES,
        idle=IDLE_S,
    )


def _message_body(message: Message) -> bytes:
    """Return the encoded body of a message, which the proofs cover."""
    octets = memoryview(bytearray(UNIT_HEADER_SIZE + message.record_length()))
    message.put(octets, UNIT_HEADER_SIZE)
    return bytes(octets[UNIT_HEADER_SIZE + wire.RECORD_HEADER_SIZE :])


async def _receive_hello(rendezvous: Channel) -> tuple[wire.Hello, bytes]:
    received = await rendezvous.receive()
    try:
        found = [record._replace(body=memoryview(bytes(record.body)))
                 for record in wire.parse_records(received.view)]  # fmt: skip
    finally:
        received.release()
    message = wire.parse_message(found[0]) if len(found) == 1 else None
    if isinstance(message, wire.Error):
        raise ADTSError(message.code, message.text)
    if not isinstance(message, wire.Hello):
        raise wire.WireError("the first unit of a session is not HELLO alone")
    return message, bytes(found[0].body)


def _check_version(hello: wire.Hello, peer: Address) -> None:
    if not hello.min_version <= wire.VERSION <= hello.max_version:
        raise ADTSError(
            ErrorCode.VERSION,
            f"{format_address(peer)} has versions {hello.min_version} to {hello.max_version} of "
            f"ADTS, this end has version {wire.VERSION}: install the same release at both ends",
        )


# ---- the initiator


async def initiate_session(
    rendezvous: Channel, host: str, key: auth.Key, kinds: tuple[ChannelKind, ...], limits: Limits
) -> Agreement:
    """Start a session as its initiator, on a rendezvous that it has opened.

    Args:
        rendezvous: stays open on an error; the caller closes it.
        host: the server's address.
        key: the key that both ends know.
        kinds: the kinds of channels to try, preferred ones first.
        limits: those of the channel.

    Raises:
        ADTSError: the peer refuses this end, does not know the key, violates the protocol or does
            not answer in time, or no channel opens.

    """
    peer = format_address(rendezvous.peer)
    try:
        theirs, offer = await asyncio.wait_for(
            _prove_and_verify(rendezvous, key, kinds, limits), HANDSHAKE_S
        )
    except asyncio.TimeoutError:
        raise ADTSError(
            ErrorCode.TIMEOUT,
            f"{peer} did not answer within {HANDSHAKE_S:.0f} s: is `siwarp serve` running there?",
        ) from None
    except wire.WireError as e:
        raise ADTSError(
            ErrorCode.PROTOCOL, f"{peer} does not speak ADTS: {e}; is `siwarp serve` running there?"
        ) from None
    except ChannelEnded as e:
        raise ended_error(e) from None
    agreed = Agreement(rendezvous, rendezvous, min(FILES, theirs.files), min(IDLE_S, theirs.idle))
    return await _open_first_possible_channel(agreed, host, kinds, theirs.channels, offer, limits)


async def _prove_and_verify(
    rendezvous: Channel, key: auth.Key, kinds: tuple[ChannelKind, ...], limits: Limits
) -> tuple[wire.Hello, wire.UseChannel]:
    hello = _make_hello(kinds, limits, limits.window)
    await send_message(rendezvous, hello)
    theirs, their_body = await _receive_hello(rendezvous)
    _check_version(theirs, rendezvous.peer)
    bodies = (_message_body(hello), their_body)
    await send_message(rendezvous, wire.Auth(auth.make_proof(key, Role.INITIATOR, *bodies)))
    messages = await receive_message(rendezvous)
    match messages:
        case [wire.Auth() as proof, wire.UseChannel() as offer]:
            if not auth.is_proof(proof.mac, key, Role.ACCEPTOR, *bodies):
                raise ADTSError(
                    ErrorCode.REFUSED,
                    f"{format_address(rendezvous.peer)} does not know the key: is it the server "
                    "that you mean?",
                )
            return theirs, offer
    raise wire.WireError("the answer to AUTH is not AUTH and CHANNEL")


async def _open_first_possible_channel(
    agreed: Agreement,
    host: str,
    kinds: tuple[ChannelKind, ...],
    offered: tuple[ChannelKind, ...],
    offer: wire.UseChannel,
    limits: Limits,
) -> Agreement:
    rendezvous = agreed.rendezvous
    common = [kind for kind in kinds if kind in offered]
    refused: list[str] = []
    for kind in common:
        try:
            if offer.kind != kind:
                await send_message(rendezvous, wire.UseChannel(kind))
                offer = await asyncio.wait_for(_receive_channel_offer(rendezvous), HANDSHAKE_S)
            _check_channel_offer(offer, kind)
            if kind == ChannelKind.TCP:
                use_rendezvous_as_channel(rendezvous, offer.unit_size)
                return replace(agreed, refused=tuple(refused))
            invitation = Invitation(
                offer.token, offer.port, offer.unit_size, offer.window, offer.qkey
            )
            channel = await open_channel(_NAMES[kind], host, invitation, limits)
            return replace(agreed, channel=channel, refused=tuple(refused))
        except ChannelEnded as e:
            if rendezvous.ended is not None:
                raise ended_error(e) from None
            refused.append(f"no {kind.name} channel: {e.reason}")
        except asyncio.TimeoutError:
            raise ADTSError(
                ErrorCode.TIMEOUT,
                f"{format_address(rendezvous.peer)} did not answer within {HANDSHAKE_S:.0f} s: try "
                "again",
            ) from None
        except wire.WireError as e:
            raise ADTSError(ErrorCode.PROTOCOL, f"{format_address(rendezvous.peer)}: {e}") from None
    text = "the server has none of the channels that this end asks for"
    if refused:
        text = (
            f"{'; '.join(refused)}: let the firewalls between the ends pass TCP and UDP, or use "
            "the channel tcp"
        )
    raise ADTSError(ErrorCode.CHANNEL, f"no channel to {format_address(rendezvous.peer)}: {text}")


async def _receive_channel_offer(rendezvous: Channel) -> wire.UseChannel:
    match await receive_message(rendezvous):
        case [wire.UseChannel() as offer]:
            return offer
    raise wire.WireError("the answer to CHANNEL is not CHANNEL")


def _check_channel_offer(offer: wire.UseChannel, kind: ChannelKind) -> None:
    needed = [offer.unit_size]
    if kind != ChannelKind.TCP:
        needed += [len(offer.token), offer.port, offer.window]
    if offer.kind != kind or not all(needed):
        raise wire.WireError(f"a CHANNEL that lacks what a channel of kind {kind.name} needs")


# ---- the acceptor


async def admit_initiator(
    rendezvous: Channel,
    key: auth.Key,
    kinds: tuple[ChannelKind, ...],
    acceptors: dict[ChannelKind, Acceptor],
    limits: Limits,
    on_proof: Callable[[], None],
) -> Agreement:
    """Accept a session on the rendezvous channel that a peer has opened.

    Args:
        rendezvous: stays open on an error; the caller closes it.
        key: the key that both ends know.
        kinds: the kinds of channels of this server, preferred ones first.
        acceptors: those for RD, RC and UD.
        limits: those of the channel.
        on_proof: called when the peer has proved that it knows the key; it may raise ADTSError.

    Raises:
        ADTSError: the peer does not know the key, or is too late, or no channel opens; the caller
            sends it to the peer.
        WireError: the peer violates the protocol.
        ChannelEnded: the rendezvous has ended.

    """
    try:
        theirs = await asyncio.wait_for(
            _verify_initiator(rendezvous, key, kinds, limits), HANDSHAKE_S
        )
    except asyncio.TimeoutError:
        raise ADTSError(
            ErrorCode.TIMEOUT,
            f"the handshake was not complete within {HANDSHAKE_S:.0f} s: try again",
        ) from None
    hello, proof = theirs
    on_proof()
    agreed = Agreement(rendezvous, rendezvous, min(FILES, hello.files), min(IDLE_S, hello.idle))
    try:
        channel = await asyncio.wait_for(
            _offer_channels_until_one_opens(rendezvous, hello, kinds, acceptors, limits, proof),
            CHANNEL_S,
        )
    except asyncio.TimeoutError:
        raise ADTSError(
            ErrorCode.TIMEOUT,
            f"no channel was opened within {CHANNEL_S:.0f} s: try another channel, tcp for example",
        ) from None
    return replace(agreed, channel=channel)


async def _verify_initiator(
    rendezvous: Channel, key: auth.Key, kinds: tuple[ChannelKind, ...], limits: Limits
) -> tuple[wire.Hello, wire.Auth]:
    theirs, their_body = await _receive_hello(rendezvous)
    hello = _make_hello(kinds, limits, 0)
    await send_message(rendezvous, hello)
    _check_version(theirs, rendezvous.peer)
    bodies = (their_body, _message_body(hello))
    match await receive_message(rendezvous):
        case [wire.Auth() as proof]:
            if not auth.is_proof(proof.mac, key, Role.INITIATOR, *bodies):
                raise ADTSError(
                    ErrorCode.REFUSED,
                    "the key is not the server's: use the key file or the line that `siwarp serve` "
                    "has printed",
                )
            return theirs, wire.Auth(auth.make_proof(key, Role.ACCEPTOR, *bodies))
    raise wire.WireError("a HELLO is not followed by AUTH")


async def _offer_channels_until_one_opens(
    rendezvous: Channel,
    hello: wire.Hello,
    kinds: tuple[ChannelKind, ...],
    acceptors: dict[ChannelKind, Acceptor],
    limits: Limits,
    proof: wire.Auth,
) -> Channel:
    """Offer the channels that the initiator asks for until one is open; return that channel."""
    common = [kind for kind in hello.channels if kind in kinds]
    if not common:
        raise ADTSError(
            ErrorCode.CHANNEL,
            "this server has none of the channels that you ask for: choose from "
            + ", ".join(kind.name for kind in kinds),
        )
    kind = common[0]
    first: tuple[Message, ...] = (proof,)
    while True:
        if kind == ChannelKind.TCP:
            unit = min(limits.unit, hello.unit_size)
            await send_message(rendezvous, *first, wire.UseChannel(kind, unit_size=unit))
            use_rendezvous_as_channel(rendezvous, unit)
            return rendezvous
        if hello.window < MIN_INITIATOR_WINDOW and kind != ChannelKind.UD:
            raise wire.WireError(
                f"HELLO grants {hello.window} credits: an {kind.name} channel needs at least "
                f"{MIN_INITIATOR_WINDOW}"
            )
        accepted: asyncio.Future[Channel] = asyncio.get_running_loop().create_future()
        token = auth.make_token()
        acceptor = acceptors[kind]
        offer = await _expect_peer(acceptor, token, hello, accepted)
        try:
            await send_message(
                rendezvous,
                *first,
                wire.UseChannel(kind, token, offer.port, offer.qkey, offer.unit, offer.window),
            )
            first = ()
            asked = asyncio.ensure_future(receive_message(rendezvous))
            try:
                waits: list[asyncio.Future[Any]] = [accepted, asked]
                await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
                if accepted.done():
                    return accepted.result()
                messages = asked.result()
            finally:
                asked.cancel()
        except BaseException:
            _give_up_channel(accepted)
            raise
        finally:
            acceptor.forget_token(token)
        _give_up_channel(accepted)
        match messages:
            case [wire.UseChannel() as wanted] if wanted.kind in common:
                kind = wanted.kind
            case _:
                raise wire.WireError("a record that is not CHANNEL, before the channel is open")


async def _expect_peer(
    acceptor: Acceptor, token: bytes, hello: wire.Hello, accepted: asyncio.Future[Channel]
) -> Invitation:
    """Let the acceptor accept a peer with the token; wait up to RECEIVES_S for free receives."""
    deadline = system.monotonic() + RECEIVES_S
    while True:
        try:
            return acceptor.expect_peer(
                token,
                hello.unit_size,
                hello.window,
                lambda channel: _keep_or_abort_opened_channel(accepted, channel),
            )
        except LimitError as e:
            if system.monotonic() >= deadline:
                raise ADTSError(ErrorCode.BUSY, str(e.strerror)) from None
        await asyncio.sleep(0.25)


def _give_up_channel(accepted: asyncio.Future[Channel]) -> None:
    """Stop waiting for a channel, and close it if it was opened in the meantime."""
    if not accepted.cancel() and not accepted.cancelled():
        accepted.result().abort("the session has ended", Cause.CLOSED)


def _keep_or_abort_opened_channel(accepted: asyncio.Future[Channel], channel: Channel) -> None:
    if accepted.done():
        channel.abort("the session has ended", Cause.CLOSED)
    else:
        accepted.set_result(channel)
