/* Walks over the records of a batch's decompressed payload, and the map of keys to offsets.

   Rules:

   - kwire/_fallbacks.py does the same in Python, and says what is accepted and why. Results and
     messages are equal, including what a damaged payload leaves in a map: both map the records
     in chunks of CHUNK, and judge a whole chunk before they use any of it.
   - Bytes are read through a position that is compared with the size first; nothing is read twice
     to be trusted the second time, for another thread may write into a bytearray meanwhile.
   - A call with more than GIL_BYTES of payload releases the GIL. A map that such a call uses is
     marked busy, and any other use of it raises RuntimeError.
   - The limited API of Python 3.11: one build serves all later versions.

   On one core of a shared 2-core machine: 15 ns a record of 100 bytes to check, 60 ns to map, and
   Python's 1,100 and 2,600 ns. Keys are hashed by SipHash-2-4 with 128 bits and a random key. */

#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030B0000
#include <Python.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <structmember.h>

#define CHUNK 256
#define MIN_RECORD 7
#define KEYLESS_MAX 1000
#define GIL_BYTES 65536

typedef enum {
    OK, BEYOND, TOO_LONG, MISFIT, BAD_LENGTH, BAD_HEADERS, NULL_HEADER_KEY, BAD_COUNT, TAIL,
    BAD_OFFSET, BAD_DELTA, BAD_RANGE, NO_MEMORY
} Code;

typedef struct {
    const uint8_t *data;
    int64_t size, pos;
    Code code;
    int64_t a, b, c; /* numbers of the message */
} Walk;

typedef struct {
    int64_t start, end, delta, key_at, value_at;
    int32_t offset_delta, key_size, value_size;
    uint64_t hash[2]; /* of the key, after hash_keys */
} Record;

typedef struct {
    int64_t start, end;
} Range;

static PyObject *bad_records, *checked_records, *retained_class;
static PyTypeObject *map_type;
static newfunc new_tuple; /* of a named tuple too, without a call of its constructor in Python */

static int fail(Walk *walk, Code code, int64_t a, int64_t b, int64_t c) {
    walk->code = code;
    walk->a = a;
    walk->b = b;
    walk->c = c;
    return -1;
}

static PyObject *raise_damage(const Walk *walk) {
    long long a = walk->a, b = walk->b, c = walk->c;
    const char *format = "";
    switch (walk->code) {
    case OK: break;
    case BEYOND: format = "a record goes beyond its batch"; break;
    case TOO_LONG: format = "a variable-length number is too long"; break;
    case MISFIT: format = "a record's length does not fit its fields"; break;
    case BAD_LENGTH: format = "a record of %lld bytes with %lld left"; break;
    case BAD_HEADERS: format = "a record with %lld headers"; break;
    case NULL_HEADER_KEY: format = "a header without a key"; break;
    case BAD_COUNT: format = "%lld records in %lld bytes"; break;
    case TAIL: format = "%lld bytes behind the last record"; break;
    case BAD_OFFSET: format = "an offset is out of range"; break;
    case BAD_DELTA: format = "a timestamp delta is out of range"; break;
    case BAD_RANGE: format = "a range from %lld to %lld in %lld bytes"; break;
    case NO_MEMORY: return PyErr_NoMemory();
    }
    return PyErr_Format(bad_records, format, a, b, c);
}

/* Reads a zigzag number of at most 5 or 10 bytes whose value has at most 32 or 64 bits. */
static int read_long(Walk *walk, int bytes_max, int64_t *out) {
    uint64_t result = 0;
    for (int i = 0; i < bytes_max; i++) {
        if (walk->pos >= walk->size)
            return fail(walk, BEYOND, 0, 0, 0);
        uint64_t byte = walk->data[walk->pos++];
        if (i == 9 && byte > 1)
            return fail(walk, TOO_LONG, 0, 0, 0);
        result |= (byte & 0x7F) << (7 * i);
        if (byte < 0x80) {
            if (bytes_max == 5 && result >> 32)
                return fail(walk, TOO_LONG, 0, 0, 0);
            *out = (int64_t)(result >> 1) ^ -(int64_t)(result & 1);
            return 0;
        }
    }
    return fail(walk, TOO_LONG, 0, 0, 0);
}

static inline int read_int(Walk *walk, int32_t *out) {
    int64_t value;
    if (walk->pos < walk->size && walk->data[walk->pos] < 0x80) {
        uint32_t byte = walk->data[walk->pos++];
        *out = (int32_t)(byte >> 1) ^ -(int32_t)(byte & 1);
        return 0;
    }
    if (read_long(walk, 5, &value) < 0)
        return -1;
    *out = (int32_t)value;
    return 0;
}

static int skip_headers(Walk *walk) {
    int32_t count, size;
    if (read_int(walk, &count) < 0)
        return -1;
    if (count < 0)
        return fail(walk, BAD_HEADERS, count, 0, 0);
    for (int32_t i = 0; i < count; i++) {
        if (read_int(walk, &size) < 0)
            return -1;
        if (size < 0)
            return fail(walk, NULL_HEADER_KEY, 0, 0, 0);
        walk->pos += size;
        if (read_int(walk, &size) < 0)
            return -1;
        walk->pos += size > 0 ? size : 0;
    }
    return 0;
}

static inline int read_record(Walk *walk, Record *record) {
    int32_t length;
    record->start = walk->pos;
    if (read_int(walk, &length) < 0)
        return -1;
    if (length <= 0 || length > walk->size - walk->pos)
        return fail(walk, BAD_LENGTH, length, walk->size - walk->pos, 0);
    record->end = walk->pos + length;
    walk->pos++; /* the attributes */
    if (walk->pos < walk->size && walk->data[walk->pos] < 0x80) {
        uint32_t byte = walk->data[walk->pos++];
        record->delta = (int64_t)(byte >> 1) ^ -(int64_t)(byte & 1);
    } else if (read_long(walk, 10, &record->delta) < 0)
        return -1;
    if (read_int(walk, &record->offset_delta) < 0 ||
        read_int(walk, &record->key_size) < 0)
        return -1;
    record->key_at = walk->pos;
    walk->pos += record->key_size > 0 ? record->key_size : 0;
    if (read_int(walk, &record->value_size) < 0)
        return -1;
    record->value_at = walk->pos;
    walk->pos += record->value_size > 0 ? record->value_size : 0;
    if (skip_headers(walk) < 0)
        return -1;
    return walk->pos == record->end ? 0 : fail(walk, MISFIT, 0, 0, 0);
}

static int check_count(Walk *walk, int64_t count) {
    if (count < 0 || count > walk->size / MIN_RECORD)
        return fail(walk, BAD_COUNT, count, walk->size, 0);
    return 0;
}

static int check_end(Walk *walk) {
    return walk->pos == walk->size ? 0 : fail(walk, TAIL, walk->size - walk->pos, 0, 0);
}

/* Reads the next records and returns their number: 0 behind the last one, -1 for damage. */
static int read_chunk(Walk *walk, int64_t *left, Record *records) {
    int count = *left < CHUNK ? (int)*left : CHUNK;
    if (count == 0)
        return check_end(walk);
    for (int i = 0; i < count; i++)
        if (read_record(walk, &records[i]) < 0)
            return -1;
    *left -= count;
    return count;
}

/* SipHash-2-4 with a result of 128 bits. */

#define ROTATE(x, bits) ((x) << (bits) | (x) >> (64 - (bits)))

static inline void sip_round(uint64_t v[4]) {
    v[0] += v[1], v[1] = ROTATE(v[1], 13) ^ v[0], v[0] = ROTATE(v[0], 32);
    v[2] += v[3], v[3] = ROTATE(v[3], 16) ^ v[2];
    v[0] += v[3], v[3] = ROTATE(v[3], 21) ^ v[0];
    v[2] += v[1], v[1] = ROTATE(v[1], 17) ^ v[2], v[2] = ROTATE(v[2], 32);
}

static inline uint64_t little_endian(const uint8_t *bytes, size_t count) {
    uint64_t word = 0;
    for (size_t i = 0; i < count; i++)
        word |= (uint64_t)bytes[i] << (8 * i);
    return word;
}

static void sip_hash(const uint64_t secret[2], const uint8_t *key, size_t size, uint64_t out[2]) {
    uint64_t v[4] = {
        0x736f6d6570736575ULL ^ secret[0], 0x646f72616e646f6dULL ^ secret[1] ^ 0xEE,
        0x6c7967656e657261ULL ^ secret[0], 0x7465646279746573ULL ^ secret[1],
    };
    size_t at = 0;
    for (int is_last = 0; !is_last; at += 8) {
        is_last = size - at < 8;
        uint64_t word = little_endian(key + at, is_last ? size - at : 8);
        if (is_last)
            word |= (uint64_t)size << 56;
        v[3] ^= word, sip_round(v), sip_round(v), v[0] ^= word;
    }
    v[2] ^= 0xEE;
    for (int half = 0; half < 2; half++) {
        for (int i = 0; i < 4; i++)
            sip_round(v);
        out[half] = v[0] ^ v[1] ^ v[2] ^ v[3];
        v[1] ^= 0xDD;
    }
}

/* The map: a slot is free while its offset is 0, so offsets are stored inverted. */

typedef struct {
    uint64_t hash[2];
    int64_t inverted;
} Slot;

typedef struct {
    PyObject_HEAD
    Slot *slots;
    uint64_t slot_count;
    Py_ssize_t capacity, count;
    uint64_t secret[2];
    int is_busy;
} OffsetMap;

/* Hashes the keys of a chunk, and has the processor fetch their slots from memory meanwhile. */
static void hash_keys(const OffsetMap *map, const uint8_t *data, Record *records, int count) {
    for (int i = 0; i < count; i++) {
        Record *record = &records[i];
        if (record->key_size < 0)
            continue;
        sip_hash(map->secret, data + record->key_at, (size_t)record->key_size, record->hash);
        __builtin_prefetch(&map->slots[record->hash[0] % map->slot_count]);
    }
}

static Slot *find_slot(const OffsetMap *map, const uint64_t hash[2]) {
    uint64_t at = hash[0] % map->slot_count;
    for (;; at = at + 1 < map->slot_count ? at + 1 : 0) {
        Slot *slot = &map->slots[at];
        if (!slot->inverted || (slot->hash[0] == hash[0] && slot->hash[1] == hash[1]))
            return slot;
    }
}

static int put_hash(OffsetMap *map, const uint64_t hash[2], int64_t offset) {
    Slot *slot = find_slot(map, hash);
    if (!slot->inverted) {
        if (map->count == map->capacity)
            return -1;
        map->count++;
        memcpy(slot->hash, hash, sizeof slot->hash);
    } else if (~slot->inverted >= offset)
        return 0;
    slot->inverted = ~offset;
    return 0;
}

static int check_idle(const OffsetMap *map) {
    if (map->is_busy)
        PyErr_SetString(PyExc_RuntimeError, "another thread uses the map");
    return map->is_busy ? -1 : 0;
}

/* Marks an idle map busy, then releases the GIL if the payload is large: in this order, or another
   thread could find the map idle in between. Returns what release_map takes. */
static PyThreadState *claim_map(OffsetMap *map, Py_ssize_t size) {
    map->is_busy = 1;
    return size > GIL_BYTES ? PyEval_SaveThread() : NULL;
}

static void release_map(OffsetMap *map, PyThreadState *state) {
    if (state)
        PyEval_RestoreThread(state);
    map->is_busy = 0;
}

static int seed(OffsetMap *map) {
    PyObject *os = PyImport_ImportModule("os");
    PyObject *bytes = os ? PyObject_CallMethod(os, "urandom", "i", (int)sizeof map->secret) : NULL;
    Py_XDECREF(os);
    if (!bytes)
        return -1;
    memcpy(map->secret, PyBytes_AsString(bytes), sizeof map->secret);
    Py_DECREF(bytes);
    return 0;
}

static PyObject *map_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"memory_bytes", "load_factor", NULL};
    Py_ssize_t memory, slots;
    double load;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "nd:OffsetMap", names, &memory, &load))
        return NULL;
    slots = memory < 0 ? 0 : memory / (Py_ssize_t)sizeof(Slot);
    Py_ssize_t capacity = load > 0.0 && load <= 1.0 ? (Py_ssize_t)((double)slots * load) : 0;
    if (capacity > slots - 1)
        capacity = slots - 1;
    if (capacity < 1) {
        PyObject *number = PyFloat_FromDouble(load);
        if (number)
            PyErr_Format(PyExc_ValueError, "%zd bytes and a load of %S hold no key", memory, number);
        Py_XDECREF(number);
        return NULL;
    }
    allocfunc allocate = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
    OffsetMap *map = (OffsetMap *)allocate(type, 0);
    if (!map)
        return NULL;
    map->slot_count = (uint64_t)slots;
    map->capacity = capacity;
    map->slots = calloc((size_t)slots, sizeof(Slot));
    if (!map->slots)
        PyErr_NoMemory();
    if (!map->slots || seed(map) < 0) {
        Py_DECREF(map);
        return NULL;
    }
    return (PyObject *)map;
}

static void map_dealloc(OffsetMap *map) {
    PyTypeObject *type = Py_TYPE((PyObject *)map);
    free(map->slots);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(map);
    Py_DECREF(type);
}

static Py_ssize_t map_len(OffsetMap *map) { return map->count; }

static PyObject *map_put(OffsetMap *map, PyObject *args) {
    Py_buffer key;
    uint64_t hash[2];
    long long offset;
    if (!PyArg_ParseTuple(args, "y*L:put", &key, &offset))
        return NULL;
    sip_hash(map->secret, key.buf, (size_t)key.len, hash);
    if (offset < 0)
        PyErr_SetString(PyExc_ValueError, "an offset is out of range");
    else if (check_idle(map) == 0 && put_hash(map, hash, offset) < 0)
        PyErr_SetString(PyExc_OverflowError, "the map is full");
    PyBuffer_Release(&key);
    if (PyErr_Occurred())
        return NULL;
    Py_RETURN_NONE;
}

static PyObject *map_get(OffsetMap *map, PyObject *args) {
    Py_buffer key;
    uint64_t hash[2];
    if (!PyArg_ParseTuple(args, "y*:get", &key))
        return NULL;
    int64_t offset = -1;
    int is_idle = check_idle(map) == 0;
    sip_hash(map->secret, key.buf, (size_t)key.len, hash);
    if (is_idle)
        offset = ~find_slot(map, hash)->inverted;
    PyBuffer_Release(&key);
    return is_idle ? PyLong_FromLongLong(offset) : NULL;
}

/* Adds a delta to a base offset; beyond 64 bits the result is the nearest number. */
static inline int64_t add_delta(int64_t base, int32_t delta, int *is_beyond) {
    int64_t offset;
    *is_beyond = __builtin_add_overflow(base, (int64_t)delta, &offset);
    return !*is_beyond ? offset : delta > 0 ? INT64_MAX : INT64_MIN;
}

/* Returns 1 if all records are mapped, 0 if the map is full, -1 for damage. */
static int map_records(OffsetMap *map, Walk *walk, int64_t left, int64_t base, int64_t first) {
    Record records[CHUNK];
    int is_beyond, count;
    if (check_count(walk, left) < 0)
        return -1;
    while ((count = read_chunk(walk, &left, records)) > 0) {
        hash_keys(map, walk->data, records, count);
        for (int i = 0; i < count; i++) {
            const Record *record = &records[i];
            int64_t offset = add_delta(base, record->offset_delta, &is_beyond);
            if (record->key_size < 0 || offset < first)
                continue;
            if (is_beyond || offset < 0)
                return fail(walk, BAD_OFFSET, 0, 0, 0);
            if (map->count == map->capacity)
                return 0;
            put_hash(map, record->hash, offset);
        }
    }
    return count < 0 ? -1 : 1;
}

static PyObject *map_put_records(OffsetMap *map, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"payload", "count", "base_offset", "first_offset", NULL};
    Py_buffer payload;
    Py_ssize_t count;
    long long base, first;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "y*nLL:put_records", names, &payload, &count,
                                     &base, &first))
        return NULL;
    int result = -1, is_idle = check_idle(map) == 0;
    Walk walk = {payload.buf, payload.len, 0, OK, 0, 0, 0};
    if (is_idle) {
        PyThreadState *state = claim_map(map, payload.len);
        result = map_records(map, &walk, count, base, first);
        release_map(map, state);
    }
    PyBuffer_Release(&payload);
    if (!is_idle)
        return NULL;
    return result < 0 ? raise_damage(&walk) : PyBool_FromLong(result);
}

/* check_records */

typedef struct {
    int64_t keyless[KEYLESS_MAX];
    int64_t keyless_count, min_delta, max_delta;
    int are_consecutive;
} Checked;

static int check_all(Walk *walk, int64_t count, int is_naming, Checked *checked) {
    Record record;
    checked->keyless_count = 0;
    checked->are_consecutive = 1;
    checked->min_delta = count ? INT64_MAX : 0;
    checked->max_delta = count ? INT64_MIN : 0;
    if (check_count(walk, count) < 0)
        return -1;
    for (int64_t index = 0; index < count; index++) {
        if (read_record(walk, &record) < 0)
            return -1;
        checked->are_consecutive &= record.offset_delta == index;
        if (record.delta < checked->min_delta)
            checked->min_delta = record.delta;
        if (record.delta > checked->max_delta)
            checked->max_delta = record.delta;
        if (record.key_size < 0 && is_naming && checked->keyless_count < KEYLESS_MAX)
            checked->keyless[checked->keyless_count++] = index;
    }
    return check_end(walk);
}

/* Called for each produced batch, so it takes its arguments without a tuple and a dict: the only
   keyword is keys, whose value follows the positional arguments. */
static PyObject *check_records(PyObject *module, PyObject *const *args, Py_ssize_t positional,
                               PyObject *keywords) {
    Py_buffer payload;
    (void)module;
    if (positional != 2 || !keywords || PyTuple_Size(keywords) != 1) {
        PyErr_SetString(PyExc_TypeError, "check_records() takes a payload, a count and keys=");
        return NULL;
    }
    Py_ssize_t count = PyLong_AsSsize_t(args[1]);
    int is_naming = PyObject_IsTrue(args[2]);
    if ((count == -1 && PyErr_Occurred()) || is_naming < 0 ||
        PyObject_GetBuffer(args[0], &payload, PyBUF_SIMPLE) < 0)
        return NULL;
    Walk walk = {payload.buf, payload.len, 0, OK, 0, 0, 0};
    Checked checked;
    PyThreadState *state = payload.len > GIL_BYTES ? PyEval_SaveThread() : NULL;
    int is_damaged = check_all(&walk, count, is_naming, &checked) < 0;
    if (state)
        PyEval_RestoreThread(state);
    PyBuffer_Release(&payload);
    if (is_damaged)
        return raise_damage(&walk);
    PyObject *keyless = PyList_New((Py_ssize_t)checked.keyless_count);
    for (Py_ssize_t i = 0; keyless && i < checked.keyless_count; i++) {
        PyObject *index = PyLong_FromLongLong(checked.keyless[i]);
        if (!index || PyList_SetItem(keyless, i, index) < 0)
            Py_CLEAR(keyless);
    }
    if (!keyless)
        return NULL;
    PyObject *fields = Py_BuildValue("((NNLL))", keyless, PyBool_FromLong(checked.are_consecutive),
                                     (long long)checked.min_delta, (long long)checked.max_delta);
    PyObject *result = fields ? new_tuple((PyTypeObject *)checked_records, fields, NULL) : NULL;
    Py_XDECREF(fields);
    return result;
}

/* find_retained */

typedef struct {
    Range *ranges;
    size_t range_count, room;
    int64_t record_count, keyless_count, first_delta, max_delta;
    int has_tombstones;
} Retained;

static int add_range(Walk *walk, Retained *retained, const Record *record) {
    if (retained->range_count && retained->ranges[retained->range_count - 1].end == record->start) {
        retained->ranges[retained->range_count - 1].end = record->end;
        return 0;
    }
    if (retained->range_count == retained->room) {
        size_t room = retained->room ? 2 * retained->room : 64;
        Range *ranges = realloc(retained->ranges, room * sizeof(Range));
        if (!ranges)
            return fail(walk, NO_MEMORY, 0, 0, 0);
        retained->ranges = ranges;
        retained->room = room;
    }
    retained->ranges[retained->range_count++] = (Range){record->start, record->end};
    return 0;
}

static int is_retained(const OffsetMap *map, const Record *record, int64_t offset,
                       int keeps_tombstones, int64_t *keyless_count) {
    if (record->key_size < 0) {
        (*keyless_count)++;
        return 0;
    }
    if (record->value_size < 0 && !keeps_tombstones)
        return 0;
    return offset >= ~find_slot(map, record->hash)->inverted;
}

static int retain_all(OffsetMap *map, Walk *walk, int64_t left, int64_t base, int64_t latest,
                      int keeps_tombstones, Retained *retained) {
    Record records[CHUNK];
    int is_beyond, count;
    if (check_count(walk, left) < 0)
        return -1;
    while ((count = read_chunk(walk, &left, records)) > 0) {
        hash_keys(map, walk->data, records, count);
        for (int i = 0; i < count; i++) {
            const Record *record = &records[i];
            int64_t offset = add_delta(base, record->offset_delta, &is_beyond);
            int is_above = offset > latest || (is_beyond && record->offset_delta > 0);
            if (!is_above && !is_retained(map, record, offset, keeps_tombstones,
                                          &retained->keyless_count))
                continue;
            if (add_range(walk, retained, record) < 0)
                return -1;
            if (!retained->record_count++)
                retained->first_delta = retained->max_delta = record->delta;
            if (record->delta > retained->max_delta)
                retained->max_delta = record->delta;
            retained->has_tombstones |= record->value_size < 0;
        }
    }
    return count;
}

static PyObject *range_list(const Retained *retained) {
    PyObject *list = PyList_New((Py_ssize_t)retained->range_count);
    for (size_t i = 0; list && i < retained->range_count; i++) {
        PyObject *range = Py_BuildValue("LL", (long long)retained->ranges[i].start,
                                        (long long)retained->ranges[i].end);
        if (!range || PyList_SetItem(list, (Py_ssize_t)i, range) < 0)
            Py_CLEAR(list);
    }
    return list;
}

static PyObject *find_retained(PyObject *module, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"payload", "count", "base_offset", "offsets", "latest",
                            "keep_tombstones", NULL};
    Py_buffer payload;
    Py_ssize_t count;
    long long base, latest;
    OffsetMap *map;
    int keeps_tombstones;
    (void)module;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "y*nLO!Lp:find_retained", names, &payload, &count,
                                     &base, map_type, &map, &latest, &keeps_tombstones))
        return NULL;
    Walk walk = {payload.buf, payload.len, 0, OK, 0, 0, 0};
    Retained retained = {NULL, 0, 0, 0, 0, 0, 0, 0};
    int result = -1, is_idle = check_idle(map) == 0;
    if (is_idle) {
        PyThreadState *state = claim_map(map, payload.len);
        result = retain_all(map, &walk, count, base, latest, keeps_tombstones, &retained);
        release_map(map, state);
    }
    PyBuffer_Release(&payload);
    PyObject *ranges = result < 0 ? NULL : range_list(&retained);
    free(retained.ranges);
    if (!ranges)
        return is_idle && result < 0 ? raise_damage(&walk) : NULL;
    PyObject *fields = Py_BuildValue(
        "((NLLNLL))", ranges, (long long)retained.record_count, (long long)retained.keyless_count,
        PyBool_FromLong(retained.has_tombstones), (long long)retained.first_delta,
        (long long)retained.max_delta);
    PyObject *kept = fields ? new_tuple((PyTypeObject *)retained_class, fields, NULL) : NULL;
    Py_XDECREF(fields);
    return kept;
}

/* rewrite */

static int encode(int64_t value, uint8_t out[10]) {
    uint64_t rest = ((uint64_t)value << 1) ^ (uint64_t)(value >> 63);
    int size = 0;
    for (; rest > 0x7F; rest >>= 7)
        out[size++] = (uint8_t)(rest | 0x80);
    out[size++] = (uint8_t)rest;
    return size;
}

static int check_ranges(Walk *walk, const Range *ranges, Py_ssize_t count) {
    int64_t previous = 0;
    for (Py_ssize_t i = 0; i < count; previous = ranges[i++].end)
        if (ranges[i].start < previous || ranges[i].end < ranges[i].start ||
            ranges[i].end > walk->size)
            return fail(walk, BAD_RANGE, ranges[i].start, ranges[i].end, walk->size);
    return 0;
}

/* Writes the records at the position with their timestamp deltas shifted, or without `out` counts
   their bytes; returns the bytes written, -1 for damage and where they do not fit into `room`. */
static int64_t shift_records(Walk *walk, int64_t limit, int64_t shift, uint8_t *out, int64_t room) {
    int64_t written = 0, delta;
    int32_t length;
    while (walk->pos < limit) {
        if (read_int(walk, &length) < 0)
            return -1;
        if (length <= 0 || length > limit - walk->pos)
            return fail(walk, BAD_LENGTH, length, limit - walk->pos, 0);
        int64_t start = walk->pos++, end = start + length;
        if (read_long(walk, 10, &delta) < 0)
            return -1;
        if (walk->pos > end)
            return fail(walk, MISFIT, 0, 0, 0);
        if (__builtin_add_overflow(delta, shift, &delta))
            return fail(walk, BAD_DELTA, 0, 0, 0);
        uint8_t encoded_delta[10], encoded_length[10];
        int64_t rest = end - walk->pos;
        int delta_size = encode(delta, encoded_delta);
        int length_size = encode(1 + delta_size + rest, encoded_length);
        int64_t size = length_size + 1 + delta_size + rest;
        if (out) {
            if (size > room - written)
                return fail(walk, MISFIT, 0, 0, 0);
            uint8_t *to = out + written;
            memcpy(to, encoded_length, (size_t)length_size);
            to[length_size] = walk->data[start];
            memcpy(to + length_size + 1, encoded_delta, (size_t)delta_size);
            memcpy(to + length_size + 1 + delta_size, walk->data + walk->pos, (size_t)rest);
        }
        written += size;
        walk->pos = end;
    }
    return written;
}

static int64_t rewrite_all(Walk *walk, const Range *ranges, Py_ssize_t count, int64_t shift,
                           uint8_t *out, int64_t room) {
    int64_t written = 0;
    for (Py_ssize_t i = 0; i < count; i++) {
        int64_t size = ranges[i].end - ranges[i].start;
        walk->pos = ranges[i].start;
        if (shift)
            size = shift_records(walk, ranges[i].end, shift, out ? out + written : NULL,
                                 room - written);
        else if (out)
            memcpy(out + written, walk->data + walk->pos, (size_t)size);
        if (size < 0)
            return -1;
        written += size;
    }
    return written;
}

static Range *parse_ranges(PyObject *sequence, Py_ssize_t *count) {
    *count = PySequence_Size(sequence);
    if (*count < 0)
        return NULL;
    Range *ranges = calloc((size_t)*count + 1, sizeof(Range));
    if (!ranges)
        return (Range *)PyErr_NoMemory();
    for (Py_ssize_t i = 0; i < *count; i++) {
        Py_ssize_t start = 0, end = 0;
        PyObject *range = PySequence_GetItem(sequence, i);
        int is_good = range && PyArg_ParseTuple(range, "nn:range", &start, &end);
        Py_XDECREF(range);
        if (!is_good) {
            free(ranges);
            return NULL;
        }
        ranges[i] = (Range){start, end};
    }
    return ranges;
}

static PyObject *rewrite(PyObject *module, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"payload", "ranges", "timestamp_shift", NULL};
    Py_buffer payload;
    PyObject *sequence, *out = NULL;
    long long shift;
    Py_ssize_t count;
    (void)module;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "y*OL:rewrite", names, &payload, &sequence,
                                     &shift))
        return NULL;
    Walk walk = {payload.buf, payload.len, 0, OK, 0, 0, 0};
    Range *ranges = parse_ranges(sequence, &count);
    if (ranges) {
        int64_t size = check_ranges(&walk, ranges, count);
        if (size == 0)
            size = rewrite_all(&walk, ranges, count, shift, NULL, 0);
        if (size >= 0)
            out = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)size);
        if (out) {
            uint8_t *bytes = (uint8_t *)PyBytes_AsString(out);
            PyThreadState *state = size > GIL_BYTES ? PyEval_SaveThread() : NULL;
            if (rewrite_all(&walk, ranges, count, shift, bytes, size) != size && walk.code == OK)
                fail(&walk, MISFIT, 0, 0, 0);
            if (state)
                PyEval_RestoreThread(state);
        }
        if (walk.code != OK) {
            Py_CLEAR(out);
            raise_damage(&walk);
        }
    }
    free(ranges);
    PyBuffer_Release(&payload);
    return out;
}

/* latest_records */

#define HEADER_BYTES 61
#define LENGTH_END 12
#define NOT_PLAIN 0x37 /* attributes of compressed, transactional and control batches */
#define LATEST_RECORDS_MAX 1500
#define MAX_BASE_OFFSET (INT64_MAX - UINT32_MAX)

static int64_t big_endian(const uint8_t *bytes, int count) {
    uint64_t number = bytes[0] & 0x80 ? UINT64_MAX : 0;
    for (int i = 0; i < count; i++)
        number = number << 8 | bytes[i];
    return (int64_t)number;
}

/* Puts the key to the end of the dictionary, as the one that was written last. */
static int put_latest(PyObject *latest, const uint8_t *data, const Record *record) {
    const char *bytes = (const char *)data;
    PyObject *key = PyBytes_FromStringAndSize(bytes + record->key_at, record->key_size);
    PyObject *value = record->value_size < 0
                          ? Py_NewRef(Py_None)
                          : PyBytes_FromStringAndSize(bytes + record->value_at, record->value_size);
    int result = key && value ? PyDict_Contains(latest, key) : -1;
    if (result > 0)
        result = PyDict_DelItem(latest, key);
    if (result >= 0)
        result = PyDict_SetItem(latest, key, value);
    Py_XDECREF(key);
    Py_XDECREF(value);
    return result;
}

/* Returns 1 if the batch was taken, 0 if it is damaged or has a record without a key. */
static int take_batch(PyObject *latest, const uint8_t *payload, int64_t size, int64_t left) {
    Walk walk = {payload, size, 0, OK, 0, 0, 0};
    Record records[CHUNK];
    int count;
    if (check_count(&walk, left) < 0)
        return 0;
    while ((count = read_chunk(&walk, &left, records)) > 0) {
        for (int i = 0; i < count; i++)
            if (records[i].key_size < 0)
                return 0;
        for (int i = 0; i < count; i++)
            if (put_latest(latest, payload, &records[i]) < 0)
                return -1;
    }
    return count == 0;
}

static PyObject *latest_records(PyObject *module, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"buf", "pos", "offset", "latest", "limit", NULL};
    Py_buffer buf;
    Py_ssize_t pos, limit;
    long long offset;
    PyObject *latest;
    int result = 1;
    (void)module;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "y*nLO!n:latest_records", names, &buf, &pos,
                                     &offset, &PyDict_Type, &latest, &limit))
        return NULL;
    for (Py_ssize_t begin = pos; pos >= 0 && pos - begin < limit && buf.len - pos >= HEADER_BYTES;) {
        const uint8_t *batch = (const uint8_t *)buf.buf + pos;
        int64_t size = LENGTH_END + big_endian(batch + 8, 4);
        int64_t base_offset = big_endian(batch, 8), last_delta = big_endian(batch + 23, 4);
        int64_t count = big_endian(batch + 57, 4);
        if (batch[16] != 2 || batch[22] & NOT_PLAIN || size < HEADER_BYTES || size > buf.len - pos ||
            count > LATEST_RECORDS_MAX || base_offset < 0 || base_offset > MAX_BASE_OFFSET ||
            last_delta < 0)
            break;
        int64_t next_offset = base_offset + last_delta + 1;
        if (next_offset > offset) {
            result = take_batch(latest, batch + HEADER_BYTES, size - HEADER_BYTES, count);
            if (result <= 0)
                break;
            offset = next_offset;
        }
        pos += (Py_ssize_t)size;
    }
    PyBuffer_Release(&buf);
    return result < 0 ? NULL : Py_BuildValue("nL", pos, offset);
}

static PyMethodDef map_methods[] = {
    {"put", (PyCFunction)(void *)map_put, METH_VARARGS, NULL},
    {"get", (PyCFunction)(void *)map_get, METH_VARARGS, NULL},
    {"put_records", (PyCFunction)(void *)map_put_records, METH_VARARGS | METH_KEYWORDS, NULL},
    {NULL, NULL, 0, NULL},
};
static PyMemberDef map_members[] = {
    {"capacity", T_PYSSIZET, offsetof(OffsetMap, capacity), READONLY, NULL},
    {NULL, 0, 0, 0, NULL},
};
static PyType_Slot map_slots[] = {
    {Py_tp_new, map_new},         {Py_tp_dealloc, map_dealloc}, {Py_tp_methods, map_methods},
    {Py_tp_members, map_members}, {Py_sq_length, map_len},      {0, NULL},
};
static PyType_Spec map_spec = {"kwire._speedups.OffsetMap", sizeof(OffsetMap), 0,
                               Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE, map_slots};
static PyMethodDef functions[] = {
    {"check_records", (PyCFunction)(void *)check_records, METH_FASTCALL | METH_KEYWORDS, NULL},
    {"find_retained", (PyCFunction)(void *)find_retained, METH_VARARGS | METH_KEYWORDS, NULL},
    {"latest_records", (PyCFunction)(void *)latest_records, METH_VARARGS | METH_KEYWORDS, NULL},
    {"rewrite", (PyCFunction)(void *)rewrite, METH_VARARGS | METH_KEYWORDS, NULL},
    {NULL, NULL, 0, NULL},
};
static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "kwire._speedups", NULL, -1, functions, NULL, NULL, NULL, NULL,
};

static PyObject *import_name(const char *module, const char *name) {
    PyObject *imported = PyImport_ImportModule(module);
    PyObject *object = imported ? PyObject_GetAttrString(imported, name) : NULL;
    Py_XDECREF(imported);
    return object;
}

PyMODINIT_FUNC PyInit__speedups(void) {
    bad_records = import_name("kwire.records.iterate", "BadRecords");
    checked_records = bad_records ? import_name("kwire.records.walked", "CheckedRecords") : NULL;
    retained_class = checked_records ? import_name("kwire.records.walked", "Retained") : NULL;
    new_tuple = (newfunc)PyType_GetSlot(&PyTuple_Type, Py_tp_new);
    map_type = retained_class ? (PyTypeObject *)PyType_FromSpec(&map_spec) : NULL;
    PyObject *module = map_type ? PyModule_Create(&definition) : NULL;
    if (module && (PyModule_AddStringConstant(module, "IMPLEMENTATION", "c") < 0 ||
                   PyModule_AddObjectRef(module, "OffsetMap", (PyObject *)map_type) < 0))
        Py_CLEAR(module);
    return module;
}
