"""Damages bytes at random, in places and by values that parsers are likely to get wrong."""

from random import Random

PIECES = [b",", b"=", b"\0", b"\xff", b"\xc3", b"n,,", b"p=", b"=3D", b"=2C"]
EXTREMES = [0, 1, 2, 0x7F, 0x80, 0xFF]


def damage(rng: Random, data: bytes) -> bytes:
    """Return the bytes, or as often with some of them changed, left out, put in or cut off."""
    damaged = bytearray(data)
    for _ in range(rng.choice((0, 0, 0, 1, 2, 5))):
        at = rng.randrange(len(damaged) + 1)
        match rng.randrange(4):
            case 0:
                damaged[at : at + 1] = bytes([rng.choice((*EXTREMES, rng.randrange(256)))])
            case 1:
                del damaged[at : at + rng.randrange(1, 6)]
            case 2:
                damaged[at:at] = rng.choice((*PIECES, rng.randbytes(3)))
            case _:
                del damaged[at:]
    return bytes(damaged)
