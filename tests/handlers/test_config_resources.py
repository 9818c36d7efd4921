"""Names of nodes in requests about settings, and the order of the results in their responses."""

import pytest

from kwire.codec.messages.incremental_alter_configs import IncrementalAlterConfigsResponse
from kwire.errors import InvalidRequest
from kwire.handlers.shared.config_resources import add_results, parse_id

Result = IncrementalAlterConfigsResponse.AlterConfigsResourceResponse
TOPIC = 2
COUNT = 500


class Name(str):
    """A name that counts how often it is compared."""

    __slots__ = ()
    compared = 0
    __hash__ = str.__hash__

    def __eq__(self, other: object) -> bool:
        Name.compared += 1
        return str.__eq__(self, other)


def result(name: str, text: str | None = None) -> Result:
    return Result(error_code=0, error_message=text, resource_type=TOPIC, resource_name=name)


def test_results_are_in_the_order_of_the_request() -> None:
    results = [result("c"), result("a", "first"), result("a", "second")]
    add_results(results, [result("b")], [(TOPIC, name) for name in ("a", "b", "a", "c")])
    assert [(each.resource_name, each.error_message) for each in results] == [
        ("a", "first"),
        ("a", "second"),
        ("b", None),
        ("c", None),
    ]


def test_order_of_many_results_takes_few_comparisons() -> None:
    """Ten thousand refusals, which need no right, would keep the node busy for ten seconds."""
    names = [f"topic-{number}" for number in range(COUNT)]
    refusals = [result(Name(name)) for name in reversed(names)]
    results: list[Result] = []
    add_results(results, refusals, [(TOPIC, Name(name)) for name in names])
    assert [each.resource_name for each in results] == names
    assert Name.compared <= 3 * COUNT


@pytest.mark.parametrize(("name", "expected"), [("1", 1), ("007", 7), ("+1", 1), ("-1", -1)])
def test_name_of_a_node_is_read_as_java_reads_it(name: str, expected: int) -> None:
    assert parse_id(name, "Node") == expected


@pytest.mark.parametrize("name", ["x", "", " 1", "1_0", "+", "2147483648", "1" * 5000])
def test_name_that_is_no_32_bit_number_is_refused(name: str) -> None:
    with pytest.raises(InvalidRequest):
        parse_id(name, "Node")
