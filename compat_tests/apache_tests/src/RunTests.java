import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.Map;
import org.junit.platform.engine.TestExecutionResult;
import org.junit.platform.engine.discovery.DiscoverySelectors;
import org.junit.platform.engine.support.descriptor.MethodSource;
import org.junit.platform.launcher.Launcher;
import org.junit.platform.launcher.LauncherDiscoveryRequest;
import org.junit.platform.launcher.TestExecutionListener;
import org.junit.platform.launcher.TestIdentifier;
import org.junit.platform.launcher.TestPlan;
import org.junit.platform.launcher.core.LauncherDiscoveryRequestBuilder;
import org.junit.platform.launcher.core.LauncherFactory;

/**
 * Lists or runs tests: `list CLASS...` or `run CLASS#METHOD...`.
 *
 * A test that JUnit repeats, for another kind of cluster or with other arguments, is one line: it
 * passes if none of its runs fails and one passes.
 */
public final class RunTests implements TestExecutionListener {
    private static final int DEEPEST_CAUSE = 5;
    private static final int FRAMES = 4;
    private static final long NANOS_PER_MS = 1_000_000;
    private final Map<String, Boolean> passed = new LinkedHashMap<>();
    private final Map<String, Long> started = new HashMap<>();

    public static void main(String[] arguments) {
        boolean isList = arguments[0].equals("list");
        LauncherDiscoveryRequestBuilder builder = LauncherDiscoveryRequestBuilder.request();
        builder.configurationParameter("junit.jupiter.execution.timeout.default", "180 s");
        builder.configurationParameter("junit.jupiter.extensions.autodetection.enabled", "true");
        for (int i = 1; i < arguments.length; i++) {
            String each = arguments[i];
            if (isList) {
                builder.selectors(DiscoverySelectors.selectClass(each));
            } else {
                int cut = each.indexOf('#');
                if (cut < 0) {
                    builder.selectors(DiscoverySelectors.selectClass(each));
                } else {
                    selectMethods(builder, each.substring(0, cut), each.substring(cut + 1));
                }
            }
        }
        LauncherDiscoveryRequest request = builder.build();
        Launcher launcher = LauncherFactory.create();
        if (isList) {
            TestPlan plan = launcher.discover(request);
            plan.getRoots().forEach(root -> plan.getDescendants(root).stream()
                .map(RunTests::nameOf).filter(name -> name != null).distinct()
                .forEach(name -> System.out.println("TEST " + name)));
        } else {
            RunTests listener = new RunTests();
            launcher.execute(request, listener);
            System.out.println(); // A test may have left a line without an end.
            listener.passed.forEach((name, ok) -> System.out.println((ok ? "PASS " : "FAIL ") + name));
        }
        System.out.flush();
        System.exit(0); // Threads of clients may still run.
    }

    /** Select all methods of this name, whatever their parameters. */
    private static void selectMethods(LauncherDiscoveryRequestBuilder builder, String type, String name) {
        try {
            for (Class<?> each = Class.forName(type); each != null; each = each.getSuperclass()) {
                for (java.lang.reflect.Method method : each.getDeclaredMethods()) {
                    if (method.getName().equals(name) && method.getAnnotations().length > 0) {
                        builder.selectors(DiscoverySelectors.selectMethod(Class.forName(type), method));
                    }
                }
            }
        } catch (ClassNotFoundException error) {
            throw new IllegalArgumentException(error);
        }
    }

    private static String nameOf(TestIdentifier identifier) {
        if (!(identifier.getSource().orElse(null) instanceof MethodSource source)) {
            return null;
        }
        String type = source.getClassName();
        return type.substring(type.lastIndexOf('.') + 1) + "/" + source.getMethodName();
    }

    @Override
    public void executionSkipped(TestIdentifier identifier, String reason) {
        System.out.println("LEFT OUT " + nameOf(identifier) + " " + reason);
    }

    @Override
    public void executionStarted(TestIdentifier identifier) {
        started.put(identifier.getUniqueId(), System.nanoTime());
    }

    @Override
    public void executionFinished(TestIdentifier identifier, TestExecutionResult result) {
        String name = nameOf(identifier);
        if (result.getStatus() == TestExecutionResult.Status.ABORTED) {
            System.out.println("LEFT OUT " + name + " " + identifier.getDisplayName());
            return;
        }
        boolean isGood = result.getStatus() == TestExecutionResult.Status.SUCCESSFUL;
        if (!isGood) {
            System.out.println("NOT PASSED " + name + " " + identifier.getDisplayName());
            result.getThrowable().ifPresent(error -> describe(error, name, 0));
        }
        if (identifier.isTest()) {
            long ms = (System.nanoTime() - started.get(identifier.getUniqueId())) / NANOS_PER_MS;
            System.out.println("RAN " + name + " " + ms + " ms " + (isGood ? "passed" : "failed"));
        }
        if (name != null && (identifier.isTest() || !isGood)) {
            passed.merge(name, isGood, Boolean::logicalAnd);
        }
    }

    /** Print an error: its first frames, and those of the test's class. */
    private static void describe(Throwable error, String test, int depth) {
        System.out.println("    " + error);
        String type = test == null ? "?" : "." + test.substring(0, test.indexOf('/'));
        StackTraceElement[] frames = error.getStackTrace();
        for (int i = 0; i < frames.length; i++) {
            if (i < FRAMES || frames[i].getClassName().contains(type)) {
                System.out.println("        " + frames[i]);
            }
        }
        if (error.getCause() != null && depth < DEEPEST_CAUSE) {
            describe(error.getCause(), test, depth + 1);
        }
    }
}
