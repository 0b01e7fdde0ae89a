"""A site's long-term keys, signatures, and messages sealed between sites.

Specified in docs/protocol-bytes.md 2.1 to 2.4.

`PublicIdentity` is public, `Identity` never leaves its site. The types are unrelated, so a private
key cannot be passed for a public one. Keys are hybrid: X25519 *and* ML-KEM-768 (FIPS 203), Ed25519
*and* ML-DSA-65 (FIPS 204). Frames and ledgers are signed by Ed25519 alone, which takes a twentieth
of the time.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import re
from dataclasses import dataclass, field
from functools import lru_cache

from cryptography.exceptions import InvalidSignature, InvalidTag, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.mldsa import MLDSA65PrivateKey, MLDSA65PublicKey
from cryptography.hazmat.primitives.asymmetric.mlkem import MLKEM768PrivateKey, MLKEM768PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from secure_fl.errors import CryptoError

KEY_BYTES = 32
ASK_AGAIN = "ask that site for its card again and compare fingerprints"
RENEW = (
    "keys of an earlier release lack ML-KEM and ML-DSA: move them away, make new ones with this "
    "release (`secure-fl site init`; coordinator: `keys identity`), then a new roster, ceremony "
    "and kits"
)


def digest_of(label: bytes, *parts: bytes) -> bytes:
    """Compute SHA-256 of a label and parts, each with its length: no two inputs collide."""
    h = hashlib.sha256()
    for part in (label, *parts):
        h.update(len(part).to_bytes(8, "big") + part)
    return h.digest()


def commit(secret: bytes, *about: object) -> bytes:
    """Compute a commitment to a secret or share, which must be random: others could be guessed."""
    return digest_of(b"secure-fl dealt", " ".join(map(str, about)).encode(), secret)


def keyed_digest(key: bytes, data: bytes, context: bytes) -> bytes:
    """Compute HMAC-SHA256 of data in a context: without the key, nobody can try values."""
    return hmac.digest(key, context + b"\0" + data, "sha256")


def spoken(digest: bytes) -> str:
    """Format a digest as eight groups of five digits (132 bits), to read over the phone."""
    number = int.from_bytes(digest_of(b"secure-fl spoken", digest), "big") % 10**40
    digits = f"{number:040d}"
    return " ".join(digits[i : i + 5] for i in range(0, 40, 5))


def agree(private: X25519PrivateKey, public: bytes, *, fix: str = ASK_AGAIN) -> bytes:
    """Compute an X25519 secret; a low-order point (all-zero secret) is refused."""
    try:
        return private.exchange(X25519PublicKey.from_public_bytes(public))
    except ValueError:
        raise CryptoError(
            "the peer's agreement key is not a usable X25519 point", fix=fix, field="point"
        ) from None


def derive(secret: bytes, label: bytes, *parts: bytes, length: int = 32) -> bytes:
    """Derive a key by HKDF-SHA256 with the label and parts as info, lengths included."""
    info = digest_of(label, *parts)
    return HKDF(algorithm=hashes.SHA256(), length=length, salt=None, info=info).derive(secret)


VERSION = b"\x02"
KEM_KEY_BYTES, CIPHERTEXT_BYTES = 1184, 1088  # of ML-KEM-768
PRIVATE_BYTES = 32 + 32 + 32 + 64  # Ed25519, seed of ML-DSA, X25519, seed of ML-KEM
AGREEMENT_BYTES = KEY_BYTES + KEM_KEY_BYTES
SIGNING_BYTES = KEY_BYTES + 1952  # of Ed25519 and ML-DSA-65
SIGNATURE_BYTES = 64
DOCUMENT_SIGNATURE_BYTES = SIGNATURE_BYTES + 3309
NONCE_BYTES = 12
TAG_BYTES = 16
DIGEST_SIZES = (32, 48, 64)
MESSAGE = b"secure-fl channel message"  # label of channel keys
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")  # also a safe file name


@dataclass(frozen=True, slots=True)
class PublicIdentity:
    """The public half of an identity: a site's name and its public keys."""

    name: str
    signing: bytes  # Ed25519 | ML-DSA-65
    agreement: bytes  # X25519 | ML-KEM-768

    def __post_init__(self) -> None:
        if not NAME.fullmatch(self.name):
            raise CryptoError(
                f"{self.name[:80]!r} is not a site name",
                fix="use 1 to 64 letters, digits, '.', '_' or '-', a letter or digit first",
                field="name",
            )
        if (len(self.signing), len(self.agreement)) != (SIGNING_BYTES, AGREEMENT_BYTES):
            what = "the public keys have a wrong length"
            raise CryptoError(what, fix=RENEW, party=self.name, field="key")

    def canonical(self) -> bytes:
        """Encode the same bytes at every site: version, keys, name."""
        return VERSION + self.signing + self.agreement + self.name.encode()

    @property
    def keys(self) -> tuple[bytes, ...]:
        """Each single public key: no two sites share any."""
        pairs = (self.signing, self.agreement)
        return tuple(key for one in pairs for key in (one[:KEY_BYTES], one[KEY_BYTES:]))

    @property
    def point(self) -> bytes:
        """The X25519 key."""
        return self.agreement[:KEY_BYTES]

    def encapsulate(self) -> tuple[bytes, bytes]:
        """Draw a secret that only this site can compute from the ML-KEM ciphertext; return both."""
        try:
            return _kem(self.agreement[KEY_BYTES:]).encapsulate()
        except ValueError:
            raise CryptoError(
                "the site's ML-KEM key is not valid", fix=ASK_AGAIN, party=self.name, field="kem"
            ) from None

    def require_usable(self) -> None:
        """Raise CryptoError unless others can use the agreement keys, in one encoding each."""
        try:
            agree(X25519PrivateKey.generate(), self.point)
            if self.point[-1] & 0x80:
                what = "the site's X25519 key has a second encoding"
                raise CryptoError(what, fix=ASK_AGAIN, field="point")
            self.encapsulate()
        except CryptoError as error:
            raise error.at(party=self.name) from None

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
            key = Ed25519PublicKey.from_public_bytes(self.signing[:KEY_BYTES])
            key.verify(signature, digest)
        except (InvalidSignature, ValueError):
            raise self._unsigned() from None

    def verify_document(self, digest: bytes, signature: bytes) -> None:
        """Raise CryptoError unless this site signed a document's digest by both algorithms."""
        self.verify(digest, signature[:SIGNATURE_BYTES])
        self._verify_mldsa(digest, signature[SIGNATURE_BYTES:])

    def _verify_mldsa(self, digest: bytes, signature: bytes) -> None:
        try:
            key = MLDSA65PublicKey.from_public_bytes(self.signing[KEY_BYTES:])
            key.verify(signature, digest)
        except (InvalidSignature, ValueError):
            raise self._unsigned() from None

    def _unsigned(self) -> CryptoError:
        return CryptoError(
            "the signature does not belong to this site and content",
            party=self.name,
            field="signature",
            fix="compare fingerprints with that site; do not use the signed content",
        )


@dataclass(frozen=True, slots=True, eq=False)
class Identity:
    """A site's private keys. Printed as its name only; cannot be pickled or compared."""

    name: str
    _signing: Ed25519PrivateKey = field(repr=False)
    _mldsa: MLDSA65PrivateKey = field(repr=False)
    _agreement: X25519PrivateKey = field(repr=False)
    _kem: MLKEM768PrivateKey = field(repr=False)
    public: PublicIdentity = field(init=False, repr=False)

    def __post_init__(self) -> None:
        signing = self._signing.public_key().public_bytes_raw()
        signing += self._mldsa.public_key().public_bytes_raw()
        agreement = self._agreement.public_key().public_bytes_raw()
        agreement += self._kem.public_key().public_bytes_raw()
        object.__setattr__(self, "public", PublicIdentity(self.name, signing, agreement))

    @classmethod
    def generate(cls, name: str) -> Identity:
        """Make fresh keys from the operating system's randomness."""
        return cls.from_private_bytes(VERSION + os.urandom(PRIVATE_BYTES) + name.encode())

    @classmethod
    def from_private_bytes(cls, data: bytes) -> Identity:
        """Decode the result of `to_private_bytes`."""
        if data[:1] == b"\x01":
            raise CryptoError("this identity has no ML-KEM key", fix=RENEW)
        keys, name = data[1 : 1 + PRIVATE_BYTES], data[1 + PRIVATE_BYTES :]
        try:
            if data[:1] != VERSION or len(keys) < PRIVATE_BYTES:
                raise ValueError
            return cls(
                name.decode(),
                Ed25519PrivateKey.from_private_bytes(keys[:32]),
                MLDSA65PrivateKey.from_seed_bytes(keys[32:64]),
                X25519PrivateKey.from_private_bytes(keys[64:96]),
                MLKEM768PrivateKey.from_seed_bytes(keys[96:]),
            )
        except UnsupportedAlgorithm:
            raise CryptoError(
                "the installed `cryptography` cannot compute ML-KEM-768 or ML-DSA-65",
                fix="install its wheel (version 48 or later), which has its own OpenSSL",
            ) from None
        except ValueError:
            raise CryptoError(
                "these bytes are not a private identity of a version known here",
                fix="restore the key file from its backup, or make a new identity",
            ) from None

    def to_private_bytes(self) -> bytes:
        """Encode the private keys in the clear: only `keyring` stores them, encrypted."""
        keys = self._signing, self._mldsa, self._agreement, self._kem
        return VERSION + b"".join(key.private_bytes_raw() for key in keys) + self.name.encode()

    def sign(self, digest: bytes) -> bytes:
        """Sign a digest (made by `digest_of`, so that its label separates uses): 64 bytes."""
        if len(digest) not in DIGEST_SIZES:
            raise _no_digest()
        return self._signing.sign(digest)

    def sign_document(self, digest: bytes) -> bytes:
        """Sign the digest of a document by Ed25519 and ML-DSA: 3,373 bytes."""
        return self.sign(digest) + self._mldsa.sign(digest)

    def shared_with(self, peer: bytes) -> bytes:
        """Compute X25519 with a peer's public key; a low-order key is refused."""
        return agree(self._agreement, peer)

    def decapsulate(self, ciphertext: bytes) -> bytes:
        """Compute the secret of an ML-KEM ciphertext; a changed one gives another secret."""
        return self._kem.decapsulate(ciphertext)


@lru_cache(maxsize=1024)
def _kem(public: bytes) -> MLKEM768PublicKey:
    return MLKEM768PublicKey.from_public_bytes(public)


def seal_to(
    identity: Identity,
    recipient: PublicIdentity,
    plaintext: bytes,
    context: bytes,
    *,
    _ephemeral: X25519PrivateKey | None = None,
) -> bytes:
    """Seal to one site: only it can read the message, which the sender signs.

    version | ephemeral X25519 key | ML-KEM ciphertext | AES-256-GCM of signature and plaintext; key
    and nonce come from HKDF over X25519(ephemeral, recipient) | the ML-KEM secret, bound to both
    identities.
    """
    ephemeral = _ephemeral or X25519PrivateKey.generate()
    kem_secret, ciphertext = recipient.encapsulate()
    sent = ephemeral.public_key().public_bytes_raw() + ciphertext
    signature = identity.sign_document(_signed(sent, recipient, plaintext, context))
    secret = agree(ephemeral, recipient.point) + kem_secret
    key, nonce = _message_key(secret, sent, identity.public, recipient)
    body = AESGCM(key).encrypt(nonce, signature + plaintext, VERSION + context)
    return VERSION + sent + body


def open_sealed(identity: Identity, sender: PublicIdentity, blob: bytes, context: bytes) -> bytes:
    """Open a message from `sender` under the same context, or raise CryptoError."""
    cut = 1 + KEY_BYTES + CIPHERTEXT_BYTES
    _check_shape(blob, cut + DOCUMENT_SIGNATURE_BYTES + TAG_BYTES, sender)
    sent, body = blob[1:cut], blob[cut:]
    secret = identity.shared_with(sent[:KEY_BYTES]) + identity.decapsulate(sent[KEY_BYTES:])
    key, nonce = _message_key(secret, sent, sender, identity.public)
    try:
        opened = AESGCM(key).decrypt(nonce, body, VERSION + context)
    except InvalidTag:
        raise _unopened(sender) from None
    signature = opened[:DOCUMENT_SIGNATURE_BYTES]
    plaintext = opened[DOCUMENT_SIGNATURE_BYTES:]
    sender.verify_document(_signed(sent, identity.public, plaintext, context), signature)
    return plaintext


def _signed(sent: bytes, recipient: PublicIdentity, plaintext: bytes, context: bytes) -> bytes:
    """Compute the digest that the sender of a sealed message signs."""
    return digest_of(b"secure-fl sealed", sent, recipient.canonical(), context, plaintext)


def _message_key(
    secret: bytes, sent: bytes, sender: PublicIdentity, recipient: PublicIdentity
) -> tuple[bytes, bytes]:
    # the ephemeral key makes this output unique, so the nonce may come from it too
    key_and_nonce = derive(
        secret, b"secure-fl seal", sent, sender.canonical(), recipient.canonical(), length=44
    )
    return key_and_nonce[:32], key_and_nonce[32:]


class Channel:
    """Many small messages between two sites in one run; both ends give the same context (the run).

    Each direction has one secret of X25519 and one of ML-KEM, and each message its own HKDF key,
    which depends on its context (sum, kind). The nonce is random, so a context used twice repeats
    no key and nonce. Each message has the ML-KEM ciphertext until a message of the peer was opened:
    in a run, all members get each other's first messages at once.
    """

    def __init__(self, identity: Identity, peer: PublicIdentity, context: bytes) -> None:
        self.peer, self._me, self._context = peer, identity, context
        self._shared = identity.shared_with(peer.point)
        secret, self._ciphertext = peer.encapsulate()
        self._from_me = self._root(secret, self._ciphertext, identity.public, peer)
        self._to_me, self._sent = b"", False

    def seal(self, plaintext: bytes, context: bytes, *, _nonce: bytes | None = None) -> bytes:
        """Seal a message to the peer: version | 1, ciphertext or 0 | nonce | AES-256-GCM."""
        nonce = _nonce or os.urandom(NONCE_BYTES)
        peer_has_ciphertext = self._sent and self._to_me
        head = b"\x00" if peer_has_ciphertext else b"\x01" + self._ciphertext
        self._sent = True
        key = AESGCM(derive(self._from_me, MESSAGE, context))
        return VERSION + head + nonce + key.encrypt(nonce, plaintext, VERSION + context)

    def open(self, blob: bytes, context: bytes) -> bytes:
        """Open a message that the peer sealed under the same context, or raise CryptoError."""
        start = 2 + (CIPHERTEXT_BYTES if blob[1:2] == b"\x01" else 0)
        cut = start + NONCE_BYTES
        _check_shape(blob, cut + TAG_BYTES, self.peer)
        root, ciphertext = self._to_me, blob[2:start]
        if ciphertext:
            secret = self._me.decapsulate(ciphertext)
            root = self._root(secret, ciphertext, self.peer, self._me.public)
        elif not root or blob[1]:
            raise _unopened(self.peer)
        try:
            key = AESGCM(derive(root, MESSAGE, context))
            opened = key.decrypt(blob[start:cut], blob[cut:], VERSION + context)
        except InvalidTag:
            raise _unopened(self.peer) from None
        self._to_me = root
        return opened

    def _root(
        self, secret: bytes, ciphertext: bytes, sender: PublicIdentity, receiver: PublicIdentity
    ) -> bytes:
        ends = sender.canonical(), receiver.canonical()
        secrets = self._shared + secret
        return derive(secrets, b"secure-fl channel", self._context, ciphertext, *ends)


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
