import com.fasterxml.jackson.databind.ObjectMapper;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ExecutionException;
import org.apache.kafka.clients.admin.AbortTransactionSpec;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.ListTransactionsOptions;
import org.apache.kafka.clients.admin.ProducerState;
import org.apache.kafka.clients.admin.TransactionDescription;
import org.apache.kafka.clients.admin.TransactionState;
import org.apache.kafka.clients.consumer.ConsumerGroupMetadata;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;

/**
 * Transactions of the Java clients: {@code Transactions NAME BOOTSTRAP TOPIC ID [ARGUMENT]...}.
 * Each prints one JSON object that the Python test judges.
 */
public final class Transactions {
    private static final ObjectMapper JSON = new ObjectMapper();

    private final String bootstrap;
    private final String topic;
    private final TopicPartition partition;
    private final String id;

    private Transactions(String bootstrap, String topic, String id) {
        this.bootstrap = bootstrap;
        this.topic = topic;
        this.partition = new TopicPartition(topic, 0);
        this.id = id;
    }

    public static void main(String[] arguments) throws Exception {
        Transactions scenarios = new Transactions(arguments[1], arguments[2], arguments[3]);
        Object result = switch (arguments[0]) {
            case "transform" -> scenarios.transform(arguments[4], arguments[5], Integer.parseInt(arguments[6]));
            case "epochs" -> scenarios.epochs(Integer.parseInt(arguments[4]));
            case "fencing" -> scenarios.fencing();
            case "timeOut" -> scenarios.timeOut();
            case "pendingOffsets" -> scenarios.pendingOffsets(arguments[4]);
            case "removedMember" -> scenarios.removedMember(arguments[4]);
            case "describe" -> scenarios.describe();
            case "fence" -> scenarios.fence();
            case "abort" -> scenarios.abort();
            case "terminate" -> scenarios.terminate();
            default -> throw new IllegalArgumentException(arguments[0]);
        };
        System.out.println(JSON.writeValueAsString(result));
    }

    private interface Step {
        void run() throws Exception;
    }

    /** The name of the exception that a step ends with; "none" if it succeeds. */
    private static String failure(Step step) {
        try {
            step.run();
            return "none";
        } catch (ExecutionException wrapped) {
            return wrapped.getCause().getClass().getSimpleName();
        } catch (Exception thrown) {
            return thrown.getClass().getSimpleName();
        }
    }

    private KafkaProducer<byte[], byte[]> producer(String timeOutMs) {
        KafkaProducer<byte[], byte[]> producer = Scenarios.producer(
            bootstrap, Map.of("transactional.id", id, "transaction.timeout.ms", timeOutMs));
        producer.initTransactions();
        return producer;
    }

    private KafkaProducer<byte[], byte[]> producer() {
        return producer("60000");
    }

    private void send(KafkaProducer<byte[], byte[]> producer, String value) throws Exception {
        producer.send(new ProducerRecord<>(topic, 0, null, Scenarios.bytes(value))).get();
    }

    private void sendPlain(String value) throws Exception {
        try (KafkaProducer<byte[], byte[]> plain = Scenarios.producer(bootstrap, Map.of())) {
            send(plain, value);
        }
    }

    private Admin admin() {
        return Admin.create(Map.<String, Object>of("bootstrap.servers", bootstrap));
    }

    private TransactionDescription described(Admin admin) throws Exception {
        return admin.describeTransactions(List.of(id)).description(id).get();
    }

    /** The values that a read_committed consumer sees, once there are as many. */
    private List<String> visible(int count) {
        List<String> values = new ArrayList<>();
        try (KafkaConsumer<byte[], byte[]> consumer =
                Scenarios.consumer(bootstrap, Map.of("isolation.level", "read_committed"))) {
            consumer.assign(List.of(partition));
            consumer.seekToBeginning(List.of(partition));
            long deadline = System.currentTimeMillis() + Scenarios.DEADLINE_MS;
            while (values.size() < count && System.currentTimeMillis() < deadline) {
                consumer.poll(Duration.ofMillis(200)).forEach(record -> values.add(Scenarios.text(record.value())));
            }
        }
        return values;
    }

    /** Copies records of a source with its group's positions; every third transaction is aborted. */
    private Object transform(String source, String group, int count) {
        int transactions = 0;
        int copied = 0;
        Map<String, String> settings = Map.of(
            "group.id", group, "isolation.level", "read_committed", "max.poll.records", "10");
        try (KafkaConsumer<byte[], byte[]> consumer = Scenarios.consumer(bootstrap, settings);
                KafkaProducer<byte[], byte[]> producer = producer()) {
            consumer.subscribe(List.of(source));
            long deadline = System.currentTimeMillis() + Scenarios.DEADLINE_MS;
            while (copied < count && System.currentTimeMillis() < deadline) {
                ConsumerRecords<byte[], byte[]> records = consumer.poll(Duration.ofMillis(200));
                if (records.isEmpty()) {
                    continue;
                }
                producer.beginTransaction();
                Map<TopicPartition, OffsetAndMetadata> ends = new HashMap<>();
                for (ConsumerRecord<byte[], byte[]> record : records) {
                    producer.send(new ProducerRecord<>(topic, 0, record.key(), record.value()));
                    ends.put(new TopicPartition(source, record.partition()), new OffsetAndMetadata(record.offset() + 1));
                }
                producer.sendOffsetsToTransaction(ends, consumer.groupMetadata());
                transactions++;
                if (transactions % 3 == 0) {
                    producer.abortTransaction();
                    consumer.committed(ends.keySet()).forEach((place, committed) ->
                        consumer.seek(place, committed == null ? 0 : committed.offset()));
                } else {
                    producer.commitTransaction();
                    copied += records.count();
                }
            }
            long committed = consumer.committed(consumer.assignment()).values().stream()
                .mapToLong(one -> one == null ? 0 : one.offset()).sum();
            return Map.of("copied", copied, "committed", committed, "values", visible(count));
        }
    }

    /** The coordinator's producer epoch after each of several transactions, and the producer ids. */
    private Object epochs(int count) throws Exception {
        List<Integer> epochs = new ArrayList<>();
        Map<Long, Integer> ids = new LinkedHashMap<>();
        try (Admin admin = admin(); KafkaProducer<byte[], byte[]> producer = producer()) {
            for (int number = 0; number < count; number++) {
                producer.beginTransaction();
                send(producer, "" + number);
                if (number % 2 == 0) {
                    producer.commitTransaction();
                } else {
                    producer.abortTransaction();
                }
                TransactionDescription description = described(admin);
                epochs.add(description.producerEpoch());
                ids.merge(description.producerId(), 1, Integer::sum);
            }
        }
        return Map.of("epochs", epochs, "ids", ids.size(), "values", visible((count + 1) / 2));
    }

    /** An older producer after a newer one has begun: its commit, its next record, its offsets. */
    private Object fencing() throws Exception {
        Map<String, Object> result = new LinkedHashMap<>();
        List<KafkaProducer<byte[], byte[]>> zombies = new ArrayList<>();
        for (int number = 0; number < 3; number++) {
            KafkaProducer<byte[], byte[]> zombie = producer();
            zombie.beginTransaction();
            send(zombie, "zombie-" + number);
            zombies.add(zombie);
        }
        try (KafkaProducer<byte[], byte[]> heir = producer()) {
            heir.beginTransaction();
            send(heir, "heir");
            heir.commitTransaction();
            result.put("commit", failure(() -> zombies.get(0).commitTransaction()));
            result.put("send", failure(() -> send(zombies.get(1), "late")));
            result.put("offsets", failure(() -> zombies.get(2).sendOffsetsToTransaction(
                Map.of(partition, new OffsetAndMetadata(1)), new ConsumerGroupMetadata("group-" + id))));
            heir.beginTransaction();
            send(heir, "again");
            heir.commitTransaction();
        } finally {
            zombies.forEach(zombie -> zombie.close(Duration.ZERO));
        }
        result.put("values", visible(2));
        return result;
    }

    /** A transaction that outlives its time-out: the coordinator aborts it. */
    private Object timeOut() throws Exception {
        Map<String, Object> result = new LinkedHashMap<>();
        KafkaProducer<byte[], byte[]> slow = producer("1000");
        slow.beginTransaction();
        send(slow, "late");
        sendPlain("after");
        result.put("values", visible(1));
        result.put("commit", failure(slow::commitTransaction));
        slow.close(Duration.ZERO);
        try (KafkaProducer<byte[], byte[]> heir = producer()) {
            heir.beginTransaction();
            send(heir, "heir");
            heir.commitTransaction();
        }
        result.put("later", visible(2));
        return result;
    }

    /** Offsets of an open transaction, as a consumer and an administrator read them. */
    private Object pendingOffsets(String group) throws Exception {
        Map<String, Object> result = new LinkedHashMap<>();
        try (Admin admin = admin();
                KafkaConsumer<byte[], byte[]> consumer = Scenarios.consumer(bootstrap, Map.of("group.id", group));
                KafkaProducer<byte[], byte[]> producer = producer()) {
            for (boolean commit : new boolean[] {false, true}) {
                producer.beginTransaction();
                producer.sendOffsetsToTransaction(
                    Map.of(partition, new OffsetAndMetadata(7, "note")), new ConsumerGroupMetadata(group));
                String stage = commit ? "commit" : "abort";
                result.put("open " + stage, failure(() -> consumer.committed(Set.of(partition), Duration.ofSeconds(2))));
                result.put("seen by an admin, " + stage, admin.listConsumerGroupOffsets(group)
                    .partitionsToOffsetAndMetadata().get().get(partition));
                if (commit) {
                    producer.commitTransaction();
                } else {
                    producer.abortTransaction();
                }
                OffsetAndMetadata offset = consumer.committed(Set.of(partition)).get(partition);
                result.put(stage, offset == null ? null : List.of(offset.offset(), offset.metadata()));
            }
        }
        return result;
    }

    /** A transaction with the offsets of a member that has left its group (KIP-447). */
    private Object removedMember(String group) throws Exception {
        Map<String, Object> result = new LinkedHashMap<>();
        sendPlain("1");
        try (KafkaConsumer<byte[], byte[]> consumer = Scenarios.consumer(bootstrap, Map.of("group.id", group));
                KafkaProducer<byte[], byte[]> producer = producer()) {
            consumer.subscribe(List.of(topic));
            long deadline = System.currentTimeMillis() + Scenarios.DEADLINE_MS;
            while (consumer.assignment().isEmpty() && System.currentTimeMillis() < deadline) {
                consumer.poll(Duration.ofMillis(200));
            }
            ConsumerGroupMetadata metadata = consumer.groupMetadata();
            consumer.unsubscribe();
            producer.beginTransaction();
            result.put("offsets", failure(() ->
                producer.sendOffsetsToTransaction(Map.of(partition, new OffsetAndMetadata(1)), metadata)));
            producer.abortTransaction();
            result.put("committed", consumer.committed(Set.of(partition)).get(partition));
        }
        return result;
    }

    private List<String> listed(Admin admin, ListTransactionsOptions options) throws Exception {
        List<String> states = new ArrayList<>();
        admin.listTransactions(options).all().get().forEach(listing -> {
            if (listing.transactionalId().equals(id)) {
                states.add(listing.state().toString());
            }
        });
        return states;
    }

    private ProducerState writer(Admin admin, long producerId) throws Exception {
        for (ProducerState state : admin.describeProducers(List.of(partition)).partitionResult(partition).get().activeProducers()) {
            if (state.producerId() == producerId) {
                return state;
            }
        }
        return null;
    }

    /** What an administrator sees of an open transaction. */
    private Object describe() throws Exception {
        Map<String, Object> result = new LinkedHashMap<>();
        try (Admin admin = admin(); KafkaProducer<byte[], byte[]> producer = producer("54321")) {
            result.put("before", List.of(described(admin).state().toString(), described(admin).topicPartitions().size()));
            producer.beginTransaction();
            send(producer, "open");
            TransactionDescription open = described(admin);
            result.put("state", open.state().toString());
            result.put("partitions", open.topicPartitions().toString());
            result.put("timeOutMs", open.transactionTimeoutMs());
            result.put("started", open.transactionStartTimeMs().isPresent());
            ProducerState state = writer(admin, open.producerId());
            result.put("writer", List.of(state.producerEpoch() == open.producerEpoch(), state.lastSequence(),
                state.currentTransactionStartOffset().getAsLong()));
            Map<String, ListTransactionsOptions> filters = new LinkedHashMap<>();
            filters.put("all", new ListTransactionsOptions());
            filters.put("ongoing", new ListTransactionsOptions().filterStates(List.of(TransactionState.ONGOING)));
            filters.put("empty", new ListTransactionsOptions().filterStates(List.of(TransactionState.EMPTY)));
            filters.put("id", new ListTransactionsOptions().filterProducerIds(List.of(open.producerId())));
            filters.put("other id", new ListTransactionsOptions().filterProducerIds(List.of(open.producerId() + 100_000)));
            filters.put("an hour", new ListTransactionsOptions().filterOnDuration(3_600_000));
            filters.put("pattern", new ListTransactionsOptions().filterOnTransactionalIdPattern(id.substring(0, 5) + ".*"));
            filters.put("other pattern", new ListTransactionsOptions().filterOnTransactionalIdPattern("no-.*"));
            Map<String, Object> listings = new LinkedHashMap<>();
            for (Map.Entry<String, ListTransactionsOptions> filter : filters.entrySet()) {
                listings.put(filter.getKey(), listed(admin, filter.getValue()));
            }
            result.put("listed", listings);
            producer.commitTransaction();
            result.put("unknown", failure(() -> admin.describeTransactions(List.of(id + "-unknown")).all().get()));
        }
        return result;
    }

    /** fenceProducers ends the open transaction and the producer that has it. */
    private Object fence() throws Exception {
        Map<String, Object> result = new LinkedHashMap<>();
        KafkaProducer<byte[], byte[]> producer = producer();
        try (Admin admin = admin()) {
            producer.beginTransaction();
            send(producer, "undone");
            TransactionDescription open = described(admin);
            var fenced = admin.fenceProducers(List.of(id));
            fenced.all().get();
            result.put("same id", fenced.producerId(id).get() == open.producerId());
            result.put("newer epoch", fenced.epochId(id).get() > open.producerEpoch());
            result.put("commit", failure(producer::commitTransaction));
            sendPlain("after");
            result.put("values", visible(1));
        } finally {
            producer.close(Duration.ZERO);
        }
        return result;
    }

    /** abortTransaction ends the transaction on one partition, whatever the coordinator thinks. */
    private Object abort() throws Exception {
        Map<String, Object> result = new LinkedHashMap<>();
        KafkaProducer<byte[], byte[]> producer = producer();
        try (Admin admin = admin()) {
            producer.beginTransaction();
            send(producer, "undone");
            TransactionDescription open = described(admin);
            ProducerState state = writer(admin, open.producerId());
            int coordinatorEpoch = state.coordinatorEpoch().orElse(0);
            admin.abortTransaction(new AbortTransactionSpec(
                partition, state.producerId(), (short) state.producerEpoch(), coordinatorEpoch)).all().get();
            sendPlain("after");
            result.put("values", visible(1));
            result.put("open", writer(admin, open.producerId()).currentTransactionStartOffset().isPresent());
            result.put("state", described(admin).state().toString());
            producer.abortTransaction();
            producer.beginTransaction();
            send(producer, "again");
            producer.commitTransaction();
            result.put("later", visible(2));
        } finally {
            producer.close(Duration.ZERO);
        }
        return result;
    }

    /** forceTerminateTransaction ends whatever transaction the transactional id has (KIP-939). */
    private Object terminate() throws Exception {
        Map<String, Object> result = new LinkedHashMap<>();
        KafkaProducer<byte[], byte[]> producer = producer();
        try (Admin admin = admin()) {
            producer.beginTransaction();
            send(producer, "undone");
            result.put("terminate", failure(() -> admin.forceTerminateTransaction(id).result().get()));
            result.put("commit", failure(producer::commitTransaction));
            sendPlain("after");
            result.put("values", visible(1));
        } finally {
            producer.close(Duration.ZERO);
        }
        return result;
    }
}
