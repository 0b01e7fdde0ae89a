"""A server that hands one site keys of its own in place of all other sites'.

SecAgg+ assumes that sites know each other's keys; here the server is who tells them. It uses
nothing but the protocol's own functions.
"""

from __future__ import annotations

from flwr.common import bytes_to_ndarray
from flwr.common.secure_aggregation.crypto import symmetric_encryption as symmetric
from flwr.common.secure_aggregation.crypto.shamir import combine_shares
from flwr.common.secure_aggregation.ndarrays_arithmetic import (
    factor_extract,
    get_parameters_shape,
    parameters_addition,
    parameters_mod,
    parameters_subtraction,
)
from flwr.common.secure_aggregation.quantization import dequantize
from flwr.common.secure_aggregation.secaggplus_constants import RECORD_KEY_CONFIGS, Key, Stage
from flwr.common.secure_aggregation.secaggplus_utils import (
    pseudo_rand_gen,
    share_keys_plaintext_concat,
    share_keys_plaintext_separate,
)
from flwr.serverapp import Grid
from flwr.supercore.primitives import asymmetric

from app.job import Job

TARGET, MODULUS = 1 << 22, 1 << 32  # the workflow's defaults


class Between:
    """Carries messages, and changes those of one site."""

    def __init__(self, grid: Grid) -> None:
        self._grid, self._job = grid, Job()
        self._victim = 0
        self._theirs: list[bytes] = []  # the victim's public keys
        self._made: dict[int, tuple] = {}  # in place of each other site's: two pairs of keys
        self._seed = b""  # of the victim's own mask

    def __getattr__(self, name):
        return getattr(self._grid, name)

    def send_and_receive(self, messages, **rest):
        """Change what goes to the victim; read what comes from it."""
        messages = list(messages)
        if not self._victim:
            self._victim = min(message.metadata.dst_node_id for message in messages)
        for message in messages:
            if message.metadata.dst_node_id == self._victim:
                self._change(message.content.config_records[RECORD_KEY_CONFIGS])
        replies = list(self._grid.send_and_receive(messages, **rest))
        for reply in replies:
            if reply.metadata.src_node_id == self._victim and not reply.has_error():
                self._read(reply)
        return replies

    def _change(self, said) -> None:
        if said[Key.STAGE] == Stage.SHARE_KEYS:
            others = [int(name) for name in said if name not in (Key.STAGE, str(self._victim))]
            self._made = {
                one: (asymmetric.generate_key_pairs(), asymmetric.generate_key_pairs())
                for one in others
            }
            for one, pairs in self._made.items():
                said[str(one)] = [asymmetric.public_key_to_bytes(public) for _, public in pairs]
        if said[Key.STAGE] == Stage.COLLECT_MASKED_VECTORS:
            said[Key.SOURCE_LIST] = list(self._made)
            said[Key.CIPHERTEXT_LIST] = [
                symmetric.encrypt(
                    self._shared(one, 1),
                    share_keys_plaintext_concat(one, self._victim, bytes(32), bytes(32)),
                )
                for one in self._made
            ]

    def _read(self, reply) -> None:
        said = reply.content.config_records[RECORD_KEY_CONFIGS]
        if Key.PUBLIC_KEY_1 in said:
            self._theirs = [said[Key.PUBLIC_KEY_1], said[Key.PUBLIC_KEY_2]]
        if Key.DESTINATION_LIST in said:
            told = zip(said[Key.DESTINATION_LIST], said[Key.CIPHERTEXT_LIST], strict=True)
            opened = [symmetric.decrypt(self._shared(one, 1), data) for one, data in told]
            self._seed = combine_shares([share_keys_plaintext_separate(p)[2] for p in opened])
        if Key.MASKED_PARAMETERS in said:
            masked = [bytes_to_ndarray(data) for data in said[Key.MASKED_PARAMETERS]]
            self._unmask(int(reply.metadata.group_id), masked)

    def _unmask(self, round: int, masked) -> None:
        shapes = get_parameters_shape(masked)
        masked = parameters_subtraction(masked, pseudo_rand_gen(self._seed, MODULUS, shapes))
        for one in self._made:
            mask = pseudo_rand_gen(self._shared(one, 0), MODULUS, shapes)
            take_off = parameters_subtraction if self._victim > one else parameters_addition
            masked = take_off(masked, mask)
        ratio, values = factor_extract(parameters_mod(masked, MODULUS))
        read = [value * (TARGET / ratio) for value in dequantize(values, 1.0, TARGET)]
        self._job.tap(round, 0, {str(at): values for at, values in enumerate(read)})

    def _shared(self, one: int, which: int) -> bytes:
        own, _ = self._made[one][which]
        theirs = asymmetric.bytes_to_public_key(self._theirs[which])
        return symmetric.generate_shared_key(own, theirs)
