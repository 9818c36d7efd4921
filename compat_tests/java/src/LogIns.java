import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import javax.security.auth.callback.Callback;
import javax.security.auth.callback.UnsupportedCallbackException;
import javax.security.auth.login.AppConfigurationEntry;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.security.auth.AuthenticateCallbackHandler;
import org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule;
import org.apache.kafka.common.security.oauthbearer.OAuthBearerToken;
import org.apache.kafka.common.security.oauthbearer.OAuthBearerTokenCallback;
import org.apache.kafka.common.security.plain.PlainLoginModule;
import org.apache.kafka.common.security.scram.ScramLoginModule;

/**
 * Users of Apache's clients who log in over TLS. It reads attempts (compat_tests/security/programs.py)
 * from standard input, carries them out together, and prints a line for each: its name, a tab, and
 * the record that came back, or the errors as an application would log them.
 */
public final class LogIns {
    private static final Duration DEADLINE = Duration.ofSeconds(60);

    /** Gives the client the token that its JAAS line contains. */
    public static final class Tokens implements AuthenticateCallbackHandler {
        private String token;

        @Override
        public void configure(Map<String, ?> configs, String mechanism, List<AppConfigurationEntry> entries) {
            token = entries.get(0).getOptions().get("token").toString();
        }

        @Override
        public void handle(Callback[] callbacks) throws UnsupportedCallbackException {
            for (Callback callback : callbacks) {
                if (!(callback instanceof OAuthBearerTokenCallback)) {
                    throw new UnsupportedCallbackException(callback);
                }
                ((OAuthBearerTokenCallback) callback).token(new Token(token));
            }
        }

        @Override
        public void close() {}
    }

    private record Token(String value) implements OAuthBearerToken {
        @Override
        public Set<String> scope() {
            return Set.of();
        }

        @Override
        public long lifetimeMs() {
            return System.currentTimeMillis() + 600_000;
        }

        @Override
        public String principalName() {
            return "alice";
        }

        @Override
        public Long startTimeMs() {
            return null;
        }
    }

    public static void main(String[] ignored) throws Exception {
        JsonNode attempts = new ObjectMapper().readTree(System.in);
        Map<String, Future<String>> outcomes = new HashMap<>();
        ExecutorService threads = Executors.newFixedThreadPool(4);
        try {
            for (JsonNode attempt : attempts) {
                outcomes.put(attempt.get("name").asText(), threads.submit(() -> outcome(attempt)));
            }
            for (Map.Entry<String, Future<String>> one : outcomes.entrySet()) {
                System.out.println(one.getKey() + "\t" + one.getValue().get().replaceAll("\\s+", " "));
            }
        } finally {
            threads.shutdownNow();
        }
    }

    private static String outcome(JsonNode attempt) {
        try {
            return roundTrip(settings(attempt), attempt.get("topic").asText(), attempt.get("name").asText());
        } catch (Exception failed) {
            return chain(failed);
        }
    }

    /** An error and its causes, by their classes and messages. */
    static String chain(Throwable failed) {
        List<String> errors = new ArrayList<>();
        for (Throwable each = failed; each != null; each = each.getCause()) {
            errors.add(each.getClass().getSimpleName() + ": " + each.getMessage());
        }
        return String.join("; ", errors);
    }

    /** The settings of a client of any kind. */
    static Map<String, Object> settings(JsonNode attempt) {
        String mechanism = attempt.get("mechanism").asText();
        Map<String, Object> settings = new HashMap<>();
        settings.put("bootstrap.servers", attempt.get("address").asText());
        settings.put("security.protocol", "SASL_SSL");
        settings.put("ssl.truststore.type", "PEM");
        settings.put("ssl.truststore.location", attempt.get("trusted").asText());
        settings.put("sasl.mechanism", mechanism);
        String secret = attempt.get("secret").asText();
        if (mechanism.equals("OAUTHBEARER")) {
            settings.put("sasl.login.callback.handler.class", Tokens.class.getName());
            settings.put("sasl.jaas.config", jaas(OAuthBearerLoginModule.class, "token", secret));
        } else {
            Class<?> module = mechanism.equals("PLAIN") ? PlainLoginModule.class : ScramLoginModule.class;
            String user = attempt.get("user").asText();
            settings.put("sasl.jaas.config", jaas(module, "username", user, "password", secret));
        }
        return settings;
    }

    private static String jaas(Class<?> module, String... options) {
        StringBuilder line = new StringBuilder(module.getName()).append(" required");
        for (int i = 0; i < options.length; i += 2) {
            line.append(' ').append(options[i]).append("=\"").append(options[i + 1]).append('"');
        }
        return line.append(';').toString();
    }

    private static String roundTrip(Map<String, Object> settings, String topic, String value) throws Exception {
        settings.put("key.serializer", "org.apache.kafka.common.serialization.ByteArraySerializer");
        settings.put("value.serializer", "org.apache.kafka.common.serialization.ByteArraySerializer");
        try (KafkaProducer<byte[], byte[]> producer = new KafkaProducer<>(settings)) {
            producer.send(new ProducerRecord<>(topic, value.getBytes(StandardCharsets.UTF_8))).get();
        } catch (ExecutionException failed) {
            throw (Exception) failed.getCause();
        }
        settings.put("key.deserializer", "org.apache.kafka.common.serialization.ByteArrayDeserializer");
        settings.put("value.deserializer", "org.apache.kafka.common.serialization.ByteArrayDeserializer");
        try (KafkaConsumer<byte[], byte[]> consumer = new KafkaConsumer<>(settings)) {
            List<TopicPartition> partitions = List.of(new TopicPartition(topic, 0));
            consumer.assign(partitions);
            consumer.seekToBeginning(partitions);
            for (ConsumerRecord<byte[], byte[]> record : consumer.poll(DEADLINE)) {
                return new String(record.value(), StandardCharsets.UTF_8);
            }
        }
        return "no record";
    }
}
