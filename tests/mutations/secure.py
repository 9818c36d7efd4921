"""Mistakes in `--secure`, `kwire users` and `kwire acls`."""

from typing import Final

from tests.mutations.table import Mutation

FOLDER: Final = "tests/secure/test_folder.py"
MUTATIONS = (
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
)
