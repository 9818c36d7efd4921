"""Write the generated documents: the reference pages, the invariants, the roles of raft,
the states of transactions.

``python scripts/gen_docs.py`` writes them, ``--check`` says whether they are up to date.
"""

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from kwire import metrics  # noqa: E402
from kwire.codec.apis import APIS, Api, ListenerType  # noqa: E402
from kwire.configs.authorizer import AuthorizerConfig  # noqa: E402
from kwire.configs.broker import OWN, BrokerConfig  # noqa: E402
from kwire.configs.client_metrics import ClientMetricsConfig  # noqa: E402
from kwire.configs.declare import Key  # noqa: E402
from kwire.configs.group import GroupConfig  # noqa: E402
from kwire.configs.inert import InertConfig  # noqa: E402
from kwire.configs.providers import ProviderConfig  # noqa: E402
from kwire.configs.security import SecurityConfig  # noqa: E402
from kwire.configs.tls import TlsConfig  # noqa: E402
from kwire.configs.topic import TopicConfig  # noqa: E402
from kwire.handlers import served_on  # noqa: E402
from kwire.handlers.unserved import UNSERVED  # noqa: E402
from kwire_pipeline.config.reference import reference  # noqa: E402
from scripts.gen_authorization import authorization  # noqa: E402
from scripts.gen_compatibility import compatibility  # noqa: E402
from scripts.gen_invariants import invariants  # noqa: E402
from scripts.gen_raft_roles import raft_roles  # noqa: E402
from scripts.gen_transaction_states import transaction_states  # noqa: E402

INTRODUCTION = """\
# Configuration

Settings have Kafka 4.3's names, types, defaults and bounds. Those marked *no effect* are
accepted and shown, but nothing acts on them yet. `kwire serve` warns about names that Kafka does
not know, and refuses settings that ask for protection it does not have (policies).
[security.md](security.md) and [tls.md](tls.md) explain the settings of SASL and TLS.
"""


def row(key: Key[Any]) -> str:
    default = "" if key.default is None else f"`{key.text(key.default) or ' '}`"
    bounds = ", ".join(key.choices)
    if key.low is not None or key.high is not None:
        low, high = ("" if edge is None else str(edge) for edge in (key.low, key.high))
        bounds = f"{low}..{high}"
    doc = key.doc if key.effective else f"{key.doc} *No effect.*".strip()
    cells = (f"`{key.name}`", key.kind.name.lower(), default, bounds, key.scope.value, doc)
    return "| " + " | ".join(cells) + " |"


def table(title: str, keys: Iterable[Key[Any]]) -> str:
    head = "| name | type | default | bounds | changes | meaning |\n|---|---|---|---|---|---|"
    shown = [key for key in keys if not key.internal or key.name in OWN]
    rows = (row(key) for key in sorted(shown, key=lambda key: key.name))
    return "\n".join((f"\n## {title}\n", head, *rows)) + "\n"


def configuration() -> str:
    return INTRODUCTION + "".join(
        (
            table("Nodes", (k for k in BrokerConfig.keys().values() if k.name not in OWN)),
            table("Nodes, beyond Kafka's", (BrokerConfig.keys()[name] for name in OWN)),
            table("The authorizer", AuthorizerConfig.keys().values()),
            table("TLS, of all listeners or one", TlsConfig.keys().values()),
            table("Topics", TopicConfig.keys().values()),
            table("Groups", GroupConfig.keys().values()),
            table("Client metrics", ClientMetricsConfig.keys().values()),
            table("Protection of listeners", SecurityConfig.keys().values()),
            table("Values outside the file", ProviderConfig.keys().values()),
            table("Known to Kafka, without effect in kwire", InertConfig.keys().values()),
        )
    )


PROTOCOL = """\
# Protocol

What kwire answers, per kind of listener, computed as the answers to ApiVersions are. Kafka's
column is what Kafka 4.3 advertises.

| key | API | clients and brokers | controllers | Kafka 4.3 | not served because |
|---|---|---|---|---|---|
"""


def protocol() -> str:
    return PROTOCOL + "".join(f"{protocol_row(api)}\n" for api in APIS)


def protocol_row(api: Api) -> str:
    kafka = f"{api.first}-{api.stable}" if api.stable > api.first else str(api.stable)

    def versions(listener_type: ListenerType) -> str:
        return kafka if api.key in served_on(listener_type, has_telemetry=True) else ""

    cells = (
        str(api.key),
        api.name,
        versions(ListenerType.BROKER),
        versions(ListenerType.CONTROLLER),
        kafka if api.stable >= 0 else "",
        UNSERVED.get(api.key, "" if api.advertised else UNASKED),
    )
    return "| " + " | ".join(cells) + " |"


UNASKED = "advertised only if `kwire.client.metrics.max.series` is set; by Kafka with a plugin"

METRICS = """\
# Metrics

`kwire serve --metrics-port PORT` answers HTTP on the host of the first listener for clients (with
`--secure` on 127.0.0.1), or on `--metrics-host`:

- `/metrics`: the figures below for Prometheus, those that Apache Kafka has with its meanings,
  and the metrics that clients push ([operations.md](operations.md#metrics-of-clients));
- `/livez`: 200 as soon as the process answers;
- `/readyz`: 200 while every request would be answered, 503 during the start and the stop.

| name | type | labels | meaning |
|---|---|---|---|
"""


def metrics_table() -> str:
    declared = (value for value in vars(metrics).values() if isinstance(value, metrics.Metric))
    return METRICS + "".join(
        f"| `{m.name}` | {m.kind.value} | {', '.join(m.labels)} | {m.doc} |\n"
        for m in sorted(declared, key=lambda metric: metric.name)
    )


PIPELINE = ROOT / "docs" / "pipeline.md"
KEYS_BEGIN = "<!-- The tables up to the next comment are made by scripts/gen_docs.py. -->"
KEYS_END = "<!-- End of the tables. -->"


def pipeline() -> str:
    """Return the page with the reference of keys put between its two comments."""
    before, _, rest = PIPELINE.read_text().partition(KEYS_BEGIN)
    after = rest.partition(KEYS_END)[2]
    return f"{before}{KEYS_BEGIN}\n\n{reference()}\n{KEYS_END}{after}"


DOCUMENTS = {
    "docs/authorization.md": authorization,
    "docs/compatibility.md": compatibility,
    "docs/configuration.md": configuration,
    "docs/invariants.md": invariants,
    "docs/metrics.md": metrics_table,
    "docs/pipeline.md": pipeline,
    "docs/protocol.md": protocol,
    "docs/raft-roles.md": raft_roles,
    "docs/transaction-states.md": transaction_states,
}


def main(arguments: list[str]) -> int:
    stale = []
    for name, make in DOCUMENTS.items():
        path, text = ROOT / name, make()
        if not path.exists() or path.read_text() != text:
            stale.append(name)
            if "--check" not in arguments:
                path.write_text(text)
    print("\n".join(f"{name}: out of date" for name in stale) or "up to date")
    return 1 if stale and "--check" in arguments else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
