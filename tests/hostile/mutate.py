"""Random mutations of octets, driven by a seeded generator."""

from __future__ import annotations

import random

BOUNDARY_OCTETS = (0, 1, 0x7F, 0x80, 0xFE, 0xFF)


def replace_octet(r: random.Random, at: bytearray) -> None:
    at[r.randrange(len(at))] = r.choice((*BOUNDARY_OCTETS, r.randrange(256)))


def flip_bit(r: random.Random, at: bytearray) -> None:
    at[r.randrange(len(at))] ^= 1 << r.randrange(8)


def replace_integer_octets(r: random.Random, at: bytearray) -> None:
    """Replace 2, 4 or 8 octets with a boundary value or a random value."""
    n = r.choice((2, 4, 8))
    place = r.randrange(max(1, len(at) - n))
    value = r.choice((0, 1, 2, -1, -2, 1 << (8 * n - 1), r.getrandbits(8 * n)))
    at[place : place + n] = (value % (1 << 8 * n)).to_bytes(n, "big")


def change_two_octet_number(r: random.Random, at: bytearray) -> None:
    """Add a small amount to a two-octet number."""
    place = r.randrange(max(1, len(at) - 1))
    value = int.from_bytes(at[place : place + 2], "big") + r.choice((-4, -2, -1, 1, 2, 4, 512))
    at[place : place + 2] = (value % (1 << 16)).to_bytes(2, "big")


def truncate_octets(r: random.Random, at: bytearray) -> None:
    del at[r.randrange(len(at)) :]


def delete_octets(r: random.Random, at: bytearray) -> None:
    place = r.randrange(len(at))
    del at[place : place + r.randrange(1, 9)]


def duplicate_random_part(r: random.Random, at: bytearray) -> None:
    place = r.randrange(len(at))
    part = at[place : place + r.randrange(1, 64)]
    at[place:place] = part


def insert_octets(r: random.Random, at: bytearray) -> None:
    place = r.randrange(len(at) + 1)
    at[place:place] = r.randbytes(r.randrange(1, 9))


MUTATIONS = (
    replace_octet,
    flip_bit,
    replace_integer_octets,
    change_two_octet_number,
    truncate_octets,
    delete_octets,
    duplicate_random_part,
    insert_octets,
)


def mutate_octets(r: random.Random, sound: bytes, times: int = 1) -> bytes:
    """Return a copy of the octets after this number of random mutations."""
    at = bytearray(sound)
    for _ in range(times):
        if at:
            r.choice(MUTATIONS)(r, at)
    return bytes(at)
