import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.BufferedReader;
import java.io.File;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.io.PrintWriter;
import java.io.StringWriter;
import java.nio.charset.StandardCharsets;
import java.util.ArrayDeque;
import java.util.Map;
import java.util.Optional;
import java.util.OptionalLong;
import java.util.Queue;
import java.util.concurrent.Delayed;
import java.util.concurrent.FutureTask;
import java.util.concurrent.ScheduledFuture;
import java.util.concurrent.TimeUnit;
import java.util.function.Supplier;
import org.apache.kafka.common.utils.Time;
import org.apache.kafka.server.util.Scheduler;
import org.apache.kafka.storage.internals.log.AbortedTxn;
import org.apache.kafka.storage.internals.log.Cleaner;
import org.apache.kafka.storage.internals.log.CleanerStats;
import org.apache.kafka.storage.internals.log.LastRecord;
import org.apache.kafka.storage.internals.log.LogConfig;
import org.apache.kafka.storage.internals.log.LogDirFailureChannel;
import org.apache.kafka.storage.internals.log.LogSegment;
import org.apache.kafka.storage.internals.log.LogToClean;
import org.apache.kafka.storage.internals.log.ProducerStateEntry;
import org.apache.kafka.storage.internals.log.ProducerStateManagerConfig;
import org.apache.kafka.storage.internals.log.SkimpyOffsetMap;
import org.apache.kafka.storage.internals.log.UnifiedLog;
import org.apache.kafka.storage.internals.utils.Throttler;
import org.apache.kafka.storage.log.metrics.BrokerTopicStats;

/**
 * Opens partitions' directories with Apache Kafka's own log and runs its cleaner over them: a JSON job a line on
 * stdin, a JSON answer a line on stdout. The jobs of a process share nothing, and each has a clock that does not move.
 */
public final class ApacheCleaner {
    private static final ObjectMapper JSON = new ObjectMapper();
    private static final int DAY_MS = 24 * 60 * 60 * 1000;

    /** A clock that always shows the job's time; waits end at once. */
    private record FixedTime(long now) implements Time {
        @Override
        public long milliseconds() {
            return now;
        }

        @Override
        public long nanoseconds() {
            return now * 1_000_000;
        }

        @Override
        public void sleep(long ms) {
        }

        @Override
        public void waitObject(Object object, Supplier<Boolean> condition, long deadlineMs) {
        }
    }

    /** The handle of a task that never runs, or runs at the job's end. */
    private static final class Handle extends FutureTask<Void> implements ScheduledFuture<Void> {
        Handle(Runnable task) {
            super(task, null);
        }

        @Override
        public long getDelay(TimeUnit unit) {
            return 0;
        }

        @Override
        public int compareTo(Delayed other) {
            return 0;
        }
    }

    /** Keeps the tasks that are due once, as the removal of replaced segments, until the job's end. */
    private static final class LateScheduler implements Scheduler {
        private final Queue<Runnable> once = new ArrayDeque<>();

        @Override
        public void startup() {
        }

        @Override
        public void shutdown() {
        }

        @Override
        public ScheduledFuture<?> schedule(String name, Runnable task, long delayMs, long periodMs) {
            Handle handle = new Handle(task);
            if (periodMs < 0) {
                once.add(handle);
            }
            return handle;
        }

        @Override
        public void resizeThreadPool(int size) {
        }

        void runAll() {
            while (!once.isEmpty()) {
                once.remove().run();
            }
        }
    }

    private final JsonNode job;
    private final Time time;
    private final LateScheduler scheduler = new LateScheduler();

    private ApacheCleaner(JsonNode job) {
        this.job = job;
        this.time = new FixedTime(job.get("now_ms").asLong());
    }

    public static void main(String[] ignored) throws Exception {
        PrintStream answers = System.out;
        System.setOut(System.err);
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            answers.println(JSON.writeValueAsString(run(JSON.readTree(line))));
            answers.flush();
        }
    }

    private static ObjectNode run(JsonNode job) {
        ObjectNode answer = JSON.createObjectNode();
        try {
            new ApacheCleaner(job).perform(answer);
        } catch (Throwable thrown) {
            StringWriter text = new StringWriter();
            thrown.printStackTrace(new PrintWriter(text));
            answer.put("error", text.toString());
        }
        return answer;
    }

    private void perform(ObjectNode answer) throws Exception {
        LogDirFailureChannel failures = new LogDirFailureChannel(1);
        File directory = new File(job.get("directory").asText());
        UnifiedLog log = UnifiedLog.create(
            directory,
            new LogConfig(JSON.convertValue(job.get("config"), Map.class)),
            job.get("start_offset").asLong(),
            job.get("recovery_point").asLong(),
            scheduler,
            new BrokerTopicStats(),
            time,
            15 * 60 * 1000,
            new ProducerStateManagerConfig(DAY_MS, false),
            10 * 60 * 1000,
            failures,
            job.get("clean_stop").asBoolean(),
            Optional.empty()
        );
        try {
            log.updateHighWatermark(job.get("high_watermark").asLong() < 0 ? log.logEndOffset() : job.get("high_watermark").asLong());
            describe(log, answer);
            if (job.has("first_dirty")) {
                clean(log, answer);
            }
        } finally {
            log.close();
            scheduler.runAll();
        }
        if (failures.hasOfflineLogDir(directory.getParent())) {
            throw new IllegalStateException("the log directory went offline");
        }
    }

    private void describe(UnifiedLog log, ObjectNode answer) throws Exception {
        answer.put("start_offset", log.logStartOffset());
        answer.put("end_offset", log.logEndOffset());
        answer.put("stable_offset", log.lastStableOffset());
        ArrayNode segments = answer.putArray("segments");
        for (LogSegment segment : log.logSegments()) {
            segment.sanityCheck(false);
            segment.offsetIndex().sanityCheck();
            segment.timeIndex().sanityCheck();
            segments.addArray().add(segment.baseOffset()).add(segment.size());
        }
        ObjectNode active = answer.putObject("active_producers");
        for (Map.Entry<Long, LastRecord> entry : log.lastRecordsOfActiveProducers().entrySet()) {
            OptionalLong last = entry.getValue().lastDataOffset();
            ArrayNode pair = active.putArray(entry.getKey().toString()).add(entry.getValue().producerEpoch());
            if (last.isPresent()) {
                pair.add(last.getAsLong());
            } else {
                pair.addNull();
            }
        }
        ObjectNode producers = answer.putObject("producers");
        for (ProducerStateEntry entry : log.producerStateManager().activeProducers().values()) {
            producers.putArray(Long.toString(entry.producerId()))
                .add(entry.producerEpoch())
                .add(entry.lastDataOffset())
                .add(entry.lastTimestamp())
                .add(entry.currentTxnFirstOffset().orElse(-1));
        }
        ArrayNode aborted = answer.putArray("aborted");
        for (AbortedTxn entry : log.collectAbortedTransactions(log.logStartOffset(), log.logEndOffset())) {
            aborted.addArray().add(entry.producerId()).add(entry.firstOffset()).add(entry.lastOffset()).add(entry.lastStableOffset());
        }
    }

    private void clean(UnifiedLog log, ObjectNode answer) throws Exception {
        long began = System.nanoTime();
        int bufferBytes = job.get("buffer_bytes").asInt();
        Cleaner cleaner = new Cleaner(
            0,
            new SkimpyOffsetMap(job.get("memory_bytes").asInt()),
            bufferBytes,
            log.config().maxMessageSize(),
            job.get("load_factor").asDouble(),
            new Throttler(Double.MAX_VALUE, 300, "throttler", "entries", Time.SYSTEM),
            time,
            partition -> { }
        );
        long uncleanable = Math.min(log.lastStableOffset(), log.logSegments().get(log.logSegments().size() - 1).baseOffset());
        LogToClean cleanable = new LogToClean(log, job.get("first_dirty").asLong(), uncleanable, false);
        answer.put("uncleanable", cleanable.firstUncleanableOffset());
        answer.put("cleanable_bytes", cleanable.cleanableBytes());
        answer.put("clean_bytes", cleanable.cleanBytes());
        if (cleanable.cleanableBytes() == 0) {
            return; // A log that is never chosen.
        }
        Map.Entry<Long, CleanerStats> cleaned = cleaner.doClean(cleanable, time.milliseconds());
        CleanerStats stats = cleaned.getValue();
        answer.put("clean_end", cleaned.getKey());
        answer.put("bytes_read", stats.bytesRead());
        answer.put("bytes_written", stats.bytesWritten());
        answer.put("records_read", stats.messagesRead());
        answer.put("records_kept", stats.messagesWritten());
        answer.put("keyless_dropped", stats.invalidMessagesRead());
        answer.put("seconds", (System.nanoTime() - began) / 1e9);
    }
}
