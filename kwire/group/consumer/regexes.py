"""Subscriptions by regular expressions, which the coordinator matches with the names of topics.

The syntax is RE2's, as in Kafka: matching takes linear time, whatever clients send. All expressions
of a group are resolved together, in steps after the decision that needs it, at most every ten
seconds: when an expression is new, when topics were created, and in any case after
`group.consumer.regex.refresh.interval.ms`. Members are assigned topics once the result is written.
An expression that this node cannot compile, but that another coordinator has resolved, keeps its
topics.
"""

import logging
from collections.abc import Callable, Iterator, Mapping, Set
from itertools import islice
from typing import Final, Protocol

import attrs

from kwire import regexes
from kwire.coordinator.decision import NOTHING, Decision, Moment, Step
from kwire.errors import InvalidRegularExpression
from kwire.group.consumer.model import ConsumerGroup, ResolvedRegex
from kwire.group.consumer.records import epoch_record, regex_record
from kwire.group.consumer.topics import Topics, group_hash
from kwire.regexes import Match

logger = logging.getLogger(__name__)

BATCH_INTERVAL_MS: Final = 10_000
_NAMES_A_STEP: Final = 200


def compile_regex(text: str) -> Match:
    """Compile a regular expression; raises InvalidRegularExpression."""
    try:
        return regexes.compile_regex(text)
    except regexes.NoCompiler as error:
        raise InvalidRegularExpression(str(error)) from None
    except regexes.BadExpression as error:
        raise InvalidRegularExpression(
            f"SubscribedTopicRegex `{text}` is not a valid regular expression: {error}."
        ) from None


def needs_resolution(
    group: ConsumerGroup,
    expressions: Mapping[str, int],
    topics: Topics,
    now_ms: int,
    refresh_interval_ms: int,
    *,
    is_new: bool,
) -> bool:
    """Return whether the expressions of a group have to be matched again.

    ``is_new`` is true if the member is the first to use its expression.
    """
    if not expressions:
        return False
    last = next(iter(group.regexes.values()), None)
    if last is None:
        return True
    age_ms = now_ms - last.timestamp_ms
    if 0 <= age_ms <= BATCH_INTERVAL_MS:
        return False
    return (
        is_new
        or len(expressions) != len(group.regexes)
        or last.version < topics.names_offset
        or not 0 <= age_ms <= refresh_interval_ms
    )


class GroupSource(Protocol):
    """The shard, as used by a resolution."""

    @property
    def groups(self) -> Mapping[str, ConsumerGroup]: ...

    @property
    def topics(self) -> Callable[[], Topics]: ...

    def finish_resolution(self, group_id: str) -> None:
        """Allow the expressions of the group to be resolved again."""


@attrs.define(eq=False, repr=False)
class Resolution:
    """The resolution of one group's regular expressions, as steps."""

    shard: GroupSource
    group_id: str
    expressions: tuple[str, ...]
    may_describe: Callable[[str], bool]
    """Returns whether the client whose request caused the resolution may see a topic."""

    def steps(self) -> Iterator[Step]:
        """Yield the steps; the last one writes the changes."""
        topics = self.shard.topics()
        names, offset = iter(topics.names()), topics.offset
        matches: dict[str, set[str]] = {text: set() for text in self.expressions}
        patterns: dict[str, Match] = {}

        def match_some(moment: Moment) -> Decision:
            if matches and not patterns:
                patterns.update(self._compile())
                for text in matches.keys() - patterns.keys():
                    del matches[text]
            for name in names_of_step:
                for text, match in patterns.items():
                    if match(name) and self.may_describe(name):
                        matches[text].add(name)
            return NOTHING

        while names_of_step := list(islice(names, _NAMES_A_STEP)):
            yield match_some
        yield lambda moment: self._write(matches, offset, moment)

    def _compile(self) -> dict[str, Match]:
        """Compile the expressions, without those for which this node has no compiler."""
        patterns: dict[str, Match] = {}
        for text in self.expressions:
            try:
                patterns[text] = compile_regex(text)
            except InvalidRegularExpression as error:
                logger.error("expression not resolved group=%s error=%s", self.group_id, error)
        return patterns

    def _write(self, matches: Mapping[str, set[str]], offset: int, moment: Moment) -> Decision:
        """Write the topics of the expressions; one without an entry in ``matches`` keeps them."""
        self.shard.finish_resolution(self.group_id)
        group = self.shard.groups.get(self.group_id)
        if group is None:
            return NOTHING
        topics, records, has_changed = self.shard.topics(), [], False
        resolved, unmatched = dict(group.regexes), set[str]()
        for text in self.expressions:
            if text not in group.regex_members:
                continue
            old = resolved.get(text)
            former = frozenset[str]() if old is None else old.topics
            new = ResolvedRegex(frozenset(matches.get(text, former)), offset, moment.wall_ms)
            has_changed = has_changed or new.topics != former
            if old is None and not new.topics:
                unmatched.add(text)
            resolved[text] = new
            records.append(regex_record(self.group_id, text, new))
        subscribed = set(group.by_name).union(*(each.topics for each in resolved.values()))
        metadata_hash = group_hash(topics, subscribed)
        has_changed = has_changed or metadata_hash != group.metadata_hash
        if has_changed or _have_outdated_targets(group, unmatched, topics):
            records.append(epoch_record(self.group_id, group.epoch + 1, metadata_hash))
        logger.info("expressions resolved group=%s count=%d", self.group_id, len(records))
        return Decision(records=tuple(records))


def _have_outdated_targets(group: ConsumerGroup, unmatched: Set[str], topics: Topics) -> bool:
    """Return whether a member has a target of the expression that it had before one of these.

    These expressions match no topics. Other subscribers of the former topics have to get them.
    """
    return bool(unmatched) and any(
        topics.name_of(topic_id) not in member.topics
        for member in group.members.values()
        if member.regex in unmatched
        for topic_id in group.target.get(member.member_id, ())
    )
