"""Identities: signatures, sealed messages, channels, and what each of them refuses."""

from __future__ import annotations

import copy
import hashlib
import pickle

import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from hypothesis import given, settings
from hypothesis import strategies as st

from secure_fl.crypto.keys.identity import (
    Channel,
    Identity,
    PublicIdentity,
    agree,
    digest_of,
    open_sealed,
    seal_to,
)
from secure_fl.errors import CryptoError
from tests.support.key_sites import site
from tests.support.raising import raises

SEALED = "5f032050a7797dd5f0c966f33a808b8b8537d905832789b4229e4ce6899e04af"
CHANNEL = "2f10704bbdeec421d4602d3aed8b9db9758d6bb757005781ccb15c961be29a8c"
FINGERPRINT = "70493 80780 06057 58346 87656 56987 78977 50916"
NORTH, SOUTH, EAST = site("north"), site("south"), site("east")


def test_signature_of_rfc_8032() -> None:
    """RFC 8032, section 7.1, TEST SHA(abc): its message is a 64 byte digest."""
    secret = bytes.fromhex("833fe62409237b9d62ec77587520911e9a759cec1d19755b7da901b96dca3d42")
    made = Identity.from_private_bytes(b"\x02" + secret + NORTH.to_private_bytes()[33:])
    digest = hashlib.sha512(b"abc").digest()
    signature = made.sign(digest)
    assert signature.hex() == (
        "dc2a4459e7369633a52b1bf277839a00201009a3efbf3ecb69bea2186c26b589"
        "09351fc9ac90b3ecfdfbc7c66431e0303dca179c138ac17ad9bef1177331a704"
    )
    made.public.verify(digest, signature)


def test_agreement_of_rfc_7748() -> None:
    """RFC 7748, section 6.1."""
    bob = bytes.fromhex("5dab087e624a8a4b79e17f8b83800ee66f3bb1292618b6fd1c2f8b27ff88e0eb")
    alice = bytes.fromhex("8520f0098930a754748b7ddcb43ef75a0dbf3a0d26381af4eba4a98eaa9b4e6a")
    shared = "4a5d9d5ba4ce2de1728e3bf480350f25e07e21c947d19e3376f09b3c1e161742"
    assert agree(X25519PrivateKey.from_private_bytes(bob), alice).hex() == shared


def test_a_low_order_point_is_refused() -> None:
    with raises(CryptoError, "X25519"):
        NORTH.shared_with(bytes(32))


def test_verify_raises_for_another_digest_key_or_length() -> None:
    digest = digest_of(b"test", b"content")
    signature = NORTH.sign(digest)
    NORTH.public.verify(digest, signature)
    for public, d, s in (
        (SOUTH.public, digest, signature),
        (NORTH.public, digest_of(b"other", b"content"), signature),
        (NORTH.public, digest, signature[:-1] + bytes([signature[-1] ^ 1])),
        (NORTH.public, digest, b""),
    ):
        with pytest.raises(CryptoError):
            public.verify(d, s)
    with pytest.raises(CryptoError, match="only digests are signed"):
        NORTH.sign(b"a message that is not a digest at all")


def test_digests_keep_parts_apart() -> None:
    digests = {digest_of(b"l", *parts) for parts in ((b"ab", b"c"), (b"a", b"bc"), (b"abc",), ())}
    assert len(digests | {digest_of(b"la", b"bc")}) == 5


def test_private_keys_stay_hidden() -> None:
    assert repr(NORTH) == "Identity(name='north')"
    with pytest.raises(TypeError):
        pickle.dumps(NORTH)
    assert NORTH.to_private_bytes()[1:33].hex() not in repr(copy.copy(NORTH.public))


def test_private_bytes_round_trip_and_refuse_others() -> None:
    data = NORTH.to_private_bytes()
    assert Identity.from_private_bytes(data).public == NORTH.public
    for bad in (b"", b"\x09" + data[1:], data[:60], data[:160]):
        with raises(CryptoError, "not a private identity"):
            Identity.from_private_bytes(bad)
    with pytest.raises(CryptoError, match="no ML-KEM key") as caught:
        Identity.from_private_bytes(b"\x01" + data[1:65] + b"north")  # of version 0.1
    assert "secure-fl site init" in caught.value.fix


@pytest.mark.parametrize("name", ["", "../x", "a/b", "a b", "-a", "é", "x" * 65, "a\n"])
def test_names_are_safe_file_names(name: str) -> None:
    with pytest.raises(CryptoError, match="not a site name"):
        Identity.generate(name)


def test_fingerprint_is_for_the_telephone() -> None:
    groups = NORTH.public.fingerprint().split()
    assert [len(g) for g in groups] == [5] * 8
    assert "".join(groups).isdigit()
    assert (
        NORTH.public.fingerprint()
        != PublicIdentity("south", NORTH.public.signing, NORTH.public.agreement).fingerprint()
    )


def test_known_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    """The formats of today: a change of these digests is a new version byte.

    ML-KEM has a secret for each text of the right length (FIPS 203, implicit rejection).
    """
    text = hashlib.shake_256(b"ciphertext").digest(1088)
    monkeypatch.setattr(PublicIdentity, "encapsulate", lambda _: (SOUTH.decapsulate(text), text))
    monkeypatch.setattr(Identity, "sign_document", lambda *_: bytes(3373))  # ML-DSA draws at random
    ephemeral = X25519PrivateKey.from_private_bytes(hashlib.sha256(b"ephemeral").digest())
    sealed = seal_to(NORTH, SOUTH.public, b"forty-two", b"ctx", _ephemeral=ephemeral)
    assert sealed[:1] == b"\x02" and len(sealed) == 1 + 32 + 1088 + 3373 + 9 + 16
    assert hashlib.sha256(sealed).hexdigest() == SEALED
    small = Channel(NORTH, SOUTH.public, b"run").seal(b"forty-two", b"ctx", _nonce=bytes(12))
    assert hashlib.sha256(small).hexdigest() == CHANNEL
    assert NORTH.public.fingerprint() == FINGERPRINT


@given(plain=st.binary(max_size=300), context=st.binary(max_size=40))
@settings(max_examples=30, deadline=None)
def test_sealed_messages_round_trip(plain: bytes, context: bytes) -> None:
    blob = seal_to(NORTH, SOUTH.public, plain, context)
    assert open_sealed(SOUTH, NORTH.public, blob, context) == plain
    to_south, to_north = Channel(NORTH, SOUTH.public, b"r"), Channel(SOUTH, NORTH.public, b"r")
    assert to_north.open(to_south.seal(plain, context), context) == plain


def test_a_sealed_message_opens_only_where_and_as_meant() -> None:
    blob = seal_to(NORTH, SOUTH.public, b"secret", b"step 1")
    wrong = [
        (EAST, NORTH.public, blob, b"step 1"),  # another recipient
        (SOUTH, EAST.public, blob, b"step 1"),  # a claimed sender
        (SOUTH, NORTH.public, blob, b"step 2"),  # another context
        (NORTH, SOUTH.public, blob, b"step 1"),  # reflected
    ]
    for i in flips(blob):
        wrong.append((SOUTH, NORTH.public, _flip(blob, i), b"step 1"))
    for identity, sender, data, context in wrong:
        with pytest.raises(CryptoError):
            open_sealed(identity, sender, data, context)


def test_a_renamed_sender_is_refused() -> None:
    blob = seal_to(NORTH, SOUTH.public, b"secret", b"")
    other = PublicIdentity("west", NORTH.public.signing, NORTH.public.agreement)
    with raises(CryptoError, field="seal"):
        open_sealed(SOUTH, other, blob, b"")


def test_a_channel_binds_direction_run_and_context() -> None:
    mine, theirs = Channel(NORTH, SOUTH.public, b"run"), Channel(SOUTH, NORTH.public, b"run")
    blob = mine.seal(b"share", b"step 1")
    assert mine.seal(b"share", b"step 1") != blob
    for reader, data, context in (
        (mine, blob, b"step 1"),  # reflected
        (theirs, blob, b"step 2"),
        (Channel(SOUTH, NORTH.public, b"other run"), blob, b"step 1"),
        (Channel(EAST, NORTH.public, b"run"), blob, b"step 1"),
        *((theirs, _flip(blob, i), b"step 1") for i in flips(blob)),
    ):
        with raises(CryptoError, field="seal"):
            reader.open(data, context)
    assert theirs.open(blob, b"step 1") == b"share"
    assert mine.open(theirs.seal(b"share", b"step 1"), b"step 1") == b"share"
    short = theirs.seal(b"share", b"step 1")  # both have the other's ciphertext now
    assert mine.open(short, b"step 1") == b"share" and len(blob) - len(short) == 1088
    with raises(CryptoError, field="seal"):
        Channel(NORTH, SOUTH.public, b"run").open(short, b"step 1")


def test_version_and_length_are_named() -> None:
    blob = seal_to(NORTH, SOUTH.public, b"secret", b"")
    with raises(CryptoError, "9", "2", party="north"):
        open_sealed(SOUTH, NORTH.public, b"\x09" + blob[1:], b"")
    with raises(CryptoError, field="length"):
        open_sealed(SOUTH, NORTH.public, blob[:40], b"")
    with raises(CryptoError, field="length"):
        Channel(SOUTH, NORTH.public, b"").open(b"", b"")


def flips(blob: bytes) -> tuple[int, ...]:
    """Places of all fields but the version; of the ML-KEM ciphertext every 50th byte."""
    return *range(1, 40), *range(40, len(blob) - 40, 50), *range(len(blob) - 40, len(blob))


def _flip(blob: bytes, i: int) -> bytes:
    return blob[:i] + bytes([blob[i] ^ 1]) + blob[i + 1 :]
