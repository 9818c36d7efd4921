package org.apache.kafka.common.test;

import java.io.File;
import java.util.Collection;
import java.util.Map;
import java.util.Optional;
import java.util.Properties;
import java.util.TreeMap;
import java.util.function.IntFunction;
import kafka.cluster.Partition;
import kafka.server.BrokerServer;
import kafka.server.ControllerServer;
import kafka.server.KafkaConfig;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.config.TopicConfig;
import org.apache.kafka.metadata.BrokerState;
import org.apache.kafka.metadata.LeaderAndIsr;
import org.apache.kafka.storage.internals.log.UnifiedLog;
import org.mockito.Mockito;
import org.mockito.invocation.InvocationOnMock;
import scala.Option;

/**
 * The nodes as mocks of the objects that Kafka has in the JVM of its tests.
 *
 * They know ports, ids, states, the metadata and which replicas exist, and can be stopped and
 * started. A test that looks further into a broker sees a value without a meaning, and fails.
 */
public final class MockNodes {
    private MockNodes() {
    }

    public static Map<Integer, BrokerServer> brokers(Nodes nodes) {
        return each(nodes.brokers.keySet(), id -> broker(nodes, id));
    }

    public static Map<Integer, ControllerServer> controllers(Nodes nodes) {
        return each(nodes.controllers.keySet(), id -> controller(nodes, id));
    }

    private static <T> Map<Integer, T> each(Collection<Integer> ids, IntFunction<T> make) {
        Map<Integer, T> made = new TreeMap<>();
        ids.forEach(id -> made.put(id, make.apply(id)));
        return made;
    }

    private static <T> T mock(Class<T> type) {
        return Mockito.mock(type, Mockito.withSettings().defaultAnswer(Mockito.RETURNS_DEEP_STUBS).stubOnly());
    }

    private static BrokerServer broker(Nodes nodes, int id) {
        BrokerServer broker = mock(BrokerServer.class);
        Mockito.when(broker.isShutdown()).thenAnswer(call -> nodes.stopped.contains(id));
        Mockito.when(broker.brokerState()).thenAnswer(
            call -> nodes.stopped.contains(id) ? BrokerState.NOT_RUNNING : BrokerState.RUNNING);
        KafkaConfig config = new KafkaConfig(nodes.properties.get(id), false);
        Mockito.when(broker.config()).thenReturn(config);
        Mockito.when(broker.socketServer().config()).thenReturn(config);
        Properties ofOffsets = new Properties();
        ofOffsets.put(TopicConfig.CLEANUP_POLICY_CONFIG, TopicConfig.CLEANUP_POLICY_COMPACT);
        Mockito.when(broker.groupCoordinator().groupMetadataTopicConfigs()).thenReturn(ofOffsets);
        Mockito.when(broker.clusterId()).thenReturn(nodes.clusterId);
        Mockito.when(broker.boundPort(Mockito.any())).thenReturn(nodes.brokers.get(id));
        Mockito.when(broker.socketServer().boundPort(Mockito.any())).thenReturn(nodes.brokers.get(id));
        String first = nodes.directories.get(id).get(0);
        Mockito.when(broker.metadataCache()).thenAnswer(call -> MetadataLog.read(id, first));
        Mockito.when(broker.replicaManager().metadataCache()).thenAnswer(call -> MetadataLog.read(id, first));
        Mockito.when(broker.replicaManager().onlinePartition(Mockito.any()))
            .thenAnswer(call -> partition(nodes, id, call));
        Mockito.when(broker.logManager().getLog(Mockito.any(), Mockito.anyBoolean()))
            .thenAnswer(call -> log(nodes, id, call.getArgument(0)));
        Mockito.doAnswer(call -> stop(nodes, id)).when(broker).shutdown();
        Mockito.doAnswer(call -> stop(nodes, id)).when(broker).shutdown(Mockito.any());
        Mockito.doAnswer(call -> {
            nodes.start(id);
            return null;
        }).when(broker).startup();
        return broker;
    }

    private static Object stop(Nodes nodes, int id) {
        nodes.stop(id);
        return null;
    }

    /** Return a log that is there if the replica's directory is. */
    private static Option<UnifiedLog> log(Nodes nodes, int id, TopicPartition partition) {
        boolean isThere = nodes.directories.get(id).stream().anyMatch(each -> new File(each, partition.toString()).exists());
        return isThere ? Option.apply(mock(UnifiedLog.class)) : Option.empty();
    }

    /** Return a partition that has a log as its leader if the metadata say that it leads. */
    private static Option<Partition> partition(Nodes nodes, int id, InvocationOnMock call) {
        TopicPartition name = call.getArgument(0);
        Option<UnifiedLog> log = log(nodes, id, name);
        if (log.isEmpty()) {
            return Option.empty();
        }
        Optional<LeaderAndIsr> found = MetadataLog.read(id, nodes.directories.get(id).get(0))
            .getLeaderAndIsr(name.topic(), name.partition());
        boolean leads = found.isPresent() && found.get().leader() == id;
        Partition partition = mock(Partition.class);
        Mockito.when(partition.isLeader()).thenReturn(leads);
        Mockito.when(partition.leaderIdIfLocal()).thenReturn(leads ? Option.apply(id) : Option.empty());
        Mockito.when(partition.leaderLogIfLocal()).thenReturn(leads ? log : Option.empty());
        return Option.apply(partition);
    }

    private static ControllerServer controller(Nodes nodes, int id) {
        ControllerServer controller = mock(ControllerServer.class);
        KafkaConfig config = new KafkaConfig(nodes.properties.get(id), false);
        Mockito.when(controller.config()).thenReturn(config);
        Mockito.when(controller.socketServer().config()).thenReturn(config);
        Mockito.when(controller.socketServer().boundPort(Mockito.any())).thenReturn(nodes.controllers.get(id));
        return controller;
    }
}
