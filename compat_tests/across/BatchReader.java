import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.HexFormat;
import java.util.Iterator;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.compress.Compression;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.record.TimestampType;
import org.apache.kafka.common.record.internal.MemoryRecords;
import org.apache.kafka.common.record.internal.Record;
import org.apache.kafka.common.record.internal.RecordBatch;
import org.apache.kafka.common.utils.BufferSupplier;
import org.apache.kafka.common.utils.PrimitiveRef;
import org.apache.kafka.common.utils.Time;
import org.apache.kafka.storage.internals.log.AppendOrigin;
import org.apache.kafka.storage.internals.log.LogValidator;

/**
 * Reads batches as Java's consumer does, and judges them as a leader of Apache Kafka does: a batch a line in hex on
 * stdin; on stdout the number of records that a consumer delivers, or an exception, then "stored" or an exception.
 */
public final class BatchReader {
    /** Counts nothing. */
    private static final class NoMetrics implements LogValidator.MetricsRecorder {
        @Override
        public void recordInvalidMagic() {
        }

        @Override
        public void recordInvalidOffset() {
        }

        @Override
        public void recordInvalidSequence() {
        }

        @Override
        public void recordInvalidChecksums() {
        }

        @Override
        public void recordNoKeyCompactedTopic() {
        }
    }

    public static void main(String[] ignored) throws Exception {
        PrintStream answers = System.out;
        System.setOut(System.err);
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            byte[] data = HexFormat.of().parseHex(line);
            answers.println(read(data.clone()) + " " + store(data.clone()));
            answers.flush();
        }
    }

    private static String read(byte[] data) {
        try {
            RecordBatch batch = MemoryRecords.readableRecords(ByteBuffer.wrap(data)).batches().iterator().next();
            batch.ensureValid();
            long next = batch.baseOffset();
            int count = 0;
            Iterator<Record> records = batch.streamingIterator(BufferSupplier.NO_CACHING);
            while (records.hasNext()) {
                Record record = records.next();
                record.ensureValid();
                for (Header header : record.headers()) {
                    header.key();
                }
                if (record.offset() >= next) {
                    next = record.offset() + 1;
                    count++;
                }
            }
            return Integer.toString(count);
        } catch (Throwable thrown) {
            return thrown.getClass().getSimpleName();
        }
    }

    private static String store(byte[] data) {
        try {
            MemoryRecords records = MemoryRecords.readableRecords(ByteBuffer.wrap(data));
            RecordBatch batch = records.batches().iterator().next();
            batch.ensureValid();
            new LogValidator(
                records,
                new TopicPartition("t", 0),
                Time.SYSTEM,
                batch.compressionType(),
                Compression.of(batch.compressionType()).build(),
                false,
                RecordBatch.CURRENT_MAGIC_VALUE,
                TimestampType.CREATE_TIME,
                Long.MAX_VALUE,
                Long.MAX_VALUE,
                0,
                AppendOrigin.CLIENT
            ).validateMessagesAndAssignOffsets(
                PrimitiveRef.ofLong(0), new NoMetrics(), BufferSupplier.NO_CACHING
            );
            return "stored";
        } catch (Throwable thrown) {
            return thrown.getClass().getSimpleName();
        }
    }
}
