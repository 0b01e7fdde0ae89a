"""Certificates for servers on loopback, for systems that are given some."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from ipaddress import IPv4Address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID


def write(folder: Path) -> tuple[Path, Path, Path]:
    """An authority's certificate, and a server's with its key, as files."""
    authority, server = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    root = _signed("authority", authority.public_key(), "authority", authority, ca=True)
    leaf = _signed("localhost", server.public_key(), "authority", authority, ca=False)
    files = folder / "ca.pem", folder / "server.pem", folder / "server.key"
    files[0].write_bytes(root.public_bytes(serialization.Encoding.PEM))
    files[1].write_bytes(leaf.public_bytes(serialization.Encoding.PEM))
    files[2].write_bytes(
        server.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    return files


def _signed(
    name: str,
    public: ec.EllipticCurvePublicKey,
    issuer: str,
    by: ec.EllipticCurvePrivateKey,
    *,
    ca: bool,
) -> x509.Certificate:
    now = datetime.now(UTC)
    places = [x509.DNSName("localhost"), x509.IPAddress(IPv4Address("127.0.0.1"))]
    made = (
        x509.CertificateBuilder()
        .subject_name(_called(name))
        .issuer_name(_called(issuer))
        .public_key(public)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=2))
        .add_extension(x509.BasicConstraints(ca=ca, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName(places), critical=False)
    )
    return made.sign(by, hashes.SHA256())


def _called(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
