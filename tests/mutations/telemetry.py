"""Mistakes with the metrics that clients push."""

from typing import Final

from tests.mutations.table import Mutation

INSTANCES: Final = "tests/telemetry/test_instances.py"
PAYLOAD: Final = "tests/telemetry/test_payload.py"
SERIES: Final = "tests/telemetry/test_series.py"
SUBSCRIPTIONS: Final = "tests/telemetry/test_subscriptions.py"
NODE: Final = "tests/server/test_client_telemetry.py"
MUTATIONS = (
    Mutation(
        name="subscriptions-do-not-see-the-port-of-a-client",
        invariants=(100,),
        path="kwire/net/server.py",
        old="for_connection(listener.name, host, port)",
        new="for_connection(listener.name, host, 0)",
        test=f"{NODE}::test_subscription_chooses_clients_by_their_port",
    ),
    Mutation(
        name="clients-push-as-often-as-they-like",
        invariants=(100,),
        path="kwire/telemetry/instances.py",
        old="        elif not push.is_last:\n            raise ThrottlingQuotaExceeded\n",
        new="",
        test=f"{INSTANCES}::test_client_asks_once_and_pushes_once_in_each_interval",
    ),
    Mutation(
        name="pushes-have-any-size",
        invariants=(98,),
        path="kwire/telemetry/instances.py",
        old="        if push.size > max_bytes:\n            raise TelemetryTooLarge\n",
        new="",
        test=f"{INSTANCES}::test_codecs_and_sizes_are_limited",
    ),
    Mutation(
        name="any-number-of-client-instances-is-kept",
        invariants=(100,),
        path="kwire/telemetry/instances.py",
        old="        if len(self._instances) > INSTANCES_MAX:\n",
        new="        if len(self._instances) < 0:\n",
        test=f"{INSTANCES}::test_number_of_instances_is_limited",
    ),
    Mutation(
        name="pushes-unpack-to-any-size",
        invariants=(98,),
        path="kwire/telemetry/payload.py",
        old="decompress(codec, data, max_bytes)",
        new="decompress(codec, data, max_bytes << 8)",
        test=f"{PAYLOAD}::test_unpacked_size_is_limited",
    ),
    Mutation(
        name="differences-count-as-totals",
        invariants=(100,),
        path="kwire/telemetry/payload.py",
        old='    elif data == "sum" and metric.sum.aggregation_temporality == _CUMULATIVE:\n',
        new='    elif data == "sum":\n',
        test=f"{PAYLOAD}::test_sums_since_the_last_push_and_averages_of_nothing_are_left_out",
    ),
    Mutation(
        name="clients-name-metrics-as-the-broker-does",
        invariants=(100,),
        path="kwire/telemetry/payload.py",
        old="    return PREFIX + to_name(",
        new="    return to_name(",
        test=f"{PAYLOAD}::test_gauges_and_sums_become_series",
    ),
    Mutation(
        name="clients-replace-the-labels-of-the-broker",
        invariants=(100,),
        path="kwire/telemetry/series.py",
        old=" if label[0] not in own",
        new="",
        test=f"{SERIES}::test_clients_cannot_pose_as_others_in_labels",
    ),
    Mutation(
        name="series-of-clients-grow-without-a-limit",
        invariants=(100,),
        path="kwire/telemetry/series.py",
        old="        while self._count > self._limit:\n",
        new="        while self._count < 0:\n",
        test=f"{SERIES}::test_clients_that_pushed_longest_ago_make_room",
    ),
    Mutation(
        name="series-outlive-their-clients",
        invariants=(100,),
        path="kwire/telemetry/series.py",
        old="                if client.expires_at > now:\n",
        new="                if client.expires_at:\n",
        test=f"{SERIES}::test_series_of_a_client_vanish_although_an_older_one_keeps_its_own",
    ),
    Mutation(
        name="subscription-matches-when-one-pattern-does",
        invariants=(100,),
        path="kwire/telemetry/subscriptions.py",
        old="        return all(\n",
        new="        return not self.patterns or any(\n",
        test=f"{SUBSCRIPTIONS}::test_whole_attributes_have_to_match_every_pattern",
    ),
    Mutation(
        name="client-keeps-the-instances-of-a-connection",
        invariants=(100,),
        path="kwire/telemetry/receiver.py",
        old="        if end_former is not None:\n            end_former()\n",
        new="",
        test=f"{NODE}::test_a_connection_has_one_instance_which_ends_with_it",
    ),
    Mutation(
        name="changed-subscriptions-keep-their-ids",
        invariants=(100,),
        path="kwire/telemetry/subscriptions.py",
        old="        self.version += 1\n",
        new="",
        test=f"{NODE}::test_changed_subscription_is_unknown_until_the_client_asks_again",
    ),
    Mutation(
        name="telemetry-is-advertised-unasked",
        invariants=(97,),
        path="kwire/handlers/__init__.py",
        old="(has_telemetry or api.advertised is not None)",
        new="(True or api.advertised is not None)",
        test=f"{NODE}::test_clients_are_asked_for_nothing_by_default",
    ),
    Mutation(
        name="software-is-forgotten-at-the-log-in",
        invariants=(105,),
        path="kwire/node/logins.py",
        old="                connection=before_login.context.connection,\n",
        new="",
        test=f"{NODE}::test_clients_that_log_in_keep_the_name_of_their_software",
    ),
)
