/* The module neuraldbg.capture.kernels._fused: statistics of tensors in host memory, given by address.

   Nothing here knows torch or numpy: a tensor is an address, a code for its element type and a count, and the caller
   keeps it alive. The results are tuples in the order of the columns of the trace. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <structmember.h>

#include "_measure.h"
#include "_spread.h"

#define RELEASE_BYTES (1 << 20) /* below it, waiting to get the lock back costs more than the pass */
#define WITH_HASH 1
#define WITH_POWERS 2
#define SET_SHIFT 8 /* flags >> 8: 1 + number of the instruction set to use, 0 = the best */

typedef struct {
    const char *at, *gradient, *before;
    int dtype, gradient_dtype;
    int64_t count;
    measured now, gradient_now, moved;
    uint64_t hash;
} job;

static int best = 0;

static const instruction_set *set_of(unsigned long flags)
{
    unsigned long wanted = flags >> SET_SHIFT;
    return SETS[wanted && wanted <= (unsigned long)best + 1 ? wanted - 1 : (unsigned long)best];
}

static PyObject *row_of(const measured *one, uint64_t hash)
{
    const moments *of = &one->of;
    double n = of->finite, nan = NAN, scale = one->scale;
    if (n == 0)
        return Py_BuildValue("(LdddddLLLK)", (long long)one->count, nan, nan, nan, nan, nan, (long long)of->zeros,
                             (long long)of->nans, (long long)of->infs, (unsigned long long)hash);
    return Py_BuildValue("(LdddddLLLK)", (long long)one->count, of->mean / scale, sqrt(of->m2 / n) / scale,
                         of->low, of->high, sqrt(of->m2 + n * of->mean * of->mean) / scale,
                         (long long)of->zeros, (long long)of->nans, (long long)of->infs, (unsigned long long)hash);
}

static int is_tensor(const void *at, long dtype, long long count)
{
    if (dtype >= 0 && dtype < DTYPES && count >= 0 && (at || !count))
        return 1;
    PyErr_Format(PyExc_ValueError, "no tensor: address %p, type %ld, %lld elements", at, dtype, count);
    return 0;
}

static int read_number(PyObject *from, long long *into)
{
    *into = PyLong_AsLongLong(from);
    return *into != -1 || !PyErr_Occurred();
}

static int read_tensor(PyObject *const *three, job *one)
{
    long long dtype, count;
    one->at = PyLong_AsVoidPtr(three[0]);
    if (PyErr_Occurred() || !read_number(three[1], &dtype) || !read_number(three[2], &count))
        return 0;
    if (!is_tensor(one->at, (long)dtype, count))
        return 0;
    one->dtype = (int)dtype;
    one->count = count;
    return 1;
}

PyDoc_STRVAR(measure_doc, "measure(address, dtype, count, flags=0, octaves=None, every=1) -> row\n\n"
                          "flags: 1 = with the hash. octaves: a writable buffer of 64 int64 that is added to.");

static PyObject *measure(PyObject *self, PyObject *const *args, Py_ssize_t given)
{
    job one = {0};
    histogram octaves = {NULL, 1};
    Py_buffer buffer = {0};
    unsigned long flags = given > 3 ? PyLong_AsUnsignedLong(args[3]) : 0;
    if (given < 3 || given > 6)
        return PyErr_Format(PyExc_TypeError, "measure takes 3 to 6 arguments, not %zd", given);
    if (PyErr_Occurred() || !read_tensor(args, &one))
        return NULL;
    if (given > 5 && (!read_number(args[5], (long long *)&octaves.every) || octaves.every < 1))
        return PyErr_Occurred() ? NULL : PyErr_Format(PyExc_ValueError, "every is at least 1");
    if (given > 4 && args[4] != Py_None) {
        if (PyObject_GetBuffer(args[4], &buffer, PyBUF_WRITABLE) < 0)
            return NULL;
        if (buffer.len != BINS * 8) {
            PyBuffer_Release(&buffer);
            return PyErr_Format(PyExc_ValueError, "octaves are %d int64", BINS);
        }
        octaves.bins = buffer.buf;
    }
    const instruction_set *set = set_of(flags);
    uint64_t *hash = flags & WITH_HASH ? &one.hash : NULL;
    PyThreadState *released = one.count * WIDTH[one.dtype] >= RELEASE_BYTES ? PyEval_SaveThread() : NULL;
    float_state floats = plain_floats();
    one.now = measure_one(set, one.at, one.dtype, one.count, hash, octaves);
    restore_floats(floats);
    if (released)
        PyEval_RestoreThread(released);
    if (buffer.obj)
        PyBuffer_Release(&buffer);
    return row_of(&one.now, one.hash);
}

PyDoc_STRVAR(spread_doc, "spread(address, dtype, count, (mean, std, low, high), counts, flags=0) -> (l1, z, z2, z3, z4)\n\n"
                         "Sums over the finite values of |x| and of powers of z = (x - mean) / std; counts: a writable\n"
                         "buffer of 1 to 63 int64, the bins from low to high, that is added to. flags: 2 = with the powers of z,\n"
                         "which are 0 without. None = a range or a\n"
                         "spread whose products do not fit into floats.");

static int read_spread(PyObject *const *args, spread_of *of, double *low, double *high, Py_buffer *counts)
{
    double std;
    if (!PyArg_ParseTuple(args[3], "dddd", &of->mean, &std, low, high))
        return 0;
    if (PyObject_GetBuffer(args[4], counts, PyBUF_WRITABLE) < 0)
        return 0;
    if (counts->len % 8 || counts->len < 8 || counts->len > MOST_BINS * 8) {
        PyBuffer_Release(counts);
        PyErr_Format(PyExc_ValueError, "counts are 1 to %d int64", MOST_BINS);
        return 0;
    }
    of->bins = (int)(counts->len / 8);
    of->low = *low;
    of->per_std = std > 0 ? 1 / std : 0;
    of->per_width = *high > *low ? of->bins / (*high - *low) : 0;
    return 1;
}

static PyObject *spread(PyObject *self, PyObject *const *args, Py_ssize_t given)
{
    job one = {0};
    spread_of of = {0};
    Py_buffer counts = {0};
    double low, high;
    unsigned long flags = given > 5 ? PyLong_AsUnsignedLong(args[5]) : 0;
    if (given < 5 || given > 6)
        return PyErr_Format(PyExc_TypeError, "spread takes 5 or 6 arguments, not %zd", given);
    if (PyErr_Occurred() || !read_tensor(args, &one) || !read_spread(args, &of, &low, &high, &counts))
        return NULL;
    if (!spread_fits(&of, low, high, is_wide(one.dtype))) {
        PyBuffer_Release(&counts);
        Py_RETURN_NONE;
    }
    PyThreadState *released = one.count * WIDTH[one.dtype] >= RELEASE_BYTES ? PyEval_SaveThread() : NULL;
    float_state floats = plain_floats();
    spread_sums found = spread_one(set_of(flags), one.at, one.dtype, one.count, &of, flags & WITH_POWERS, counts.buf);
    restore_floats(floats);
    if (released)
        PyEval_RestoreThread(released);
    PyBuffer_Release(&counts);
    return Py_BuildValue("(ddddd)", found.l1, found.z[0], found.z[1], found.z[2], found.z[3]);
}

static uint64_t hash_of_bytes(const instruction_set *set, const char *at, int64_t bytes)
{
    hash_sums sums = {0, 0};
    PyThreadState *released = bytes >= RELEASE_BYTES ? PyEval_SaveThread() : NULL;
    set->hash((const unsigned char *)at, (size_t)(bytes / 8), 0, &sums);
    uint64_t found = finished(sums, at, bytes);
    if (released)
        PyEval_RestoreThread(released);
    return found;
}

PyDoc_STRVAR(hash_doc, "hash(address, bytes, flags=0) -> int");

static PyObject *hash(PyObject *self, PyObject *const *args, Py_ssize_t given)
{
    long long bytes = 0;
    const char *at = given > 0 ? PyLong_AsVoidPtr(args[0]) : NULL;
    unsigned long flags = given > 2 ? PyLong_AsUnsignedLong(args[2]) : 0;
    if (given < 2 || given > 3)
        return PyErr_Format(PyExc_TypeError, "hash takes 2 or 3 arguments, not %zd", given);
    if (PyErr_Occurred() || !read_number(args[1], &bytes) || !is_tensor(at, U8, bytes))
        return NULL;
    return PyLong_FromUnsignedLongLong(hash_of_bytes(set_of(flags), at, bytes));
}

static PyObject *hashes_of_rows(const char *at, int64_t rows, int64_t bytes)
{
    PyObject *found = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)(8 * rows));
    for (int64_t i = 0; found && i < rows; i++) {
        uint64_t one = hash_of_bytes(set_of(0), at + i * bytes, bytes);
        memcpy(PyBytes_AS_STRING(found) + 8 * i, &one, 8);
    }
    return found;
}

PyDoc_STRVAR(rows_doc, "hash_rows(address, rows, bytes of one) -> bytes\n\nEight of each row: its hash.");

static PyObject *hash_rows(PyObject *self, PyObject *const *args, Py_ssize_t given)
{
    long long rows = 0, bytes = 0;
    const char *at = given > 0 ? PyLong_AsVoidPtr(args[0]) : NULL;
    if (given != 3)
        return PyErr_Format(PyExc_TypeError, "hash_rows takes 3 arguments, not %zd", given);
    if (PyErr_Occurred() || !read_number(args[1], &rows) || !read_number(args[2], &bytes))
        return NULL;
    if (rows < 0 || bytes < 1 || rows > INT64_MAX / 8 / bytes || !is_tensor(at, U8, rows * bytes)) {
        if (!PyErr_Occurred())
            PyErr_SetString(PyExc_ValueError, "rows are counted from 0, and hold a byte at least");
        return NULL;
    }
    return hashes_of_rows(at, rows, bytes);
}

static int read_job(PyObject *item, job *one)
{
    PyObject *fast = PySequence_Tuple(item);
    long long gradient_dtype = 0;
    Py_ssize_t given = fast ? PyTuple_GET_SIZE(fast) : 0;
    int right = given == 3 || given == 6;
    if (fast && !right)
        PyErr_SetString(PyExc_TypeError, "a tensor is (address, dtype, count) or also (gradient, its dtype, before)");
    if (right) {
        PyObject **items = &PyTuple_GET_ITEM(fast, 0);
        right = read_tensor(items, one);
        if (right && given == 6) {
            one->gradient = PyLong_AsVoidPtr(items[3]);
            right = !PyErr_Occurred() && read_number(items[4], &gradient_dtype);
            one->gradient_dtype = (int)gradient_dtype;
            right = right && is_tensor("", (long)gradient_dtype, one->count);
            one->before = right ? PyLong_AsVoidPtr(items[5]) : NULL;
            right = right && !PyErr_Occurred();
        }
    }
    Py_XDECREF(fast);
    return right;
}

static void run_job(const instruction_set *set, job *one, int hash)
{
    const histogram none = {NULL, 1};
    if (one->gradient)
        one->gradient_now = measure_one(set, one->gradient, one->gradient_dtype, one->count, NULL, none);
    if (one->before)
        measure_moved(set, one->at, one->before, one->dtype, one->count, &one->now, &one->moved);
    else
        one->now = measure_one(set, one->at, one->dtype, one->count, hash ? &one->hash : NULL, none);
}

static PyObject *rows_of(const job *one, int triple)
{
    PyObject *now = row_of(&one->now, one->hash), *gradient, *moved;
    if (!triple || !now)
        return now;
    gradient = one->gradient ? row_of(&one->gradient_now, 0) : Py_NewRef(Py_None);
    moved = one->before ? row_of(&one->moved, 0) : Py_NewRef(Py_None);
    if (!gradient || !moved) {
        Py_DECREF(now);
        Py_XDECREF(gradient);
        Py_XDECREF(moved);
        return NULL;
    }
    return Py_BuildValue("(NNN)", now, gradient, moved);
}

static PyObject *run_all(PyObject *tensors, unsigned long flags, int triple)
{
    PyObject *items = PySequence_Fast(tensors, "tensors are a sequence"), *rows = NULL;
    Py_ssize_t n = items ? PySequence_Fast_GET_SIZE(items) : 0;
    job *jobs = items ? PyMem_Calloc((size_t)n + 1, sizeof(job)) : NULL;
    int64_t bytes = 0;
    if (items && !jobs)
        PyErr_NoMemory();
    int right = jobs != NULL;
    for (Py_ssize_t i = 0; right && i < n; i++) {
        right = read_job(PySequence_Fast_GET_ITEM(items, i), &jobs[i]);
        bytes += jobs[i].count * WIDTH[right ? jobs[i].dtype : 0];
    }
    if (right) {
        PyThreadState *released = bytes >= RELEASE_BYTES ? PyEval_SaveThread() : NULL;
        float_state floats = plain_floats();
        for (Py_ssize_t i = 0; i < n; i++)
            run_job(set_of(flags), &jobs[i], flags & WITH_HASH);
        restore_floats(floats);
        if (released)
            PyEval_RestoreThread(released);
        rows = PyList_New(n);
    }
    for (Py_ssize_t i = 0; rows && i < n; i++) {
        PyObject *row = rows_of(&jobs[i], triple);
        if (row)
            PyList_SET_ITEM(rows, i, row);
        else
            Py_CLEAR(rows);
    }
    PyMem_Free(jobs);
    Py_XDECREF(items);
    return rows;
}

static PyObject *of_many(PyObject *const *args, Py_ssize_t given, int triple)
{
    unsigned long flags = given > 1 ? PyLong_AsUnsignedLong(args[1]) : 0;
    if (given < 1 || given > 2)
        return PyErr_Format(PyExc_TypeError, "takes tensors and flags, not %zd arguments", given);
    return PyErr_Occurred() ? NULL : run_all(args[0], flags, triple);
}

PyDoc_STRVAR(many_doc, "measure_many([(address, dtype, count), ...], flags=0) -> [row, ...]");

static PyObject *measure_many(PyObject *self, PyObject *const *args, Py_ssize_t given)
{
    return of_many(args, given, 0);
}

PyDoc_STRVAR(sweep_doc, "sweep([(address, dtype, count, gradient, its dtype, before), ...], flags=0) -> [(row, row, row), ...]\n\n"
                        "Of each parameter its value, its gradient and how far it moved; 0 as an address gives None.");

static PyObject *sweep(PyObject *self, PyObject *const *args, Py_ssize_t given) { return of_many(args, given, 1); }

#include "_layers.h"
#include "_layers_type.h"
#include "_rows.h"
#include "_calls.h"
#include "_fetches.h"
#include "_reader.h"
#include "_members.h"
#include "_frameless.h"

static PyMethodDef methods[] = {
    {"measure", (PyCFunction)(void (*)(void))measure, METH_FASTCALL, measure_doc},
    {"spread", (PyCFunction)(void (*)(void))spread, METH_FASTCALL, spread_doc},
    {"hash_rows", (PyCFunction)(void (*)(void))hash_rows, METH_FASTCALL, rows_doc},
    {"hash", (PyCFunction)(void (*)(void))hash, METH_FASTCALL, hash_doc},
    {"measure_many", (PyCFunction)(void (*)(void))measure_many, METH_FASTCALL, many_doc},
    {"sweep", (PyCFunction)(void (*)(void))sweep, METH_FASTCALL, sweep_doc},
#ifdef HAVE_LAYERS
    {"shield", new_shield, METH_VARARGS, shield_doc},
    {"hang", (PyCFunction)(void (*)(void))hang_on, METH_FASTCALL, hang_doc},
    {"keep", (PyCFunction)(void (*)(void))keep, METH_FASTCALL, keep_doc},
    {"mark", (PyCFunction)(void (*)(void))mark, METH_FASTCALL, mark_doc},
    {"as_marked", (PyCFunction)(void (*)(void))as_marked, METH_FASTCALL, as_marked_doc},
    {"surroundings", (PyCFunction)(void (*)(void))surroundings_of, METH_FASTCALL, surroundings_doc},
    {"instances_of", (PyCFunction)(void (*)(void))instances_of, METH_FASTCALL, instances_doc},
    {"tell", (PyCFunction)(void (*)(void))tell, METH_FASTCALL, tell_doc},
    {"modules_in", (PyCFunction)(void (*)(void))modules_in, METH_FASTCALL, modules_doc},
    {"named_modules_in", (PyCFunction)(void (*)(void))named_modules_in, METH_FASTCALL, named_modules_doc},
    {"held_in", (PyCFunction)(void (*)(void))held_in, METH_FASTCALL, held_doc},
    {"usual", (PyCFunction)(void (*)(void))usual, METH_FASTCALL, usual_doc},
#endif
    {NULL, NULL, 0, NULL},
};

static int prepare(PyObject *module)
{
    best = best_set();
    for (uint64_t i = 0; i < KEYS; i++)
        neuraldbg_keys[i] = key_of(i);
    PyObject *names = PyTuple_New(best + 1);
    if (!names)
        return -1;
    for (int i = 0; i <= best; i++)
        PyTuple_SET_ITEM(names, i, PyUnicode_FromString(SET_NAMES[i]));
    int failed = PyModule_AddObjectRef(module, "INSTRUCTION_SETS", names);
    Py_DECREF(names);
#ifdef HAVE_LAYERS
    failed = failed || add_layers(module) < 0 || add_frameless(module) < 0 ? -1 : 0;
#endif
    return failed;
}

static PyModuleDef_Slot slots[] = {
    {Py_mod_exec, prepare},
#ifdef Py_GIL_DISABLED
    {Py_mod_gil, Py_MOD_GIL_NOT_USED},
#endif
    {0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "_fused", "One fused pass per tensor in host memory.", 0, methods, slots, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__fused(void) { return PyModuleDef_Init(&definition); }
