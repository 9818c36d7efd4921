import java.util.ArrayList;
import java.util.List;
import java.util.Objects;
import java.util.UUID;

/** Runs scenarios one after the other and says PASS or FAIL of each; every one makes its own topics. */
final class Report {
    static final long DEADLINE_MS = 60_000;

    interface Scenario {
        void run() throws Exception;
    }

    interface Question {
        Object ask() throws Exception;
    }

    private Report() {}

    static void scenario(String name, Scenario scenario) {
        try {
            scenario.run();
            System.out.println("PASS " + name);
        } catch (Throwable problem) {
            System.out.println("FAIL " + name + ": " + problem + " " + List.of(problem.getStackTrace()));
        }
    }

    static void equal(Object got, Object wanted, String what) {
        if (!Objects.equals(String.valueOf(got), String.valueOf(wanted))) {
            throw new IllegalStateException(what + ": got " + got + ", wanted " + wanted);
        }
    }

    /** Asks until the answer is the wanted one: a broker may show a change a moment later. */
    static void eventually(Question question, Object wanted, String what) throws Exception {
        long end = System.currentTimeMillis() + DEADLINE_MS;
        while (!String.valueOf(question.ask()).equals(String.valueOf(wanted))) {
            if (System.currentTimeMillis() > end) {
                equal(question.ask(), wanted, what);
            }
            Thread.sleep(20);
        }
    }

    static String unique(String role) {
        return role + "-" + UUID.randomUUID().toString().substring(0, 13);
    }

    static List<String> values(int count) {
        List<String> made = new ArrayList<>();
        for (int n = 0; n < count; n++) {
            made.add(String.format("value-%04d-abcdefghijklmnopqrstuvwxyz", n));
        }
        return made;
    }
}
