import com.fasterxml.jackson.databind.ObjectMapper;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.HashSet;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.ListShareGroupOffsetsSpec;
import org.apache.kafka.clients.consumer.AcknowledgeType;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaShareConsumer;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicIdPartition;
import org.apache.kafka.common.errors.TimeoutException;
import org.apache.kafka.common.serialization.StringDeserializer;

/**
 * Share groups of the Java client: {@code Shares NAME BOOTSTRAP TOPIC GROUP COUNT [ARGUMENT]...}.
 * Each prints one JSON object that the Python test judges.
 */
public final class Shares {
    private static final ObjectMapper JSON = new ObjectMapper();
    private static final long PATIENCE_MS = 30_000;
    private static final long PAUSE_MS = 100;
    private static final Duration COMMIT_PATIENCE = Duration.ofSeconds(10);
    private static final Duration CLOSE_PATIENCE = Duration.ofSeconds(1);

    private final String bootstrap;
    private final String topic;
    private final String group;
    private final int count;

    private Shares(String bootstrap, String topic, String group, int count) {
        this.bootstrap = bootstrap;
        this.topic = topic;
        this.group = group;
        this.count = count;
    }

    public static void main(String[] arguments) throws Exception {
        Shares scenarios =
            new Shares(arguments[1], arguments[2], arguments[3], Integer.parseInt(arguments[4]));
        Object result = switch (arguments[0]) {
            case "implicit" -> scenarios.implicit();
            case "together" -> scenarios.together();
            case "explicit" -> scenarios.explicit();
            case "leave" -> scenarios.leave();
            case "slowly" -> scenarios.slowly(Path.of(arguments[5]));
            default -> throw new IllegalArgumentException(arguments[0]);
        };
        System.out.println(JSON.writeValueAsString(result));
    }

    private KafkaShareConsumer<String, String> consumer(String... settings) {
        Map<String, Object> all = new HashMap<>();
        all.put("bootstrap.servers", bootstrap);
        all.put("group.id", group);
        for (String setting : settings) {
            String[] parts = setting.split("=", 2);
            all.put(parts[0], parts[1]);
        }
        KafkaShareConsumer<String, String> consumer =
            new KafkaShareConsumer<>(all, new StringDeserializer(), new StringDeserializer());
        consumer.subscribe(List.of(topic));
        return consumer;
    }

    private static Map<String, Object> shown(ConsumerRecord<String, String> record) {
        Map<String, Object> shown = new LinkedHashMap<>();
        shown.put("offset", record.offset());
        shown.put("value", record.value());
        shown.put("deliveries", record.deliveryCount().orElse((short) 0));
        return shown;
    }

    /** Polls until there are records; their locks must be acknowledged in explicit mode. */
    private static List<ConsumerRecord<String, String>> poll(
            KafkaShareConsumer<String, String> consumer, long patienceMs) {
        List<ConsumerRecord<String, String>> records = new ArrayList<>();
        long deadline = System.currentTimeMillis() + patienceMs;
        while (records.isEmpty() && System.currentTimeMillis() < deadline) {
            consumer.poll(Duration.ofMillis(200)).forEach(records::add);
        }
        return records;
    }

    /** The errors of a commit, by partition; empty if all records were acknowledged. */
    private static List<String> commit(KafkaShareConsumer<String, String> consumer) {
        List<String> errors = new ArrayList<>();
        Map<TopicIdPartition, Optional<KafkaException>> results = consumer.commitSync(COMMIT_PATIENCE);
        results.values().forEach(
            result -> result.ifPresent(error -> errors.add(error.getClass().getSimpleName())));
        return errors;
    }

    /** Records that the next poll acknowledges, and what is left for a second consumer. */
    private Map<String, Object> implicit() {
        List<Object> records = new ArrayList<>();
        try (KafkaShareConsumer<String, String> consumer = consumer()) {
            while (records.size() < count) {
                List<ConsumerRecord<String, String>> polled = poll(consumer, PATIENCE_MS);
                polled.forEach(record -> records.add(shown(record)));
                if (polled.isEmpty()) {
                    break;
                }
            }
            commit(consumer);
        }
        List<Object> more = new ArrayList<>();
        try (KafkaShareConsumer<String, String> consumer = consumer()) {
            poll(consumer, 2_000).forEach(record -> more.add(shown(record)));
        }
        return Map.of("records", records, "more", more);
    }

    /** What two consumers of one group get, in turns. */
    private Map<String, Object> together() {
        List<Object> first = new ArrayList<>();
        List<Object> second = new ArrayList<>();
        String limit = "max.poll.records=10";
        try (KafkaShareConsumer<String, String> one = consumer(limit);
                KafkaShareConsumer<String, String> two = consumer(limit)) {
            long deadline = System.currentTimeMillis() + PATIENCE_MS;
            while (first.size() + second.size() < count && System.currentTimeMillis() < deadline) {
                if (!second.isEmpty() || first.size() < count / 2) {  // The second may join late.
                    one.poll(Duration.ofMillis(100)).forEach(record -> first.add(shown(record)));
                }
                two.poll(Duration.ofMillis(100)).forEach(record -> second.add(shown(record)));
            }
        }
        return Map.of("first", first, "second", second);
    }

    /** Releases odd offsets, rejects every tenth and accepts the others; what comes again. */
    private Map<String, Object> explicit() {
        List<Object> records = new ArrayList<>();
        List<Object> again = new ArrayList<>();
        List<String> errors = new ArrayList<>();
        String mode = "share.acknowledgement.mode=explicit";
        try (KafkaShareConsumer<String, String> consumer = consumer(mode)) {
            while (records.size() < count) {
                List<ConsumerRecord<String, String>> polled = poll(consumer, PATIENCE_MS);
                for (ConsumerRecord<String, String> record : polled) {
                    boolean isNew = record.deliveryCount().orElse((short) 0) == 1;
                    (isNew ? records : again).add(shown(record));
                    AcknowledgeType type = !isNew ? AcknowledgeType.ACCEPT
                        : record.offset() % 10 == 0 ? AcknowledgeType.REJECT
                        : record.offset() % 2 == 1 ? AcknowledgeType.RELEASE
                        : AcknowledgeType.ACCEPT;
                    consumer.acknowledge(record, type);
                }
                errors.addAll(commit(consumer));
                if (polled.isEmpty()) {
                    break;
                }
            }
            while (again.size() < count / 2) {
                List<ConsumerRecord<String, String>> polled = poll(consumer, PATIENCE_MS);
                for (ConsumerRecord<String, String> record : polled) {
                    again.add(shown(record));
                    consumer.acknowledge(record, AcknowledgeType.ACCEPT);
                }
                errors.addAll(commit(consumer));
                if (polled.isEmpty()) {
                    break;
                }
            }
            poll(consumer, 1_000).forEach(record -> again.add(shown(record)));
        }
        return Map.of("records", records, "again", again, "errors", errors);
    }

    /** What a second consumer gets after the first has closed without acknowledging. */
    private Map<String, Object> leave() {
        List<Object> first = new ArrayList<>();
        List<Object> second = new ArrayList<>();
        String mode = "share.acknowledgement.mode=explicit";
        try (KafkaShareConsumer<String, String> consumer = consumer(mode)) {
            poll(consumer, PATIENCE_MS).forEach(record -> first.add(shown(record)));
        }
        // Longer than the locks of 30 s: a client that closes with a fetch on its way leaves them.
        try (KafkaShareConsumer<String, String> consumer = consumer()) {
            poll(consumer, 2 * PATIENCE_MS).forEach(record -> second.add(shown(record)));
        }
        return Map.of("first", first, "second", second);
    }

    /**
     * Accepts a few records at a time until the group has completed all; the number of those whose
     * acceptance was confirmed and of those whose was not, and records delivered after it was. The
     * number of accepted records is written to a file.
     *
     * <p>The client never sends an acknowledgement for a broker that has left the cluster's
     * metadata meanwhile, and fetches nothing before it is sent: another consumer then goes on.
     */
    private Map<String, Object> slowly(Path progress) throws Exception {
        Set<Long> accepted = new HashSet<>();
        Set<Long> undecided = new HashSet<>();
        List<Object> deliveredAgain = new ArrayList<>();
        long deadline = System.currentTimeMillis() + 3 * PATIENCE_MS;
        boolean isOver = false;
        while (!isOver) {
            KafkaShareConsumer<String, String> consumer = consumer(
                "share.acknowledgement.mode=explicit",
                "share.acquire.mode=record_limit",
                "max.poll.records=20");
            try {
                while (!isOver) {
                    Set<Long> offsets = new HashSet<>();
                    for (ConsumerRecord<String, String> record : poll(consumer, 1_000)) {
                        if (accepted.contains(record.offset())) {
                            deliveredAgain.add(shown(record));
                        }
                        offsets.add(record.offset());
                        consumer.acknowledge(record, AcknowledgeType.ACCEPT);
                    }
                    undecided.addAll(offsets);
                    if (!offsets.isEmpty() && commit(consumer).isEmpty()) {
                        undecided.removeAll(offsets);
                        accepted.addAll(offsets);
                        Files.writeString(progress, String.valueOf(accepted.size()));
                    }
                    Thread.sleep(PAUSE_MS);
                    isOver = System.currentTimeMillis() > deadline
                        || accepted.size() + undecided.size() == count
                            && offsets.isEmpty() && lag() == 0;
                }
            } catch (TimeoutException stuck) {
                System.err.println("another consumer goes on: " + stuck);
            } finally {
                consumer.close(CLOSE_PATIENCE);  // It would wait for a killed broker.
            }
        }
        return Map.of(
            "accepted", accepted.size(),
            "undecided", undecided.size(),
            "lag", lag(),
            "deliveredAgain", deliveredAgain);
    }

    /** The number of the topic's records that the group has not completed. */
    private long lag() throws Exception {
        try (Admin admin = Admin.create(Map.of("bootstrap.servers", bootstrap))) {
            return admin.listShareGroupOffsets(Map.of(group, new ListShareGroupOffsetsSpec()))
                .partitionsToOffsetInfo(group).get().values().stream()
                .mapToLong(offset -> offset.lag().orElse(Long.MAX_VALUE)).sum();
        }
    }
}
