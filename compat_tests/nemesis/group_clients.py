"""The clients of a run with a group of a new protocol, whose members leave, crash and pause.

Each member is a process (`member_process.py`, `share_member_process.py`). Between two quiet periods
some are ended, killed and stopped; a member that ends is started again, as another member.
"""

from __future__ import annotations

import json
import pickle
import random
import signal
import subprocess
import sys
import threading
from collections import Counter
from typing import Final, TypeVar

import attrs

from compat_tests.durability.history import History
from compat_tests.durability.observations import Call, Commit, Place, Poll
from compat_tests.durability.recording import SEND_SECONDS, Assigned, Client, Writer
from compat_tests.harness.broker import ROOT
from compat_tests.nemesis.clients import IMPATIENT, UNCOMMITTED, ClusterRun, EndWatcher
from kwire.codec.schema import Request
from kwire.testing.wire import Closed, WireClient
from simulation.share_rules import Acknowledgement, Delivery

SESSION_MS: Final = 8000
"""A member that is gone is noticed soon."""
MEMBERS: Final = 4
ACTIONS: Final = ("leave", "crash", "pause", "long pause")
CALM_SECONDS: Final = (1.0, 6.0)
"""The time between two actions upon members."""
END_SECONDS: Final = 90
"""The longest time that a member takes to leave while nothing fails."""
Resp = TypeVar("Resp")
T = TypeVar("T", Commit, Acknowledgement)
"""An observation that a member writes before its request, and again after the response."""


def ask(address: str, request: Request[Resp], version: int, timeout_s: float = 2.0) -> Resp | None:
    """Return a broker's response; None if there is none."""
    host, port = address.rsplit(":", 1)
    try:
        with WireClient(host, int(port), timeout_s=timeout_s) as client:
            return client.call(request, version)
    except (OSError, Closed):
        return None


@attrs.define
class MemberProcess(Client):
    """A process that is a member, and its observations."""

    group: str = ""
    program: str = ""
    """The module that the process runs."""
    process: subprocess.Popen[bytes] | None = None
    count: int = 0
    """The processes started so far; each is another client in the history."""

    def work(self) -> None:
        assert isinstance(self.run, GroupRun)
        while not (self.run.is_ending.is_set() or self.errors):
            self.count += 1
            self._be_member(f"{self.name}/{self.count}")

    def _be_member(self, name: str) -> None:
        command = [sys.executable, "-m", self.program]
        command += [self.run.address, self.run.topic, self.group, name, json.dumps(IMPATIENT)]
        with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE) as process:
            self.process = process
            assert process.stdout is not None
            begun: dict[tuple[object, float], int] = {}
            try:
                while not self.errors:
                    self._note(pickle.load(process.stdout), begun)
            except (EOFError, pickle.UnpicklingError):  # The last one is torn where it was killed.
                pass
            finally:
                process.kill()

    def _note(self, observation: object, begun: dict[tuple[object, float], int]) -> None:
        history = self.history
        match observation:
            case Poll():
                history.polls.append(observation)
            case Delivery():
                history.deliveries.append(observation)
            case Call():
                history.calls.append(observation)
            case Commit(place=key, began=began):
                self._note_twice(history.commits, begun, (key, began), observation)
            case Acknowledgement(record=key, began=began):
                self._note_twice(history.acknowledgements, begun, (key, began), observation)
            case _:
                self.errors.append(str(observation))

    def _note_twice(
        self,
        notes: list[T],
        begun: dict[tuple[object, float], int],
        key: tuple[object, float],
        observation: T,
    ) -> None:
        """Add what a member has begun, or put its end in the same place."""
        if key in begun:
            notes[begun[key]] = observation
        else:
            begun[key] = len(notes)
            notes.append(observation)

    def send(self, number: signal.Signals) -> None:
        if self.process is not None:
            self.process.send_signal(number)


@attrs.define
class Churn(Client):
    """A source of faults of members: they leave, crash and pause, except in quiet periods."""

    members: list[MemberProcess] = attrs.field(factory=list)
    is_calm: threading.Event = attrs.field(factory=threading.Event)
    counts: Counter[str] = attrs.field(factory=Counter)

    def work(self) -> None:
        chance = random.Random(self.name)
        while not self.run.stop_writing.wait(chance.uniform(*CALM_SECONDS)):
            if not self.is_calm.is_set():
                action = chance.choice(ACTIONS)
                self.counts[action] += 1
                self._act(action, chance.choice(self.members), chance)

    def _act(self, action: str, member: MemberProcess, chance: random.Random) -> None:
        if action == "leave":
            member.send(signal.SIGTERM)
        elif action == "crash":
            member.send(signal.SIGKILL)
        else:
            session = SESSION_MS / 1000
            is_long = action == "long pause"
            seconds = chance.uniform(1.1, 2) * session if is_long else chance.uniform(0, session)
            member.send(signal.SIGSTOP)
            self.is_calm.wait(seconds)
            member.send(signal.SIGCONT)


@attrs.define
class GroupRun(ClusterRun):
    """The clients of a run with one group, beside those of its topic."""

    program: str = ""
    is_ending: threading.Event = attrs.field(factory=threading.Event)
    """Set when members that end are not started again."""
    members: list[MemberProcess] = attrs.field(factory=list)
    churn: Churn = attrs.field(init=False)

    def group(self) -> str:
        return f"{self.topic}-group"

    def make_clients(self) -> list[Client]:
        self.members = [
            MemberProcess(f"member-{n}", self, group=self.group(), program=self.program)
            for n in range(1, MEMBERS + 1)
        ]
        self.churn = Churn("churn", self, members=self.members)
        writers = ("idempotent", "idempotent-zstd")
        return [
            *(Writer(name, self, settings={"enable.idempotence": True}) for name in writers),
            *self.members,
            self.churn,
            Assigned("assigned", self),
            Assigned("uncommitted", self, settings=UNCOMMITTED),
            EndWatcher("ends", self),
        ]

    def summary(self) -> str:
        processes = sum(member.count for member in self.members)
        return f", churn {dict(self.churn.counts)}, {processes} member processes"

    def wait_for_readers(self) -> None:
        """Wait until the readers are at the ends, and the group as well, with all its members."""
        self.churn.is_calm.set()
        super().wait_for_readers()
        self.wait_done(self.read_ends(self.topic))
        self.wait_settled()
        self.churn.is_calm.clear()

    def wait_done(self, ends: dict[Place, int]) -> None:
        """Wait until nothing before ``ends`` is left to do for the group."""
        raise NotImplementedError

    def wait_settled(self) -> None:
        """Wait until all members are in the group."""
        raise NotImplementedError

    def wait_empty(self) -> None:
        """Wait until no member is in the group."""
        raise NotImplementedError

    def finish(self, healed: float, seconds: float = 120.0) -> History:
        """End the producers, let the group come to the ends, and end its members."""
        self.stop_writing.set()
        for writer in self.writers():
            assert writer.thread is not None
            writer.thread.join(2 * SEND_SECONDS)
        self.ends = self.read_ends(self.topic)
        self.wait_done(self.ends)
        self.is_ending.set()
        for member in self.members:
            member.send(signal.SIGTERM)
        for member in self.members:
            assert member.thread is not None
            member.thread.join(END_SECONDS)
        self.wait_empty()
        return self._add_ends(self.finish_reading(healed, seconds))
