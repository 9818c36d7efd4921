"""Start a container with testcontainers for Python; stop it when standard input ends."""

import sys
import time

from testcontainers.community.kafka import KafkaContainer


def main(image: str) -> None:
    began = time.monotonic()
    with KafkaContainer(image).with_kraft() as kafka:
        seconds = time.monotonic() - began
        print(f"ready {seconds:.1f} {kafka.get_bootstrap_server()}", flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    main(sys.argv[1])
