package org.apache.kafka.common.test;

import java.util.HashMap;
import java.util.Map;
import java.util.TreeMap;
import kafka.server.BrokerServer;
import kafka.server.ControllerServer;
import org.apache.kafka.clients.admin.Admin;

/**
 * Takes the place of Kafka's class of this name, which starts the brokers of the embedded clusters
 * of Streams and Connect: the nodes are processes.
 */
public class KafkaClusterTestKit implements AutoCloseable {
    private final MockFaultHandler faults = new MockFaultHandler("none");
    private final TestKitNodes description;
    private final Map<String, Object> settings;
    private Nodes nodes;
    private Map<Integer, BrokerServer> brokers = Map.of();
    private Map<Integer, ControllerServer> controllers = Map.of();

    private KafkaClusterTestKit(TestKitNodes description, Map<String, Object> settings) {
        this.description = description;
        this.settings = settings;
    }

    public static class Builder {
        private final TestKitNodes description;
        private final Map<String, Object> settings = new HashMap<>();

        public Builder(TestKitNodes description) {
            this.description = description;
        }

        public Builder setConfigProp(String name, Object value) {
            settings.put(name, String.valueOf(value));
            return this;
        }

        public KafkaClusterTestKit build() {
            return new KafkaClusterTestKit(description, settings);
        }
    }

    public void format() {
        // Nodes are formatted when they are started.
    }

    public void startup() {
        Map<Integer, Map<String, String>> perNode = new TreeMap<>();
        description.brokerNodes().forEach((id, node) -> perNode.put(id, node.propertyOverrides()));
        Map<String, Object> request = new HashMap<>();
        request.put("command", "open");
        request.put("brokers", description.brokerNodes().size());
        request.put("controllers", description.controllerNodes().size());
        request.put("combined", description.controllerNodes().keySet().stream().allMatch(description::isCombined));
        request.put("disks", description.brokerNodes().values().iterator().next().logDataDirectories().size());
        request.put("features", Map.of());
        request.put("settings", settings);
        request.put("listener", description.brokerListenerName().value());
        request.put("perNode", perNode);
        nodes = new Nodes(request);
        brokers = MockNodes.brokers(nodes);
        controllers = MockNodes.controllers(nodes);
    }

    public void waitForReadyBrokers() {
        // Nodes are ready when they have been started.
    }

    public Admin admin() {
        return admin(Map.of());
    }

    public Admin admin(Map<String, Object> configs) {
        return admin(configs, false);
    }

    public Admin admin(Map<String, Object> configs, boolean ofControllers) {
        Map<String, Object> own = new HashMap<>(configs);
        own.put(ofControllers ? "bootstrap.controllers" : "bootstrap.servers",
            ofControllers ? bootstrapControllers() : bootstrapServers());
        return Admin.create(own);
    }

    public String bootstrapServers() {
        return Nodes.addresses(nodes.brokers);
    }

    public String bootstrapControllers() {
        return Nodes.addresses(nodes.controllers);
    }

    public Map<Integer, BrokerServer> brokers() {
        return brokers;
    }

    public Map<Integer, ControllerServer> controllers() {
        return controllers;
    }

    public TestKitNodes nodes() {
        return description;
    }

    public MockFaultHandler fatalFaultHandler() {
        return faults;
    }

    public MockFaultHandler nonFatalFaultHandler() {
        return faults;
    }

    @Override
    public void close() {
        if (nodes != null) {
            nodes.close();
            nodes = null;
        }
    }
}
