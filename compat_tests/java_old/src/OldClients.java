import java.time.Duration;
import java.util.ArrayList;
import java.util.Collection;
import java.util.Collections;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.Set;
import java.util.TreeMap;
import java.util.TreeSet;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.Future;
import org.apache.kafka.clients.admin.AdminClient;
import org.apache.kafka.clients.admin.Config;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.admin.ConsumerGroupDescription;
import org.apache.kafka.clients.admin.ConsumerGroupListing;
import org.apache.kafka.clients.admin.NewPartitions;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.admin.RecordsToDelete;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.acl.AccessControlEntry;
import org.apache.kafka.common.acl.AccessControlEntryFilter;
import org.apache.kafka.common.acl.AclBinding;
import org.apache.kafka.common.acl.AclBindingFilter;
import org.apache.kafka.common.acl.AclOperation;
import org.apache.kafka.common.acl.AclPermissionType;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.resource.PatternType;
import org.apache.kafka.common.resource.ResourcePattern;
import org.apache.kafka.common.resource.ResourcePatternFilter;
import org.apache.kafka.common.resource.ResourceType;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

/** Apache's Java clients as they were years ago: only what version 2.0 already had. */
public final class OldClients {
    private static final int COUNT = 300;
    private static final long START = 1_600_000_000_000L;

    private final String version;
    private final String address;
    private final AdminClient admin;

    private OldClients(String version, String address) {
        this.version = version;
        this.address = address;
        this.admin = AdminClient.create(Collections.singletonMap("bootstrap.servers", address));
    }

    public static void main(String[] arguments) {
        OldClients clients = new OldClients(arguments[0], arguments[1]);
        clients.all(new TreeSet<>(List.of(arguments).subList(2, arguments.length)));
        clients.admin.close();
    }

    private void all(Set<String> asked) {
        Map<String, Report.Scenario> scenarios = new TreeMap<>();
        scenarios.put("codecs", this::codecs);
        scenarios.put("idempotent", this::idempotent);
        scenarios.put("offsets", this::offsets);
        scenarios.put("group", this::group);
        scenarios.put("admin-topics", this::adminTopics);
        scenarios.put("admin-groups", this::adminGroups);
        scenarios.put("too-large", this::tooLarge);
        scenarios.put("transaction", this::transaction);
        scenarios.put("acls", this::acls);
        scenarios.forEach((name, scenario) -> {
            if (asked.isEmpty() || asked.contains(name)) {
                Report.scenario(version + "/" + name, scenario);
            }
        });
    }

    private String create(int partitions) throws Exception {
        String topic = Report.unique("java-old");
        Map<String, String> configs = Collections.singletonMap("retention.ms", "-1");
        NewTopic wanted = new NewTopic(topic, partitions, (short) -1).configs(configs);
        admin.createTopics(List.of(wanted)).all().get();
        return topic;
    }

    private KafkaProducer<String, String> producer(Map<String, String> settings) {
        Properties all = new Properties();
        all.put("bootstrap.servers", address);
        all.put("acks", "all");
        all.put("linger.ms", "5");
        all.put("batch.size", "2000");
        all.putAll(settings);
        return new KafkaProducer<>(all, new StringSerializer(), new StringSerializer());
    }

    private List<Long> fill(String topic, Map<String, String> settings) throws Exception {
        List<Future<RecordMetadata>> sent = new ArrayList<>();
        try (KafkaProducer<String, String> producer = producer(settings)) {
            Report.equal(producer.partitionsFor(topic).isEmpty(), false, "partitions");
            int n = 0;
            for (String value : Report.values(COUNT)) {
                ProducerRecord<String, String> record =
                    new ProducerRecord<>(topic, null, START + n * 1000L, "key-" + n, value);
                record.headers().add("h", "1".getBytes()).add("h", null);
                sent.add(producer.send(record));
                n++;
            }
        }
        List<Long> offsets = new ArrayList<>();
        for (Future<RecordMetadata> one : sent) {
            offsets.add(one.get().offset());
        }
        return offsets;
    }

    private KafkaConsumer<String, String> consumer(String group) {
        return consumer(group, "read_uncommitted");
    }

    private KafkaConsumer<String, String> consumer(String group, String isolation) {
        Properties all = new Properties();
        all.put("bootstrap.servers", address);
        all.put("group.id", group);
        all.put("auto.offset.reset", "earliest");
        all.put("enable.auto.commit", "false");
        all.put("heartbeat.interval.ms", "200");
        all.put("metadata.max.age.ms", "500");
        all.put("fetch.max.wait.ms", "100");
        all.put("isolation.level", isolation);
        return new KafkaConsumer<>(all, new StringDeserializer(), new StringDeserializer());
    }

    private static List<ConsumerRecord<String, String>> read(int count, KafkaConsumer<String, String> consumer) {
        List<ConsumerRecord<String, String>> found = new ArrayList<>();
        long end = System.currentTimeMillis() + Report.DEADLINE_MS;
        while (found.size() < count && System.currentTimeMillis() < end) {
            consumer.poll(Duration.ofMillis(100)).forEach(found::add);
        }
        return found;
    }

    private static List<String> texts(Collection<ConsumerRecord<String, String>> records) {
        List<String> texts = new ArrayList<>();
        records.forEach(record -> texts.add(record.value()));
        return texts;
    }

    private void codecs() throws Exception {
        List<String> codecs = new ArrayList<>(List.of("none", "gzip", "snappy", "lz4"));
        if (!version.startsWith("2.0")) {
            codecs.add("zstd");
        }
        for (String codec : codecs) {
            String topic = create(1);
            fill(topic, Collections.singletonMap("compression.type", codec));
            try (KafkaConsumer<String, String> consumer = consumer(Report.unique("group"))) {
                consumer.subscribe(List.of(topic));
                List<ConsumerRecord<String, String>> found = read(COUNT, consumer);
                Report.equal(texts(found), Report.values(COUNT), codec);
                Report.equal(found.get(7).timestamp(), START + 7000, "timestamp");
                Report.equal(found.get(7).headers().toArray().length, 2, "headers");
            }
        }
    }

    private void idempotent() throws Exception {
        String topic = create(1);
        Map<String, String> settings = new HashMap<>();
        settings.put("enable.idempotence", "true");
        settings.put("batch.size", "200");
        List<Long> wanted = new ArrayList<>();
        for (long n = 0; n < COUNT; n++) {
            wanted.add(n);
        }
        Report.equal(fill(topic, settings), wanted, "offsets");
    }

    private void offsets() throws Exception {
        String topic = create(1);
        TopicPartition partition = new TopicPartition(topic, 0);
        fill(topic, Map.of());
        try (KafkaConsumer<String, String> consumer = consumer(Report.unique("group"))) {
            Report.equal(consumer.beginningOffsets(List.of(partition)).get(partition), 0, "beginning");
            Report.equal(consumer.endOffsets(List.of(partition)).get(partition), COUNT, "end");
            Map<TopicPartition, Long> time = Collections.singletonMap(partition, START + 41_001);
            Report.equal(consumer.offsetsForTimes(time).get(partition).offset(), 42, "by time");
            Report.equal(consumer.offsetsForTimes(Collections.singletonMap(partition, START * 2)).get(partition), null, "later");
            consumer.assign(List.of(partition));
            consumer.seek(partition, COUNT - 1);
            Report.equal(read(1, consumer).get(0).offset(), COUNT - 1, "sought");
            consumer.seek(partition, COUNT + 100);
            Report.equal(read(1, consumer).get(0).offset(), 0, "out of range: reset");
            Report.equal(consumer.committed(partition), null, "nothing committed");
            consumer.commitSync(Collections.singletonMap(partition, new OffsetAndMetadata(9, "note")));
            Report.equal(consumer.committed(partition).metadata(), "note", "committed");
            Report.equal(consumer.listTopics().containsKey(topic), true, "listed");
            Report.equal(consumer.partitionsFor(topic).size(), 1, "partitions");
            consumer.seekToEnd(List.of(partition));
            Report.equal(consumer.position(partition), COUNT, "position at the end");
            Map<TopicPartition, OffsetAndMetadata> last = Collections.singletonMap(partition, new OffsetAndMetadata(COUNT));
            List<Exception> outcomes = new ArrayList<>();
            consumer.commitAsync(last, (offsets, error) -> outcomes.add(error));
            Report.eventually(() -> {
                consumer.poll(Duration.ofMillis(50));
                return outcomes;
            }, "[null]", "asynchronous commit");
        }
    }

    private void settle(List<KafkaConsumer<String, String>> members, List<Integer> sizes) throws Exception {
        Report.eventually(() -> {
            List<Integer> found = new ArrayList<>();
            for (KafkaConsumer<String, String> member : members) {
                member.poll(Duration.ofMillis(50));
                found.add(member.assignment().size());
            }
            return found;
        }, sizes, "assignments");
    }

    private void group() throws Exception {
        String topic = create(4);
        String group = Report.unique("group");
        KafkaConsumer<String, String> two = consumer(group);
        try (KafkaConsumer<String, String> one = consumer(group)) {
            one.subscribe(List.of(topic));
            settle(List.of(one), List.of(4));
            two.subscribe(List.of(topic));
            settle(List.of(one, two), List.of(2, 2));
            two.close();
            settle(List.of(one), List.of(4));
            admin.createPartitions(Map.of(topic, NewPartitions.increaseTo(6))).all().get();
            settle(List.of(one), List.of(6));
            fill(topic, Map.of());
            Report.equal(read(COUNT, one).size(), COUNT, "records");
            one.commitSync();
        }
        fill(topic, Map.of());
        try (KafkaConsumer<String, String> again = consumer(group)) {
            again.subscribe(List.of(topic));
            Report.equal(new TreeSet<>(texts(read(COUNT, again))), new TreeSet<>(Report.values(COUNT)), "resumed");
        }
    }

    private void acls() throws Exception {
        String prefix = Report.unique("acls");
        AclBinding read = new AclBinding(
            new ResourcePattern(ResourceType.TOPIC, prefix, PatternType.PREFIXED),
            new AccessControlEntry("User:alice", "*", AclOperation.READ, AclPermissionType.ALLOW));
        AclBindingFilter covering = new AclBindingFilter(
            new ResourcePatternFilter(ResourceType.TOPIC, prefix + "-1", PatternType.MATCH),
            AccessControlEntryFilter.ANY);
        admin.createAcls(List.of(read)).all().get();
        Report.eventually(() -> List.copyOf(admin.describeAcls(covering).values().get()), List.of(read), "the new ACL");
        Report.equal(List.copyOf(admin.deleteAcls(List.of(covering)).all().get()), List.of(read), "deleted");
        Report.eventually(() -> admin.describeAcls(covering).values().get().size(), 0, "the ACLs after the deletion");
    }

    private void adminTopics() throws Exception {
        String topic = create(2);
        admin.createPartitions(Map.of(topic, NewPartitions.increaseTo(3))).all().get();
        Report.eventually(
            () -> admin.describeTopics(List.of(topic)).values().get(topic).get().partitions().size(), 3, "partitions");
        ConfigResource resource = new ConfigResource(ConfigResource.Type.TOPIC, topic);
        Config config = new Config(List.of(new ConfigEntry("max.message.bytes", "77777")));
        if (!version.startsWith("3.")) {
            admin.alterConfigs(Map.of(resource, config)).all().get();
            Report.eventually(() -> admin.describeConfigs(List.of(resource)).all().get().get(resource)
                .get("max.message.bytes").value(), "77777", "config");
        }
        Report.equal(admin.listTopics().names().get().contains(topic), true, "listed");
        int controller = admin.describeCluster().controller().get().id();
        Report.equal(admin.describeCluster().nodes().get().stream().anyMatch(node -> node.id() == controller), true,
            "the controller is one of the nodes");
        try {
            create(-7);
            Report.equal("created", "refused", "a topic of -7 partitions");
        } catch (ExecutionException | IllegalArgumentException refused) {
            Report.equal(refused.getMessage() != null, true, "reason");
        }
        fill(topic, Map.of());
        TopicPartition partition = new TopicPartition(topic, 0);
        long low = admin.deleteRecords(Map.of(partition, RecordsToDelete.beforeOffset(2))).lowWatermarks()
            .get(partition).get().lowWatermark();
        Report.equal(low, 2, "low watermark");
        Report.equal(admin.describeLogDirs(List.of(controller)).values().get(controller).get().size(), 1, "log dirs");
        admin.deleteTopics(List.of(topic)).all().get();
        Report.eventually(() -> admin.listTopics().names().get().contains(topic), false, "deleted");
    }

    private void adminGroups() throws Exception {
        String topic = create(1);
        String group = Report.unique("group");
        TopicPartition partition = new TopicPartition(topic, 0);
        try (KafkaConsumer<String, String> consumer = consumer(group)) {
            consumer.subscribe(List.of(topic));
            settle(List.of(consumer), List.of(1));
            consumer.commitSync(Collections.singletonMap(partition, new OffsetAndMetadata(5)));
            ConsumerGroupDescription found = admin.describeConsumerGroups(List.of(group)).all().get().get(group);
            Report.equal(found.state(), "Stable", "state");
            Report.equal(found.members().iterator().next().assignment().topicPartitions(), List.of(partition), "assignment");
        }
        boolean listed = false;
        for (ConsumerGroupListing one : admin.listConsumerGroups().all().get()) {
            listed |= one.groupId().equals(group);
        }
        Report.equal(listed, true, "listed");
        long committed = admin.listConsumerGroupOffsets(group).partitionsToOffsetAndMetadata().get().get(partition).offset();
        Report.equal(committed, 5, "committed");
        admin.deleteConsumerGroups(List.of(group)).all().get();
    }

    /** What is aborted is never read, what is committed is, with the group's offset. */
    private void transaction() throws Exception {
        String topic = create(1);
        String group = Report.unique("group");
        TopicPartition partition = new TopicPartition(topic, 0);
        try (KafkaProducer<String, String> producer =
                producer(Collections.singletonMap("transactional.id", Report.unique("transaction")))) {
            producer.initTransactions();
            producer.beginTransaction();
            producer.send(new ProducerRecord<>(topic, "undone"));
            producer.abortTransaction();
            producer.beginTransaction();
            for (String value : Report.values(COUNT)) {
                producer.send(new ProducerRecord<>(topic, value));
            }
            producer.sendOffsetsToTransaction(Collections.singletonMap(partition, new OffsetAndMetadata(9)), group);
            producer.commitTransaction();
        }
        try (KafkaConsumer<String, String> consumer = consumer(group, "read_committed")) {
            consumer.assign(List.of(partition));
            consumer.seekToBeginning(List.of(partition));
            Report.equal(texts(read(COUNT, consumer)), Report.values(COUNT), "committed records");
            Report.equal(consumer.committed(partition).offset(), 9, "committed offset");
        }
    }

    private void tooLarge() throws Exception {
        String topic = create(1);
        try (KafkaProducer<String, String> producer = producer(Collections.singletonMap("max.request.size", "5000000"))) {
            try {
                producer.send(new ProducerRecord<>(topic, "x".repeat(2_000_000))).get();
                Report.equal("stored", "refused", "too large");
            } catch (ExecutionException refused) {
                Report.equal(refused.getCause().getClass().getSimpleName(), "RecordTooLargeException", "error");
            }
            Report.equal(producer.send(new ProducerRecord<>(topic, "fits")).get().offset(), 0, "offset");
        }
    }
}
