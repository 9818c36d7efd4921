"""A plugin for the suite's tests of SASL and TLS, which would start brokers of their own.

It gives them the broker that listens on the port ``KWIRE_PORT`` instead. With TLS, the broker's
authority is the file ``ca-cert`` in the folder ``KWIRE_SSL``.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

SASL_COMMAND = (
    "security.protocol={transport}\n"
    "sasl.mechanism={sasl_mechanism}\n"
    "sasl.jaas.config={jaas_config}\n"
)
"""The template for the settings of Kafka's tools, which the distribution lacks."""


def pytest_configure() -> None:
    import py  # type: ignore[import-untyped]
    from test.integration import fixtures  # type: ignore[import-not-found]

    def instance(
        cls: Any,
        /,
        broker_id: int,
        transport: str = "PLAINTEXT",
        sasl_mechanism: str | None = None,
        tmp_dir: Any = None,
        **_: object,
    ) -> Any:
        fixture = cls(
            "localhost",
            int(os.environ["KWIRE_PORT"]),
            broker_id,
            transport=transport,
            sasl_mechanism=sasl_mechanism,
            tmp_dir=tmp_dir or py.path.local.mkdtemp(),
            external=True,
        )
        fixture.ssl_dir = os.environ["KWIRE_SSL"]
        fixture.jaas_config = fixture._jaas_config()
        fixture.start = lambda: None
        return fixture

    fixtures.KafkaFixture.instance = classmethod(instance)


def write_template(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "sasl_command.conf").write_text(SASL_COMMAND)
