import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;

/**
 * {@code Sessions FILE}: a producer that is logged in over TLS, and sends record after record until
 * the file exists or a login fails. It reads its attempt (compat_tests/security/programs.py) from
 * standard input, and prints one JSON object: how many records were acknowledged, the errors of
 * others, and the totals of its connections and logins. Once it has renewed a session, there is a
 * file with the name of {@code FILE} and ".renewed".
 */
public final class Sessions {
    private static final Set<String> FAILURES = Set.of("failed-authentication-total", "failed-reauthentication-total");
    private static final Set<String> RENEWALS = Set.of("successful-reauthentication-total");
    private static final Set<String> TOTALS = Set.of("connection-close-total", "successful-reauthentication-total");

    public static void main(String[] arguments) throws Exception {
        ObjectMapper json = new ObjectMapper();
        JsonNode attempt = json.readTree(System.in);
        Map<String, Object> settings = LogIns.settings(attempt);
        settings.put("key.serializer", "org.apache.kafka.common.serialization.ByteArraySerializer");
        settings.put("value.serializer", "org.apache.kafka.common.serialization.ByteArraySerializer");
        byte[] value = attempt.get("name").asText().getBytes(StandardCharsets.UTF_8);
        AtomicInteger acknowledged = new AtomicInteger();
        ConcurrentLinkedQueue<String> errors = new ConcurrentLinkedQueue<>();
        KafkaProducer<byte[], byte[]> producer = new KafkaProducer<>(settings);
        try {
            Path renewed = Path.of(arguments[0] + ".renewed");
            while (!Files.exists(Path.of(arguments[0])) && sum(producer, FAILURES) == 0) {
                if (sum(producer, RENEWALS) > 0 && !Files.exists(renewed)) {
                    Files.createFile(renewed);
                }
                producer.send(new ProducerRecord<>(attempt.get("topic").asText(), value), (sent, failed) -> {
                    if (failed == null) {
                        acknowledged.incrementAndGet();
                    } else {
                        errors.add(LogIns.chain(failed));
                    }
                });
                Thread.sleep(10);
            }
            Map<String, Object> report = new TreeMap<>();
            int failures = sum(producer, FAILURES);
            report.put("failed logins", failures);
            TOTALS.forEach(total -> report.put(total, sum(producer, Set.of(total))));
            if (failures == 0) {
                producer.flush();
            }
            report.put("acknowledged", acknowledged.get());
            report.put("errors", errors.toArray());
            System.out.println(json.writeValueAsString(report));
        } finally {
            producer.close(Duration.ZERO);
        }
    }

    private static int sum(KafkaProducer<?, ?> producer, Set<String> totals) {
        int[] sum = {0};
        producer.metrics().forEach((name, metric) -> {
            if (name.group().equals("producer-metrics") && totals.contains(name.name())) {
                sum[0] += ((Double) metric.metricValue()).intValue();
            }
        });
        return sum[0];
    }
}
