"""Mistakes in `--secure`, `kwire users`, `kwire acls` and the quota on request time."""

from typing import Final

from tests.mutations.table import Mutation

FOLDER: Final = "tests/secure/test_folder.py"
REQUEST_TIME: Final = "tests/handlers/test_request_time.py"
MUTATIONS = (
    Mutation(
        name="metrics-of-a-protected-node-are-for-everybody",
        invariants=(105,),
        path="kwire/cli.py",
        old='                    options.metrics_host = "127.0.0.1"\n',
        new="                    pass\n",
        test="tests/command_line/test_secure.py"
        "::test_metrics_of_a_protected_node_are_for_its_own_machine",
    ),
    Mutation(
        name="secrets-readable-by-others",
        invariants=(105,),
        path="kwire/secure/folder.py",
        old="os.O_WRONLY, 0o600)",
        new="os.O_WRONLY, 0o644)",
        test=f"{FOLDER}::test_only_the_owner_can_read_the_files",
    ),
    Mutation(
        name="certificate-renewed-at-its-end",
        invariants=(105,),
        path="kwire/secure/certificates.py",
        old="        end -= timedelta(days=RENEWAL_DAYS)\n",
        new="        pass\n",
        test="tests/secure/test_certificates.py::test_certificate_is_renewed_well_before_its_end",
    ),
    Mutation(
        name="protected-node-without-authorizer",
        invariants=(105,),
        path="kwire/secure/settings.py",
        old='        "authorizer.class.name": STANDARD_AUTHORIZER,\n',
        new="",
        test="tests/secure/test_settings.py::test_every_listener_encrypts_and_asks_for_log_ins",
    ),
    Mutation(
        name="protected-node-starts-open",
        invariants=(105,),
        path="kwire/cli.py",
        old="                check_open(properties)\n",
        new="                pass\n",
        test="tests/command_line/test_secure.py"
        "::test_protected_node_does_not_start_open_by_mistake",
    ),
    Mutation(
        name="password-of-the-admin-restored",
        invariants=(105,),
        path="kwire/secure/upkeep.py",
        old="if user == ADMIN and self.folder.has_client_files:",
        new="if False:",
        test="tests/testing/test_secure.py::test_restart_keeps_another_password_of_the_admin",
    ),
    Mutation(
        name="all-acls-removed-by-mistake",
        invariants=(105,),
        path="kwire/admin/command.py",
        old="if selection.is_empty and not options.all:",
        new="if False:",
        test="tests/admin/test_commands.py::test_wrong_use_is_explained",
    ),
    Mutation(
        name="password-read-with-its-line-end",
        invariants=(105,),
        path="kwire/admin/command.py",
        old='                password = file.readline().rstrip("\\r\\n")\n',
        new="                password = file.readline()\n",
        test="tests/admin/test_commands.py::test_user_is_added_listed_and_removed",
    ),
    Mutation(
        name="followers-use-the-request-time-of-clients",
        invariants=(104,),
        path="kwire/handlers/dispatch.py",
        old="if route.is_exempt or (route.is_fetch and _is_of_a_follower(request)):",
        new="if route.is_exempt:",
        test=f"{REQUEST_TIME}::test_requests_of_nodes_are_exempt",
    ),
    Mutation(
        name="request-time-throttles-for-more-than-a-window",
        invariants=(104,),
        path="kwire/handlers/shared/client_quotas.py",
        old="return min(limit.excess_ms(now), round(self.window_s * 1000))",
        new="return limit.excess_ms(now)",
        test=f"{REQUEST_TIME}::test_client_over_its_request_time_is_throttled",
    ),
    Mutation(
        name="waits-count-as-request-time",
        invariants=(104,),
        path="kwire/handlers/shared/busy_time.py",
        old="    while True:\n        started = now()\n",
        new="    started = now()\n    while True:\n",
        test=f"{REQUEST_TIME}::test_only_the_steps_of_a_request_count",
    ),
)
