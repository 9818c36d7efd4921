package org.apache.kafka.common.test;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.BufferedReader;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.io.Writer;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import java.util.TreeSet;
import java.util.stream.Collectors;

/** The nodes of one test, which a Python process starts and stops (nodes.py). */
public final class Nodes {
    private static final ObjectMapper JSON = new ObjectMapper();
    private static Process process;
    private static BufferedReader answers;
    private static Writer requests;

    /** The ports of the nodes' listeners, by node id. */
    public final Map<Integer, Integer> brokers;
    public final Map<Integer, Integer> controllers;
    public final Set<Integer> stopped = new TreeSet<>();
    public final Map<Integer, List<String>> directories = new TreeMap<>();
    /** What each node's server.properties say. */
    public final Map<Integer, Map<String, String>> properties = new TreeMap<>();
    public final String clusterId;

    public Nodes(Map<String, Object> description) {
        JsonNode answer = ask(description);
        brokers = ports(answer.get("brokers"));
        controllers = ports(answer.get("controllers"));
        answer.get("directories").fields().forEachRemaining(each ->
            directories.put(Integer.parseInt(each.getKey()), each.getValue().valueStream().map(JsonNode::asText).toList()));
        answer.get("properties").fields().forEachRemaining(each -> {
            Map<String, String> own = new TreeMap<>();
            each.getValue().fields().forEachRemaining(one -> own.put(one.getKey(), one.getValue().asText()));
            properties.put(Integer.parseInt(each.getKey()), own);
        });
        clusterId = answer.get("clusterId").asText();
    }

    private static Map<Integer, Integer> ports(JsonNode node) {
        Map<Integer, Integer> ports = new TreeMap<>();
        node.fields().forEachRemaining(each -> ports.put(Integer.parseInt(each.getKey()), each.getValue().asInt()));
        return ports;
    }

    public static String addresses(Map<Integer, Integer> ports) {
        return ports.values().stream().map(port -> "localhost:" + port).collect(Collectors.joining(","));
    }

    public void stop(int id) {
        ask(Map.of("command", "stop", "id", id));
        stopped.add(id);
    }

    public void start(int id) {
        ask(Map.of("command", "start", "id", id));
        stopped.remove(id);
    }

    /** Return the end of each node's log. */
    public String logs() {
        return ask(Map.of("command", "logs")).get("logs").asText();
    }

    public void close() {
        ask(Map.of("command", "close"));
    }

    private static synchronized JsonNode ask(Map<String, Object> request) {
        try {
            if (process == null) {
                List<String> command = List.of(System.getProperty("nodes").split(" "));
                process = new ProcessBuilder(command).redirectError(ProcessBuilder.Redirect.INHERIT).start();
                answers = process.inputReader();
                requests = process.outputWriter();
            }
            requests.write(JSON.writeValueAsString(request) + "\n");
            requests.flush();
            String line = answers.readLine();
            if (line == null) {
                throw new IllegalStateException("the process of the nodes has ended");
            }
            JsonNode answer = JSON.readTree(line);
            if (answer.has("error")) {
                throw new IllegalStateException(answer.get("error").asText());
            }
            return answer;
        } catch (IOException error) {
            throw new UncheckedIOException(error);
        }
    }
}
