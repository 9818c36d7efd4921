"""Mistakes of the container image's entry points."""

from tests.mutations.table import Mutation

ENVIRONMENT = "tests/container/test_environment.py"
SECRETS = "tests/container/test_secrets.py"
COMMAND = "tests/command_line/test_container.py"

MUTATIONS = (
    Mutation(
        name="container-unescapes-passwords-of-tls-files",
        invariants=(),
        path="kwire/container/secrets.py",
        old='        changed[setting] = password.replace("\\\\", "\\\\\\\\")\n',
        new="        changed[setting] = password\n",
        test=f"{SECRETS}::test_names_of_files_become_locations_and_passwords",
    ),
    Mutation(
        name="container-turns-three-underscores-into-dots",
        invariants=(),
        path="kwire/container/environment.py",
        old='.replace("...", "-").replace("..", "_")',
        new='.replace("..", "_").replace("...", "-")',
        test=f"{ENVIRONMENT}::test_underscores_stand_for_dots_underscores_and_dashes",
    ),
    Mutation(
        name="container-takes-heap-options-for-a-setting",
        invariants=(),
        path="kwire/container/environment.py",
        old="        and variable not in _NO_SETTINGS\n",
        new="",
        test=f"{ENVIRONMENT}::test_variables_of_java_and_of_others_are_no_settings",
    ),
    Mutation(
        name="container-refuses-data-of-another-cluster-id",
        invariants=(),
        path="kwire/container/directories.py",
        old="    if any(read_meta(path, disks) is not None for path in paths):\n",
        new="    if False:\n",
        test=f"{COMMAND}::test_data_keep_their_cluster_when_the_variable_changes",
    ),
    Mutation(
        name="container-formats-over-data-without-identity",
        invariants=(),
        path="kwire/container/directories.py",
        old="        if holds_logs(path, disks):\n",
        new="        if False:\n",
        test=f"{COMMAND}::test_voter_that_lost_its_identity_does_not_format_over_its_data",
    ),
    Mutation(
        name="healthy-without-an-answer",
        invariants=(),
        path="kwire/container/health.py",
        old="    except OSError:\n        return False\n",
        new="    except OSError:\n        return True\n",
        test=f"{COMMAND}::test_node_prints_the_words_that_container_libraries_wait_for",
    ),
)
