"""A relay of packets in a process of its own: it delays, loses, repeats and reorders them.

It has a port of the bridge (a TAP device), and gets what a link sends while its target has the
hardware address of the relay (`links.py`). So it costs nothing on links that are not slow, and the
rest of TCP/IP stays the kernel's. Commands are lines of JSON on its standard input: a list of
links, each as ``[source, target, [paces' fields]]``; they replace all links before.

Rules: the relay's own address is the source of each frame it sends, because the bridge learns where
an address is from it; a frame of a link that is no longer slow is sent at once.
"""

from __future__ import annotations

import fcntl
import heapq
import json
import os
import random
import select
import struct
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import attrs

from compat_tests.harness.broker import ROOT

DEVICE: Final = "relay"
MAC: Final = "02:00:00:00:02:01"
TUNSETIFF: Final = 0x400454CA
TAP_WITHOUT_HEADER: Final = 0x1002
IPV4: Final = b"\x08\x00"
SOURCE_HOST, TARGET_HOST = 29, 33
"""The positions of the last byte of an IPv4 frame's addresses."""
FRAME_MAX: Final = 1 << 16
QUEUE_SECONDS: Final = 3.0
"""A narrow link drops what would wait for longer than this."""


@attrs.frozen
class Pace:
    """The way in which a link treats packets."""

    delay_s: float = 0.0
    jitter_s: float = 0.0
    """The most by which the delay of a packet is longer."""
    loss: float = 0.0
    """The part of the packets that is lost."""
    repetition: float = 0.0
    """The part of the packets that is sent twice."""
    is_reordering: bool = False
    """Whether a packet may overtake another one that has a longer delay."""
    bytes_per_s: float = 0.0
    """The rate; 0 if it has no limit."""


Slow = Mapping[tuple[int, int], Pace]
"""The paces of the slow links, by source and target."""


@attrs.define
class Relay:
    """The process of a relay, as its parent sees it."""

    _process: subprocess.Popen[str] = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "compat_tests.nemesis.relay"],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self._read_answer()

    def set(self, slow: Slow, addresses: Mapping[int, str]) -> None:
        """Replace the slow links; ``addresses`` are the hardware addresses of all ends."""
        assert self._process.stdin is not None
        links = [
            [source, target, addresses[target], attrs.astuple(pace)]
            for (source, target), pace in slow.items()
        ]
        self._process.stdin.write(json.dumps(links) + "\n")
        self._process.stdin.flush()
        self._read_answer()

    def _read_answer(self) -> None:
        assert self._process.stdout is not None
        if not self._process.stdout.readline():
            raise RuntimeError("the relay of packets has ended")

    def close(self) -> None:
        self._process.kill()
        self._process.wait()


@attrs.define
class Link:
    """A slow link within the relay: when its packets are due."""

    target_mac: bytes
    pace: Pace
    _free_at: float = 0.0
    """The time at which what was sent before has passed a narrow link."""
    _last_due: float = 0.0

    def due(self, size: int, now: float, chance: random.Random) -> float | None:
        """Return when a packet of ``size`` bytes is due; None if it is lost."""
        pace = self.pace
        if chance.random() < pace.loss:
            return None
        start = now
        if pace.bytes_per_s:
            start = max(now, self._free_at)
            if start > now + QUEUE_SECONDS:
                return None
            start = self._free_at = start + size / pace.bytes_per_s
        due = start + pace.delay_s + chance.uniform(0.0, pace.jitter_s)
        if not pace.is_reordering:
            due = self._last_due = max(due, self._last_due)
        return due


@attrs.define
class Packets:
    """The packets on their way, and the links that hold them."""

    chance: random.Random
    links: dict[tuple[int, int], Link] = attrs.field(factory=dict)
    _waiting: list[tuple[float, int, bytes]] = attrs.field(factory=list)
    _count: int = 0

    def set(self, links: Iterable[tuple[int, int, str, Sequence[Any]]]) -> list[bytes]:
        """Replace the links, and return what they held, in its order."""
        self.links = {
            (source, target): Link(bytes.fromhex(mac.replace(":", "")), Pace(*pace))
            for source, target, mac, pace in links
        }
        frames = [frame for _, _, frame in sorted(self._waiting)]
        self._waiting.clear()
        return frames

    def add(self, frame: bytes, now: float) -> None:
        """Take a frame; one that is of no slow link is lost, as that of a link just mended is."""
        if frame[12:14] != IPV4:
            return
        link = self.links.get((frame[SOURCE_HOST], frame[TARGET_HOST]))
        if link is None:
            return
        addressed = link.target_mac + _bytes_of(MAC) + frame[12:]
        for _ in range(2 if self.chance.random() < link.pace.repetition else 1):
            due = link.due(len(frame), now, self.chance)
            if due is not None:
                self._count += 1
                heapq.heappush(self._waiting, (due, self._count, addressed))

    def take_due(self, now: float) -> list[bytes]:
        frames = []
        while self._waiting and self._waiting[0][0] <= now:
            frames.append(heapq.heappop(self._waiting)[2])
        return frames

    def seconds_left(self, now: float) -> float | None:
        """Return the time until the next frame is due; None without one."""
        return max(self._waiting[0][0] - now, 0.0) if self._waiting else None


def _bytes_of(mac: str) -> bytes:
    return bytes.fromhex(mac.replace(":", ""))


def _open_tap() -> int:
    tap = os.open("/dev/net/tun", os.O_RDWR)
    request = struct.pack("16sH22x", DEVICE.encode(), TAP_WITHOUT_HEADER)
    fcntl.ioctl(tap, TUNSETIFF, request)
    for command in (
        f"ip link set {DEVICE} master hub up",
        f"bridge fdb replace {MAC} dev {DEVICE} master static",
    ):
        subprocess.run(command.split(), check=True)
    return tap


def main() -> None:
    """Relay packets until the standard input ends."""
    tap = _open_tap()
    os.set_blocking(tap, False)
    packets = Packets(random.Random(0))
    print("ready", flush=True)
    commands = sys.stdin.fileno()
    while True:
        seconds = packets.seconds_left(time.monotonic())
        readable, _, _ = select.select([tap, commands], [], [], seconds)
        if commands in readable:
            line = sys.stdin.readline()
            if not line:
                return
            _send(tap, packets.set(json.loads(line)))
            print("set", flush=True)
        if tap in readable:
            _receive(tap, packets)
        _send(tap, packets.take_due(time.monotonic()))


def _receive(tap: int, packets: Packets) -> None:
    while True:
        try:
            frame = os.read(tap, FRAME_MAX)
        except BlockingIOError:
            return
        packets.add(frame, time.monotonic())


def _send(tap: int, frames: Iterable[bytes]) -> None:
    for frame in frames:
        os.write(tap, frame)


if __name__ == "__main__":
    main()
