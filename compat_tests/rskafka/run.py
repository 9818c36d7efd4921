"""rskafka's own integration tests, from crates.io; part of ``scripts/test --all``.

    python -m compat_tests.rskafka.run --broker kwire|kafka|HOST:PORT

They need cargo, g++ and a JDK: some exchange records with librdkafka and with Apache's Java client,
both of which cargo builds in. The crate is compiled once into the cache, which takes minutes. Three
brokers run, as upstream. A name in tests.txt is the file of the test and its function.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from compat_tests.harness.logins import start
from compat_tests.harness.programs import need
from compat_tests.harness.suite import Suite, Variant, cache, main
from compat_tests.security.brokers import LOGIN_LISTENERS, PLAIN_MODULE

FOLDER = Path(__file__).resolve().parent
CRATE, VERSION = "rskafka", "0.6.0"
FILES = ("client", "consumer", "producer", "produce_consume")
MANIFEST = f"""[package]
name = "fetch"
version = "0.0.0"
edition = "2021"

[dependencies]
{CRATE} = "={VERSION}"
"""
"""The manifest of a crate that has no use but to let cargo fetch the tests."""
OUTDATED = "rsasl"
"""The dependency whose locked version, 2.2.0, today's compiler rejects."""
SECONDS = 600
AT_ONCE = 2
WITH_LOGINS = ("client/test_sasl",)
LOGINS = {
    **LOGIN_LISTENERS,
    "sasl.enabled.mechanisms": "PLAIN",
    "listener.name.login.plain.sasl.jaas.config": (
        f'{PLAIN_MODULE} required user_admin="admin-secret";'
    ),
}


def _cargo(*arguments: str, folder: Path) -> str:
    """Run cargo, and return what it writes to stdout."""
    program = need("cargo", "Rust (https://rustup.rs)")
    environment = {
        **os.environ,
        "CARGO_TARGET_DIR": str(cache(f"{CRATE}-{VERSION}") / "target"),
        "CARGO_PROFILE_DEV_DEBUG": "0",
    }
    done = subprocess.run(
        [program, *arguments], cwd=folder, env=environment, stdout=subprocess.PIPE, check=True
    )
    return done.stdout.decode()


def source() -> Path:
    """Return a copy of the crate, in which cargo compiles; fetch it first if needed."""
    folder = cache(f"{CRATE}-{VERSION}")
    if (folder / "source").exists():
        return folder / "source"
    fetching = cache(f"{CRATE}-{VERSION}", "fetch")
    (fetching / "src").mkdir(exist_ok=True)
    (fetching / "src" / "lib.rs").touch()
    (fetching / "Cargo.toml").write_text(MANIFEST)
    packages = json.loads(_cargo("metadata", "--format-version=1", folder=fetching))["packages"]
    (manifest,) = [package["manifest_path"] for package in packages if package["name"] == CRATE]
    copy = folder / "copy"
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(Path(manifest).parent, copy)
    (copy / "rust-toolchain.toml").unlink()  # Names a compiler that need not be installed.
    _cargo("update", "--package", OUTDATED, folder=copy)
    copy.rename(folder / "source")
    return folder / "source"


def programs() -> dict[str, str]:
    """Return the compiled tests by the file that they come from; compile them first if needed."""
    files = [option for name in FILES for option in ("--test", name)]
    options = ["--no-run", "--all-features", "--locked", "--message-format=json", *files]
    messages = map(json.loads, _cargo("test", *options, folder=source()).splitlines())
    return {
        message["target"]["name"]: message["executable"]
        for message in messages
        if message.get("executable")
    }


def upstream() -> Iterator[str]:
    """Yield every integration test; the unit tests are not counted."""
    for file, program in programs().items():
        command = [program, "--list", "--format=terse"]
        listed = subprocess.run(command, cwd=source(), capture_output=True, text=True, check=True)
        yield from (
            f"{file}/{name}" for name in re.findall(r"^(\S+): test$", listed.stdout, re.MULTILINE)
        )


def run(address: str, names: Sequence[str]) -> Mapping[str, bool]:
    environment = {
        **os.environ,
        "TEST_INTEGRATION": "1",
        "TEST_JAVA_INTEROPT": "1",
        "TEST_BROKER_IMPL": "kafka",
        "KAFKA_CONNECT": address,
    }
    if set(names) <= set(WITH_LOGINS):
        environment["KAFKA_SASL_CONNECT"] = address
    results = {}
    for file, program in programs().items():
        own = [name.removeprefix(f"{file}/") for name in names if name.startswith(f"{file}/")]
        if own:
            command = [program, "--exact", f"--test-threads={AT_ONCE}", *own]
            done = subprocess.run(
                command,
                cwd=source(),
                env=environment,
                stdout=subprocess.PIPE,
                text=True,
                check=False,
                timeout=SECONDS,
            )
            print(done.stdout)
            lines = re.findall(r"^test (\S+) \.\.\. (ok|FAILED)$", done.stdout, re.MULTILINE)
            results.update({f"{file}/{name}": outcome == "ok" for name, outcome in lines})
    return results


SUITE = Suite(
    CRATE,
    FOLDER,
    run,
    upstream,
    settings={"auto.create.topics.enable": "false"},
    variants=[Variant(LOGINS, lambda: WITH_LOGINS)],
    node_count=3,
    start=start,
)

if __name__ == "__main__":
    sys.exit(main(SUITE))
