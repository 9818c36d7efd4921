"""Settings of Kafka 4.3 that kwire accepts, so far without any effect.

They are checked, stored and shown like all others. A setting moves to the broker's table when kwire
acts on it. One line each: name, type, default (``-``: none, ``''``: empty), bounds or choices, and
flags. C and B: can change at run time, for the cluster or per broker; I: internal; F: a list that
must not be empty. ``$`` means Kafka's package.
"""

import functools
from typing import Final

from kwire.configs.declare import Check, Key, Kind, Scope

_TABLE: Final = """
add.partitions.to.txn.retry.backoff.max.ms int 100 0.. -
add.partitions.to.txn.retry.backoff.ms int 20 1.. -
alter.config.policy.class.name class - - -
alter.log.dirs.replication.quota.window.num int 11 1.. -
alter.log.dirs.replication.quota.window.size.seconds int 1 1.. -
authorizer.class.name string '' - -
client.quota.callback.class class - - -
config.providers list '' - C
connection.failed.authentication.delay.ms int 100 0.. -
connections.max.reauth.ms long 0 - -
controller.performance.always.log.threshold.ms long 2000 0.. I
controller.performance.sample.period.ms long 60000 100.. I
controller.socket.timeout.ms int 30000 - -
create.topic.policy.class.name class - - -
delegation.token.expiry.check.interval.ms long 3600000 1.. -
delegation.token.expiry.time.ms long 86400000 1.. -
delegation.token.max.lifetime.ms long 604800000 1.. -
delegation.token.secret.key password - - -
delete.records.purgatory.purge.interval.requests int 1 - -
fetch.purgatory.purge.interval.requests int 1000 - -
follower.fetch.last.tiered.offset.enable boolean false - C
group.consumer.assignment.interval.ms int 1000 0.. C
group.consumer.assignors list uniform,range - F
group.consumer.heartbeat.interval.ms int 5000 1.. -
group.consumer.max.assignment.interval.ms int 15000 0.. -
group.consumer.max.heartbeat.interval.ms int 15000 1.. -
group.consumer.max.session.timeout.ms int 60000 1.. -
group.consumer.max.size int 2147483647 1.. -
group.consumer.migration.policy string bidirectional ~DISABLED|DOWNGRADE|UPGRADE|BIDIRECTIONAL -
group.consumer.min.assignment.interval.ms int 0 0.. -
group.consumer.min.heartbeat.interval.ms int 5000 1.. -
group.consumer.min.session.timeout.ms int 45000 1.. -
group.consumer.regex.refresh.interval.ms int 600000 10000.. I
group.consumer.session.timeout.ms int 45000 1.. -
group.coordinator.background.threads int 2 1.. -
group.coordinator.cached.buffer.max.bytes int 1048588 524288.. C
group.coordinator.threads int 4 1.. -
group.share.assignment.interval.ms int 1000 0.. C
group.share.assignors list simple - F
group.share.delivery.count.limit int 5 2..10 -
group.share.heartbeat.interval.ms int 5000 1.. -
group.share.initialize.retry.interval.ms int 30000 1.. I
group.share.max.assignment.interval.ms int 15000 0.. -
group.share.max.delivery.count.limit int 10 5..25 -
group.share.max.heartbeat.interval.ms int 15000 1.. -
group.share.max.partition.max.record.locks int 4000 2000..10000 -
group.share.max.record.lock.duration.ms int 60000 30000..3600000 -
group.share.max.session.timeout.ms int 60000 1.. -
group.share.max.share.sessions int 2000 1.. -
group.share.max.size int 200 1..1000 -
group.share.min.assignment.interval.ms int 0 0.. -
group.share.min.delivery.count.limit int 2 2..5 -
group.share.min.heartbeat.interval.ms int 5000 1.. -
group.share.min.partition.max.record.locks int 100 100..2000 -
group.share.min.record.lock.duration.ms int 15000 1000..30000 -
group.share.min.session.timeout.ms int 45000 1.. -
group.share.partition.max.record.locks int 2000 100..10000 -
group.share.persister.class.name string $server.share.persister.DefaultStatePersister - I
group.share.record.lock.duration.ms int 30000 1000..3600000 -
group.share.session.timeout.ms int 45000 1.. -
group.streams.assignment.interval.ms int 1000 0.. C
group.streams.heartbeat.interval.ms int 5000 1.. -
group.streams.initial.rebalance.delay.ms int 3000 0.. -
group.streams.max.assignment.interval.ms int 15000 0.. -
group.streams.max.heartbeat.interval.ms int 15000 1.. -
group.streams.max.session.timeout.ms int 60000 1.. -
group.streams.max.size int 2147483647 1.. -
group.streams.max.standby.replicas int 2 0.. -
group.streams.min.assignment.interval.ms int 0 0.. -
group.streams.min.heartbeat.interval.ms int 5000 1.. -
group.streams.min.session.timeout.ms int 45000 1.. -
group.streams.num.standby.replicas int 0 0.. -
group.streams.session.timeout.ms int 45000 1.. -
internal.metadata.delete.delay.millis long 60000 - I
internal.metadata.max.batch.size.in.bytes int 8388608 - I
kafka.metrics.polling.interval.secs int 10 1.. -
kafka.metrics.reporters list '' - -
log.local.retention.bytes long -2 -2.. C
log.local.retention.ms long -2 -2.. C
metric.reporters list $common.metrics.JmxReporter - C
metrics.num.samples int 2 1.. -
metrics.recording.level string INFO - -
metrics.sample.window.ms long 30000 1.. -
num.replica.alter.log.dirs.threads int - - -
principal.builder.class class $common.security.authenticator.DefaultKafkaPrincipalBuilder - B
producer.purgatory.purge.interval.requests int 1000 - -
quota.window.num int 11 1.. -
quota.window.size.seconds int 1 1.. -
replica.alter.log.dirs.io.max.bytes.per.second long 9223372036854775807 0.. CI
remote.fetch.max.wait.ms int 500 1.. C
remote.list.offsets.request.timeout.ms long 30000 1.. C
remote.log.index.file.cache.total.size.bytes long 1073741824 1.. C
remote.log.index.file.cache.ttl.ms long 900000 -1.. I
remote.log.manager.copier.thread.pool.size int 10 1.. C
remote.log.manager.copy.max.bytes.per.second long 9223372036854775807 1.. C
remote.log.manager.copy.quota.window.num int 11 1.. -
remote.log.manager.copy.quota.window.size.seconds int 1 1.. -
remote.log.manager.expiration.thread.pool.size int 10 1.. C
remote.log.manager.fetch.max.bytes.per.second long 9223372036854775807 1.. C
remote.log.manager.fetch.quota.window.num int 11 1.. -
remote.log.manager.fetch.quota.window.size.seconds int 1 1.. -
remote.log.manager.follower.thread.pool.size int 2 1.. C
remote.log.manager.task.interval.ms long 30000 1.. -
remote.log.manager.task.retry.backoff.max.ms long 30000 1.. I
remote.log.manager.task.retry.backoff.ms long 500 1.. I
remote.log.manager.task.retry.jitter double 0.2 0..0.5 I
remote.log.manager.thread.pool.size int 2 1.. -
remote.log.metadata.custom.metadata.max.bytes int 128 0.. -
remote.log.metadata.manager.class.name string $server.log.remote.metadata.storage.TopicBasedRemoteLogMetadataManager - -
remote.log.metadata.manager.class.path string - - -
remote.log.metadata.manager.impl.prefix string rlmm.config. - -
remote.log.metadata.manager.listener.name string - - -
remote.log.reader.max.pending.tasks int 100 1.. -
remote.log.reader.threads int 10 1.. C
remote.log.storage.manager.class.name string - - -
remote.log.storage.manager.class.path string - - -
remote.log.storage.manager.impl.prefix string rsm.config. - -
remote.log.storage.system.enable boolean false - -
sasl.client.callback.handler.class class - - -
sasl.enabled.mechanisms list GSSAPI - B
sasl.jaas.config password - - B
sasl.kerberos.kinit.cmd string /usr/bin/kinit - B
sasl.kerberos.min.time.before.relogin long 60000 - B
sasl.kerberos.principal.to.local.rules list DEFAULT - B
sasl.kerberos.service.name string - - B
sasl.kerberos.ticket.renew.jitter double 0.05 - B
sasl.kerberos.ticket.renew.window.factor double 0.8 - B
sasl.login.callback.handler.class class - - -
sasl.login.class class - - -
sasl.login.connect.timeout.ms int - - -
sasl.login.read.timeout.ms int - - -
sasl.login.refresh.buffer.seconds short 300 - B
sasl.login.refresh.min.period.seconds short 60 - B
sasl.login.refresh.window.factor double 0.8 - B
sasl.login.refresh.window.jitter double 0.05 - B
sasl.login.retry.backoff.max.ms long 10000 - -
sasl.login.retry.backoff.ms long 100 - -
sasl.mechanism.controller.protocol string GSSAPI - -
sasl.mechanism.inter.broker.protocol string GSSAPI - B
sasl.oauthbearer.assertion.algorithm string RS256 ~ES256|RS256 -
sasl.oauthbearer.assertion.claim.aud string - - -
sasl.oauthbearer.assertion.claim.exp.seconds int 300 0..86400 -
sasl.oauthbearer.assertion.claim.iss string - - -
sasl.oauthbearer.assertion.claim.jti.include boolean false - -
sasl.oauthbearer.assertion.claim.nbf.seconds int 60 0..3600 -
sasl.oauthbearer.assertion.claim.sub string - - -
sasl.oauthbearer.assertion.file string - - -
sasl.oauthbearer.assertion.private.key.file string - - -
sasl.oauthbearer.assertion.private.key.passphrase password - - -
sasl.oauthbearer.assertion.template.file string - - -
sasl.oauthbearer.client.credentials.client.id string - - -
sasl.oauthbearer.client.credentials.client.secret password - - -
sasl.oauthbearer.clock.skew.seconds int 30 - -
sasl.oauthbearer.expected.audience list '' - -
sasl.oauthbearer.expected.issuer string - - -
sasl.oauthbearer.jwks.endpoint.refresh.ms long 3600000 - -
sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms long 10000 - -
sasl.oauthbearer.jwks.endpoint.retry.backoff.ms long 100 - -
sasl.oauthbearer.jwks.endpoint.url string - - -
sasl.oauthbearer.jwt.retriever.class class $common.security.oauthbearer.DefaultJwtRetriever - -
sasl.oauthbearer.jwt.validator.class class $common.security.oauthbearer.DefaultJwtValidator - -
sasl.oauthbearer.scope string - - -
sasl.oauthbearer.scope.claim.name string scope - -
sasl.oauthbearer.sub.claim.name string sub - -
sasl.oauthbearer.token.endpoint.url string - - -
sasl.server.callback.handler.class class - - -
sasl.server.max.receive.size int 524288 - -
security.providers string - - -
share.coordinator.append.linger.ms int -1 -1.. -
share.coordinator.cached.buffer.max.bytes int 1048588 524288.. C
share.coordinator.cold.partition.snapshot.interval.ms int 300000 1.. I
share.coordinator.load.buffer.size int 5242880 1.. -
share.coordinator.snapshot.update.records.per.snapshot int 500 0..500 -
share.coordinator.state.topic.compression.codec int 0 - -
share.coordinator.state.topic.min.isr short 2 1.. -
share.coordinator.state.topic.num.partitions int 50 1.. -
share.coordinator.state.topic.prune.interval.ms int 300000 1.. I
share.coordinator.state.topic.replication.factor short 3 1.. -
share.coordinator.state.topic.segment.bytes int 104857600 1.. -
share.coordinator.threads int 1 1.. -
share.coordinator.write.timeout.ms int 5000 1.. -
share.fetch.purgatory.purge.interval.requests int 1000 - -
socket.connection.setup.timeout.max.ms long 30000 - -
socket.connection.setup.timeout.ms long 10000 - -
ssl.allow.dn.changes boolean false - -
ssl.allow.san.changes boolean false - -
ssl.cipher.suites list '' - B
ssl.client.auth string none required|requested|none B
ssl.enabled.protocols list TLSv1.2,TLSv1.3 - B
ssl.endpoint.identification.algorithm string https - B
ssl.engine.factory.class class - - B
ssl.key.password password - - B
ssl.keymanager.algorithm string SunX509 - B
ssl.keystore.certificate.chain password - - B
ssl.keystore.key password - - B
ssl.keystore.location string - - B
ssl.keystore.password password - - B
ssl.keystore.type string JKS - B
ssl.principal.mapping.rules string DEFAULT - -
ssl.protocol string TLSv1.3 - B
ssl.provider string - - B
ssl.secure.random.implementation string - - B
ssl.trustmanager.algorithm string PKIX - B
ssl.truststore.certificates password - - B
ssl.truststore.location string - - B
ssl.truststore.password password - - B
ssl.truststore.type string JKS - B
telemetry.max.bytes int 1048576 1.. -
transaction.two.phase.commit.enable boolean false - -
unclean.leader.election.interval.ms long 300000 1.. I
"""  # noqa: E501

_SCOPES: Final = {"C": Scope.CLUSTER_WIDE, "B": Scope.PER_BROKER}


@functools.cache
def _lines() -> dict[str, str]:
    """Return the lines of the table above, by name."""
    return {line.partition(" ")[0]: line for line in _TABLE.strip().splitlines()}


@functools.cache
def inert_key(name: str) -> Key[object] | None:
    """Return one setting of the table; None if the name is not in it.

    A starting node only looks up the few settings in its file.
    """
    line = _lines().get(name)
    return None if line is None else _key(*line.split())


def inert_keys() -> dict[str, Key[object]]:
    """Return the settings of the table, by name."""
    return {name: key for name in _lines() if (key := inert_key(name)) is not None}


def _key(name: str, kind: str, default: str, bounds: str, flags: str) -> Key[object]:
    low, dots, high = bounds.partition("..")
    choices = () if dots or bounds == "-" else tuple(bounds.lstrip("~").split("|"))
    key: Key[object] = Key(
        Kind[kind.upper()],
        None,
        "",
        name=name,
        low=float(low) if dots and "." in low else int(low) if dots else None,
        high=float(high) if "." in high else int(high) if high else None,
        choices=() if bounds.startswith("~") else choices,
        check=_one_of(choices) if bounds.startswith("~") else None,
        scope=_SCOPES.get(flags[-1], Scope.READ_ONLY),
        effective=False,
        internal="I" in flags,
        filled="F" in flags,
    )
    if default != "-":
        text = "" if default == "''" else default.replace("$", "org.apache.kafka.")
        key.default = key.parse(text)
    return key


def _one_of(choices: tuple[str, ...]) -> Check:
    """Return a check that the value is one of the choices, ignoring case."""

    def check(value: str) -> str | None:
        if value.upper() in choices:
            return None
        return f"String must be one of (case insensitive): {', '.join(choices)}"

    return check
