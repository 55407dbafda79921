"""Keys, proofs and tokens of ADTS."""

from __future__ import annotations

import hashlib
import os
import re
import stat
from pathlib import Path

import pytest

from siwarp.ulp.adts import auth
from siwarp.ulp.adts.auth import Key, KeyFileError
from siwarp.ulp.adts.credit import Role

KEY = Key(bytes(range(32)))
HELLO_I, HELLO_A = b"hello of the initiator", b"hello of the acceptor"


def hmac_sha256(key: bytes, message: bytes) -> bytes:
    """Return the HMAC-SHA256 of a message, computed as RFC 2104 defines it, for a short key."""
    padded = key.ljust(64, b"\0")
    inner = hashlib.sha256(bytes(octet ^ 0x36 for octet in padded) + message).digest()
    return hashlib.sha256(bytes(octet ^ 0x5C for octet in padded) + inner).digest()


@pytest.mark.parametrize(("role", "octet"), [(Role.INITIATOR, b"\1"), (Role.ACCEPTOR, b"\2")])
def test_a_proof_is_the_hmac_of_role_and_hellos(role: Role, octet: bytes) -> None:
    message = b"".join(
        [b"ADTS 1 AUTH", octet, b"\0\0\0\x16", HELLO_I, b"\0\0\0\x15", HELLO_A],
    )
    mac = auth.make_proof(KEY, role, HELLO_I, HELLO_A)
    assert mac == hmac_sha256(KEY.octets, message)
    assert auth.is_proof(mac, KEY, role, HELLO_I, HELLO_A)


@pytest.mark.parametrize(
    ("key", "role", "hello_i", "hello_a"),
    [
        pytest.param(
            Key(bytes(32)),
            Role.INITIATOR,
            HELLO_I,
            HELLO_A,
            marks=pytest.mark.clause("ADTS-AUTH-2#a"),
            id="another key",
        ),
        pytest.param(
            KEY,
            Role.ACCEPTOR,
            HELLO_I,
            HELLO_A,
            marks=pytest.mark.clause("ADTS-AUTH-2#b"),
            id="the other role",
        ),
        *(
            pytest.param(
                KEY,
                Role.INITIATOR,
                *hellos,
                marks=pytest.mark.clause("ADTS-AUTH-2#c"),
                id=name,
            )
            for name, hellos in {
                "another initiator": (HELLO_I + b"x", HELLO_A),
                "another acceptor": (HELLO_I, HELLO_A[:-1]),
                "exchanged": (HELLO_A, HELLO_I),
                "another boundary": (HELLO_I + HELLO_A[:1], HELLO_A[1:]),
            }.items()
        ),
    ],
)
def test_a_proof_for_something_else_is_not_accepted(
    key: Key, role: Role, hello_i: bytes, hello_a: bytes
) -> None:
    mac = auth.make_proof(KEY, Role.INITIATOR, HELLO_I, HELLO_A)
    assert not auth.is_proof(mac, key, role, hello_i, hello_a)
    assert not auth.is_proof(mac[:-1], KEY, Role.INITIATOR, HELLO_I, HELLO_A)


def test_nonces_tokens_and_keys_are_random() -> None:
    makers = (auth.make_nonce, auth.make_token, lambda: Key.random().octets)
    for make, length in zip(makers, (16, 16, 32), strict=True):
        made = {make() for _ in range(100)}
        assert len(made) == 100
        assert {len(value) for value in made} == {length}


def test_a_key_has_a_text_form_and_is_not_shown_in_logs() -> None:
    assert KEY.text == bytes(range(32)).hex()
    assert Key.from_text(f" {KEY.text}\n").octets == KEY.octets
    assert KEY.text not in repr(KEY)
    with pytest.raises(ValueError, match="a key has 32 octets, not 31"):
        Key(bytes(31))


@pytest.mark.parametrize(
    "text", ["", "ab", "A" * 64, "g" * 64, "0" * 65, "0" * 63 + "\n0", "٠" * 64]
)
def test_other_texts_are_no_keys_and_are_not_repeated(text: str) -> None:
    with pytest.raises(ValueError, match="a key is 64 lower-case hexadecimal digits") as refused:
        Key.from_text(text)
    assert len(text) < 3 or text not in str(refused.value)


@pytest.mark.clause("ADTS-AUTH-4")
def test_a_key_file_is_readable_by_its_owner_alone_and_never_replaces_a_file(
    tmp_path: Path,
) -> None:
    path = tmp_path / "key"
    before = os.umask(0)
    try:
        key = auth.create_key_file(path)
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert path.read_text() == f"{key.text}\n"
    assert auth.read_key_file(path).octets == key.octets
    with pytest.raises(FileExistsError):
        auth.create_key_file(path)
    assert path.read_text() == f"{key.text}\n"


def test_a_key_file_that_cannot_be_written_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def raise_no_space(fd: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", raise_no_space)
    with pytest.raises(OSError, match="No space left"):
        auth.create_key_file(tmp_path / "key")
    assert list(tmp_path.iterdir()) == []


def test_a_key_file_is_not_created_through_a_symbolic_link(tmp_path: Path) -> None:
    (tmp_path / "key").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(FileExistsError):
        auth.create_key_file(tmp_path / "key")
    assert not (tmp_path / "elsewhere").exists()


@pytest.mark.clause("ADTS-AUTH-4")
@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o602, 0o610, 0o601])
def test_a_key_file_that_others_can_access_is_refused(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "key"
    auth.create_key_file(path)
    path.chmod(mode)
    with pytest.raises(KeyFileError, match=f"has the mode {mode:04o}: use chmod 0600"):
        auth.read_key_file(path)


@pytest.mark.clause("ADTS-AUTH-4")
@pytest.mark.parametrize("owner", [0, 12345])
def test_a_key_file_of_another_user_than_root_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, owner: int
) -> None:
    path = tmp_path / "key"
    key = auth.create_key_file(path)
    real = os.fstat

    def fstat_with_owner(fd: int) -> os.stat_result:
        status = list(real(fd))
        status[stat.ST_UID] = owner
        return os.stat_result(status)

    monkeypatch.setattr(os, "fstat", fstat_with_owner)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    if owner == 0:
        assert auth.read_key_file(path).octets == key.octets
    else:
        with pytest.raises(KeyFileError, match="belongs to the user 12345"):
            auth.read_key_file(path)


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda path: None, "cannot open the key file: No such file or directory"),
        (lambda path: path.mkdir(), "the key file is not a regular file"),
        (lambda path: os.mkfifo(path, 0o600), "the key file is not a regular file"),
        (lambda path: path.touch(0o600), "does not consist of 64 lower-case hexadecimal digits"),
        (
            lambda path: (path.touch(0o600), path.write_bytes(b"\xff" * 64)),
            "does not consist of 64 lower-case hexadecimal digits",
        ),
        (
            lambda path: (path.touch(0o600), path.write_text(f"{KEY.text}\n{'x' * 500}")),
            "does not consist of 64 lower-case hexadecimal digits",
        ),
    ],
    ids=["missing", "directory", "fifo", "empty", "binary", "long"],
)
def test_what_is_no_key_file_is_refused_with_its_name(
    tmp_path: Path, make: object, text: str
) -> None:
    path = tmp_path / "key"
    assert callable(make)
    make(path)
    with pytest.raises(KeyFileError, match=re.escape(text)) as refused:
        auth.read_key_file(path)
    assert str(path) in str(refused.value)
    assert KEY.text not in str(refused.value)
