// Start a container with testcontainers for Node; stop it when standard input ends.
import { KafkaContainer } from "@testcontainers/kafka";
const began = performance.now();
const kafka = await new KafkaContainer(process.argv[2]).withKraft().start();
console.log(`ready ${((performance.now() - began) / 1000).toFixed(1)} ${kafka.getHost()}:${kafka.getMappedPort(9093)}`);
process.stdin.resume();
process.stdin.on("end", async () => { await kafka.stop(); process.exit(0); });
