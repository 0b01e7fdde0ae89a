"""Requests to a site as auxiliary messages of an NVFLARE job."""

from __future__ import annotations

from typing import Any

from nvflare.apis.fl_constant import ReturnCode
from nvflare.apis.shareable import Shareable, make_reply

TOPIC, GREETING = "secure_fl.request", "secure_fl.greeting"
DATA, TRAINS = "data", "trains"
HOLD = 5.0  # seconds that a site holds a request while training runs
TRANSPORT = 30.0  # seconds for the way there and back


def packed(data: bytes, *, trains: bool = False) -> Shareable:
    """Pack a request. `trains`: the site holds it during the training of the round."""
    message = Shareable()
    message[DATA], message[TRAINS] = data, trains
    return message


def reply_of(data: bytes | None) -> Shareable:
    """Pack a reply; None lets the server ask again."""
    reply = make_reply(ReturnCode.OK)
    reply[DATA] = data
    return reply


def send(engine: Any, target: str, topic: str, message: Shareable) -> Shareable | None:
    """Send a message and wait for the reply; None: there is none."""
    with engine.new_context() as context:
        found = engine.send_aux_request(
            [target], topic, message, HOLD + TRANSPORT, context, optional=True
        )
    reply: Shareable | None = (found or {}).get(target)
    if reply is None or reply.get_return_code(ReturnCode.OK) != ReturnCode.OK:
        return None
    return reply
