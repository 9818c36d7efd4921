"""Measure what a great many failed logins cost a client that has an account.

    python benchmarks/bad_log_ins.py [--count N] [--at-once N] [--peer kwire|kafka] [--first]

One process, which has a low priority, logs in with wrong passwords on a connection of its own
each time, many of them at the same time, by turns with PLAIN and SCRAM-SHA-256 and as a user that
exists and one that does not. It also asks for metadata behind each login. A login that is not
refused, or an answer to the request behind it, ends the program with an error.

Every few seconds the attack stands still, so that the waits of a client that has logged in (see
``benchmarks/attack.py``) are measured with and without it on the same machine and broker. The last
line has the numbers of logins by their outcome, the percentiles, and the broker's memory and file
descriptors at the beginning, at most and at the end. ``--first`` is that of ``attack.py``.
"""

import argparse
import base64
import multiprocessing
import os
import selectors
import socket
import sys
import tempfile
import time
from collections import Counter
from multiprocessing.synchronize import Event
from pathlib import Path
from struct import pack, unpack_from
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from compat_tests.security.attacks import Target, connect_alice, produce, run_target  # noqa: E402
from kwire.codec.frame import request_frame  # noqa: E402
from kwire.codec.messages.metadata import MetadataRequest  # noqa: E402
from kwire.codec.messages.sasl_authenticate import SaslAuthenticateRequest  # noqa: E402
from kwire.codec.messages.sasl_handshake import SaslHandshakeRequest  # noqa: E402

WITH_S: Final = 20.0
WITHOUT_S: Final = 5.0
SETTLE_S: Final = 1.0
"""After the attack starts or stops, before waits are counted."""
PAUSE_S: Final = 0.003
REFUSED: Final = 58
NONCE: Final = b"nonceoftheattacker"


def _handshake(mechanism: str) -> bytes:
    return bytes(request_frame(17, 1, 1, "x", SaslHandshakeRequest(mechanism=mechanism)))


def _token(token: bytes) -> bytes:
    return bytes(request_frame(36, 2, 2, "x", SaslAuthenticateRequest(auth_bytes=token)))


METADATA: Final = bytes(request_frame(3, 12, 3, "x", MetadataRequest(topics=None)))
HANDSHAKES: Final = {name: _handshake(name) for name in ("PLAIN", "SCRAM-SHA-256")}


class LogIn:
    """One login with a wrong password."""

    def __init__(self, number: int, address: tuple[str, int]) -> None:
        self.name = ("PLAIN", "SCRAM-SHA-256")[number % 2]
        exists = number // 2 % 2 == 0
        self.number, self.received, self.is_final = number, b"", self.name == "PLAIN"
        if self.is_final:
            user = b"alice" if exists else b"nobody"
            token = _token(b"\0%s\0wrong-%d" % (user, number)) + METADATA
        else:
            token = _token(b"n,,n=%s,r=%s" % (b"carol" if exists else b"nobody", NONCE))
        # An address has too few ports for the connections of a minute.
        self.sock = socket.socket()
        self.sock.bind((f"127.0.{number // 250 % 250}.{number % 250 + 1}", 0))
        self.sock.connect(address)
        self.sock.setblocking(False)
        self.sock.send(HANDSHAKES[self.name] + token)

    def advance(self) -> str:
        """Read what has arrived; return the outcome, or an empty text while the login goes on."""
        try:
            data = self.sock.recv(4096)
        except ConnectionResetError:
            data = b""
        if not data:
            return self._outcome()
        self.received += data
        if not self.is_final and len(bodies := self._bodies()) == 2:
            self._send_proof(bodies[1])
        return ""

    def _bodies(self) -> list[bytes]:
        """Return the whole responses that have arrived."""
        bodies, at = [], 0
        while len(self.received) >= at + 4:
            (size,) = unpack_from(">i", self.received, at)
            if len(self.received) < at + 4 + size:
                break
            bodies.append(self.received[at + 4 : at + 4 + size])
            at += 4 + size
        return bodies

    def _send_proof(self, body: bytes) -> None:
        nonce = body[body.index(b"r=") + 2 : body.index(b",s=")]
        proof = base64.b64encode(pack(">Q", self.number) * 4)
        self.sock.send(_token(b"c=biws,r=%s,p=%s" % (nonce, proof)) + METADATA)
        self.is_final = True

    def _outcome(self) -> str:
        bodies = self._bodies()
        last = 2 if self.name == "PLAIN" else 3
        assert len(bodies) <= last, "a request behind the login was answered"
        if len(bodies) < last:
            return "disconnected"
        # A correlation id, the end of a header's tags, the code.
        (code,) = unpack_from(">h", bodies[-1], 5)
        assert code == REFUSED, f"a wrong password got in: {code}"
        return f"refused {self.name}"


def attack(
    target: Target,
    count: int,
    at_once: int,
    may_attack: Event,
    outcomes: "multiprocessing.Queue[Counter[str]]",
) -> None:
    """Log in ``count`` times, and report the outcomes."""
    os.nice(10)
    counts: Counter[str] = Counter()
    started = open_count = 0
    with selectors.EpollSelector() as waiting:
        while started < count or open_count:
            if not open_count:
                may_attack.wait()
            while started < count and open_count < at_once and may_attack.is_set():
                login = LogIn(started, target.login)
                waiting.register(login.sock, selectors.EVENT_READ, login)
                started, open_count = started + 1, open_count + 1
            for key, _ in waiting.select():
                outcome = key.data.advance()
                if outcome:
                    waiting.unregister(key.data.sock)
                    key.data.sock.close()
                    open_count -= 1
                    counts[outcome] += 1
    outcomes.put(counts)


def percentiles(waits: list[float]) -> str:
    waits.sort()
    if not waits:
        return "-"
    return f"{waits[len(waits) // 2] * 1000:.2f} {waits[len(waits) * 99 // 100] * 1000:.2f}"


def run(target: Target, options: argparse.Namespace) -> None:
    if options.first:
        for process in (target.pid, 0):
            os.sched_setscheduler(process, os.SCHED_RR | os.SCHED_RESET_ON_FORK, os.sched_param(1))
    may_attack = multiprocessing.Event()
    outcomes: multiprocessing.Queue[Counter[str]] = multiprocessing.Queue()
    arguments = (target, options.count, options.at_once, may_attack, outcomes)
    attacker = multiprocessing.Process(target=attack, args=arguments)
    attacker.start()
    waits: dict[bool, list[float]] = {False: [], True: []}
    memory, descriptors, cpu = [target.resident_mb], [target.descriptor_count], target.cpu_s
    attack_s, began = 0.0, time.monotonic()
    with connect_alice(target) as alice:
        while attacker.is_alive():
            for is_attacked, seconds in ((False, WITHOUT_S), (True, WITH_S)):
                (may_attack.set if is_attacked else may_attack.clear)()
                started = time.monotonic()
                while (since := time.monotonic() - started) < seconds and attacker.is_alive():
                    sent = time.perf_counter()
                    assert produce(alice) == 0
                    if since > SETTLE_S:
                        waits[is_attacked].append(time.perf_counter() - sent)
                    time.sleep(PAUSE_S)
                attack_s += since if is_attacked else 0
                memory.append(target.resident_mb)
                descriptors.append(target.descriptor_count)
            print(f"{time.monotonic() - began:.0f} s, {memory[-1]:.0f} MB", flush=True)
        attacker.join()
        assert attacker.exitcode == 0, "the attack failed"
        assert produce(alice) == 0
        time.sleep(5)
    counts = outcomes.get(timeout=60)
    print(f"logins {dict(counts)} in {attack_s:.0f} s; broker's CPU {target.cpu_s - cpu:.0f} s")
    print(
        f"median and p99, ms: without {percentiles(waits[False])}, with {percentiles(waits[True])}"
    )
    print(f"memory, MB: {memory[0]:.0f}, {max(memory):.0f}, {target.resident_mb:.0f}")
    print(f"descriptors: {descriptors[0]}, {max(descriptors)}, {target.descriptor_count}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--count", type=int, default=1_000_000)
    parser.add_argument("--at-once", type=int, default=256)
    parser.add_argument("--peer", default="kwire")
    parser.add_argument("--first", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, run_target(options.peer, Path(folder)) as target:
        run(target, options)


if __name__ == "__main__":
    main()
