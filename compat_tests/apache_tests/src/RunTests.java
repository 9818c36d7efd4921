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
    private final Map<String, Boolean> passed = new LinkedHashMap<>();

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
                selectMethods(builder, each.substring(0, cut), each.substring(cut + 1));
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
    public void executionFinished(TestIdentifier identifier, TestExecutionResult result) {
        String name = nameOf(identifier);
        boolean isGood = result.getStatus() == TestExecutionResult.Status.SUCCESSFUL;
        if (!isGood) {
            System.out.println("NOT PASSED " + name + " " + identifier.getDisplayName());
            result.getThrowable().ifPresent(error -> describe(error, 0));
        }
        if (name != null && (identifier.isTest() || !isGood)) {
            passed.merge(name, isGood, Boolean::logicalAnd);
        }
    }

    private static void describe(Throwable error, int depth) {
        System.out.println("    " + error);
        StackTraceElement[] frames = error.getStackTrace();
        for (int i = 0; i < Math.min(FRAMES, frames.length); i++) {
            System.out.println("        " + frames[i]);
        }
        if (error.getCause() != null && depth < DEEPEST_CAUSE) {
            describe(error.getCause(), depth + 1);
        }
    }
}
