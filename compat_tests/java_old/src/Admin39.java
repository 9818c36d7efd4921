import java.util.Collections;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.Set;
import java.util.TreeMap;
import java.util.TreeSet;
import java.util.concurrent.ExecutionException;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.ListTransactionsOptions;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.admin.ProducerState;
import org.apache.kafka.clients.admin.TransactionDescription;
import org.apache.kafka.clients.admin.TransactionState;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.StringSerializer;

/** Administration by Java clients: what came between versions 2.8 and 3.9. */
public final class Admin39 {
    private final String version;
    private final String address;
    private final Admin admin;

    private Admin39(String version, String address) {
        this.version = version;
        this.address = address;
        this.admin = Admin.create(Collections.singletonMap("bootstrap.servers", address));
    }

    public static void main(String[] arguments) {
        Admin39 clients = new Admin39(arguments[0], arguments[1]);
        clients.all(new TreeSet<>(List.of(arguments).subList(2, arguments.length)));
        clients.admin.close();
    }

    private void all(Set<String> asked) {
        Map<String, Report.Scenario> scenarios = new TreeMap<>();
        scenarios.put("open-transaction", this::openTransaction);
        scenarios.put("quorum", this::quorum);
        scenarios.forEach((name, scenario) -> {
            if (asked.isEmpty() || asked.contains(name)) {
                Report.scenario(version + "/" + name, scenario);
            }
        });
    }

    /** An administrator finds an open transaction, and fences its producer. */
    private void openTransaction() throws Exception {
        TopicPartition partition = new TopicPartition(Report.unique("java-admin"), 0);
        admin.createTopics(List.of(new NewTopic(partition.topic(), 1, (short) -1))).all().get();
        String id = Report.unique("transaction");
        Properties settings = new Properties();
        settings.put("bootstrap.servers", address);
        settings.put("transactional.id", id);
        try (KafkaProducer<String, String> producer = new KafkaProducer<>(settings, new StringSerializer(), new StringSerializer())) {
            producer.initTransactions();
            producer.beginTransaction();
            producer.send(new ProducerRecord<>(partition.topic(), 0, null, "undone")).get();
            TransactionDescription described = admin.describeTransactions(List.of(id)).all().get().get(id);
            Report.equal(described.state(), TransactionState.ONGOING, "state");
            Report.equal(described.topicPartitions(), Set.of(partition), "partitions");
            ListTransactionsOptions open = new ListTransactionsOptions()
                .filterProducerIds(Set.of(described.producerId())).filterStates(Set.of(TransactionState.ONGOING));
            Report.equal(admin.listTransactions(open).all().get().iterator().next().transactionalId(), id, "listed");
            ProducerState state = admin.describeProducers(List.of(partition)).all().get().get(partition).activeProducers().get(0);
            Report.equal(state.currentTransactionStartOffset().getAsLong(), 0, "start of the transaction");
            admin.fenceProducers(List.of(id)).all().get();
            try {
                producer.commitTransaction();
                Report.equal("committed", "fenced", "the transaction");
            } catch (KafkaException fenced) {
                Report.eventually(() -> admin.describeTransactions(List.of(id)).all().get().get(id).state(), TransactionState.EMPTY, "state after the end");
            }
        }
    }

    private void quorum() throws Exception {
        int leader = admin.describeMetadataQuorum().quorumInfo().get().leaderId();
        Report.equal(leader >= 0, true, "leader of the quorum");
        try {
            Report.equal(admin.listClientMetricsResources().all().get().size() >= 0, true, "subscriptions of client metrics");
        } catch (ExecutionException refused) {
            Report.equal(refused.getCause(), null, "subscriptions of client metrics");
        }
    }
}
