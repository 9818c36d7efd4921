"""Errors of `kwire serve` for damaged data with which the node must not start."""

from pathlib import Path

import pytest

from tests.support.command_line.process import run, serve


@pytest.mark.slow
def test_a_damaged_quorum_state_is_one_line_and_exit_2(tmp_path: Path) -> None:
    """The node may have voted for a candidate that it cannot read: it must not start.

    The error names the remedy, which works.
    """
    with serve(tmp_path, "--port", "0"):
        pass
    (state,) = tmp_path.rglob("quorum-state")
    for damaged in ("", "{", '{"leaderId":1}', '{"data_version":7}'):
        state.write_text(damaged)
        result = run(tmp_path, "serve", "--port", "0")
        assert result.returncode == 2, damaged
        what = "damaged: " if damaged else "empty; "
        assert f"quorum-state is {what}" in result.stderr
        assert "only voter, deleting the file is safe" in result.stderr
        assert "Traceback" not in result.stderr
        assert state.read_text() == damaged
    state.unlink()
    with serve(tmp_path, "--port", "0") as node:
        assert node.stop() == 0


@pytest.mark.slow
def test_a_damaged_snapshot_is_one_line_and_exit_2(tmp_path: Path) -> None:
    """The node must not run with other metadata than the committed."""
    with serve(tmp_path, "--port", "0"):
        pass
    (state,) = tmp_path.rglob("quorum-state")
    name = "00000000000000000001-0000000001.checkpoint"
    (state.parent / name).write_bytes(b"no snapshot")
    result = run(tmp_path, "serve", "--port", "0")
    assert result.returncode == 2
    assert name in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.slow
def test_a_damaged_metadata_log_is_one_line_and_exit_2(tmp_path: Path) -> None:
    """Bytes from before the last start were synced, so no crash can have damaged them."""
    for _ in range(2):
        with serve(tmp_path, "--port", "0"):
            pass
    (state,) = tmp_path.rglob("quorum-state")
    (log,) = state.parent.glob("*.log")
    data = bytearray(log.read_bytes())
    data[70] ^= 1
    log.write_bytes(data)
    for _ in range(2):
        result = run(tmp_path, "serve", "--port", "0")
        assert result.returncode == 2
        assert f"{log.name} is damaged at byte 0, offset 0" in result.stderr
        assert "backup" in result.stderr
        assert "Traceback" not in result.stderr
    assert log.read_bytes() == data
