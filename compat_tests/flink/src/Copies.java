import java.io.File;
import java.util.Arrays;
import java.util.Comparator;
import org.apache.flink.api.common.eventtime.WatermarkStrategy;
import org.apache.flink.api.common.serialization.SimpleStringSchema;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.connector.base.DeliveryGuarantee;
import org.apache.flink.connector.kafka.sink.KafkaRecordSerializationSchema;
import org.apache.flink.connector.kafka.sink.KafkaSink;
import org.apache.flink.connector.kafka.sink.TransactionNamingStrategy;
import org.apache.flink.connector.kafka.source.KafkaSource;
import org.apache.flink.connector.kafka.source.enumerator.initializer.OffsetsInitializer;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;

/**
 * Copies the records of one topic into another, exactly once: {@code Copies ADDRESS FROM TO FOLDER
 * STRATEGY}.
 *
 * <p>A job of Flink in this process. Each checkpoint in {@code FOLDER} prepares a transaction of
 * the sink, which is committed after the checkpoint. A process that ends in between leaves the
 * transaction open; the next process continues at the latest checkpoint, commits that transaction
 * with another producer, and aborts later ones.
 */
public final class Copies {
    private Copies() {}

    public static void main(String[] arguments) throws Exception {
        String address = arguments[0];
        File folder = new File(arguments[3]);
        Configuration settings = new Configuration();
        settings.setString("execution.checkpointing.interval", "2 s");
        settings.setString("execution.checkpointing.dir", folder.toURI().toString());
        settings.setString("restart-strategy.type", "none");
        File last = lastCheckpoint(folder);
        if (last != null) {
            settings.setString("execution.state-recovery.path", last.toURI().toString());
        }
        KafkaSource<String> source =
                KafkaSource.<String>builder()
                        .setBootstrapServers(address)
                        .setTopics(arguments[1])
                        .setGroupId("copies-" + arguments[2])
                        .setStartingOffsets(OffsetsInitializer.earliest())
                        .setValueOnlyDeserializer(new SimpleStringSchema())
                        .build();
        KafkaSink<String> sink =
                KafkaSink.<String>builder()
                        .setBootstrapServers(address)
                        .setDeliveryGuarantee(DeliveryGuarantee.EXACTLY_ONCE)
                        .setTransactionalIdPrefix(arguments[2])
                        .setTransactionNamingStrategy(
                                TransactionNamingStrategy.valueOf(arguments[4]))
                        .setProperty("transaction.timeout.ms", "600000")
                        .setRecordSerializer(
                                KafkaRecordSerializationSchema.builder()
                                        .setTopic(arguments[2])
                                        .setValueSerializationSchema(new SimpleStringSchema())
                                        .build())
                        .build();
        StreamExecutionEnvironment job =
                StreamExecutionEnvironment.createLocalEnvironment(1, settings);
        job.fromSource(source, WatermarkStrategy.noWatermarks(), "source").sinkTo(sink);
        job.execute();
    }

    /** Returns the latest complete checkpoint of the earlier processes, or null. */
    private static File lastCheckpoint(File folder) {
        File[] jobs = folder.listFiles();
        if (jobs == null) {
            return null;
        }
        return Arrays.stream(jobs)
                .flatMap(job -> Arrays.stream(job.listFiles()))
                .filter(checkpoint -> new File(checkpoint, "_metadata").exists())
                .max(Comparator.comparing(checkpoint -> new File(checkpoint, "_metadata").lastModified()))
                .orElse(null);
    }
}
