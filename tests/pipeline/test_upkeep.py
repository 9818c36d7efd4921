"""Tables are maintained between two batches of a run at an interval."""

import datetime

from kwire_pipeline.engine.upkeep import Schedule


def test_maintenance_is_due_every_so_often() -> None:
    schedule = Schedule(datetime.timedelta(minutes=1), 100)
    due_s = [now_s for now_s in range(100, 300, 10) if schedule.is_due(now_s)]
    assert due_s == [160, 220, 280]
    assert not Schedule(None, 0).is_due(1e9)
