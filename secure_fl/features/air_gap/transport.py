"""The folder as a transport of `join`: the other end is a courier, which has the network."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from logging import Logger
from pathlib import Path
from typing import TYPE_CHECKING

import click

from secure_fl.cli.options import PATH
from secure_fl.cli.transports import Command, Refuse

if TYPE_CHECKING:
    from secure_fl.engines.responder import Responder
    from secure_fl.pilot.kits import Kit


class FolderTransport:
    """The transport of a training machine without network."""

    parameter = "through"

    def option(self, command: Command) -> Command:
        """Add `--through` to `join`."""
        text = "Without network: exchange messages with a `secure-fl courier FOLDER`."
        add: Callable[[Command], Command] = click.option(
            "--through", metavar="FOLDER", type=PATH, help=text
        )
        return add(command)

    @contextmanager
    def connect(self, place: Path, kit: Kit, log: Logger, refuse: Refuse) -> Iterator[Responder]:
        """Exchange messages through a folder."""
        from secure_fl.engines.flare.diagnosis import looking
        from secure_fl.features.air_gap.command import EVERY, log_other_end
        from secure_fl.features.air_gap.file_message import message_key
        from secure_fl.features.air_gap.folder_end import FolderParty

        with FolderParty(place, message_key(kit.tls), refusing=refuse) as party:
            with looking(log_other_end(party.end, place, log), EVERY):
                yield party

    def show(self, place: Path, kit: Path, *, as_json: bool) -> bool:
        """Print the state of both ends of a courier's folder."""
        from secure_fl.features.air_gap.command import show_ends
        from secure_fl.features.air_gap.inspect_mailbox import is_letters

        if not is_letters(place):
            return False
        show_ends(place, kit, as_json=as_json)
        return True


FOLDER_TRANSPORT = FolderTransport()
