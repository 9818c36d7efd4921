import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse.BodyHandlers;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.UUID;
import java.util.function.BooleanSupplier;
import java.util.regex.MatchResult;
import java.util.regex.Pattern;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;
import org.junit.jupiter.api.AfterAll;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.testcontainers.kafka.KafkaContainer;
import org.testcontainers.utility.DockerImageName;

/** Three faults over HTTP: at FAULTS_ADDRESS and FAULTS_CONTROL, or at a container of FAULTS_IMAGE. */
class FaultsTest {
    private static final int CONTROL_PORT = 9100;
    private static KafkaContainer container;
    private static String address = System.getenv("FAULTS_ADDRESS");
    private static String control = System.getenv("FAULTS_CONTROL");
    private final String topic = "java-" + UUID.randomUUID();

    @BeforeAll
    static void start() {
        if (address != null) {
            return;
        }
        DockerImageName image = DockerImageName.parse(System.getenv("FAULTS_IMAGE"));
        container = new KafkaContainer(image.asCompatibleSubstituteFor("apache/kafka"))
            .withEnv("KWIRE_CONTROL_PORT", "" + CONTROL_PORT);
        container.addExposedPort(CONTROL_PORT);
        container.start();
        address = container.getBootstrapServers();
        control = "http://" + container.getHost() + ":" + container.getMappedPort(CONTROL_PORT);
    }

    @AfterAll
    static void stop() {
        if (container != null) {
            container.stop();
        }
    }

    @BeforeEach
    void createTopic() throws Exception {
        try (Admin admin = Admin.create(Map.of("bootstrap.servers", address))) {
            admin.createTopics(List.of(new NewTopic(topic, 1, (short) 1))).all().get();
        }
    }

    @AfterEach
    void checkFaults() throws Exception {
        verb("check-faults", "");
    }

    @Test
    void lostAcknowledgement() throws Exception {
        verb("add-fault", "'action': 'drop', 'after': true, 'api': 'Produce', 'topic': '%s'".formatted(topic));
        produce("once", "end");
        assertEquals(List.of("once", "end"), read(2));
        int count = find("\"count\": (\\d+)", verb("list-requests", "'api': 'Produce', 'client_id': '%s'".formatted(topic)))
            .stream().mapToInt(Integer::parseInt).sum();
        System.out.println("OBSERVED lost-acknowledgement " + count);
    }

    @Test
    void responseCutInTheMiddle() throws Exception {
        produce("1", "2", "3");
        verb("add-fault", "'action': 'cut', 'api': 'Fetch', 'topic': '%s'".formatted(topic));
        assertEquals(List.of("1", "2", "3"), read(3));
        System.out.println("OBSERVED cut-response 3");
    }

    @Test
    void refusedHeartbeat() throws Exception {
        produce("1");
        verb("add-fault", "'action': 'fail', 'api': 'Heartbeat', 'error': 'REBALANCE_IN_PROGRESS', 'group': '%s'".formatted(topic));
        List<String> values = new ArrayList<>();
        try (KafkaConsumer<String, String> consumer = consumer()) {
            consumer.subscribe(List.of(topic));
            poll(consumer, values, () -> !values.isEmpty() && hasRejoined());
        }
        assertEquals(List.of("1"), values);
        System.out.println("OBSERVED refused-heartbeat 1");
    }

    private boolean hasRejoined() {
        List<String> apis = find("\"api\": \"(\\w+)\"", verb("list-requests", "'client_id': '%s'".formatted(topic)));
        int heartbeat = apis.indexOf("Heartbeat");
        return heartbeat >= 0 && apis.subList(heartbeat, apis.size()).contains("SyncGroup");
    }

    private void produce(String... values) throws Exception {
        Map<String, Object> settings = Map.of("bootstrap.servers", address, "client.id", topic);
        try (var producer = new KafkaProducer<>(settings, new StringSerializer(), new StringSerializer())) {
            for (String value : values) {
                producer.send(new ProducerRecord<>(topic, value)).get();
            }
        }
    }

    private KafkaConsumer<String, String> consumer() {
        Map<String, Object> settings = Map.of("bootstrap.servers", address, "client.id", topic, "group.id", topic,
            "auto.offset.reset", "earliest", "heartbeat.interval.ms", "200");
        return new KafkaConsumer<>(settings, new StringDeserializer(), new StringDeserializer());
    }

    private List<String> read(int count) {
        List<String> values = new ArrayList<>();
        try (KafkaConsumer<String, String> consumer = consumer()) {
            consumer.assign(List.of(new TopicPartition(topic, 0)));
            poll(consumer, values, () -> values.size() >= count);
        }
        return values;
    }

    private static void poll(KafkaConsumer<String, String> consumer, List<String> values, BooleanSupplier isOver) {
        long end = System.nanoTime() + Duration.ofSeconds(30).toNanos();
        while (!isOver.getAsBoolean()) {
            assertTrue(System.nanoTime() < end, "waited 30 s; read " + values);
            for (ConsumerRecord<String, String> record : consumer.poll(Duration.ofMillis(100))) {
                values.add(record.value());
            }
        }
    }

    private static List<String> find(String pattern, String text) {
        return Pattern.compile(pattern).matcher(text).results().map((MatchResult found) -> found.group(1)).toList();
    }

    private static String verb(String name, String values) {
        HttpRequest request = HttpRequest.newBuilder(URI.create(control + "/v1/" + name))
            .POST(HttpRequest.BodyPublishers.ofString("{" + values.replace('\'', '"') + "}")).build();
        try {
            var answer = HttpClient.newHttpClient().send(request, BodyHandlers.ofString());
            assertEquals(200, answer.statusCode(), answer.body());
            return answer.body();
        } catch (Exception error) {
            throw new IllegalStateException(error);
        }
    }
}
