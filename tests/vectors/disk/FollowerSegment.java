import java.io.File;
import java.nio.ByteBuffer;
import java.util.*;
import org.apache.kafka.common.compress.Compression;
import org.apache.kafka.common.record.*;
import org.apache.kafka.common.utils.Time;
import org.apache.kafka.storage.internals.log.*;

/**
 * Writes a segment as a follower of Apache Kafka up to 4.0.0 does: each append has several batches.
 *
 *     java -cp "kafka-4.0.0/libs/*" FollowerSegment.java DIRECTORY
 */
public class FollowerSegment {
    public static void main(String[] args) throws Exception {
        File directory = new File(args[0]);
        directory.mkdirs();
        LogConfig config = new LogConfig(Map.of());
        LogSegment segment = LogSegment.open(directory, 0L, config, Time.SYSTEM, false, 0, false, "");
        long offset = 0, time = 1_700_000_000_000L;
        for (int chunk = 0; chunk < 60; chunk++) {
            ByteBuffer buffer = ByteBuffer.allocate(1 << 20);
            long maxTime = -1, maxOffset = -1;
            for (int batch = 0; batch < 2 + chunk % 9; batch++) {
                try (MemoryRecordsBuilder builder = MemoryRecords.builder(buffer, RecordBatch.MAGIC_VALUE_V2, Compression.NONE, TimestampType.CREATE_TIME, offset, RecordBatch.NO_TIMESTAMP, -1L, (short) -1, -1, false, 3)) {
                    for (int record = 0; record < 1 + batch % 3; record++) {
                        byte[] value = new byte[300];
                        Arrays.fill(value, (byte) ('a' + offset % 26));
                        time += (offset * 7) % 11 - 3;
                        if (time > maxTime) { maxTime = time; }
                        builder.append(time, null, value);
                        offset++;
                    }
                }
                maxOffset = offset - 1;
            }
            buffer.flip();
            MemoryRecords records = MemoryRecords.readableRecords(buffer);
            long shallow = -1, largest = -1;
            for (RecordBatch batch : records.batches())
                if (batch.maxTimestamp() > largest) { largest = batch.maxTimestamp(); shallow = batch.lastOffset(); }
            segment.append(maxOffset, largest, shallow, records);
        }
        segment.onBecomeInactiveSegment();
        segment.flush();
        segment.close();
        System.out.println("end offset " + offset);
    }
}
