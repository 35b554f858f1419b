/* Rows of the ledger and of series, and the user's line that is running, without a Python frame or an object for any
   of them: put into memory that the flush thread takes as it is. */
#ifdef HAVE_LAYERS
#include <frameobject.h>

#define LINES 64          /* places in the user's code that are remembered */
#define WAITING 100000    /* rows of a table that may wait: more are dropped and counted */
#define FIRST_ROOM 1024

#pragma pack(push, 1)
typedef struct {
    int64_t step, seq;
    int32_t site, pass;
    uint8_t call;
    double value, aux;
    uint64_t digest;
    int32_t source;
    int64_t wall, duration;
} call_row;

typedef struct {
    int64_t step, seq;
    int32_t site, pass;
    double value;
    int64_t wall;
} scalar_row;
#pragma pack(pop)

typedef struct {
    char *at;
    int64_t used, room, lost;
} table;

typedef struct {
    PyCodeObject *code;
    int at;
    PyObject *number;
} line;

typedef struct {
    PyObject_HEAD PyObject *recorder, *next_seq, *calls, *latest, *series, *new_series, *users, *is_user, *new_line;
    table call_rows, scalar_rows;
    line lines[LINES];
} rows;

static PyObject *S_step, *S_at_step, *S_pass_id, *S_digest, *S_duration, *S_value, *S_aux, *S_source, *S_site;

static void *new_row(table *of, size_t width)
{
    if (of->used == of->room) {
        int64_t room = of->room ? of->room * 2 : FIRST_ROOM;
        room = room > WAITING ? WAITING : room;
        char *more = room > of->used ? PyMem_Realloc(of->at, (size_t)room * width) : NULL;
        if (!more) {
            of->lost++;
            return NULL;
        }
        of->at = more;
        of->room = room;
    }
    return of->at + (size_t)of->used++ * width;
}

static int64_t whole(PyObject *from) { return PyLong_AsLongLong(from); }
static double real(PyObject *from) { return from == Py_None ? NAN : PyFloat_AsDouble(from); }

/* Which of `known` a name is; both are interned, mostly. */
static int which(PyObject *name, PyObject *const *known, int count)
{
    for (int i = 0; i < count; i++)
        if (known[i] == name)
            return i;
    for (int i = 0; i < count; i++)
        if (PyUnicode_Compare(known[i], name) == 0)
            return i;
    PyErr_Format(PyExc_TypeError, "unknown argument %R", name);
    return -1;
}

static int now_of(rows *of, int64_t *step, PyObject **seq)
{
    if (!of->recorder) { /* what it belongs to is being collected */
        PyErr_SetString(PyExc_RuntimeError, "the recorder is gone");
        return 0;
    }
    PyObject *now = PyObject_GetAttr(of->recorder, S_step);
    *step = now ? whole(now) : -1;
    Py_XDECREF(now);
    *seq = PyErr_Occurred() ? NULL : PyObject_CallNoArgs(of->next_seq);
    return *seq != NULL;
}

static int code_of_call(rows *of, PyObject *call)
{
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(of->calls); i++)
        if (PyTuple_GET_ITEM(of->calls, i) == call)
            return (int)i + 1;
    PyErr_Format(PyExc_TypeError, "no call of the ledger: %R", call);
    return 0;
}

static void set_field(call_row *row, int field, PyObject *to)
{
    switch (field) {
    case 0: row->site = (int32_t)whole(to); break;
    case 1: row->value = real(to); break;
    case 2: row->aux = real(to); break;
    case 3: row->source = (int32_t)whole(to); break;
    case 4: row->step = whole(to); break;
    case 5: row->pass = (int32_t)whole(to); break;
    case 6: row->digest = PyLong_AsUnsignedLongLong(to); break;
    case 7: row->duration = whole(to); break;
    }
}

PyDoc_STRVAR(call_doc, "call(call, site=-1, *, value, aux, source, at_step, pass_id, digest, duration_ns) -> its number");

static PyObject *rows_call(PyObject *self, PyObject *const *args, Py_ssize_t given, PyObject *names)
{
    rows *of = (rows *)self;
    PyObject *const known[] = {S_site, S_value, S_aux, S_source, S_at_step, S_pass_id, S_digest, S_duration}, *seq;
    call_row row = {.site = -1, .pass = -1, .value = NAN, .aux = NAN, .source = -1, .duration = -1};
    if (given < 1 || given > 2)
        return PyErr_Format(PyExc_TypeError, "call takes a call and a site, not %zd arguments", given);
    int code = of->calls ? code_of_call(of, args[0]) : 1;
    if (!code || !now_of(of, &row.step, &seq))
        return NULL;
    row.call = (uint8_t)code;
    row.seq = whole(seq);
    if (given > 1)
        set_field(&row, 0, args[1]);
    for (Py_ssize_t i = 0; names && i < PyTuple_GET_SIZE(names); i++)
        set_field(&row, which(PyTuple_GET_ITEM(names, i), known, 8), args[given + i]);
    row.wall = clock_of(CLOCK_REALTIME);
    if (PyErr_Occurred()) {
        Py_DECREF(seq);
        return NULL;
    }
    call_row *to = new_row(&of->call_rows, sizeof row);
    if (to)
        *to = row;
    return seq;
}

static PyObject *series_of(rows *of, PyObject *name)
{
    PyObject *known = PyDict_GetItemWithError(of->series, name);
    if (known || PyErr_Occurred())
        return Py_XNewRef(known);
    return PyObject_CallOneArg(of->new_series, name);
}

PyDoc_STRVAR(scalar_doc, "scalar(name, value, *, step=None, pass_id=-1): the next value of a series");

static PyObject *rows_scalar(PyObject *self, PyObject *const *args, Py_ssize_t given, PyObject *names)
{
    rows *of = (rows *)self;
    PyObject *const known[] = {S_step, S_pass_id}, *seq;
    scalar_row row = {.pass = -1};
    if (given != 2)
        return PyErr_Format(PyExc_TypeError, "scalar takes a name and a value, not %zd arguments", given);
    if (of->latest && PyDict_SetItem(of->latest, args[0], args[1]) < 0)
        return NULL;
    PyObject *site = of->series ? series_of(of, args[0]) : PyLong_FromLong(-1);
    if (!site || !now_of(of, &row.step, &seq)) {
        Py_XDECREF(site);
        return NULL;
    }
    row.seq = whole(seq);
    row.site = (int32_t)whole(site);
    row.value = real(args[1]);
    for (Py_ssize_t i = 0; names && i < PyTuple_GET_SIZE(names); i++) {
        int field = which(PyTuple_GET_ITEM(names, i), known, 2);
        if (field == 1)
            row.pass = (int32_t)whole(args[given + i]);
        else if (field == 0 && args[given + i] != Py_None)
            row.step = whole(args[given + i]);
    }
    row.wall = clock_of(CLOCK_REALTIME);
    Py_DECREF(seq);
    Py_DECREF(site);
    if (PyErr_Occurred())
        return NULL;
    scalar_row *to = new_row(&of->scalar_rows, sizeof row);
    if (to)
        *to = row;
    Py_RETURN_NONE;
}

/* -- lines -------------------------------------------------------------------------------------------------------- */

/* Whether a file is the user's: as the dict says, or as Python does, which puts it there. -1 = an error. */
static int is_users(PyObject *users, PyObject *is_user, PyObject *file)
{
    PyObject *known = PyDict_GetItemWithError(users, file);
    if (known)
        return known == Py_True;
    if (PyErr_Occurred())
        return -1;
    PyObject *found = PyObject_CallOneArg(is_user, file);
    int so = found ? PyObject_IsTrue(found) : -1;
    Py_XDECREF(found);
    return so;
}

/* The innermost frame of the user's, and its code; NULL without an error where there is none. */
static PyFrameObject *users_frame(rows *of, PyCodeObject **code)
{
    PyFrameObject *frame = PyEval_GetFrame();
    Py_XINCREF(frame);
    while (frame) {
        *code = PyFrame_GetCode(frame);
        int users = is_users(of->users, of->is_user, (*code)->co_filename);
        if (users == 1)
            return frame;
        Py_DECREF(*code);
        PyFrameObject *back = users < 0 ? NULL : PyFrame_GetBack(frame);
        Py_DECREF(frame);
        frame = back;
    }
    return NULL;
}

static PyObject *number_of_line(rows *of, PyFrameObject *frame, PyCodeObject *code)
{
#if PY_VERSION_HEX >= 0x030B0000
    int at = PyFrame_GetLasti(frame);
    line *one = &of->lines[(((uintptr_t)code >> 5) + (uintptr_t)at / 2) % LINES];
    if (one->code == code && one->at == at)
        return Py_NewRef(one->number);
    PyObject *number = PyObject_CallOneArg(of->new_line, (PyObject *)frame);
    if (number) {
        Py_XSETREF(one->code, (PyCodeObject *)Py_NewRef(code));
        Py_XSETREF(one->number, Py_NewRef(number));
        one->at = at;
    }
    return number;
#else
    return PyObject_CallOneArg(of->new_line, (PyObject *)frame);
#endif
}

PyDoc_STRVAR(source_doc, "source(depth=1) -> the id of the user's line that is running now; -1 when there is none");

static PyObject *rows_source(PyObject *self, PyObject *const *args, Py_ssize_t given)
{
    rows *of = (rows *)self;
    PyCodeObject *code;
    PyFrameObject *frame = of->users ? users_frame(of, &code) : NULL;
    if (!frame)
        return PyErr_Occurred() ? NULL : PyLong_FromLong(-1);
    PyObject *number = number_of_line(of, frame, code);
    Py_DECREF(code);
    Py_DECREF(frame);
    return number;
}

/* -- the type ----------------------------------------------------------------------------------------------------- */

static PyObject *rows_drain(PyObject *self, PyObject *ignored)
{
    rows *of = (rows *)self;
    PyObject *calls = taken_rows(of->call_rows.at, &of->call_rows.used, sizeof(call_row));
    PyObject *scalars = taken_rows(of->scalar_rows.at, &of->scalar_rows.used, sizeof(scalar_row));
    long long lost = of->call_rows.lost, lost_scalars = of->scalar_rows.lost;
    of->call_rows.lost = of->scalar_rows.lost = 0;
    if (calls && scalars)
        return Py_BuildValue("(NNLL)", calls, scalars, lost, lost_scalars);
    Py_XDECREF(calls);
    Py_XDECREF(scalars);
    return NULL;
}

static int rows_traverse(PyObject *self, visitproc visit, void *arg)
{
    rows *of = (rows *)self;
    Py_VISIT(Py_TYPE(self));
    PyObject *held[] = {of->recorder, of->next_seq, of->calls,   of->latest,  of->series,
                        of->users,    of->is_user,  of->new_line, of->new_series};
    for (size_t i = 0; i < sizeof held / sizeof held[0]; i++)
        Py_VISIT(held[i]);
    return 0;
}

static int rows_clear(PyObject *self)
{
    rows *of = (rows *)self;
    PyObject **held[] = {&of->recorder, &of->next_seq, &of->calls,    &of->latest,    &of->series,
                         &of->users,    &of->is_user,  &of->new_line, &of->new_series};
    for (size_t i = 0; i < sizeof held / sizeof held[0]; i++)
        Py_CLEAR(*held[i]);
    for (int i = 0; i < LINES; i++) {
        Py_CLEAR(of->lines[i].code);
        Py_CLEAR(of->lines[i].number);
    }
    return 0;
}

static void rows_dealloc(PyObject *self)
{
    rows *of = (rows *)self;
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    rows_clear(self);
    PyMem_Free(of->call_rows.at);
    PyMem_Free(of->scalar_rows.at);
    type->tp_free(self);
    Py_DECREF(type);
}

static PyObject *rows_new(PyTypeObject *type, PyObject *args, PyObject *names)
{
    PyObject *o[9];
    if (!PyArg_ParseTuple(args, "OOO!O!O!OO!OO", &o[0], &o[1], &PyTuple_Type, &o[2], &PyDict_Type, &o[3], &PyDict_Type,
                          &o[4], &o[5], &PyDict_Type, &o[6], &o[7], &o[8]))
        return NULL;
    rows *of = (rows *)type->tp_alloc(type, 0);
    if (!of)
        return NULL;
    PyObject **held[] = {&of->recorder, &of->next_seq, &of->calls,   &of->latest,  &of->series,
                         &of->new_series, &of->users,  &of->is_user, &of->new_line};
    for (int i = 0; i < 9; i++)
        *held[i] = Py_NewRef(o[i]);
    return (PyObject *)of;
}

static PyMethodDef rows_methods[] = {
    {"call", (PyCFunction)(void (*)(void))rows_call, METH_FASTCALL | METH_KEYWORDS, call_doc},
    {"scalar", (PyCFunction)(void (*)(void))rows_scalar, METH_FASTCALL | METH_KEYWORDS, scalar_doc},
    {"source", (PyCFunction)(void (*)(void))rows_source, METH_FASTCALL, source_doc},
    {"drain", rows_drain, METH_NOARGS, "drain() -> (rows of calls, rows of scalars, of both how many were lost since)"},
    {NULL, NULL, 0, NULL},
};
static PyType_Slot rows_slots[] = {
    {Py_tp_new, rows_new},         {Py_tp_dealloc, rows_dealloc}, {Py_tp_traverse, rows_traverse},
    {Py_tp_clear, rows_clear},     {Py_tp_methods, rows_methods}, {0, NULL},
};
static PyType_Spec rows_spec = {
    "neuraldbg.capture.kernels._fused.Rows", sizeof(rows), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC, rows_slots,
};
#endif
