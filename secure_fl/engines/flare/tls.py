"""The files that one end of a mutual TLS connection needs: ours, or those of FLARE's own kits."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from cryptography import x509
from cryptography.x509.oid import NameOID

from secure_fl.crypto.keys.files import read_bounded
from secure_fl.errors import KeyringError

ROOT = "rootCA.pem"  # the names of FLARE's kits
COORDINATOR, SITE = "server", "client"
NO_CERTIFICATE = "take the PEM files out of the kit that was made for this site"


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """The three files that one end of a mutual TLS connection needs."""

    root: Path
    certificate: Path
    key: Path

    @classmethod
    def of_coordinator(cls, folder: Path) -> TlsFiles:
        """The files of a coordinator's kit, ours or FLARE's."""
        return cls._of(folder, COORDINATOR)

    @classmethod
    def of_site(cls, folder: Path) -> TlsFiles:
        """The files of a site's kit, ours or FLARE's."""
        return cls._of(folder, SITE)

    @classmethod
    def _of(cls, folder: Path, base: str) -> TlsFiles:
        files = cls(folder / ROOT, folder / f"{base}.crt", folder / f"{base}.key")
        for path in (files.root, files.certificate, files.key):
            if not path.is_file():
                raise KeyringError(
                    "is not there", file=path, fix="copy the whole kit", reason="missing"
                )
        return files

    def common_name(self) -> str:
        """Whom the certificate is for."""
        try:
            certificate = x509.load_pem_x509_certificate(read_bounded(self.certificate))
            names = certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
            return str(names[0].value)
        except (ValueError, IndexError):
            what = "is not a certificate with a name"
            raise KeyringError(
                what, file=self.certificate, fix=NO_CERTIFICATE, reason="certificate"
            ) from None

    def validity(self) -> tuple[datetime, datetime]:
        """Return the start and the end of the time in which both certificates are valid."""
        read = []
        for path in (self.certificate, self.root):
            try:
                read.append(x509.load_pem_x509_certificate(read_bounded(path)))
            except ValueError:
                raise KeyringError(
                    "is not a certificate", file=path, fix=NO_CERTIFICATE, reason="certificate"
                ) from None
        begin = max(certificate.not_valid_before_utc for certificate in read)
        return begin, min(certificate.not_valid_after_utc for certificate in read)
