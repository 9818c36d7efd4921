import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import java.util.Base64;
import java.util.List;
import java.util.Map;
import org.apache.kafka.common.metrics.KafkaMetric;
import org.apache.kafka.common.metrics.MetricsReporter;
import org.apache.kafka.server.telemetry.ClientTelemetryContext;
import org.apache.kafka.server.telemetry.ClientTelemetryExporter;
import org.apache.kafka.server.telemetry.ClientTelemetryExporterProvider;
import org.apache.kafka.server.telemetry.ClientTelemetryPayload;

/** A receiver of clients' metrics for Apache Kafka: one line for each push, in a file. */
public final class Telemetry implements MetricsReporter, ClientTelemetryExporterProvider {
    private Path file;

    @Override
    public void configure(Map<String, ?> configs) {
        file = Path.of(configs.get("telemetry.file").toString());
    }

    @Override
    public ClientTelemetryExporter clientTelemetryExporter() {
        return this::write;
    }

    private synchronized void write(ClientTelemetryContext context, ClientTelemetryPayload payload) {
        byte[] data = new byte[payload.data().remaining()];
        payload.data().duplicate().get(data);
        String clientId = context.authorizableRequestContext().clientId();
        String line = clientId + " " + Base64.getEncoder().encodeToString(data) + "\n";
        try {
            Files.writeString(file, line, StandardOpenOption.CREATE, StandardOpenOption.APPEND);
        } catch (IOException error) {
            throw new UncheckedIOException(error);
        }
    }

    @Override
    public void init(List<KafkaMetric> metrics) {
    }

    @Override
    public void metricChange(KafkaMetric metric) {
    }

    @Override
    public void metricRemoval(KafkaMetric metric) {
    }

    @Override
    public void close() {
    }
}
