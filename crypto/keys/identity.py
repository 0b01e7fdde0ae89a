"""A site's long-term Ed25519 and X25519 keys, signatures, and messages sealed between sites.

`PublicIdentity` is public, `Identity` never leaves its site. The types are unrelated, so a private
key cannot be passed for a public one. Sealed messages authenticate their sender as in HPKE's Auth
mode (RFC 9180, section 5.1.3). Like it, they do not survive the theft of the *recipient's* key: the
thief can read messages to the recipient, and forge messages to it.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import re
from dataclasses import dataclass, field

from cryptography.exceptions import InvalidSignature, InvalidTag
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from secure_fl.errors import CryptoError

KEY_BYTES = 32


def digest_of(label: bytes, *parts: bytes) -> bytes:
    """Compute SHA-256 of a label and parts, each with its length: no two inputs collide."""
    h = hashlib.sha256()
    for part in (label, *parts):
        h.update(len(part).to_bytes(8, "big") + part)
    return h.digest()


def commit(secret: bytes, *about: object) -> bytes:
    """Compute a digest that binds the dealer of a secret or share, and reveals nothing about it."""
    return digest_of(b"secure-fl dealt", " ".join(map(str, about)).encode(), secret)


def keyed_digest(key: bytes, data: bytes, context: bytes) -> bytes:
    """Compute HMAC-SHA256 of data in a context: without the key, few values cannot be guessed."""
    return hmac.digest(key, context + b"\0" + data, "sha256")


def spoken(digest: bytes) -> str:
    """Format a digest as eight groups of five digits (132 bits), to read over the phone."""
    number = int.from_bytes(digest_of(b"secure-fl spoken", digest), "big") % 10**40
    digits = f"{number:040d}"
    return " ".join(digits[i : i + 5] for i in range(0, 40, 5))


def agree(private: X25519PrivateKey, public: bytes) -> bytes:
    """Compute an X25519 secret; a low-order point (all-zero secret) is refused."""
    try:
        return private.exchange(X25519PublicKey.from_public_bytes(public))
    except ValueError:
        raise CryptoError(
            "the peer's agreement key is not a usable X25519 point",
            fix="ask that site for its card again and compare fingerprints",
            field="point",
        ) from None


def derive(secret: bytes, label: bytes, *parts: bytes, length: int = 32) -> bytes:
    """Derive a key by HKDF-SHA256 with the label and parts as info, lengths included."""
    info = digest_of(label, *parts)
    return HKDF(algorithm=hashes.SHA256(), length=length, salt=None, info=info).derive(secret)


VERSION = b"\x01"
KEY_BYTES = 32
SIGNATURE_BYTES = 64
NONCE_BYTES = 12
TAG_BYTES = 16
DIGEST_SIZES = (32, 48, 64)
MESSAGE = b"secure-fl channel message"  # label of channel keys
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")  # also a safe file name


@dataclass(frozen=True, slots=True)
class PublicIdentity:
    """The public half of an identity: a site's name and its two public keys."""

    name: str
    signing: bytes  # Ed25519
    agreement: bytes  # X25519

    def __post_init__(self) -> None:
        if not NAME.fullmatch(self.name):
            raise CryptoError(
                f"{self.name[:80]!r} is not a site name",
                fix="use 1 to 64 letters, digits, '.', '_' or '-', a letter or digit first",
                field="name",
            )
        if len(self.signing) != KEY_BYTES or len(self.agreement) != KEY_BYTES:
            raise CryptoError("a public key must have 32 bytes", party=self.name, field="key")

    def canonical(self) -> bytes:
        """Encode the same bytes at every site: version, both keys, name."""
        return VERSION + self.signing + self.agreement + self.name.encode()

    def digest(self) -> bytes:
        """Compute SHA-256 of the canonical bytes."""
        return digest_of(b"secure-fl identity", self.canonical())

    def fingerprint(self) -> str:
        """Return eight groups of five digits to compare over the phone."""
        return spoken(self.digest())

    def verify(self, digest: bytes, signature: bytes) -> None:
        """Raise CryptoError unless this site signed exactly this digest."""
        if len(digest) not in DIGEST_SIZES:
            raise _no_digest()
        try:
            Ed25519PublicKey.from_public_bytes(self.signing).verify(signature, digest)
        except (InvalidSignature, ValueError):
            raise CryptoError(
                "the signature does not belong to this site and content",
                party=self.name,
                field="signature",
                fix="compare fingerprints with that site; do not use the signed content",
            ) from None


@dataclass(frozen=True, slots=True, eq=False)
class Identity:
    """A site's private keys. Printed as its name only; cannot be pickled or compared."""

    name: str
    _signing: Ed25519PrivateKey = field(repr=False)
    _agreement: X25519PrivateKey = field(repr=False)

    @classmethod
    def generate(cls, name: str) -> Identity:
        """Make fresh keys from the operating system's randomness."""
        fresh = cls(name, Ed25519PrivateKey.generate(), X25519PrivateKey.generate())
        fresh.public  # noqa: B018 - refuses an invalid name before a file is written
        return fresh

    @classmethod
    def from_private_bytes(cls, data: bytes) -> Identity:
        """Decode the result of `to_private_bytes`."""
        try:
            if data[:1] != VERSION or len(data) <= 1 + 2 * KEY_BYTES:
                raise ValueError
            signing = Ed25519PrivateKey.from_private_bytes(data[1:33])
            agreement = X25519PrivateKey.from_private_bytes(data[33:65])
            return cls(data[65:].decode(), signing, agreement)
        except ValueError:
            raise CryptoError(
                "these bytes are not a private identity of a version known here",
                fix="restore the key file from its backup, or make a new identity",
            ) from None

    def to_private_bytes(self) -> bytes:
        """Encode both private keys in the clear: only `keyring` stores them, encrypted."""
        keys = self._signing.private_bytes_raw() + self._agreement.private_bytes_raw()
        return VERSION + keys + self.name.encode()

    @property
    def public(self) -> PublicIdentity:
        """The public half."""
        signing = self._signing.public_key().public_bytes_raw()
        return PublicIdentity(self.name, signing, self._agreement.public_key().public_bytes_raw())

    def sign(self, digest: bytes) -> bytes:
        """Sign a digest (made by `digest_of`, so that its label separates uses): 64 bytes."""
        if len(digest) not in DIGEST_SIZES:
            raise _no_digest()
        return self._signing.sign(digest)

    def shared_with(self, peer: bytes) -> bytes:
        """Compute X25519 with a peer's public key; a low-order key is refused."""
        return agree(self._agreement, peer)


def seal_to(
    identity: Identity,
    recipient: PublicIdentity,
    plaintext: bytes,
    context: bytes,
    *,
    _ephemeral: X25519PrivateKey | None = None,
) -> bytes:
    """Seal to one site: only it can read the message, and it can verify the sender.

    version | ephemeral public key | AES-256-GCM; key and nonce come from HKDF over
    X25519(ephemeral, recipient) | X25519(sender, recipient), bound to both identities.
    """
    ephemeral = _ephemeral or X25519PrivateKey.generate()
    point = ephemeral.public_key().public_bytes_raw()
    secret = agree(ephemeral, recipient.agreement) + identity.shared_with(recipient.agreement)
    key, nonce = _message_key(secret, point, identity.public, recipient)
    return VERSION + point + AESGCM(key).encrypt(nonce, plaintext, VERSION + context)


def open_sealed(identity: Identity, sender: PublicIdentity, blob: bytes, context: bytes) -> bytes:
    """Open a message from `sender` under the same context, or raise CryptoError."""
    _check_shape(blob, 1 + KEY_BYTES + TAG_BYTES, sender)
    point, body = blob[1:33], blob[33:]
    secret = identity.shared_with(point) + identity.shared_with(sender.agreement)
    key, nonce = _message_key(secret, point, sender, identity.public)
    try:
        return AESGCM(key).decrypt(nonce, body, VERSION + context)
    except InvalidTag:
        raise _unopened(sender) from None


def _message_key(
    secret: bytes, point: bytes, sender: PublicIdentity, recipient: PublicIdentity
) -> tuple[bytes, bytes]:
    # the ephemeral key makes this output unique, so the nonce may come from it too
    both = derive(
        secret, b"secure-fl seal", point, sender.canonical(), recipient.canonical(), length=44
    )
    return both[:32], both[32:]


@dataclass(frozen=True, slots=True, eq=False)
class Channel:
    """Many small messages between two sites: one X25519, then an HKDF key per message.

    The key of a message depends on both identities, its direction and its context (run, step,
    kind). The nonce is random, so a context used twice repeats no key and nonce. Unlike `seal_to`
    it has no ephemeral key: the theft of either long-term key reveals every message.
    """

    peer: PublicIdentity
    _from_me: tuple[bytes, bytes]  # canonical sender and receiver
    _root: bytes = field(repr=False)

    def seal(self, plaintext: bytes, context: bytes, *, _nonce: bytes | None = None) -> bytes:
        """Seal from me to the peer: version | nonce | ciphertext."""
        nonce = _nonce or os.urandom(NONCE_BYTES)
        key = AESGCM(derive(self._root, MESSAGE, *self._from_me, context))
        return VERSION + nonce + key.encrypt(nonce, plaintext, VERSION + context)

    def open(self, blob: bytes, context: bytes) -> bytes:
        """Open a message that the peer sealed under the same context, or raise CryptoError."""
        _check_shape(blob, 1 + NONCE_BYTES + TAG_BYTES, self.peer)
        key = AESGCM(derive(self._root, MESSAGE, *self._from_me[::-1], context))
        nonce, body = blob[1 : 1 + NONCE_BYTES], blob[1 + NONCE_BYTES :]
        try:
            return key.decrypt(nonce, body, VERSION + context)
        except InvalidTag:
            raise _unopened(self.peer) from None


def channel(identity: Identity, peer: PublicIdentity, context: bytes) -> Channel:
    """Agree with a peer once; both ends must give the same context (the run)."""
    root = derive(identity.shared_with(peer.agreement), b"secure-fl channel", context)
    return Channel(peer, (identity.public.canonical(), peer.canonical()), root)


def _no_digest() -> CryptoError:
    return CryptoError(
        "only digests are signed", fix="pass 32, 48 or 64 bytes of a hash", field="digest"
    )


def _check_shape(blob: bytes, least: int, sender: PublicIdentity) -> None:
    if len(blob) < least:
        raise CryptoError(
            "a sealed message is cut short", party=sender.name, field="length", fix="send it again"
        )
    if blob[:1] != VERSION:
        raise CryptoError(
            f"a sealed message has version {blob[0]}, this program reads {VERSION[0]}",
            party=sender.name,
            field="version",
            fix="install the same secure_fl version at all sites",
        )


def _unopened(sender: PublicIdentity) -> CryptoError:
    return CryptoError(
        "a sealed message does not open: it was changed, or is for another site or context",
        party=sender.name,
        field="seal",
        fix="check that both sites use the same roster, run and step",
    )
