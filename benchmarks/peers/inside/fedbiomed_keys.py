"""Fed-BioMed's researcher, standing between its nodes while they agree on masks.

It relays what nodes tell each other. Nodes seal and sign how they begin with one key pair, which
is published with the library; so whoever relays can open it, and hand each node keys of its own.
"""

from __future__ import annotations

import numpy as np
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from fedbiomed.common.secagg import DHKey, DHKeyAgreement, SecaggLomCrypter
from fedbiomed.common.serializer import Serializer
from fedbiomed.node.requests._overlay import OverlayChannel
from fedbiomed.transport.server import _GrpcAsyncServer

KEY = "public_key"


class Between:
    """Holds a key that every node takes for each other node's, and what nodes said of theirs."""

    def __init__(self):
        self._published, self._own = OverlayChannel._load_default_n2n_key()[0], DHKey()
        self._channels = {}  # (node, whom it writes to) -> the key of its end
        self._masks = {}  # node -> the key of its masks
        self._waiting = {}  # (node, whom it writes to) -> messages that cannot be opened yet

    def stand(self):
        """Relay by `passed` from now on."""

        async def forward(server, message):
            for one in self.passed(message):
                await _GrpcAsyncServer.send(server, one, one.dest_node_id)

        _GrpcAsyncServer._on_forward = forward

    def passed(self, message):
        """What goes on to the node in place of this message."""
        source, to = ends = message.node_id, message.dest_node_id
        if message.setup:
            inner = _opened(message, self._published, self._published)
            if KEY in inner:
                self._channels[ends] = DHKey(public_key_pem=inner[KEY])
                inner[KEY] = self._own.export_public_key()
            _seal(message, inner, self._published, self._published)
            held = self._waiting.pop(ends, []) if ends in self._channels else []
            return [message, *(later for one in held for later in self.passed(one))]
        if ends not in self._channels:
            self._waiting.setdefault(ends, []).append(message)
            return []
        inner = _opened(message, self._own, self._channels[ends])
        if KEY in inner:
            self._masks[source] = inner[KEY]
            inner[KEY] = self._own.export_public_key()
        _seal(message, inner, self._own, self._channels[to, source])
        return [message]

    def unmasked(self, sent, agreed, round):
        """What a node masked, of each node: all of its secrets are shared with the one between."""
        found, nodes = {}, sorted(self._masks)
        for node, values in sent.items():
            secrets = {
                other: DHKeyAgreement(other, self._own, agreed.encode()).agree(
                    node, self._masks[node]
                )
                for other in nodes
                if other != node
            }
            masks = SecaggLomCrypter(nonce=agreed)._lom.protect(
                node, secrets, round, [0] * len(values), nodes
            )
            found[node] = (np.array(values, "uint64") - np.array(masks, "uint64")).tolist()
        return found


def _opened(message, mine, theirs):
    """The message inside, which its sender sealed for the holder of `mine`."""
    key = _key(message, message.dest_node_id, mine, message.node_id, theirs)
    return Serializer.loads(_crypt(message, key, message.overlay))["message"]


def _seal(message, inner, mine, theirs):
    """Put another message inside, as if its sender held `mine`."""
    signature = mine.private_key.sign(Serializer.dumps(inner), ec.ECDSA(hashes.SHA256()))
    sealed = Serializer.dumps({"message": inner, "signature": signature})
    key = _key(message, message.node_id, mine, message.dest_node_id, theirs)
    message.overlay = _crypt(message, key, sealed)


def _key(message, one, mine, other, theirs):
    return DHKeyAgreement(one, mine, message.salt).agree(other, theirs.export_public_key())


def _crypt(message, key, given):
    cipher = Cipher(algorithms.ChaCha20(key, message.nonce), mode=None).encryptor()
    return cipher.update(given) + cipher.finalize()
