"""Mistakes of the command line: signals, settings and messages about them."""

from tests.mutations.table import Mutation

SIGNALS = "tests/command_line/test_signals.py"
WORDS = "tests/configs/test_words.py"

MUTATIONS = (
    Mutation(
        name="second-signal-leaves-ephemeral-data",
        invariants=(109,),
        path="kwire/cli.py",
        old="        signals.end_at_once_by(temporary.cleanup)\n",
        new="        signals.end_at_once_by(lambda: None)\n",
        test="tests/command_line/test_contract.py::test_second_signal_removes_ephemeral_data_too",
    ),
    Mutation(
        name="early-signal-leaves-ephemeral-data",
        invariants=(109,),
        path="kwire/cli.py",
        old="    with StopSignals() as signals, data_directory(",
        new="    with (signals := StopSignals()) and data_directory(",
        test=f"{SIGNALS}::test_signal_before_the_node_is_ready_is_a_clean_stop",
    ),
    Mutation(
        name="signal-during-the-imports-is-lost",
        invariants=(109,),
        path="kwire/node/run.py",
        old="        if on_first is not None and self.received is not None:\n",
        new="        if False:\n",
        test=f"{SIGNALS}::test_signal_before_the_node_is_ready_is_a_clean_stop[socket.bind-127.0.0.1-15]",
    ),
    Mutation(
        name="second-signal-ends-a-start-without-its-directory-known",
        invariants=(109,),
        path="kwire/node/run.py",
        old="        elif self._clean_up is None:\n",
        new="        elif False:\n",
        test=f"{SIGNALS}::test_second_signal_while_the_directory_is_made_ends_it_at_once",
    ),
    Mutation(
        name="second-signal-while-the-directory-is-made-is-dropped",
        invariants=(109,),
        path="kwire/node/run.py",
        old="            self._second = number\n",
        new="            pass\n",
        test=f"{SIGNALS}::test_second_signal_while_the_directory_is_made_ends_it_at_once",
    ),
    Mutation(
        name="errors-of-overrides-blame-the-file",
        invariants=(),
        path="kwire/cli.py",
        old='            return f"--override {name}: "',
        new="            pass",
        test="tests/command_line/test_first_use.py::test_error_in_an_override_names_the_override",
    ),
    Mutation(
        name="empty-lists-are-taken",
        invariants=(),
        path="kwire/configs/declare.py",
        old="        if not values and self.filled:\n",
        new="        if False:\n",
        test=f"{WORDS}::test_an_empty_list_is_called_empty",
    ),
    Mutation(
        name="duplicates-in-lists-count-twice",
        invariants=(),
        path="kwire/configs/declare.py",
        old="        return tuple(dict.fromkeys(values))",
        new="        return values",
        test=f"{WORDS}::test_duplicates_in_lists_count_once_and_are_warned_about",
    ),
    Mutation(
        name="settings-without-effect-may-be-anything",
        invariants=(),
        path="kwire/configs/load.py",
        old="        checks.check_values(properties)\n",
        new="",
        test=f"{WORDS}::test_missing_value_is_refused_with_the_remedy",
    ),
    Mutation(
        name="formatting-adds-directories-of-another-cluster",
        invariants=(),
        path="kwire/storage_format/directories.py",
        old="    check(config, formatted, cluster_id)\n    if len",
        new="    if len",
        test="tests/command_line/test_first_use.py::"
        "test_format_refuses_directories_of_another_cluster",
    ),
    Mutation(
        name="formatting-takes-broken-data-for-bad-usage",
        invariants=(),
        path="kwire/cli.py",
        old="        fail(error, BAD_DATA)\n\n\ndef admin",
        new="        fail(error)\n\n\ndef admin",
        test="tests/command_line/test_first_use.py::test_format_of_an_unreadable_directory_is_exit_2",
    ),
    Mutation(
        name="brokers-of-a-machine-are-all-controllers",
        invariants=(108,),
        path="kwire/cluster/machine.py",
        old='            own["process.roles"] = "broker"\n',
        new="",
        test="tests/command_line/test_machine.py::test_file_of_a_machine_describes_each_of_its_brokers",
    ),
    Mutation(
        name="brokers-of-a-machine-have-racks-of-their-own",
        invariants=(108,),
        path="kwire/cluster/machine.py",
        old='settings.get("broker.rack") or host_name',
        new='settings.get("broker.rack") or f"{host_name}-{place}"',
        test="tests/command_line/test_machine.py::test_file_of_a_machine_describes_each_of_its_brokers",
    ),
    Mutation(
        name="rolling-restart-believes-figures-of-before",
        invariants=(108,),
        path="kwire/cluster/rolling.py",
        old='            and figures["metadata"] >= self._metadata\n',
        new="",
        test="tests/command_line/test_machine.py::test_next_node_waits_until_the_others_are_in_sync_after_the_restart",
    ),
    Mutation(
        name="rolling-restart-goes-on-while-replicas-are-behind",
        invariants=(108,),
        path="kwire/cluster/rolling.py",
        old='            and not figures["out_of_sync"]\n',
        new="",
        test="tests/command_line/test_machine.py::test_next_node_waits_until_the_others_are_in_sync_after_the_restart",
    ),
    Mutation(
        name="rolling-restart-stops-another-replica-of-an-under-replicated-partition",
        invariants=(108,),
        path="kwire/node/supervisor_link.py",
        old="+= is_behind or partition.is_under_replicated",
        new="+= is_behind",
        test="tests/command_line/test_machine.py"
        "::test_broker_counts_partitions_that_lack_any_replica",
    ),
    Mutation(
        name="rolling-restart-keeps-former-listeners",
        invariants=(108,),
        path="kwire/cluster/machine_command.py",
        old="            node.options = by_node[node.id]\n",
        new="            pass\n",
        test="tests/command_line/test_machine.py"
        "::test_brokers_of_a_machine_serve_and_restart_one_by_one_with_their_new_file",
    ),
)
