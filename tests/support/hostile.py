"""An audit document whose every name wants to be markup."""

from __future__ import annotations

import json

import msgspec

from secure_fl.audits.document import AuditDocument, encode
from tests.support.documents import document

EVIL = '<script>alert("x")</script> & | "> <img src=x onerror=alert(1)> $\\frac$ `_a_` _b'


def hostile() -> AuditDocument:
    """A document whose every name wants to be markup."""
    text = encode(document()).decode()
    for name in ("north", "study-he-secagg", "FedAvg", "token bag", "coordinator + 1 hospital"):
        text = text.replace(name, json.dumps(EVIL)[1:-1])
    text = text.replace("[algorithm]", json.dumps(f"[{EVIL}]\n````\n# not a title")[1:-1])
    return msgspec.json.decode(text.encode(), type=AuditDocument)
