"""Certificates for trials: one authority, one key pair for the coordinator and for each site.

This replaces `nvflare provision` for trials: a site needs four files, and no admin keys or start
scripts. Unlike FLARE's, these certificates name a purpose, so a site's certificate cannot serve as
the coordinator's. Real hospitals make their own keys with FLARE's distributed provisioning
(`nvflare cert request`); such a folder also loads.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from secure_fl.crypto.keys.files import write_atomic
from secure_fl.engines.flare.tls import COORDINATOR, ROOT, SITE, TlsFiles

DAYS = 90  # validity of certificates


class Authority:
    """Certificate authority whose key exists only in this object."""

    def __init__(self, name: str = "secure-fl trial", days: int = DAYS) -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        self._days = days
        builder = self._builder(self._name, self._key.public_key())
        authority = x509.BasicConstraints(ca=True, path_length=0)
        builder = builder.add_extension(authority, critical=True)
        builder = builder.add_extension(_key_usage(issues=True), critical=True)
        self.certificate = builder.sign(self._key, hashes.SHA256())

    def coordinator(self, folder: Path, hosts: Collection[str], name: str = "coordinator") -> None:
        """Write the kit of a coordinator with these host names or addresses."""
        names = [_alternative(host) for host in hosts]
        self._write(folder, COORDINATOR, name, ExtendedKeyUsageOID.SERVER_AUTH, names)

    def site(self, folder: Path, name: str) -> None:
        """Write the kit of a site, which only makes outgoing connections."""
        self._write(folder, SITE, name, ExtendedKeyUsageOID.CLIENT_AUTH, [])

    def _write(
        self,
        folder: Path,
        base: str,
        name: str,
        purpose: x509.ObjectIdentifier,
        hosts: list[x509.GeneralName],
    ) -> None:
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        builder = self._builder(subject, key.public_key())
        constraints = x509.BasicConstraints(ca=False, path_length=None)
        builder = builder.add_extension(constraints, critical=True)
        builder = builder.add_extension(_key_usage(issues=False), critical=True)
        builder = builder.add_extension(x509.ExtendedKeyUsage([purpose]), critical=False)
        if hosts:
            builder = builder.add_extension(x509.SubjectAlternativeName(hosts), critical=False)
        certificate = builder.sign(self._key, hashes.SHA256())
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        secret = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        write_atomic(folder / f"{base}.key", secret, mode=0o600)
        write_atomic(folder / f"{base}.crt", certificate.public_bytes(Encoding.PEM))
        write_atomic(folder / ROOT, self.certificate.public_bytes(Encoding.PEM))

    def _builder(
        self, subject: x509.Name, public: ec.EllipticCurvePublicKey
    ) -> x509.CertificateBuilder:
        now = datetime.now(UTC)
        issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
        own = x509.SubjectKeyIdentifier.from_public_key(public)
        return (
            x509.CertificateBuilder()
            .add_extension(issuer, critical=False)
            .add_extension(own, critical=False)
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(public)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(hours=1))  # because clocks of hospitals differ
            .not_valid_after(now + timedelta(days=self._days))
        )


@dataclass(frozen=True, slots=True)
class Kits:
    """The TLS files of all members of a trial."""

    coordinator: TlsFiles
    sites: Mapping[str, TlsFiles]


def make_kits(
    folder: Path, sites: Collection[str], hosts: Collection[str] = ("localhost", "127.0.0.1")
) -> Kits:
    """Make a trial's kits, one folder each; the authority's key is not saved."""
    authority = Authority()
    authority.coordinator(folder / "coordinator.kit", hosts)
    for site in sites:
        authority.site(folder / f"{site}.site", site)
    return Kits(
        TlsFiles.of_coordinator(folder / "coordinator.kit"),
        {site: TlsFiles.of_site(folder / f"{site}.site") for site in sites},
    )


def _key_usage(*, issues: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not issues,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=issues,
        crl_sign=issues,
        encipher_only=False,
        decipher_only=False,
    )


def _alternative(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ip_address(host))
    except ValueError:
        return x509.DNSName(host)
