import org.testcontainers.kafka.ConfluentKafkaContainer;
import org.testcontainers.kafka.KafkaContainer;
import org.testcontainers.utility.DockerImageName;

/** Start a container with testcontainers for Java; stop it when standard input ends. */
public final class Start {
    public static void main(String[] arguments) throws Exception {
        DockerImageName image = DockerImageName.parse(arguments[1]);
        long began = System.nanoTime();
        if (arguments[0].equals("apache")) {
            try (KafkaContainer kafka = new KafkaContainer(image.asCompatibleSubstituteFor("apache/kafka"))) {
                kafka.start();
                serve(began, kafka.getBootstrapServers());
            }
        } else {
            DockerImageName substitute = image.asCompatibleSubstituteFor("confluentinc/cp-kafka");
            try (ConfluentKafkaContainer kafka = new ConfluentKafkaContainer(substitute)) {
                kafka.start();
                serve(began, kafka.getBootstrapServers());
            }
        }
    }

    private static void serve(long began, String address) throws Exception {
        System.out.printf("ready %.1f %s%n", (System.nanoTime() - began) / 1e9, address);
        System.in.read();
    }
}
