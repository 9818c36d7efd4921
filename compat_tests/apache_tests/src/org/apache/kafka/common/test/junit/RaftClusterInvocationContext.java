package org.apache.kafka.common.test.junit;

import java.util.ArrayList;
import java.util.Collection;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.TreeMap;
import kafka.server.ControllerServer;
import kafka.server.KafkaBroker;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.consumer.GroupProtocol;
import org.apache.kafka.common.network.ListenerName;
import org.apache.kafka.common.test.ClusterInstance;
import org.apache.kafka.common.test.MockNodes;
import org.apache.kafka.common.test.Nodes;
import org.apache.kafka.common.test.api.ClusterConfig;
import org.apache.kafka.common.test.api.Type;
import org.apache.kafka.server.common.MetadataVersion;
import org.apache.kafka.server.fault.FaultHandlerException;
import org.junit.jupiter.api.extension.AfterTestExecutionCallback;
import org.junit.jupiter.api.extension.BeforeEachCallback;
import org.junit.jupiter.api.extension.Extension;
import org.junit.jupiter.api.extension.TestTemplateInvocationContext;
import org.opentest4j.TestAbortedException;

/**
 * Takes the place of Kafka's class of this name, which starts the cluster of a test: the nodes are
 * processes, and their objects mocks. A test that asks for both kinds of clusters, with controllers
 * of their own and without, has one node if it wants one broker, and otherwise controllers of their
 * own: it may stop brokers, which does not stop a controller in Kafka's own clusters.
 */
public class RaftClusterInvocationContext implements TestTemplateInvocationContext {
    private static final int SECONDS = 60;
    private static final int BETWEEN_LOOKS_MS = 50;
    private static final int SETTLING_MS = 300;
    private final String name;
    private final ClusterConfig config;
    private final boolean isCombined;

    public RaftClusterInvocationContext(String name, ClusterConfig config, boolean isCombined) {
        this.name = name;
        this.config = config;
        this.isCombined = isCombined;
    }

    @Override
    public String getDisplayName(int index) {
        return name + " [" + index + "] " + (isCombined ? "combined " : "") + String.join(",", config.displayTags());
    }

    @Override
    public List<Extension> getAdditionalExtensions() {
        Instance instance = new Instance();
        BeforeEachCallback begin = context -> {
            boolean isAlone = config.numBrokers() == 1;
            if (config.clusterTypes().size() == 2 && isAlone != isCombined) {
                throw new TestAbortedException("it runs with the other kind of cluster");
            }
            if (config.isAutoStart()) {
                instance.start();
            }
        };
        AfterTestExecutionCallback end = context -> instance.stop();
        return List.of(begin, end, new ClusterInstanceParameterResolver(instance));
    }

    private final class Instance implements ClusterInstance {
        private final Map<Integer, KafkaBroker> brokers = new TreeMap<>();
        private final Map<Integer, ControllerServer> controllers = new TreeMap<>();
        private Nodes nodes;
        private boolean isStopped;

        @Override
        public void start() {
            if (nodes != null) {
                return;
            }
            Map<String, Object> description = new HashMap<>();
            description.put("command", "open");
            description.put("brokers", config.numBrokers());
            description.put("controllers", config.numControllers());
            description.put("combined", isCombined);
            description.put("disks", config.numDisksPerBroker());
            description.put("features", features());
            description.put("settings", config.serverProperties());
            description.put("listener", config.brokerListenerName().value());
            description.put("perNode", config.perServerOverrideProperties());
            nodes = new Nodes(description);
            brokers.putAll(MockNodes.brokers(nodes));
            controllers.putAll(MockNodes.controllers(nodes));
        }

        private Map<String, Short> features() {
            Map<String, Short> levels = new TreeMap<>();
            if (config.metadataVersion().isLessThan(MetadataVersion.LATEST_PRODUCTION)) {
                levels.put(MetadataVersion.FEATURE_NAME, config.metadataVersion().featureLevel());
            }
            config.features().forEach((feature, level) -> levels.put(feature.featureName(), level));
            return levels;
        }

        @Override
        public void stop() {
            if (!isStopped && nodes != null) {
                nodes.close();
            }
            isStopped = true;
        }

        @Override
        public Type type() {
            return isCombined ? Type.CO_KRAFT : Type.KRAFT;
        }

        @Override
        public ClusterConfig config() {
            return config;
        }

        @Override
        public Map<Integer, KafkaBroker> brokers() {
            return brokers;
        }

        @Override
        public Map<Integer, KafkaBroker> aliveBrokers() {
            Map<Integer, KafkaBroker> alive = new TreeMap<>(brokers);
            alive.keySet().removeAll(nodes.stopped);
            return alive;
        }

        @Override
        public Map<Integer, ControllerServer> controllers() {
            return controllers;
        }

        @Override
        public Set<Integer> brokerIds() {
            return nodes.brokers.keySet();
        }

        @Override
        public Set<Integer> controllerIds() {
            return nodes.controllers.keySet();
        }

        @Override
        public ListenerName clientListener() {
            return config.brokerListenerName();
        }

        @Override
        public ListenerName controllerListenerName() {
            return new ListenerName("CONTROLLER");
        }

        @Override
        public String bootstrapServers() {
            return Nodes.addresses(nodes.brokers);
        }

        @Override
        public String bootstrapControllers() {
            return Nodes.addresses(nodes.controllers);
        }

        @Override
        public List<Integer> controllerBoundPorts() {
            return new ArrayList<>(nodes.controllers.values());
        }

        @Override
        public List<Integer> brokerBoundPorts() {
            return new ArrayList<>(nodes.brokers.values());
        }

        @Override
        public String clusterId() {
            return nodes.clusterId;
        }

        @Override
        public Set<GroupProtocol> supportedGroupProtocols() {
            return Set.of(GroupProtocol.CLASSIC, GroupProtocol.CONSUMER);
        }

        @Override
        public Optional<FaultHandlerException> firstFatalException() {
            return Optional.empty();
        }

        @Override
        public Optional<FaultHandlerException> firstNonFatalException() {
            return Optional.empty();
        }

        @Override
        public boolean started() {
            return nodes != null;
        }

        @Override
        public boolean stopped() {
            return isStopped;
        }

        @Override
        public void shutdownBroker(int id) {
            nodes.stop(id);
        }

        @Override
        public void startBroker(int id) {
            nodes.start(id);
        }

        @Override
        public void waitForReadyBrokers() {
            // Nodes are ready when they have been started.
        }

        @Override
        public void waitTopicCreation(String topic, int partitions) throws InterruptedException {
            await("all brokers know " + topic, admin -> aliveBrokers().values().stream()
                .allMatch(broker -> broker.metadataCache().numPartitions(topic).orElse(0) == partitions));
        }

        @Override
        public void waitTopicDeletion(String topic) throws InterruptedException {
            await(topic + " is gone", admin -> !admin.listTopics().names().get().contains(topic));
        }

        @Override
        public void ensureConsistentMetadata() throws InterruptedException {
            Thread.sleep(SETTLING_MS);
        }

        @Override
        public void ensureConsistentMetadata(Collection<KafkaBroker> some, Collection<ControllerServer> others)
                throws InterruptedException {
            ensureConsistentMetadata();
        }

        private void await(String what, Condition condition) throws InterruptedException {
            long end = System.currentTimeMillis() + SECONDS * 1000L;
            Exception last = null;
            try (Admin admin = admin()) {
                while (System.currentTimeMillis() < end) {
                    try {
                        if (condition.holds(admin)) {
                            ensureConsistentMetadata();
                            return;
                        }
                    } catch (java.util.concurrent.ExecutionException error) {
                        last = error;
                    }
                    Thread.sleep(BETWEEN_LOOKS_MS);
                }
            }
            throw new AssertionError("not in time: " + what + "\n" + nodes.logs(), last);
        }
    }

    private interface Condition {
        boolean holds(Admin admin) throws java.util.concurrent.ExecutionException, InterruptedException;
    }
}
