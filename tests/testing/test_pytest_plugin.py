"""The pytest plugin, in runs of pytest of its own."""

import importlib
import os
from collections.abc import Callable
from importlib.util import find_spec

import pytest

Run = Callable[..., pytest.RunResult]
pytest_plugins = ["pytester"]
PLUGIN = ("-p", "kwire.testing.pytest_plugin")
ASYNC_PLUGINS = {
    "anyio": ("anyio", "anyio.to_thread.run_sync"),
    "pytest_asyncio": ("asyncio", "asyncio.to_thread"),
    "pytest_trio": ("trio", "trio.to_thread.run_sync"),
}
"""The mark of a plugin's tests, and the call that runs a function in a thread."""
CLIENT = """
from confluent_kafka import Consumer, Producer

def send_and_read(servers, topic):
    producer = Producer({"bootstrap.servers": servers})
    producer.produce(topic, b"value")
    assert producer.flush(10) == 0
    settings = {"bootstrap.servers": servers, "group.id": topic, "auto.offset.reset": "earliest"}
    consumer = Consumer(settings)
    consumer.subscribe([topic])
    message = consumer.poll(10)
    consumer.close()
    return message.value()
"""


@pytest.fixture
def run(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Return a function that runs pytest on a module in a process of its own."""
    monkeypatch.delenv("PYTEST_ADDOPTS", raising=False)
    pytester.makepyfile(client=CLIENT)

    def run_module(source: str, *arguments: str) -> pytest.RunResult:
        pytester.makepyfile(source)
        return pytester.runpytest_subprocess(*PLUGIN, *arguments, timeout=120)

    return run_module


def test_pauses_and_full_disks_end_with_their_test(run: Run) -> None:
    result = run("""
        from client import send_and_read

        def test_pauses(kafka, kafka_cluster):
            kafka.pause()
            kafka_cluster.pause(2)
            assert False

        def test_fills(kafka, kafka_cluster):
            kafka.fill_disk()
            kafka_cluster.fill_disk(2)
            assert False

        def test_other(kafka, kafka_cluster, kafka_topic):
            assert send_and_read(kafka.bootstrap_servers, kafka_topic) == b"value"
            kafka_cluster.create_topic("orders", 3)
            assert send_and_read(kafka_cluster.bootstrap_servers, "orders") == b"value"
    """)
    result.assert_outcomes(passed=1, failed=2)


def test_one_broker_serves_the_session_with_unique_topics(run: Run) -> None:
    result = run("""
        from client import send_and_read

        addresses, topics = set(), set()

        def test_one(kafka, kafka_topic):
            addresses.add(kafka.address)
            topics.add(kafka_topic)
            assert send_and_read(kafka.bootstrap_servers, kafka_topic) == b"value"

        def test_other(kafka, kafka_topic, kafka_topic_factory):
            addresses.add(kafka.address)
            topics.update({kafka_topic, kafka_topic_factory(3, cleanup_policy="compact")})
            assert len(addresses) == 1 and len(topics) == 3

        def test_topics_are_deleted(kafka):
            from confluent_kafka.admin import AdminClient
            admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
            assert not topics & set(admin.list_topics(timeout=10).topics)
    """)
    result.assert_outcomes(passed=3)


def test_a_protected_broker_has_settings_for_clients(run: Run) -> None:
    result = run("""
        def test_log_in(kafka_secure):
            from confluent_kafka.admin import AdminClient
            kafka_secure.create_topic("orders")
            admin = AdminClient(kafka_secure.client_settings())
            assert "orders" in admin.list_topics(timeout=20).topics
    """)
    result.assert_outcomes(passed=1)


def test_a_fresh_broker_is_the_tests_own_with_its_settings(run: Run) -> None:
    result = run(
        """
        import pytest

        @pytest.fixture(scope="session")
        def kafka_settings():
            return {"num_partitions": 2}

        @pytest.mark.kafka_settings(num_partitions=5)
        def test_with_settings(kafka_fresh, kafka):
            assert kafka_fresh.address != kafka.address
            assert [count(b) for b in (kafka_fresh, kafka)] == [5, 2]

        def test_without(kafka_fresh):
            assert count(kafka_fresh) == 2

        def count(broker):
            from confluent_kafka.admin import AdminClient
            broker.create_topic("orders", -1)
            admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
            return len(admin.list_topics("orders", timeout=10).topics["orders"].partitions)
    """,
        "--strict-markers",
    )
    result.assert_outcomes(passed=2)


def test_settings_for_a_shared_broker_are_refused(run: Run) -> None:
    result = run("""
        import pytest

        @pytest.mark.kafka_settings(num_partitions=5)
        def test_with_settings(kafka):
            pass

        @pytest.mark.kafka_settings(num_partitions=5)
        class TestOfSeveral:
            def test_fresh(self, kafka_fresh):
                pass

            def test_shared(self, kafka):
                pass
    """)
    result.assert_outcomes(passed=2, errors=1)
    result.stdout.fnmatch_lines("the marker kafka_settings sets up the broker of kafka_fresh; *")


def test_the_report_of_a_failed_test_has_the_log_since_its_begin(run: Run) -> None:
    result = run("""
        def test_before(kafka):
            kafka.create_topic("created-before")

        def test_failing(kafka):
            kafka.create_topic("created-meanwhile")
            assert False

        def test_passing(kafka):
            kafka.create_topic("created-after")
    """)
    result.assert_outcomes(passed=2, failed=1)
    result.stdout.fnmatch_lines(
        ["*log of the broker at 127.0.0.1:*", "*topics created name=created-meanwhile*"]
    )
    result.stdout.no_fnmatch_line("*Captured log*")
    result.stdout.no_fnmatch_line("*created-before*")
    result.stdout.no_fnmatch_line("*created-after*")


def test_the_report_of_a_failed_test_has_the_requests_since_its_begin(run: Run) -> None:
    result = run("""
        from confluent_kafka.admin import AdminClient

        def ask(kafka, name):
            settings = {"bootstrap.servers": kafka.bootstrap_servers, "client.id": name}
            AdminClient(settings).list_topics(timeout=10)

        def test_before(kafka):
            ask(kafka, "client-before")

        def test_failing(kafka):
            ask(kafka, "client-meanwhile")
            assert False

        def test_passing(kafka):
            ask(kafka, "client-after")
    """)
    result.assert_outcomes(passed=2, failed=1)
    result.stdout.fnmatch_lines(
        [
            "*requests of clients to the broker at 127.0.0.1:*",
            "*ApiVersions v* of client-meanwhile at node 1*",
            "*Metadata v* of client-meanwhile at node 1*",
        ]
    )
    result.stdout.no_fnmatch_line("*client-before*")
    result.stdout.no_fnmatch_line("*client-after*")


@pytest.mark.slow
def test_a_cluster_serves_tests_in_several_processes(run: Run) -> None:
    result = run(
        """
        from client import send_and_read

        def test_one(kafka_cluster):
            kafka_cluster.create_topic("orders", 2)
            assert send_and_read(kafka_cluster.bootstrap_servers, "orders") == b"value"

        def test_other(kafka, kafka_topic):
            assert send_and_read(kafka.bootstrap_servers, kafka_topic) == b"value"
    """,
        "-n",
        "2",
    )
    result.assert_outcomes(passed=2)


def test_brokers_serve_programs_on_asyncio_and_trio(run: Run) -> None:
    result = run(
        """
        import asyncio
        import trio
        from aiokafka import AIOKafkaProducer

        def test_asyncio(kafka, kafka_topic):
            async def program():
                producer = AIOKafkaProducer(bootstrap_servers=kafka.bootstrap_servers)
                await producer.start()
                sent = await producer.send_and_wait(kafka_topic, b"value")
                await producer.stop()
                return sent.offset
            assert asyncio.run(program()) == 0

        @trio.testing.trio_test
        async def test_trio(kafka):
            kafka.create_topic("orders")
            await (await trio.open_tcp_stream(*kafka.address)).aclose()

        async def test_with_a_trio_plugin(kafka, kafka_topic):
            with kafka.topic() as other:
                assert other != kafka_topic
    """,
        "-o",
        "trio_mode=true",
    )
    result.assert_outcomes(passed=3)


@pytest.mark.slow
@pytest.mark.parametrize("plugin", [name for name in ASYNC_PLUGINS if find_spec(name)])
def test_fixtures_serve_the_async_tests_of_plugins(run: Run, plugin: str) -> None:
    """A method that waits is called in a thread, as a program on this loop would do it."""
    mark, wait = ASYNC_PLUGINS[plugin]
    result = run(f"""
        import asyncio
        import anyio
        import pytest
        import trio

        @pytest.fixture
        def anyio_backend():
            return "asyncio"

        @pytest.mark.{mark}
        async def test_topic(kafka, kafka_fresh, kafka_topic_factory):
            topic = kafka_topic_factory(2)
            await {wait}(kafka.wait_topic, topic, 2)
            await {wait}(kafka_fresh.create_topic, topic)
            await {wait}(kafka_fresh.wait_topic, topic)
    """)
    result.assert_outcomes(passed=1)


def test_nothing_is_imported_before_a_broker_is_used(run: Run) -> None:
    result = run(
        """
        import sys

        def test_modules():
            imported = sorted(name for name in sys.modules if name.startswith("kwire"))
            assert imported == ["kwire", "kwire.testing", "kwire.testing.pytest_plugin"]
            assert not {"attrs", "cramjam", "immutables"} & set(sys.modules)
    """,
        "-p",
        "no:trio",
        "-p",
        "no:anyio",
    )
    result.assert_outcomes(passed=1)


def test_caches_of_imports_can_be_emptied() -> None:
    """`monkeypatch.syspath_prepend`, for example, asks every finder to do so."""
    importlib.invalidate_caches()


def test_pytest_does_not_rewrite_the_modules_of_a_broker(
    run: Run, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Installed from a wheel, whose files pytest knows, the broker would start seconds later."""
    folder = pytester.mkdir("site") / "installed-1.0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: installed\nVersion: 1.0\n")
    (folder / "RECORD").write_text("kwire/__init__.py,,\nkwire/net/server.py,,\n")
    name = "kwire.testing.pytest_plugin"
    (folder / "entry_points.txt").write_text(f"[pytest11]\n{name} = {name}\n")
    monkeypatch.setenv("PYTHONPATH", str(folder.parent), prepend=os.pathsep)
    result = run("""
        import sys

        def test_loader(kafka):
            loader = sys.modules["kwire.net.server"].__loader__
            assert type(loader).__name__ == "SourceFileLoader"
    """)
    result.assert_outcomes(passed=1)


def test_a_fault_that_does_not_happen_fails_its_test_only(run: Run) -> None:
    result = run("""
        def test_one(kafka):
            kafka.faults.drop("Produce", topic="orders")

        def test_next(kafka, kafka_fresh):
            assert not kafka.faults.faults
    """)
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(["*BrokerError: faults that did not happen: drop Produce *"])


def test_a_broker_that_cannot_start_is_one_clear_error(run: Run) -> None:
    result = run("""
        import pytest

        @pytest.fixture(scope="session")
        def kafka_settings():
            return {"num_partitons": 2}

        def test_one(kafka): ...
    """)
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*BrokerError: num_partitons is not one of Kafka's*"])
