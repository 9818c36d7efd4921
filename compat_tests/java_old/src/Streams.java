import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Comparator;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.TreeMap;
import java.util.stream.Stream;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.serialization.LongDeserializer;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.KeyValue;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.Topology;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.Grouped;
import org.apache.kafka.streams.kstream.KTable;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.kstream.Produced;
import org.apache.kafka.streams.kstream.TimeWindows;

/** Kafka Streams 4.3.1: {@code Streams ADDRESS [SCENARIO]...}. */
public final class Streams {
    private final String address;
    private final Admin admin;
    private final Map<String, String> setting;

    private Streams(String address) {
        this(address, Map.of());
    }

    /** The same scenarios under one more setting. */
    private Streams with(String key, String value) {
        return new Streams(address, Map.of(key, value));
    }

    private Streams(String address, Map<String, String> setting) {
        this.address = address;
        this.setting = setting;
        this.admin = Admin.create(Map.<String, Object>of("bootstrap.servers", address));
    }

    public static void main(String[] arguments) {
        Streams streams = new Streams(arguments[0]);
        List<String> asked = List.of(arguments).subList(1, arguments.length);
        Map<String, Report.Scenario> scenarios = new TreeMap<>();
        scenarios.put("word-count", streams::wordCount);
        scenarios.put("exactly-once", () -> streams.with("processing.guarantee", "exactly_once_v2").wordCount());
        scenarios.put("streams-protocol", () -> streams.with("group.protocol", "streams").wordCount());
        scenarios.put("two-instances", streams::twoInstances);
        scenarios.put("joins", streams::joins);
        scenarios.put("windows", streams::windows);
        scenarios.forEach((name, scenario) -> {
            if (asked.isEmpty() || asked.contains(name)) {
                Report.scenario("streams/" + name, scenario);
            }
        });
        streams.admin.close();
    }

    private String create(String role, int partitions) throws Exception {
        String topic = Report.unique(role);
        admin.createTopics(List.of(new NewTopic(topic, partitions, (short) -1))).all().get();
        return topic;
    }

    private void send(String topic, List<KeyValue<String, String>> records) throws Exception {
        Map<String, Object> settings = Map.of("bootstrap.servers", address);
        try (KafkaProducer<String, String> producer =
                new KafkaProducer<>(settings, new StringSerializer(), new StringSerializer())) {
            for (KeyValue<String, String> record : records) {
                producer.send(new ProducerRecord<>(topic, record.key, record.value));
            }
        }
    }

    private static List<KeyValue<String, String>> lines(String... lines) {
        List<KeyValue<String, String>> records = new ArrayList<>();
        for (String line : lines) {
            records.add(KeyValue.pair(null, line));
        }
        return records;
    }

    private KafkaStreams start(String application, Path state, Topology topology) {
        Properties settings = new Properties();
        settings.put("application.id", application);
        settings.put("bootstrap.servers", address);
        settings.put("state.dir", state.toString());
        settings.put("commit.interval.ms", "100");
        settings.put("num.stream.threads", "1");
        settings.put("auto.offset.reset", "earliest");
        settings.put("heartbeat.interval.ms", "200");
        settings.put("session.timeout.ms", "6000");
        settings.put("default.key.serde", Serdes.StringSerde.class);
        settings.put("default.value.serde", Serdes.StringSerde.class);
        settings.putAll(setting);
        if (setting.containsKey("group.protocol")) { // Then the coordinator decides these.
            settings.remove("heartbeat.interval.ms");
            settings.remove("session.timeout.ms");
        }
        KafkaStreams streams = new KafkaStreams(topology, settings);
        streams.start();
        return streams;
    }

    private static void stop(KafkaStreams streams) {
        Report.equal(streams.close(Duration.ofSeconds(30)), true, "closed in time");
    }

    private static void forget(Path folder) throws Exception {
        try (Stream<Path> found = Files.walk(folder)) {
            for (Path one : found.sorted(Comparator.reverseOrder()).toList()) {
                Files.delete(one);
            }
        }
    }

    /** The last value of each key; reads from the start to the end at each call. */
    private <V> Map<String, V> table(String topic, org.apache.kafka.common.serialization.Deserializer<V> values) {
        Map<String, Object> settings = new HashMap<>(Map.of("bootstrap.servers", address));
        Map<String, V> table = new TreeMap<>();
        try (KafkaConsumer<String, V> consumer = new KafkaConsumer<>(settings, new StringDeserializer(), values)) {
            List<TopicPartition> all = new ArrayList<>();
            consumer.partitionsFor(topic).forEach(one -> all.add(new TopicPartition(topic, one.partition())));
            consumer.assign(all);
            consumer.seekToBeginning(all);
            Map<TopicPartition, Long> ends = consumer.endOffsets(all);
            while (all.stream().anyMatch(one -> consumer.position(one) < ends.get(one))) {
                for (ConsumerRecord<String, V> record : consumer.poll(Duration.ofMillis(100))) {
                    table.put(record.key(), record.value());
                }
            }
        }
        return table;
    }

    private static Topology words(String input, String output) {
        StreamsBuilder builder = new StreamsBuilder();
        builder.<String, String>stream(input)
            .flatMapValues(line -> List.of(line.split(" ")))
            .groupBy((key, word) -> word, Grouped.as("by-word"))
            .count(Materialized.as("counts"))
            .toStream()
            .to(output, Produced.with(Serdes.String(), Serdes.Long()));
        return builder.build();
    }

    private String policy(String topic) throws Exception {
        ConfigResource resource = new ConfigResource(ConfigResource.Type.TOPIC, topic);
        return admin.describeConfigs(List.of(resource)).all().get().get(resource).get("cleanup.policy").value();
    }

    /** Counts words; again after a restart; and once more with its state gone, from the changelog. */
    private void wordCount() throws Exception {
        String input = create("lines", 3);
        String output = create("counts", 2);
        String application = Report.unique("word-count");
        Path state = Files.createTempDirectory("streams");
        send(input, lines("a b c", "a b", "a"));
        KafkaStreams streams = start(application, state, words(input, output));
        Report.eventually(() -> table(output, new LongDeserializer()), "{a=3, b=2, c=1}", "counts");
        stop(streams);
        Report.equal(policy(application + "-counts-changelog"), "compact", "policy of the changelog");
        Report.equal(policy(application + "-by-word-repartition"), "delete", "policy of the repartition topic");
        send(input, lines("a c"));
        streams = start(application, state, words(input, output));
        Report.eventually(() -> table(output, new LongDeserializer()), "{a=4, b=2, c=2}", "counts after a restart");
        stop(streams);
        forget(state);
        send(input, lines("b d"));
        streams = start(application, state, words(input, output));
        Report.eventually(() -> table(output, new LongDeserializer()), "{a=4, b=3, c=2, d=1}", "counts after a restore");
        stop(streams);
        streams.cleanUp();
    }

    /** A second instance takes over a part, and then all when the first one goes. */
    private void twoInstances() throws Exception {
        String input = create("lines", 4);
        String output = create("counts", 1);
        String application = Report.unique("two");
        Path first = Files.createTempDirectory("streams");
        Path second = Files.createTempDirectory("streams");
        send(input, lines("a b c d e f", "a b c d e f"));
        KafkaStreams one = start(application, first, words(input, output));
        Report.eventually(() -> table(output, new LongDeserializer()), "{a=2, b=2, c=2, d=2, e=2, f=2}", "counts of one");
        KafkaStreams two = start(application, second, words(input, output));
        Report.eventually(() -> two.metadataForLocalThreads().stream()
            .anyMatch(thread -> !thread.activeTasks().isEmpty()), true, "tasks of the second instance");
        send(input, lines("a b c d e f"));
        Report.eventually(() -> table(output, new LongDeserializer()), "{a=3, b=3, c=3, d=3, e=3, f=3}", "counts of both");
        stop(one);
        send(input, lines("a b c d e f"));
        Report.eventually(() -> table(output, new LongDeserializer()), "{a=4, b=4, c=4, d=4, e=4, f=4}", "counts of the second");
        stop(two);
    }

    /** A stream with a table, and with a global table. */
    private void joins() throws Exception {
        String orders = create("orders", 2);
        String users = create("users", 2);
        String prices = create("prices", 1);
        String output = create("joined", 1);
        send(users, List.of(KeyValue.pair("u1", "Ann"), KeyValue.pair("u2", "Bob")));
        send(prices, List.of(KeyValue.pair("tea", "3"), KeyValue.pair("pie", "5")));
        StreamsBuilder builder = new StreamsBuilder();
        KTable<String, String> table = builder.table(users);
        builder.<String, String>stream(orders, Consumed.as("orders"))
            .join(table, (item, user) -> item + " " + user)
            .join(builder.<String, String>globalTable(prices), (user, text) -> text.split(" ")[0],
                (text, price) -> text + " " + price)
            .to(output);
        KafkaStreams streams = start(Report.unique("joins"), Files.createTempDirectory("streams"), builder.build());
        Report.eventually(() -> streams.state(), KafkaStreams.State.RUNNING, "running");
        Report.eventually(() -> {
            send(orders, List.of(KeyValue.pair("u1", "tea"), KeyValue.pair("u2", "pie"), KeyValue.pair("u3", "tea")));
            return table(output, new StringDeserializer());
        }, "{u1=tea Ann 3, u2=pie Bob 5}", "joined");
        stop(streams);
    }

    private void windows() throws Exception {
        String input = create("events", 1);
        String output = create("windowed", 1);
        long now = System.currentTimeMillis() / 60_000 * 60_000;
        Map<String, Object> settings = Map.of("bootstrap.servers", address);
        try (KafkaProducer<String, String> producer =
                new KafkaProducer<>(settings, new StringSerializer(), new StringSerializer())) {
            for (int n = 0; n < 10; n++) {
                producer.send(new ProducerRecord<>(input, 0, now - n * 12_000L, "k", "v"));
            }
        }
        StreamsBuilder builder = new StreamsBuilder();
        builder.<String, String>stream(input)
            .groupByKey()
            .windowedBy(TimeWindows.ofSizeAndGrace(Duration.ofMinutes(1), Duration.ofHours(1)))
            .count(Materialized.as("windows"))
            .toStream((window, count) -> window.key() + (now - window.window().start()) / 60_000)
            .to(output, Produced.with(Serdes.String(), Serdes.Long()));
        String application = Report.unique("windows");
        KafkaStreams streams = start(application, Files.createTempDirectory("streams"), builder.build());
        Report.eventually(() -> table(output, new LongDeserializer()), "{k0=1, k1=5, k2=4}", "windows");
        stop(streams);
        Report.equal(policy(application + "-windows-changelog"), "compact,delete", "policy of the changelog");
    }
}
