import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.BufferedReader;
import java.io.ByteArrayInputStream;
import java.io.ByteArrayOutputStream;
import java.io.InputStream;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.lang.reflect.Field;
import java.lang.reflect.InvocationTargetException;
import java.nio.charset.StandardCharsets;
import java.util.HashSet;
import java.util.Map;
import java.util.Set;
import org.apache.kafka.common.utils.Exit;

/**
 * Runs main methods one after the other: a JSON command a line on stdin, a JSON answer a line on
 * stdout. A tool's exit becomes an exception, its streams become buffers.
 */
public final class Driver {
    private static final class Exited extends Error {
        final int code;

        Exited(int code) {
            super("exit " + code, null, false, false);
            this.code = code;
        }
    }

    /** The first code asked for: some tools catch what ended them and exit again with another. */
    private static volatile Integer exitCode;

    /** Runs what a tool asked the JVM to do at its end, which for the tool is now. */
    private static void runShutdownHooks(Set<Thread> not) throws ReflectiveOperationException, InterruptedException {
        for (Thread hook : shutdownHooks()) {
            if (!not.contains(hook)) {
                Runtime.getRuntime().removeShutdownHook(hook);
                hook.start();
                hook.join(30_000);
            }
        }
    }

    /** The hooks registered so far; needs --add-opens java.base/java.lang=ALL-UNNAMED. */
    @SuppressWarnings("unchecked")
    private static Set<Thread> shutdownHooks() throws ReflectiveOperationException {
        Field field = Class.forName("java.lang.ApplicationShutdownHooks").getDeclaredField("hooks");
        field.setAccessible(true);
        return new HashSet<>(((Map<Thread, Thread>) field.get(null)).keySet());
    }

    private static void exited(int code) {
        if (exitCode == null) {
            exitCode = code;
        }
    }

    public static void main(String[] ignored) throws Exception {
        PrintStream answers = System.out;
        InputStream commands = System.in;
        System.setOut(System.err); // Output of a tool's thread after its end is not an answer.
        Exit.setExitProcedure((code, message) -> {
            exited(code);
            if (message != null) {
                System.err.println(message);
            }
            throw new Exited(code);
        });
        Exit.setHaltProcedure((code, message) -> {
            exited(code);
            throw new Exited(code);
        });
        ObjectMapper json = new ObjectMapper();
        BufferedReader lines = new BufferedReader(new InputStreamReader(commands, StandardCharsets.UTF_8));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            JsonNode command = json.readTree(line);
            answers.println(json.writeValueAsString(run(json, command)));
            answers.flush();
        }
    }

    private static ObjectNode run(ObjectMapper json, JsonNode command) {
        PrintStream realOut = System.out;
        PrintStream realErr = System.err;
        InputStream realIn = System.in;
        ByteArrayOutputStream out = new ByteArrayOutputStream();
        ByteArrayOutputStream err = new ByteArrayOutputStream();
        System.setIn(new ByteArrayInputStream(command.get("stdin").asText().getBytes(StandardCharsets.UTF_8)));
        System.setOut(new PrintStream(out, true, StandardCharsets.UTF_8));
        System.setErr(new PrintStream(err, true, StandardCharsets.UTF_8));
        exitCode = null;
        Set<Thread> hooks = Set.of();
        try {
            hooks = shutdownHooks();
            String[] arguments = json.convertValue(command.get("arguments"), String[].class);
            Class.forName(command.get("main").asText())
                .getMethod("main", String[].class)
                .invoke(null, (Object) arguments);
        } catch (InvocationTargetException thrown) {
            if (!(thrown.getCause() instanceof Exited)) {
                thrown.getCause().printStackTrace();
                exited(70);
            }
        } catch (Exception broken) {
            broken.printStackTrace();
            exited(71);
        } finally {
            try {
                runShutdownHooks(hooks);
            } catch (ReflectiveOperationException | InterruptedException broken) {
                broken.printStackTrace();
                exited(72);
            }
            System.out.flush();
            System.setIn(realIn);
            System.setOut(realOut);
            System.setErr(realErr);
        }
        ObjectNode answer = json.createObjectNode();
        answer.put("code", exitCode == null ? 0 : exitCode);
        answer.put("out", out.toString(StandardCharsets.UTF_8));
        answer.put("err", err.toString(StandardCharsets.UTF_8));
        return answer;
    }
}
