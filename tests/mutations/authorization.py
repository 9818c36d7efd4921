"""Mistakes of the authorizer and of what requests ask it."""

from tests.mutations.table import Mutation

_DECISIONS = "tests/security/test_authorizer.py"
_MATRIX = (
    "tests/server/test_authorization.py"
    "::test_every_api_answers_as_kafka_with_and_without_permissions"
)

MUTATIONS = (
    Mutation(
        name="denial-does-not-win",
        invariants=(105,),
        path="kwire/security/authorizer.py",
        old="if rights.denied & denied_by:",
        new="if rights.denied & denied_by and not allowed:",
        test=f"{_DECISIONS}::test_acls_decide",
    ),
    Mutation(
        name="literal-acl-covers-longer-names",
        invariants=(105,),
        path="kwire/security/authorizer.py",
        old="find((resource_type, PREFIXED, name[:length]))",
        new="find((resource_type, LITERAL, name[:length]))",
        test=f"{_DECISIONS}::test_acls_decide",
    ),
    Mutation(
        name="long-prefixes-are-forgotten-with-the-first-of-their-length",
        invariants=(105,),
        path="kwire/security/authorizer.py",
        old="        if not count:\n            ascending",
        new="        if change < 0:\n            ascending",
        test=f"{_DECISIONS}::test_the_index_decides_as_a_scan_of_all_acls",
    ),
    Mutation(
        name="uncovered-resource-is-open",
        invariants=(105,),
        path="kwire/security/authorizer.py",
        old="decision = self.allows_uncovered if allowed is None else allowed",
        new="decision = True if allowed is None else allowed",
        test=f"{_DECISIONS}"
        "::test_uncovered_resources_are_open_to_everyone_only_if_the_setting_says_so",
    ),
    Mutation(
        name="decisions-outlive-their-acls",
        invariants=(105,),
        path="kwire/security/authorizer.py",
        old="        self._index, self.is_loaded = index, True\n        self._decisions.clear()\n",
        new="        self._index, self.is_loaded = index, True\n",
        test=f"{_DECISIONS}::test_a_changed_index_decides_at_once",
    ),
    Mutation(
        name="clients-are-served-before-the-acls-are-loaded",
        invariants=(105,),
        path="kwire/security/authorizer.py",
        old="        self._check_loaded()\n",
        new="",
        test=f"{_DECISIONS}::test_super_users_may_do_everything_even_before_the_acls_are_loaded",
    ),
    Mutation(
        name="deleted-acl-stays-in-force",
        invariants=(105,),
        path="kwire/node/authorization.py",
        old="                change.remove(old)\n",
        new="                pass\n",
        test="tests/server/test_authorization.py::test_deleted_acls_are_out_of_force_at_once",
    ),
    Mutation(
        name="follower-reads-with-a-consumers-permission",
        invariants=(105,),
        path="kwire/handlers/shared/fetch_options.py",
        old="    if reader >= 0:\n        is_broker",
        new="    if reader >= 1 << 31:\n        is_broker",
        test=_MATRIX,
    ),
    Mutation(
        name="topic-is-created-for-a-client-that-may-not-describe-it",
        invariants=(105,),
        path="kwire/handlers/metadata.py",
        old='        if not context.is_allowed("Describe", "Topic", name):\n            continue\n',
        new="",
        test="tests/server/test_authorization.py"
        "::test_metadata_creates_no_topic_that_the_client_may_not_describe",
    ),
    Mutation(
        name="absent-topic-is-told-apart-from-a-hidden-one",
        invariants=(105,),
        path="kwire/handlers/delete_topics.py",
        old="    if is_described and topic.name is not None",
        new="    if topic.name is not None",
        test=_MATRIX,
    ),
    Mutation(
        name="envelope-is-authorized-as-its-broker",
        invariants=(105,),
        path="kwire/handlers/envelope.py",
        old="        principal=Principal(stored.type, stored.name),\n",
        new="        principal=context.principal,\n",
        test="tests/handlers/test_envelope.py::test_request_inside_is_answered_for_the_client",
    ),
    Mutation(
        name="decisions-on-endless-names-are-kept",
        invariants=(105,),
        path="kwire/security/authorizer.py",
        old="        if name is not None and len(name) > KEPT_NAME_LENGTH:\n            return\n",
        new="",
        test="tests/security/test_authorizer.py::test_decisions_on_endless_names_take_no_memory",
    ),
)
