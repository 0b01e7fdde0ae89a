"""Kits for trials, and FLARE's own: the same files, and connections come about."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.x509 import DNSName
from cryptography.x509.oid import ExtendedKeyUsageOID
from cryptography.x509.verification import PolicyBuilder, Store, VerificationError

from secure_fl.engines.flare.flare_party import FlareParty
from secure_fl.engines.flare.hub import FlareHub
from secure_fl.engines.flare.tls import TlsFiles
from secure_fl.errors import KeyringError
from secure_fl.pilot.certificates import Authority, make_kits
from tests.support.hubs import free_url
from tests.support.raising import raises

PROJECT = """
api_version: 3
name: trial
participants:
  - {name: hub.example.org, type: server, org: lab, fed_learn_port: 8002, host_names: [127.0.0.1]}
  - {name: east, type: client, org: lab}
builders:
  - {path: nvflare.lighter.impl.workspace.WorkspaceBuilder}
  - path: nvflare.lighter.impl.static_file.StaticFileBuilder
    args: {config_folder: config, scheme: grpc}
  - {path: nvflare.lighter.impl.cert.CertBuilder}
  - {path: nvflare.lighter.impl.signature.SignatureBuilder}
"""


def load(path: Path) -> x509.Certificate:
    return x509.load_pem_x509_certificate(path.read_bytes())


def test_a_kit_holds_what_its_owner_needs_and_nobody_else_may_read(tmp_path: Path) -> None:
    kits = make_kits(tmp_path, ["east", "north"], ["hub.example.org", "10.0.0.1"])
    assert kits.coordinator.common_name() == "coordinator"
    assert {name: tls.common_name() for name, tls in kits.sites.items()} == {
        "east": "east",
        "north": "north",
    }
    for tls in (kits.coordinator, *kits.sites.values()):
        assert stat.S_IMODE(tls.key.stat().st_mode) == 0o600
        assert stat.S_IMODE(tls.key.parent.stat().st_mode) == 0o700
        assert sorted(p.name for p in tls.key.parent.iterdir()) == sorted(
            [tls.root.name, tls.certificate.name, tls.key.name]
        )
    keys = [tls.key.read_bytes() for tls in (kits.coordinator, *kits.sites.values())]
    assert len(set(keys)) == 3
    for folder in tmp_path.rglob("*"):
        assert folder.is_dir() or b"PRIVATE" not in folder.read_bytes() or folder.suffix == ".key"


def test_a_certificate_serves_one_purpose(tmp_path: Path) -> None:
    kits = make_kits(tmp_path, ["east"], ["hub.example.org"])
    root = load(kits.coordinator.root)
    verifiers = PolicyBuilder().store(Store([root]))
    server = verifiers.build_server_verifier(DNSName("hub.example.org"))
    server.verify(load(kits.coordinator.certificate), [])
    with pytest.raises(VerificationError):
        server.verify(load(kits.sites["east"].certificate), [])
    with pytest.raises(VerificationError):
        other = verifiers.build_server_verifier(DNSName("other.example.org"))
        other.verify(load(kits.coordinator.certificate), [])
    purposes = load(kits.sites["east"].certificate).extensions
    found = purposes.get_extension_for_class(x509.ExtendedKeyUsage).value
    assert list(found) == [ExtendedKeyUsageOID.CLIENT_AUTH]


def test_certificates_run_out_and_an_incomplete_kit_is_said(tmp_path: Path) -> None:
    authority = Authority(days=3)
    left = authority.certificate.not_valid_after_utc - datetime.now(UTC)
    assert timedelta(days=2) < left <= timedelta(days=3)
    authority.site(tmp_path, "east")
    (tmp_path / "client.key").unlink()
    with raises(KeyringError, reason="missing"):
        TlsFiles.of_site(tmp_path)
    (tmp_path / "client.key").touch()
    (tmp_path / "client.crt").write_text("no certificate")
    with raises(KeyringError, reason="certificate"):
        TlsFiles.of_site(tmp_path).common_name()


def test_the_kits_of_flare_serve_as_they_are(tmp_path: Path) -> None:
    (tmp_path / "project.yml").write_text(PROJECT)
    command = ["-m", "nvflare.cli", "provision", "-p", "project.yml", "-w", "made", "--force"]
    subprocess.run(
        [sys.executable, *command],
        cwd=tmp_path,
        env=os.environ | {"HOME": str(tmp_path)},
        check=True,
        capture_output=True,
    )
    kits = tmp_path / "made" / "trial" / "prod_00"
    hub_files = TlsFiles.of_coordinator(kits / "hub.example.org" / "startup")
    site_files = TlsFiles.of_site(kits / "east" / "startup")
    url = free_url()
    with FlareHub(url, hub_files, ["east"]) as hub:
        with FlareParty("east", url, site_files, hub=hub_files.common_name()):
            assert not hub.wait_for(["east"], 10)
