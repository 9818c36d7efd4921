package org.apache.kafka.common.test;

import java.io.File;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.util.Arrays;
import java.util.Comparator;
import java.util.EnumSet;
import java.util.Set;
import java.util.function.Predicate;
import org.apache.kafka.common.metadata.MetadataRecordType;
import org.apache.kafka.common.protocol.ByteBufferAccessor;
import org.apache.kafka.common.record.internal.FileRecords;
import org.apache.kafka.common.record.internal.Record;
import org.apache.kafka.common.record.internal.RecordBatch;
import org.apache.kafka.image.MetadataDelta;
import org.apache.kafka.image.MetadataImage;
import org.apache.kafka.image.MetadataProvenance;
import org.apache.kafka.metadata.KRaftMetadataCache;
import org.apache.kafka.metadata.MetadataRecordSerde;
import org.apache.kafka.server.common.ApiMessageAndVersion;
import org.apache.kafka.server.common.KRaftVersion;

/** Reads the metadata of a node from the files of its metadata log, as the node itself does at a start. */
final class MetadataLog {
    private static final Set<MetadataRecordType> WITHOUT_EFFECT = EnumSet.of(
        MetadataRecordType.NO_OP_RECORD,
        MetadataRecordType.BEGIN_TRANSACTION_RECORD,
        MetadataRecordType.END_TRANSACTION_RECORD);
    private final MetadataDelta delta = new MetadataDelta.Builder().setImage(MetadataImage.EMPTY).build();
    private long nextOffset;
    private int epoch;

    private MetadataLog() {
    }

    static KRaftMetadataCache read(int nodeId, String logDirectory) {
        MetadataLog log = new MetadataLog();
        File[] files = new File(logDirectory, "__cluster_metadata-0").listFiles();
        if (files != null) {
            Arrays.sort(files, Comparator.comparing(File::getName));
            Arrays.stream(files).filter(named(".checkpoint")).reduce((older, newer) -> newer).ifPresent(file -> {
                String[] offsetAndEpoch = file.getName().split("[-.]");
                log.replay(file, -1);
                log.nextOffset = Long.parseLong(offsetAndEpoch[0]);
                log.epoch = Integer.parseInt(offsetAndEpoch[1]);
            });
            Arrays.stream(files).filter(named(".log")).forEach(file -> log.replay(file, log.nextOffset));
        }
        KRaftMetadataCache cache = new KRaftMetadataCache(nodeId, () -> KRaftVersion.LATEST_PRODUCTION);
        cache.setImage(log.delta.apply(new MetadataProvenance(log.nextOffset - 1, log.epoch, 0, true)));
        return cache;
    }

    private static Predicate<File> named(String end) {
        return file -> file.getName().endsWith(end);
    }

    private void replay(File file, long from) {
        try {
            FileRecords records = FileRecords.open(file, false);
            for (RecordBatch batch : records.batches()) {
                if (!batch.isControlBatch() && batch.baseOffset() >= from) {
                    batch.forEach(this::replay);
                }
                nextOffset = batch.nextOffset();
                epoch = batch.partitionLeaderEpoch();
            }
            records.closeHandlers(); // Closing it in full would cut off what was written meanwhile.
        } catch (IOException error) {
            throw new UncheckedIOException(error);
        }
    }

    private void replay(Record record) {
        ByteBufferAccessor value = new ByteBufferAccessor(record.value());
        ApiMessageAndVersion message = MetadataRecordSerde.INSTANCE.read(value, value.remaining());
        if (!WITHOUT_EFFECT.contains(MetadataRecordType.fromId(message.message().apiKey()))) {
            delta.replay(message.message());
        }
    }
}
