"""The dead letters that a topic still has, although its retention has removed others."""

import pytest

from kwire_pipeline.tables.topic import Note, newest_thinned, starts_of


@pytest.mark.parametrize(
    ("beginnings", "first", "before", "thinned"),
    [
        ({0: 9, 1: 0}, {0: ("now", 3), 1: ("now", 7)}, {}, 3),
        ({0: 9, 1: 9}, {0: ("now", 3), 1: ("now", 7)}, {}, 7),
        ({0: 9, 1: 9}, {0: ("now", 3), 1: ("former", 9)}, {}, 3),
        ({0: 9}, {0: ("former", 9)}, {}, -1),
        ({0: 9, 1: 1}, {0: ("now", 3)}, {}, None),
        ({0: 9, 1: 1}, {0: ("now", 3)}, {1: (6, 1)}, 5),
        ({0: 9, 1: 2}, {0: ("now", 3)}, {1: (6, 1)}, None),
        ({0: 9, 1: 2}, {1: ("now", 4)}, {0: (6, 9), 1: (6, 2)}, 5),
        ({0: 9}, {}, {}, None),
    ],
)
def test_newest_batch_without_some_letters(
    beginnings: dict[int, int],
    first: dict[int, tuple[str, int]],
    before: dict[int, tuple[int, int]],
    thinned: int | None,
) -> None:
    """A partition without letters is known by the end that it had before the last batch."""
    assert newest_thinned(beginnings, first, before, "now") == thinned


def test_note_of_a_former_pipeline_id_or_a_damaged_one_says_nothing() -> None:
    text = '{"topic_id": "t", "pipeline_id": "now", "batch_id": 6, "offsets": {"dead": {"0": 9}}}'
    note = Note.parse(text)
    assert note is not None
    assert note.before("now", "dead") == {0: (6, 9)}
    assert note.before("former", "dead") == {}
    for damaged in (None, "", "[]", "{}", text[:-2], text.replace("6", '"x"')):
        assert Note.parse(damaged) is None


def test_kept_batches_begin_at_the_first_of_their_ranges() -> None:
    texts = ['{"t":{"0":[20,30]}}', '{"t":{"0":[10,20]}}', '{"t":{"1":[5,6]},"u":{"0":[0,4]}}']
    assert starts_of(texts) == {"t": {0: 10, 1: 5}, "u": {0: 0}}
    assert starts_of([]) == {}
