"""Lazy import: a message's module is imported when the first such message arrives."""

import subprocess
import sys

PROGRAM = """
import sys
import kwire.codec.apis, kwire.codec.compile, kwire.codec.frame

def loaded():
    return sorted(name for name in sys.modules if name.startswith("kwire.codec.messages."))

assert loaded() == [], loaded()
kwire.codec.frame.read_header(bytes.fromhex("0003000c00000001ffff00"))
assert loaded() == ["kwire.codec.messages.metadata"], loaded()
assert not kwire.codec.compile._decoders
"""


def test_message_module_is_imported_when_a_request_arrives():
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
