"""Settings of Kafka 4.3 that kwire accepts but does not act on yet.

They are checked, stored and shown like all others. A setting moves to the broker's table when kwire
acts on it. This module is loaded when a file or a request names one of these settings.
"""

from typing import Final

from kwire.configs.declare import (
    LONG_MAX,
    Config,
    Kind,
    Scope,
    boolean,
    double,
    integer,
    long,
    optional_string,
    string,
    strings,
)

CLUSTER_WIDE: Final = Scope.CLUSTER_WIDE
PER_BROKER: Final = Scope.PER_BROKER


class InertConfig(Config):
    """The settings without effect."""

    add_partitions_to_txn_retry_backoff_max_ms = integer(100, low=0)
    add_partitions_to_txn_retry_backoff_ms = integer(20, low=1)
    alter_config_policy_class_name = optional_string(kind=Kind.CLASS)
    client_quota_callback_class = optional_string(kind=Kind.CLASS)
    controller_performance_always_log_threshold_ms = long(2000, low=0, internal=True)
    controller_performance_sample_period_ms = long(60000, low=100, internal=True)
    controller_socket_timeout_ms = integer(30000)
    create_topic_policy_class_name = optional_string(kind=Kind.CLASS)
    delete_records_purgatory_purge_interval_requests = integer(1)
    fetch_purgatory_purge_interval_requests = integer(1000)
    follower_fetch_last_tiered_offset_enable = boolean(False, scope=CLUSTER_WIDE)
    group_coordinator_background_threads = integer(2, low=1)
    group_coordinator_cached_buffer_max_bytes = integer(1048588, low=524288, scope=CLUSTER_WIDE)
    group_coordinator_threads = integer(4, low=1)
    group_share_persister_class_name = string(
        "org.apache.kafka.server.share.persister.DefaultStatePersister", internal=True
    )
    internal_metadata_delete_delay_millis = long(60000, internal=True)
    internal_metadata_max_batch_size_in_bytes = integer(8388608, internal=True)
    kafka_metrics_polling_interval_secs = integer(10, low=1)
    kafka_metrics_reporters = strings(())
    log_local_retention_bytes = long(-2, low=-2, scope=CLUSTER_WIDE)
    log_local_retention_ms = long(-2, low=-2, scope=CLUSTER_WIDE)
    metric_reporters = strings(("org.apache.kafka.common.metrics.JmxReporter",), scope=CLUSTER_WIDE)
    metrics_num_samples = integer(2, low=1)
    metrics_recording_level = string("INFO")
    metrics_sample_window_ms = long(30000, low=1)
    principal_builder_class = string(
        "org.apache.kafka.common.security.authenticator.DefaultKafkaPrincipalBuilder",
        kind=Kind.CLASS,
        scope=PER_BROKER,
    )
    producer_purgatory_purge_interval_requests = integer(1000)
    remote_fetch_max_wait_ms = integer(500, low=1, scope=CLUSTER_WIDE)
    remote_list_offsets_request_timeout_ms = long(30000, low=1, scope=CLUSTER_WIDE)
    remote_log_index_file_cache_total_size_bytes = long(1073741824, low=1, scope=CLUSTER_WIDE)
    remote_log_index_file_cache_ttl_ms = long(900000, low=-1, internal=True)
    remote_log_manager_copier_thread_pool_size = integer(10, low=1, scope=CLUSTER_WIDE)
    remote_log_manager_copy_max_bytes_per_second = long(LONG_MAX, low=1, scope=CLUSTER_WIDE)
    remote_log_manager_copy_quota_window_num = integer(11, low=1)
    remote_log_manager_copy_quota_window_size_seconds = integer(1, low=1)
    remote_log_manager_expiration_thread_pool_size = integer(10, low=1, scope=CLUSTER_WIDE)
    remote_log_manager_fetch_max_bytes_per_second = long(LONG_MAX, low=1, scope=CLUSTER_WIDE)
    remote_log_manager_fetch_quota_window_num = integer(11, low=1)
    remote_log_manager_fetch_quota_window_size_seconds = integer(1, low=1)
    remote_log_manager_follower_thread_pool_size = integer(2, low=1, scope=CLUSTER_WIDE)
    remote_log_manager_task_interval_ms = long(30000, low=1)
    remote_log_manager_task_retry_backoff_max_ms = long(30000, low=1, internal=True)
    remote_log_manager_task_retry_backoff_ms = long(500, low=1, internal=True)
    remote_log_manager_task_retry_jitter = double(0.2, low=0, high=0.5, internal=True)
    remote_log_manager_thread_pool_size = integer(2, low=1)
    remote_log_metadata_custom_metadata_max_bytes = integer(128, low=0)
    remote_log_metadata_manager_class_name = string(
        "org.apache.kafka.server.log.remote.metadata.storage.TopicBasedRemoteLogMetadataManager"
    )
    remote_log_metadata_manager_class_path = optional_string()
    remote_log_metadata_manager_impl_prefix = string("rlmm.config.")
    remote_log_metadata_manager_listener_name = optional_string()
    remote_log_reader_max_pending_tasks = integer(100, low=1)
    remote_log_reader_threads = integer(10, low=1, scope=CLUSTER_WIDE)
    remote_log_storage_manager_class_name = optional_string()
    remote_log_storage_manager_class_path = optional_string()
    remote_log_storage_manager_impl_prefix = string("rsm.config.")
    remote_log_storage_system_enable = boolean(False)
    sasl_client_callback_handler_class = optional_string(kind=Kind.CLASS)
    sasl_jaas_config = optional_string(kind=Kind.PASSWORD, scope=PER_BROKER)
    sasl_kerberos_kinit_cmd = string("/usr/bin/kinit", scope=PER_BROKER)
    sasl_kerberos_min_time_before_relogin = long(60000, scope=PER_BROKER)
    sasl_kerberos_principal_to_local_rules = strings(("DEFAULT",), scope=PER_BROKER)
    sasl_kerberos_service_name = optional_string(scope=PER_BROKER)
    sasl_kerberos_ticket_renew_jitter = double(0.05, scope=PER_BROKER)
    sasl_kerberos_ticket_renew_window_factor = double(0.8, scope=PER_BROKER)
    sasl_login_class = optional_string(kind=Kind.CLASS)
    sasl_login_refresh_buffer_seconds = integer(300, kind=Kind.SHORT, scope=PER_BROKER)
    sasl_login_refresh_min_period_seconds = integer(60, kind=Kind.SHORT, scope=PER_BROKER)
    sasl_login_refresh_window_factor = double(0.8, scope=PER_BROKER)
    sasl_login_refresh_window_jitter = double(0.05, scope=PER_BROKER)
    sasl_login_retry_backoff_max_ms = long(10000)
    sasl_login_retry_backoff_ms = long(100)
    security_providers = optional_string()
    share_coordinator_append_linger_ms = integer(-1, low=-1)
    share_coordinator_cached_buffer_max_bytes = integer(1048588, low=524288, scope=CLUSTER_WIDE)
    share_coordinator_load_buffer_size = integer(5242880, low=1)
    share_coordinator_threads = integer(1, low=1)
    share_fetch_purgatory_purge_interval_requests = integer(1000)
    socket_connection_setup_timeout_max_ms = long(30000)
    socket_connection_setup_timeout_ms = long(10000)
    ssl_engine_factory_class = optional_string(kind=Kind.CLASS, scope=PER_BROKER)
    ssl_keymanager_algorithm = string("SunX509", scope=PER_BROKER)
    ssl_provider = optional_string(scope=PER_BROKER)
    ssl_secure_random_implementation = optional_string(scope=PER_BROKER)
    ssl_trustmanager_algorithm = string("PKIX", scope=PER_BROKER)
    transaction_two_phase_commit_enable = boolean(False)
    unclean_leader_election_interval_ms = long(300000, low=1, internal=True)


for _key in InertConfig.keys().values():
    _key.effective = False
