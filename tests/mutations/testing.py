"""Mistakes in the brokers for users' tests."""

from typing import Final

from tests.mutations.table import Mutation

PLUGIN: Final = "tests/testing/test_pytest_plugin.py"
FAULTS: Final = "tests/testing/test_faults.py"
WAITS: Final = "tests/testing/test_waits.py"
BROKER: Final = "tests/testing/test_broker.py"
MUTATIONS = (
    Mutation(
        name="typo-in-a-setting-of-a-test-broker",
        invariants=(),
        path="kwire/testing/settings.py",
        old="        if broker_key(name) is None:\n",
        new="        if not name:\n",
        test=f"{BROKER}::test_a_wrong_setting_is_one_clear_error",
    ),
    Mutation(
        name="log-of-a-test-broker-among-the-applications",
        invariants=(),
        path="kwire/testing/log_lines.py",
        old="            _LOGGER.parent = None\n",
        new="            _LOGGER.propagate = False\n",
        test=f"{PLUGIN}::test_the_report_of_a_failed_test_has_the_log_since_its_begin",
    ),
    Mutation(
        name="log-of-a-test-broker-in-that-of-another",
        invariants=(),
        path="kwire/testing/log_lines.py",
        old="        if _CURRENT.get() is self:\n",
        new="        if _CURRENT.get() is not None:\n",
        test=f"{BROKER}::test_brokers_of_one_process_share_nothing",
    ),
    Mutation(
        name="groups-of-a-test-broker-survive-its-reset",
        invariants=(),
        path="kwire/testing/nodes.py",
        old="        await self.delete_topics(*image.topic_ids)\n",
        new='        await self.delete_topics(*(n for n in image.topic_ids if n[:2] != "__"))\n',
        test=f"{BROKER}::test_reset_deletes_topics_groups_and_transactions_and_keeps_connections",
    ),
    Mutation(
        name="thread-of-a-test-broker-outlives-it",
        invariants=(),
        path="kwire/testing/loop_thread.py",
        old="            self._thread.join()\n",
        new="",
        test=f"{BROKER}::test_threads_descriptors_and_directories_are_gone_at_the_end",
    ),
    Mutation(
        name="report-has-the-log-of-earlier-tests",
        invariants=(),
        path="kwire/testing/pytest_plugin.py",
        old="            self._counts[broker] = broker.log_line_count\n",
        new="            self._counts[broker] = 0\n",
        test=f"{PLUGIN}::test_the_report_of_a_failed_test_has_the_log_since_its_begin",
    ),
    Mutation(
        name="plugin-imports-brokers-for-every-run",
        invariants=(),
        path="kwire/testing/pytest_plugin.py",
        old="import pytest\n\nif TYPE_CHECKING:\n",
        new="import pytest\n\nimport kwire.testing.broker\n\nif TYPE_CHECKING:\n",
        test=f"{PLUGIN}::test_nothing_is_imported_before_a_broker_is_used",
    ),
    Mutation(
        name="lag-of-a-group-that-has-committed-nothing",
        invariants=(),
        path="kwire/testing/waits.py",
        old="            if start is None:\n",
        new="            if start is None:\n                continue\n            if False:\n",
        test=f"{WAITS}::test_lag_is_what_a_group_has_not_committed",
    ),
    Mutation(
        name="group-is-stable-before-its-members-have-partitions",
        invariants=(),
        path="kwire/testing/waits.py",
        old='            expected = ("Stable",) if members else',
        new='            expected = ("Stable", "CompletingRebalance") if members else',
        test=f"{WAITS}::test_a_group_is_waited_for_until_its_members_have_an_assignment",
    ),
    Mutation(
        name="fault-that-did-not-happen-passes",
        invariants=(),
        path="kwire/testing/faults.py",
        old="        if unused:\n",
        new="        if not self.faults and unused and False:\n",
        test=f"{FAULTS}::test_a_fault_that_does_not_happen_is_an_error_at_the_end",
    ),
    Mutation(
        name="faults-hit-the-brokers-among-themselves",
        invariants=(),
        path="kwire/testing/interception.py",
        old="        if name not in (CLIENTS, SECURE_CLIENTS):\n",
        new='        if name == "CONTROLLER":\n',
        test=f"{FAULTS}::test_faults_of_a_cluster_leave_its_nodes_alone",
    ),
    Mutation(
        name="fault-after-the-effect-comes-before-it",
        invariants=(),
        path="kwire/testing/interception.py",
        old='        if fault.drops == "after" and not self.only_reads(frame):\n',
        new='        if fault.drops == "never":\n',
        test=f"{FAULTS}::test_a_connection_drops_before_or_after_the_request_has_had_its_effect",
    ),
    Mutation(
        name="fetch-fails-as-a-whole",
        invariants=(),
        path="kwire/testing/request_bodies.py",
        old='    if api.name == "Fetch" and request.topics:\n',
        new='    if api.name == "Fetch" and not request.topics:\n',
        test=f"{FAULTS}::test_a_fetch_fails_in_its_partitions",
    ),
    Mutation(
        name="data-of-a-running-test-broker-removed",
        invariants=(),
        path="kwire/testing/folders.py",
        old="            fcntl.flock(owner, fcntl.LOCK_SH)\n",
        new="            pass\n",
        test=f"{BROKER}::test_the_data_of_a_killed_process_are_removed_by_the_next_broker",
    ),
    Mutation(
        name="pytest-rewrites-the-modules-of-a-broker",
        invariants=(),
        path="kwire/testing/pytest_plugin.py",
        old="sys.meta_path.insert(0, UnchangedModules())\n",
        new="sys.meta_path.append(UnchangedModules())\n",
        test=f"{PLUGIN}::test_pytest_does_not_rewrite_the_modules_of_a_broker",
    ),
    Mutation(
        name="reset-deletes-what-a-new-cluster-has",
        invariants=(),
        path="kwire/testing/resets.py",
        old="        before = initial.get((kind, name), {})\n",
        new="        before: Mapping[str, str] = {}\n",
        test=f"{BROKER}::test_reset_restores_settings_of_all_brokers",
    ),
)
