import java.time.Duration;
import java.util.ArrayList;
import java.util.Collection;
import java.util.Collections;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Properties;
import java.util.Set;
import java.util.TreeMap;
import java.util.TreeSet;
import java.util.concurrent.Callable;
import java.util.concurrent.ExecutionException;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.AlterConfigOp;
import org.apache.kafka.clients.admin.AlterConfigOp.OpType;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.admin.FeatureUpdate;
import org.apache.kafka.clients.admin.MemberToRemove;
import org.apache.kafka.clients.admin.NewPartitionReassignment;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.admin.OffsetSpec;
import org.apache.kafka.clients.admin.RemoveMembersFromConsumerGroupOptions;
import org.apache.kafka.clients.admin.ScramCredentialInfo;
import org.apache.kafka.clients.admin.ScramMechanism;
import org.apache.kafka.clients.admin.UpdateFeaturesOptions;
import org.apache.kafka.clients.admin.UserScramCredentialDeletion;
import org.apache.kafka.clients.admin.UserScramCredentialUpsertion;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.ElectionType;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.TopicPartitionInfo;
import org.apache.kafka.common.TopicPartitionReplica;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.quota.ClientQuotaAlteration;
import org.apache.kafka.common.quota.ClientQuotaEntity;
import org.apache.kafka.common.quota.ClientQuotaFilter;
import org.apache.kafka.common.quota.ClientQuotaFilterComponent;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

/** Administration by Java clients: what version 2.8 already had. */
public final class Admin28 {
    private final String version;
    private final String address;
    private final Admin admin;

    private Admin28(String version, String address) {
        this.version = version;
        this.address = address;
        this.admin = Admin.create(Collections.singletonMap("bootstrap.servers", address));
    }

    public static void main(String[] arguments) {
        Admin28 clients = new Admin28(arguments[0], arguments[1]);
        clients.all(new TreeSet<>(List.of(arguments).subList(2, arguments.length)));
        clients.admin.close();
    }

    private void all(Set<String> asked) {
        Map<String, Report.Scenario> scenarios = new TreeMap<>();
        scenarios.put("configs", this::configs);
        scenarios.put("replicas", this::replicas);
        scenarios.put("group-offsets", this::groupOffsets);
        scenarios.put("static-member", this::staticMember);
        scenarios.put("list-offsets", this::listOffsets);
        scenarios.put("quotas", this::quotas);
        scenarios.put("scram", this::scram);
        scenarios.put("features", this::features);
        scenarios.forEach((name, scenario) -> {
            if (asked.isEmpty() || asked.contains(name)) {
                Report.scenario(version + "/" + name, scenario);
            }
        });
    }

    private String create(int partitions) throws Exception {
        String topic = Report.unique("java-admin");
        admin.createTopics(List.of(new NewTopic(topic, partitions, (short) -1))).all().get();
        Report.eventually(() -> leaders(topic).size(), partitions, "partitions of the new topic");
        return topic;
    }

    private List<TopicPartitionInfo> leaders(String topic) throws Exception {
        return admin.describeTopics(List.of(topic)).values().get(topic).get().partitions();
    }

    /** The name of the error's class, or "accepted". */
    private static String outcome(Callable<?> call) throws Exception {
        try {
            call.call();
            return "accepted";
        } catch (ExecutionException refused) {
            return refused.getCause().getClass().getSimpleName();
        }
    }

    private void configs() throws Exception {
        ConfigResource resource = new ConfigResource(ConfigResource.Type.TOPIC, create(1));
        Report.Question shown = () -> admin.describeConfigs(List.of(resource)).all().get().get(resource).get("cleanup.policy").value();
        alter(resource, "cleanup.policy", "compact", OpType.APPEND);
        Report.eventually(() -> new TreeSet<>(List.of(String.valueOf(shown.ask()).split(","))), "[compact, delete]", "after an append");
        alter(resource, "cleanup.policy", "delete", OpType.SUBTRACT);
        Report.eventually(shown, "compact", "after a subtraction");
        alter(resource, "cleanup.policy", "", OpType.DELETE);
        Report.eventually(shown, "delete", "after a deletion");
        Report.equal(outcome(() -> alter(resource, "cleanup.policy", "keep", OpType.SET)), "InvalidConfigurationException", "an unknown policy");
    }

    private Void alter(ConfigResource resource, String name, String value, OpType type) throws Exception {
        Collection<AlterConfigOp> changes = List.of(new AlterConfigOp(new ConfigEntry(name, value), type));
        return admin.incrementalAlterConfigs(Map.of(resource, changes)).all().get();
    }

    private void replicas() throws Exception {
        String topic = create(1);
        TopicPartition partition = new TopicPartition(topic, 0);
        TopicPartitionInfo shown = leaders(topic).get(0);
        Optional<Throwable> election = admin.electLeaders(ElectionType.PREFERRED, Set.of(partition)).partitions().get().get(partition);
        Report.equal(election.map(error -> error.getClass().getSimpleName()).orElse("elected"), "ElectionNotNeededException", "election");
        List<Integer> brokers = new ArrayList<>();
        shown.replicas().forEach(node -> brokers.add(node.id()));
        admin.alterPartitionReassignments(Map.of(partition, Optional.of(new NewPartitionReassignment(brokers)))).all().get();
        Report.equal(admin.listPartitionReassignments(Set.of(partition)).reassignments().get(), Map.of(), "reassignments");
        TopicPartitionReplica replica = new TopicPartitionReplica(topic, 0, shown.leader().id());
        String folder = admin.describeReplicaLogDirs(List.of(replica)).all().get().get(replica).getCurrentReplicaLogDir();
        Report.equal(folder != null, true, "directory of the replica");
        admin.alterReplicaLogDirs(Map.of(replica, folder)).all().get();
        Report.equal(outcome(() -> admin.alterReplicaLogDirs(Map.of(replica, "/no/such/directory")).all().get()), "LogDirNotFoundException", "an unknown directory");
    }

    private void groupOffsets() throws Exception {
        String group = Report.unique("group");
        TopicPartition partition = new TopicPartition(create(1), 0);
        admin.alterConsumerGroupOffsets(group, Map.of(partition, new OffsetAndMetadata(7, "note"))).all().get();
        Callable<Map<TopicPartition, OffsetAndMetadata>> shown = () -> admin.listConsumerGroupOffsets(group).partitionsToOffsetAndMetadata().get();
        Report.equal(shown.call().get(partition).offset(), 7, "offset");
        admin.deleteConsumerGroupOffsets(group, Set.of(partition)).all().get();
        Report.equal(shown.call().size(), 0, "offsets after the deletion");
    }

    /** An administrator removes a member that does not leave when it is closed. */
    private void staticMember() throws Exception {
        String group = Report.unique("group");
        String topic = create(2);
        Properties settings = new Properties();
        settings.put("bootstrap.servers", address);
        settings.put("group.id", group);
        settings.put("group.instance.id", "instance");
        try (KafkaConsumer<String, String> consumer = new KafkaConsumer<>(settings, new StringDeserializer(), new StringDeserializer())) {
            consumer.subscribe(List.of(topic));
            Report.eventually(() -> {
                consumer.poll(Duration.ofMillis(50));
                return consumer.assignment().size();
            }, 2, "assignment");
        }
        Callable<Integer> members = () -> admin.describeConsumerGroups(List.of(group)).all().get().get(group).members().size();
        Report.equal(members.call(), 1, "members");
        MemberToRemove member = new MemberToRemove("instance");
        admin.removeMembersFromConsumerGroup(group, new RemoveMembersFromConsumerGroupOptions(Set.of(member))).all().get();
        Report.equal(members.call(), 0, "members after the removal");
    }

    private void listOffsets() throws Exception {
        TopicPartition partition = new TopicPartition(create(1), 0);
        Properties settings = new Properties();
        settings.put("bootstrap.servers", address);
        try (KafkaProducer<String, String> producer = new KafkaProducer<>(settings, new StringSerializer(), new StringSerializer())) {
            for (int n = 0; n < 10; n++) {
                producer.send(new ProducerRecord<>(partition.topic(), 0, 1_600_000_000_000L + n, null, "value"));
            }
        }
        Report.eventually(() -> outcome(() -> offset(partition, OffsetSpec.latest())), "accepted", "the leader serves the new partition");
        Report.equal(offset(partition, OffsetSpec.earliest()), 0, "earliest");
        Report.equal(offset(partition, OffsetSpec.latest()), 10, "latest");
        Report.equal(offset(partition, OffsetSpec.forTimestamp(1_600_000_000_004L)), 4, "by time");
        Report.equal(offset(partition, OffsetSpec.forTimestamp(1_700_000_000_000L)), -1, "later than all");
    }

    private long offset(TopicPartition partition, OffsetSpec spec) throws Exception {
        return admin.listOffsets(Map.of(partition, spec)).all().get().get(partition).offset();
    }

    private void quotas() throws Exception {
        String client = Report.unique("client");
        ClientQuotaEntity entity = new ClientQuotaEntity(Map.of(ClientQuotaEntity.CLIENT_ID, client));
        ClientQuotaFilter filter = ClientQuotaFilter.containsOnly(List.of(ClientQuotaFilterComponent.ofEntity(ClientQuotaEntity.CLIENT_ID, client)));
        Report.Question shown = () -> admin.describeClientQuotas(filter).entities().get();
        alter(entity, "consumer_byte_rate", 500_000.0);
        Report.eventually(shown, Map.of(entity, Map.of("consumer_byte_rate", 500_000.0)), "quota");
        alter(entity, "consumer_byte_rate", null);
        Report.eventually(shown, Map.of(), "quota after its removal");
        Report.equal(outcome(() -> alter(entity, "no_such_quota", 1.0)), "InvalidRequestException", "an unknown quota");
    }

    private Void alter(ClientQuotaEntity entity, String name, Double value) throws Exception {
        return admin.alterClientQuotas(List.of(new ClientQuotaAlteration(entity, List.of(new ClientQuotaAlteration.Op(name, value))))).all().get();
    }

    private void scram() throws Exception {
        String user = Report.unique("user");
        ScramCredentialInfo info = new ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096);
        Report.Question shown = () -> outcome(() -> {
            Report.equal(admin.describeUserScramCredentials(List.of(user)).description(user).get().credentialInfos(), List.of(info), "credentials");
            return null;
        });
        Report.equal(shown.ask(), "ResourceNotFoundException", "a user that does not exist");
        admin.alterUserScramCredentials(List.of(new UserScramCredentialUpsertion(user, info, "secret"))).all().get();
        Report.eventually(shown, "accepted", "a new user");
        admin.alterUserScramCredentials(List.of(new UserScramCredentialDeletion(user, ScramMechanism.SCRAM_SHA_512))).all().get();
        Report.eventually(shown, "ResourceNotFoundException", "the user after its deletion");
    }

    private void features() throws Exception {
        Report.equal(admin.describeFeatures().featureMetadata().get().finalizedFeatures().containsKey("metadata.version"), true, "metadata.version is finalized");
        Map<String, FeatureUpdate> unknown = Map.of("no.such.feature", new FeatureUpdate((short) 1, false));
        Report.equal(outcome(() -> admin.updateFeatures(unknown, new UpdateFeaturesOptions()).all().get()).equals("accepted"), false, "an unknown feature is refused");
        Report.equal(outcome(() -> admin.unregisterBroker(12345).all().get()), "BrokerIdNotRegisteredException", "an unknown broker");
    }
}
