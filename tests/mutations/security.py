"""Mistakes in log-ins and their mechanisms."""

from typing import Final

from tests.mutations.table import Mutation

CONVERSATION: Final = "tests/security/test_conversation.py"
PLAIN: Final = "tests/security/test_plain.py"
SCRAM: Final = "tests/security/test_scram.py"
CONNECTION: Final = "tests/net/test_log_in.py"
MUTATIONS = (
    Mutation(
        name="any-request-before-the-log-in",
        invariants=(105,),
        path="kwire/security/conversation.py",
        old="    if key not in _ALLOWED:\n",
        new="    if not key:\n",
        test=f"{CONNECTION}::test_other_request_before_the_log_in_ends_the_connection",
    ),
    Mutation(
        name="renewal-by-another-user",
        invariants=(105,),
        path="kwire/security/conversation.py",
        old="if self.before is not None and user != self.before.user:",
        new="if False and self.before is not None:",
        test=f"{CONVERSATION}::test_session_is_renewed_by_the_same_user_with_the_same_mechanism",
    ),
    Mutation(
        name="passwords-compared-as-they-are",
        invariants=(105,),
        path="kwire/security/plain.py",
        old="if not compare_digest(digest(password), self.passwords.get(name, _NOBODY)):",
        new="if digest(password) != self.passwords.get(name, _NOBODY):",
        test=f"{PLAIN}::test_user_that_does_not_exist_costs_the_same_comparison",
    ),
    Mutation(
        name="act-as-another-user",
        invariants=(105,),
        path="kwire/security/plain.py",
        old='if role not in ("", name):',
        new="if False:",
        test=f"{PLAIN}::test_user_cannot_act_as_another",
    ),
    Mutation(
        name="large-frames-before-the-log-in",
        invariants=(95,),
        path="kwire/net/log_in.py",
        old="        framer.max_bytes = min(self.rules.max_frame_bytes, framer.max_bytes)\n",
        new="",
        test=f"{CONNECTION}::test_frames_are_small_until_the_log_in",
    ),
    Mutation(
        name="frames-before-the-log-in-as-large-as-the-settings-say",
        invariants=(95,),
        path="kwire/net/guests.py",
        old="        guest.framer.max_bytes = min(FRAME_BYTES_MAX, guest.framer.max_bytes)\n",
        new="",
        test=f"{CONNECTION}::test_frames_before_the_log_in_are_small_whatever_the_settings_say",
    ),
    Mutation(
        name="wait-for-a-log-in-for-ever",
        invariants=(102,),
        path="kwire/net/guests.py",
        old="        guest.scope.deadline = self.now() + LOG_IN_S\n",
        new="",
        test=f"{CONNECTION}::test_client_that_does_not_log_in_is_disconnected",
    ),
    Mutation(
        name="wait-for-the-log-ins-of-any-number-of-clients",
        invariants=(102,),
        path="kwire/net/guests.py",
        old="        if len(self._guests) > GUESTS_MAX:\n",
        new="        if not self._guests:\n",
        test=f"{CONNECTION}::test_silent_connections_lock_nobody_out",
    ),
    Mutation(
        name="client-amid-its-log-in-makes-room",
        invariants=(102,),
        path="kwire/net/guests.py",
        old="            self._guests[framer] = guest\n",
        new="            self._guests = {framer: guest, **self._guests}\n",
        test=f"{CONNECTION}::test_silent_connections_lock_nobody_out",
    ),
    Mutation(
        name="failed-log-in-is-answered-at-once",
        invariants=(105,),
        path="kwire/net/log_in.py",
        old="        await trio.sleep(self.rules.failure_delay_s)\n",
        new="",
        test=f"{CONNECTION}::test_failed_log_in_is_answered_late_and_ends_the_connection",
    ),
    Mutation(
        name="session-without-end",
        invariants=(105,),
        path="kwire/net/log_in.py",
        old="        elif now > expires_at:\n",
        new="        elif now < 0:\n",
        test=f"{CONNECTION}::test_session_ends_unless_it_is_renewed",
    ),
    Mutation(
        name="proof-not-checked",
        invariants=(105,),
        path="kwire/security/scram.py",
        old="if not is_right or not challenge.is_known:",
        new="if not challenge.is_known:",
        test=f"{SCRAM}::test_final_message_must_fit_the_first",
    ),
    Mutation(
        name="messages-of-another-log-in",
        invariants=(105,),
        path="kwire/security/scram.py",
        old="if nonce != challenge.nonce:",
        new="if not nonce:",
        test=f"{SCRAM}::test_final_message_must_fit_the_first",
    ),
    Mutation(
        name="channel-binding-not-checked",
        invariants=(105,),
        path="kwire/security/scram.py",
        old="if decode_base64(binding) != challenge.first.header.encode():",
        new="if not decode_base64(binding):",
        test=f"{SCRAM}::test_final_message_must_fit_the_first",
    ),
    Mutation(
        name="unknown-users-fail-at-once",
        invariants=(105,),
        path="kwire/security/scram.py",
        old="        chosen = credential if credential is not None and is_usable else decoy\n",
        new="        if credential is None:\n"
        '            raise AuthenticationFailed("Invalid client credentials")\n'
        "        chosen = credential if is_usable else decoy\n",
        test=f"{SCRAM}::test_wrong_password_and_unknown_user_look_the_same",
    ),
    Mutation(
        name="each-start-invents-the-salts-of-unknown-users",
        invariants=(105,),
        path="kwire/node/logins.py",
        old="Decoys(core.identity.cluster_id.encode())",
        new="Decoys(core.random.randbytes(32))",
        test="tests/server/test_logins.py"
        "::test_unknown_user_has_the_same_salt_on_every_node_and_after_a_restart",
    ),
    Mutation(
        name="salts-of-unknown-users-have-another-length",
        invariants=(105,),
        path="kwire/security/scram.py",
        old="    while number or not digits:\n",
        new="    while number or len(digits) < 26:\n",
        test=f"{SCRAM}::test_salts_of_unknown_users_have_the_form_of_others",
    ),
    Mutation(
        name="credentials-with-few-iterations",
        invariants=(105,),
        path="kwire/security/scram.py",
        old="credential is not None and credential.iterations >= ITERATIONS_MIN",
        new="credential is not None",
        test=f"{SCRAM}::test_credential_with_too_few_iterations_never_logs_in",
    ),
    Mutation(
        name="scram-before-its-release",
        invariants=(105,),
        path="kwire/raftmeta/controller/scram_credentials.py",
        old="if level_of(state.image.features) < SCRAM:",
        new="if not SCRAM:",
        test="tests/handlers/test_user_scram_credentials.py"
        "::test_cluster_of_an_old_release_has_no_credentials",
    ),
    Mutation(
        name="requests-amid-a-log-in",
        invariants=(105,),
        path="kwire/net/client.py",
        old="if self._queue is not None and key not in _LOGIN:",
        new="if False:",
        test="tests/net/test_node_login.py::test_requests_wait_for_a_log_in",
    ),
    Mutation(
        name="sessions-of-nodes-are-not-renewed",
        invariants=(105,),
        path="kwire/net/client.py",
        old="        while lifetime_s:\n",
        new="        while lifetime_s < 0:\n",
        test="tests/net/test_node_login.py::test_session_is_renewed_while_requests_go_on",
    ),
    Mutation(
        name="impostors-are-believed",
        invariants=(105,),
        path="kwire/security/scram_client.py",
        old='if not compare_digest(decode_base64(value_of("v", text)), self._signature):',
        new='if not decode_base64(value_of("v", text)):',
        test="tests/security/test_scram_client.py"
        "::test_server_without_the_credential_is_not_believed",
    ),
    Mutation(
        name="challenges-of-any-cost",
        invariants=(105,),
        path="kwire/security/scram_client.py",
        old="if not ITERATIONS_MIN <= int(iterations) <= ITERATIONS_LIMIT:",
        new="if not ITERATIONS_MIN <= int(iterations):",
        test="tests/security/test_scram_client.py"
        "::test_challenge_that_is_malformed_or_too_costly_fails",
    ),
)
