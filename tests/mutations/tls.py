"""Mistakes in the encryption of connections."""

from typing import Final

from tests.mutations.table import Mutation

TLS: Final = "tests/net/test_tls.py"
TLS_CLIENT: Final = "tests/net/test_tls_client.py"
MUTATIONS = (
    Mutation(
        name="forget-the-bytes-behind-a-handshake",
        invariants=(10,),
        path="kwire/net/turns.py",
        old="        while True:  # First receive: TLS",
        new="        await connection.readiness.wait_data(self.serve)\n"
        "        while True:  # First receive: TLS",
        test=f"{TLS}::test_request_that_arrives_with_the_end_of_the_handshake_is_answered",
    ),
    Mutation(
        name="leave-bytes-in-the-kernel",
        invariants=(10,),
        path="kwire/net/tls/tls_socket.py",
        old="(self._is_empty and not self._arrived and not self._pending())",
        new="not self._pending()",
        test=f"{TLS}::test_requests_of_every_size_are_answered_in_order",
    ),
    Mutation(
        name="wait-for-more-bytes-than-the-frame-still-lacks",
        invariants=(103,),
        path="kwire/net/tls/tls_socket.py",
        old="min(size - len(rest), PORTION_BYTES)",
        new="min(size, PORTION_BYTES)",
        test=f"{TLS}::test_large_request_arrives_in_portions",
    ),
    Mutation(
        name="wait-for-a-portion-after-the-large-frame",
        invariants=(103,),
        path="kwire/net/tls/tls_socket.py",
        old="        self._await_bytes(1)\n",
        new="",
        test=f"{TLS}::test_large_request_arrives_in_portions",
    ),
    Mutation(
        name="wake-for-each-record-of-a-large-frame",
        invariants=(103,),
        path="kwire/net/tls/tls_socket.py",
        old="                self._await_more(size - count)\n",
        new="",
        test=f"{TLS}::test_large_request_arrives_in_portions",
    ),
    Mutation(
        name="report-encrypted-bytes-as-sent-before-they-are",
        invariants=(101,),
        path="kwire/net/tls/tls_socket.py",
        old="            self._accepted = count\n            raise BlockingIOError\n",
        new="            pass\n",
        test=f"{TLS}::test_slow_reader_gets_everything_and_delays_nobody",
    ),
    Mutation(
        name="perform-all-handshakes-in-one-turn",
        invariants=(10,),
        path="kwire/net/tls/handshakes.py",
        old="_PER_TURN: Final = 1",
        new="_PER_TURN: Final = 1000",
        test=f"{TLS}::test_one_handshake_goes_on_in_a_turn",
    ),
    Mutation(
        name="wait-for-any-number-of-silent-clients",
        invariants=(102,),
        path="kwire/net/tls/handshakes.py",
        old="        if len(self._silent) > SILENT_MAX:",
        new="        if False:",
        test=f"{TLS}::test_flood_of_half_open_handshakes_locks_nobody_out",
    ),
    Mutation(
        name="let-a-trickled-handshake-take-forever",
        invariants=(102,),
        path="kwire/net/tls/handshakes.py",
        old="            patience_s -= await self._wait(",
        new="            await self._wait(",
        test=f"{TLS}::test_client_that_trickles_its_handshake_is_closed_in_time",
    ),
    Mutation(
        name="serve-clients-without-a-required-certificate",
        invariants=(105,),
        path="kwire/net/tls/contexts.py",
        old='    "required": ssl.CERT_REQUIRED,',
        new='    "required": ssl.CERT_OPTIONAL,',
        test=f"{TLS}::test_missing_certificate_is_refused_where_required",
    ),
    Mutation(
        name="drop-the-certificate-for-an-unusable-file",
        invariants=(100,),
        path="kwire/net/tls/reloading.py",
        old="            return stamps, error\n",
        new="            raise\n",
        test="tests/net/test_tls_reload.py::test_unusable_file_changes_nothing_and_is_logged_once",
    ),
    Mutation(
        name="certificate-for-other-names-replaces-the-old-one",
        invariants=(100,),
        path="kwire/net/tls/reloading.py",
        old="            self.check(self.settings, self.current, result)\n",
        new="            pass\n",
        test="tests/net/test_tls_reload.py"
        "::test_new_certificate_must_have_the_names_of_the_old_one",
    ),
    Mutation(
        name="accept-settings-of-unusable-certificates",
        invariants=(100,),
        path="kwire/handlers/shared/altering.py",
        old="await check_certificates(changed, alteration.names)",
        new="pass",
        test="tests/server/test_certificates.py"
        "::test_unusable_certificate_is_rejected_in_the_answer",
    ),
    Mutation(
        name="cut-a-broker-off-by-its-new-certificate",
        invariants=(100,),
        path="kwire/net/tls/client_tls.py",
        old="        await trio.to_thread.run_sync(check, new, self.certificates.current)\n",
        new="",
        test="tests/server/test_certificates.py"
        "::test_certificate_that_the_other_brokers_would_refuse_is_rejected",
    ),
    Mutation(
        name="keep-an-expired-certificate-until-the-restart",
        invariants=(100,),
        path="kwire/net/tls/client_tls.py",
        old="ignores_expiry=old.expires_ms <= now_ms",
        new="ignores_expiry=False",
        test="tests/server/test_certificates.py"
        "::test_expired_certificate_between_brokers_can_be_replaced",
    ),
    Mutation(
        name="accept-an-expired-certificate-for-an-expired-one",
        invariants=(100,),
        path="kwire/net/tls/client_tls.py",
        old="        check_expiry(new, now_ms)\n",
        new="",
        test="tests/server/test_certificates.py"
        "::test_expired_certificate_is_not_replaced_by_one_that_serves_nobody",
    ),
    Mutation(
        name="read-certificates-for-each-connection",
        invariants=(10,),
        path="kwire/net/tls/reloading.py",
        old="self.now() - self._checked_at < CHECK_S",
        new="False",
        test="tests/net/test_tls_reload.py"
        "::test_new_file_serves_new_connections_and_ends_no_open_one",
    ),
    Mutation(
        name="any-number-of-tls-messages",
        invariants=(102,),
        path="kwire/net/tls/tls_socket.py",
        old="        self._message_count += 1\n",
        new="",
        test="tests/net/test_tls.py::test_flood_of_new_keys_ends_the_connection",
    ),
    Mutation(
        name="trust-any-other-node",
        invariants=(105,),
        path="kwire/net/tls/contexts.py",
        old="    context.check_hostname = bool(tls.ssl_endpoint_identification_algorithm)\n",
        new="    context.check_hostname = False\n",
        test=f"{TLS_CLIENT}::test_node_that_cannot_be_verified_gets_no_request",
    ),
    Mutation(
        name="watch-a-broker-without-a-handshake",
        invariants=(110,),
        path="kwire/net/idle_connection.py",
        old="stream if tls is None else await tls.wrap(stream, server_name)",
        new="stream",
        test=f"{TLS_CLIENT}::test_idle_connection_ends_with_the_other_node",
    ),
    Mutation(
        name="damaged-store-ends-new-connections",
        invariants=(100,),
        path="kwire/net/tls/contexts.py",
        old="    except (ValueError, TypeError, LookupError) as error:\n",
        new="    except LookupError as error:\n",
        test="tests/net/test_tls_stores.py::test_damaged_store_is_an_error_of_the_settings",
    ),
)
