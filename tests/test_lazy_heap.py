"""The heap from which any item can be removed: its order and its memory."""

from math import inf

from hypothesis import given
from hypothesis import strategies as st

from kwire.lazy_heap import LazyHeap

STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("push"), st.integers(0, 9), st.integers(0, 20)),
        st.tuples(st.just("discard"), st.integers(0, 9), st.just(0)),
        st.tuples(st.just("pop"), st.just(0), st.integers(0, 20)),
    ),
    max_size=60,
)


@given(steps=STEPS)
def test_items_leave_in_the_order_of_their_latest_keys(steps: list[tuple[str, int, int]]) -> None:
    heap, keys = LazyHeap[int](), dict[int, int]()
    for step, item, key in steps:
        match step:
            case "push":
                heap.push(item, key)
                keys.pop(item, None)
                keys[item] = key
            case "discard":
                heap.discard(item)
                keys.pop(item, None)
            case _:
                due = sorted((i for i in keys if keys[i] <= key), key=lambda i: keys[i])
                assert heap.pop_up_to(key) == due
                keys = {i: k for i, k in keys.items() if k > key}
        assert (len(heap), heap.first_key) == (len(keys), min(keys.values(), default=inf))
        assert all((i in heap, heap.key(i)) == (i in keys, keys.get(i, inf)) for i in range(10))


def test_removed_items_take_no_memory() -> None:
    times = LazyHeap[int]()
    for number in range(1000):
        times.push(number, 10 + number)
        if number % 10:
            times.discard(number)
    assert len(times._entries) < 300
    assert times.first_key == 10
    assert times.pop_up_to(20) == [0, 10]
    assert times.first_key == 30
    for number in range(20, 1000, 10):
        times.discard(number)
    assert times.first_key == inf
    assert times.pop_up_to(inf) == []
