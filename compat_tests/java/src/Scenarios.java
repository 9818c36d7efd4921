import com.fasterxml.jackson.databind.ObjectMapper;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collection;
import java.util.HashSet;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.Set;
import java.util.TreeMap;
import java.util.TreeSet;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.Future;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.NewPartitions;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.consumer.OffsetAndTimestamp;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.Partitioner;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.Cluster;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/**
 * What the Java clients do for the tests: {@code Scenarios NAME BOOTSTRAP TOPIC [ARGUMENT | key=value]...}.
 * Each prints one JSON object that the Python test judges. Arguments of the form key=value are
 * client settings.
 */
public final class Scenarios {
    static final long DEADLINE_MS = 60_000;
    private static final ObjectMapper JSON = new ObjectMapper();

    /** Sends a record to the partition that its value names. */
    public static final class ByValue implements Partitioner {
        @Override
        public int partition(String topic, Object key, byte[] keyBytes, Object value, byte[] valueBytes, Cluster cluster) {
            int number = Integer.parseInt(new String(valueBytes, StandardCharsets.UTF_8));
            return number % cluster.partitionCountForTopic(topic);
        }

        @Override
        public void close() {}

        @Override
        public void configure(Map<String, ?> configs) {}
    }

    public static void main(String[] arguments) throws Exception {
        String bootstrap = arguments[1];
        String topic = arguments[2];
        Map<String, String> settings = new TreeMap<>();
        List<String> rest = new ArrayList<>();
        for (int i = 3; i < arguments.length; i++) {
            int equals = arguments[i].indexOf('=');
            if (equals < 0) {
                rest.add(arguments[i]);
            } else {
                settings.put(arguments[i].substring(0, equals), arguments[i].substring(equals + 1));
            }
        }
        Object result = switch (arguments[0]) {
            case "produce" -> produce(bootstrap, topic, settings, Integer.parseInt(rest.get(0)), rest.get(1));
            case "shapes" -> shapes(bootstrap, topic);
            case "tooLarge" -> tooLarge(bootstrap, topic, settings, Integer.parseInt(rest.get(0)));
            case "consume" -> consume(bootstrap, topic, settings, Integer.parseInt(rest.get(0)));
            case "positions" -> positions(bootstrap, topic);
            case "group" -> group(bootstrap, topic, settings, rest);
            case "commits" -> commits(bootstrap, topic, settings);
            default -> throw new IllegalArgumentException(arguments[0]);
        };
        System.out.println(JSON.writeValueAsString(result));
    }

    static KafkaProducer<byte[], byte[]> producer(String bootstrap, Map<String, String> settings) {
        Properties all = new Properties();
        all.put("bootstrap.servers", bootstrap);
        all.putAll(settings);
        return new KafkaProducer<>(all, new ByteArraySerializer(), new ByteArraySerializer());
    }

    static KafkaConsumer<byte[], byte[]> consumer(String bootstrap, Map<String, String> settings) {
        Properties all = new Properties();
        all.put("bootstrap.servers", bootstrap);
        all.put("auto.offset.reset", "earliest");
        all.put("enable.auto.commit", "false");
        all.put("heartbeat.interval.ms", "200");
        all.put("metadata.max.age.ms", "500");
        all.put("fetch.max.wait.ms", "100");
        all.putAll(settings);
        if ("consumer".equals(all.get("group.protocol"))) {
            all.remove("heartbeat.interval.ms"); // The broker decides on it.
        }
        return new KafkaConsumer<>(all, new ByteArrayDeserializer(), new ByteArrayDeserializer());
    }

    static byte[] bytes(String text) {
        return text == null ? null : text.getBytes(StandardCharsets.UTF_8);
    }

    static String text(byte[] bytes) {
        return bytes == null ? null : new String(bytes, StandardCharsets.UTF_8);
    }

    /** Sends 0..count-1; keys are "none" or "key" ("key-i"). Answers partition and offset of each. */
    private static Object produce(String bootstrap, String topic, Map<String, String> settings, int count, String keys)
            throws Exception {
        List<Future<RecordMetadata>> sent = new ArrayList<>();
        try (KafkaProducer<byte[], byte[]> producer = producer(bootstrap, settings)) {
            for (int i = 0; i < count; i++) {
                byte[] key = keys.equals("key") ? bytes("key-" + i) : null;
                sent.add(producer.send(new ProducerRecord<>(topic, key, bytes("" + i))));
            }
        }
        List<Integer> partitions = new ArrayList<>();
        List<Long> offsets = new ArrayList<>();
        for (Future<RecordMetadata> one : sent) {
            partitions.add(one.get().partition());
            offsets.add(one.get().hasOffset() ? one.get().offset() : -1);
        }
        return Map.of("partitions", partitions, "offsets", offsets);
    }

    /** Null and empty keys and values, headers, timestamps: written and read back. */
    private static Object shapes(String bootstrap, String topic) throws Exception {
        String[][] pairs = {{null, "v"}, {"", "v"}, {"k", null}, {"k", ""}, {null, null}, {"", ""}};
        try (KafkaProducer<byte[], byte[]> producer = producer(bootstrap, Map.of())) {
            for (int i = 0; i < pairs.length; i++) {
                ProducerRecord<byte[], byte[]> record =
                    new ProducerRecord<>(topic, 0, 1000L + i, bytes(pairs[i][0]), bytes(pairs[i][1]));
                record.headers().add("b", bytes("1")).add("a", bytes("")).add("b", bytes("2")).add("n", null);
                producer.send(record).get();
            }
        }
        return Map.of("records", read(bootstrap, topic, Map.of(), pairs.length));
    }

    /** One record that must be refused and one that must not. */
    private static Object tooLarge(String bootstrap, String topic, Map<String, String> settings, int size)
            throws Exception {
        Map<String, Object> result = new LinkedHashMap<>();
        try (KafkaProducer<byte[], byte[]> producer = producer(bootstrap, settings)) {
            try {
                producer.send(new ProducerRecord<>(topic, new byte[size])).get();
            } catch (ExecutionException refused) {
                result.put("error", refused.getCause().getClass().getSimpleName());
            }
            result.put("offset", producer.send(new ProducerRecord<>(topic, bytes("fits"))).get().offset());
        }
        return result;
    }

    private static List<Map<String, Object>> read(String bootstrap, String topic, Map<String, String> settings, int count) {
        List<Map<String, Object>> found = new ArrayList<>();
        try (KafkaConsumer<byte[], byte[]> consumer = consumer(bootstrap, settings)) {
            List<TopicPartition> all = new ArrayList<>();
            consumer.partitionsFor(topic).forEach(one -> all.add(new TopicPartition(topic, one.partition())));
            consumer.assign(all);
            consumer.seekToBeginning(all);
            long deadline = System.currentTimeMillis() + DEADLINE_MS;
            while (found.size() < count && System.currentTimeMillis() < deadline) {
                for (ConsumerRecord<byte[], byte[]> record : consumer.poll(Duration.ofMillis(200))) {
                    found.add(describe(record));
                }
            }
        }
        return found;
    }

    private static Map<String, Object> describe(ConsumerRecord<byte[], byte[]> record) {
        Map<String, Object> described = new LinkedHashMap<>();
        described.put("partition", record.partition());
        described.put("offset", record.offset());
        described.put("timestamp", record.timestamp());
        described.put("key", text(record.key()));
        described.put("value", text(record.value()));
        List<List<String>> headers = new ArrayList<>();
        for (Header header : record.headers()) {
            List<String> pair = new ArrayList<>();
            pair.add(header.key());
            pair.add(text(header.value()));
            headers.add(pair);
        }
        described.put("headers", headers);
        return described;
    }

    private static Object consume(String bootstrap, String topic, Map<String, String> settings, int count) {
        return Map.of("records", read(bootstrap, topic, settings, count));
    }

    /** Seek, beginning and end, offsets by time, pause and resume over what the topic holds. */
    private static Object positions(String bootstrap, String topic) {
        TopicPartition partition = new TopicPartition(topic, 0);
        Map<String, Object> result = new LinkedHashMap<>();
        try (KafkaConsumer<byte[], byte[]> consumer = consumer(bootstrap, Map.of())) {
            consumer.assign(List.of(partition));
            result.put("beginning", consumer.beginningOffsets(List.of(partition)).get(partition));
            long end = consumer.endOffsets(List.of(partition)).get(partition);
            result.put("end", end);
            List<Long> byTime = new ArrayList<>();
            for (long time : new long[] {0, 1_042_000, 1_041_001, 9_000_000}) {
                OffsetAndTimestamp found = consumer.offsetsForTimes(Map.of(partition, time)).get(partition);
                byTime.add(found == null ? null : found.offset());
            }
            result.put("byTime", byTime);
            consumer.seek(partition, end - 1);
            result.put("sought", first(consumer));
            consumer.seek(partition, 0);
            consumer.pause(List.of(partition));
            result.put("paused", consumer.poll(Duration.ofMillis(300)).count());
            consumer.resume(List.of(partition));
            result.put("resumed", first(consumer));
            consumer.seek(partition, end + 1000);
            result.put("reset", first(consumer));
            result.put("lag", consumer.currentLag(partition).isPresent());
        }
        return result;
    }

    private static String first(KafkaConsumer<byte[], byte[]> consumer) {
        long deadline = System.currentTimeMillis() + DEADLINE_MS;
        while (System.currentTimeMillis() < deadline) {
            for (ConsumerRecord<byte[], byte[]> record : consumer.poll(Duration.ofMillis(200))) {
                return text(record.value());
            }
        }
        return "nothing in time";
    }

    /**
     * Two members, then one leaves, then one comes back and partitions are added. Answers the sizes
     * of the assignments at each stage and whether they were disjoint. The rest of the arguments are
     * the expected sizes of the first stage.
     */
    private static Object group(String bootstrap, String topics, Map<String, String> settings, List<String> expected)
            throws Exception {
        List<String> names = List.of(topics.split(","));
        int total = expected.stream().mapToInt(Integer::parseInt).sum();
        Map<String, Object> result = new LinkedHashMap<>();
        KafkaConsumer<byte[], byte[]> one = consumer(bootstrap, settings);
        KafkaConsumer<byte[], byte[]> two = consumer(bootstrap, settings);
        try {
            one.subscribe(names);
            result.put("alone", settle(List.of(one), List.of(total)));
            Set<TopicPartition> before = one.assignment();
            two.subscribe(names);
            List<Integer> sizes = new ArrayList<>();
            expected.forEach(size -> sizes.add(Integer.parseInt(size)));
            result.put("both", settle(List.of(one, two), sizes));
            result.put("kept", before.containsAll(one.assignment()));
            two.close();
            result.put("left", settle(List.of(one), List.of(total)));
            try (Admin admin = Admin.create(Map.<String, Object>of("bootstrap.servers", bootstrap))) {
                int now = admin.describeTopics(List.of(names.get(0))).allTopicNames().get().get(names.get(0)).partitions().size();
                admin.createPartitions(Map.of(names.get(0), NewPartitions.increaseTo(now + 2))).all().get();
            }
            result.put("grown", settle(List.of(one), List.of(total + 2)));
        } finally {
            one.close();
            two.close();
        }
        return result;
    }

    /** Polls the members until their assignments have these sizes and are disjoint. */
    private static Object settle(List<KafkaConsumer<byte[], byte[]>> members, List<Integer> expected) throws Exception {
        long deadline = System.currentTimeMillis() + DEADLINE_MS;
        List<Integer> sizes = new ArrayList<>();
        while (System.currentTimeMillis() < deadline) {
            Set<TopicPartition> union = new HashSet<>();
            sizes = new ArrayList<>();
            int sum = 0;
            for (KafkaConsumer<byte[], byte[]> member : members) {
                member.poll(Duration.ofMillis(50));
                Collection<TopicPartition> has = member.assignment();
                union.addAll(has);
                sizes.add(has.size());
                sum += has.size();
            }
            sizes.sort(null);
            if (sizes.equals(expected) && union.size() == sum) {
                return sizes;
            }
        }
        return "not in time: " + sizes;
    }

    private static Object commits(String bootstrap, String topic, Map<String, String> settings) {
        TopicPartition partition = new TopicPartition(topic, 0);
        Map<String, Object> result = new LinkedHashMap<>();
        try (KafkaConsumer<byte[], byte[]> consumer = consumer(bootstrap, settings)) {
            consumer.subscribe(List.of(topic));
            first(consumer);
            result.put("none", consumer.committed(Set.of(partition)).get(partition) == null);
            consumer.commitSync(Map.of(partition, new OffsetAndMetadata(3, "note")));
            OffsetAndMetadata committed = consumer.committed(Set.of(partition)).get(partition);
            result.put("sync", List.of(committed.offset(), committed.metadata()));
            TreeSet<String> results = new TreeSet<>();
            consumer.commitAsync(
                Map.of(partition, new OffsetAndMetadata(5)),
                (offsets, error) -> results.add(String.valueOf(error)));
            long deadline = System.currentTimeMillis() + DEADLINE_MS;
            while (results.isEmpty() && System.currentTimeMillis() < deadline) {
                consumer.poll(Duration.ofMillis(50));
            }
            result.put("async", results);
        }
        try (KafkaConsumer<byte[], byte[]> consumer = consumer(bootstrap, settings)) {
            consumer.subscribe(List.of(topic));
            result.put("resumed", first(consumer));
        }
        return result;
    }
}
