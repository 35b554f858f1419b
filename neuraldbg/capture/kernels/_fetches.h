/* Methods of tensors that bring a value to the host, counted and timed. A warning that torch gives in one of them names
   the user's line: there is no frame of ours in between. */
#ifdef HAVE_LAYERS

#define BURST_NS 20000 /* between two fetches of one loop */
#define MEASURED_ONE_OF 16 /* calls, after the first ones: those have their line looked up */

typedef struct {
    PyObject_HEAD PyObject *core, *cannot_look, *users, *is_user, *note_line;
    int64_t calls, own, last;
    char inside;
} fetches;

typedef struct {
    PyObject_HEAD vectorcallfunc call;
    fetches *of;
    PyObject *original, *dict, *weak;
} fetch;

static PyTypeObject *fetch_type = NULL;

/* Whether this call is one of the user's that counts. -1 = an error */
static int counts(fetches *of)
{
    PyFrameObject *frame = of->inside || !of->core ? NULL : PyEval_GetFrame();
    if (!frame)
        return 0;
    PyCodeObject *code = PyFrame_GetCode(frame);
    int so = is_users(of->users, of->is_user, code->co_filename);
    Py_DECREF(code);
    if (so == 1)
        so = attribute_is(of->core, S_on, Py_True);
    if (so != 1)
        return so;
    PyObject *blind = PyObject_CallNoArgs(of->cannot_look);
    so = blind ? PyObject_IsTrue(blind) : -1;
    Py_XDECREF(blind);
    return so < 0 ? -1 : !so;
}

static void fetched(fetches *of, int64_t start)
{
    of->last = clock_of(CLOCK_MONOTONIC);
    of->own += of->last - start;
    of->inside = 0;
    of->calls++;
    if (of->calls > MEASURED_ONE_OF && of->calls % MEASURED_ONE_OF)
        return;
    PyObject *kind, *value, *trace;
    PyErr_Fetch(&kind, &value, &trace);
    PyObject *noted = PyObject_CallNoArgs(of->note_line);
    if (!noted)
        PyErr_Clear();
    Py_XDECREF(noted);
    PyErr_Restore(kind, value, trace);
}

static PyObject *fetch_call(PyObject *self, PyObject *const *args, size_t given, PyObject *names)
{
    fetch *mine = (fetch *)self;
    fetches *of = mine->of;
    int counted = counts(of);
    if (counted < 0)
        PyErr_Clear();
    if (counted != 1)
        return PyObject_Vectorcall(mine->original, args, given, names);
    of->inside = 1;
    int64_t start = clock_of(CLOCK_MONOTONIC);
    if (start - of->last < BURST_NS)
        of->own += start - of->last; /* a loop over elements: what it does in between serves nothing else */
    Py_INCREF(of);
    PyObject *result = PyObject_Vectorcall(mine->original, args, given, names);
    fetched(of, start);
    Py_DECREF(of);
    return result;
}

static PyObject *fetch_bind(PyObject *self, PyObject *of, PyObject *type)
{
    return of && of != Py_None ? PyMethod_New(self, of) : Py_NewRef(self);
}

static int fetch_traverse(PyObject *self, visitproc visit, void *arg)
{
    fetch *mine = (fetch *)self;
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(mine->of);
    Py_VISIT(mine->original);
    Py_VISIT(mine->dict);
    return 0;
}

static int fetch_clear(PyObject *self)
{
    Py_CLEAR(((fetch *)self)->dict);
    return 0;
}

static void fetch_dealloc(PyObject *self)
{
    fetch *mine = (fetch *)self;
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    if (mine->weak)
        PyObject_ClearWeakRefs(self);
    fetch_clear(self);
    Py_DECREF(mine->of);
    Py_DECREF(mine->original);
    PyObject_GC_Del(self);
    Py_DECREF(type);
}

static PyMemberDef fetch_members[] = {
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(fetch, call), READONLY, NULL},
    {"__dictoffset__", T_PYSSIZET, offsetof(fetch, dict), READONLY, NULL},
    {"__weaklistoffset__", T_PYSSIZET, offsetof(fetch, weak), READONLY, NULL},
    {NULL, 0, 0, 0, NULL},
};
static PyGetSetDef fetch_getset[] = {
    {"__dict__", PyObject_GenericGetDict, PyObject_GenericSetDict, NULL, NULL},
    {NULL, NULL, NULL, NULL, NULL},
};
static PyType_Slot fetch_slots[] = {
    {Py_tp_dealloc, fetch_dealloc},  {Py_tp_traverse, fetch_traverse},  {Py_tp_clear, fetch_clear},
    {Py_tp_call, PyVectorcall_Call}, {Py_tp_descr_get, fetch_bind},     {Py_tp_members, fetch_members},
    {Py_tp_getset, fetch_getset},    {0, NULL},
};
static PyType_Spec fetch_spec = {
    "neuraldbg.capture.kernels._fused.Fetch", sizeof(fetch), 0,
    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL | Py_TPFLAGS_METHOD_DESCRIPTOR |
        Py_TPFLAGS_DISALLOW_INSTANTIATION,
    fetch_slots,
};

/* -- what they share ---------------------------------------------------------------------------------------------- */

static PyObject *fetches_counted(PyObject *self, PyObject *original)
{
    fetch *made = PyObject_GC_New(fetch, fetch_type);
    if (!made)
        return NULL;
    made->call = fetch_call;
    made->of = (fetches *)Py_NewRef(self);
    made->original = Py_NewRef(original);
    made->dict = made->weak = NULL;
    PyObject_GC_Track(made);
    return (PyObject *)made;
}

static PyObject *fetches_new(PyTypeObject *type, PyObject *args, PyObject *names)
{
    PyObject *o[5];
    if (!PyArg_ParseTuple(args, "OOO!OO", &o[0], &o[1], &PyDict_Type, &o[2], &o[3], &o[4]))
        return NULL;
    fetches *of = (fetches *)type->tp_alloc(type, 0);
    if (!of)
        return NULL;
    PyObject **held[] = {&of->core, &of->cannot_look, &of->users, &of->is_user, &of->note_line};
    for (int i = 0; i < 5; i++)
        *held[i] = Py_NewRef(o[i]);
    return (PyObject *)of;
}

static int fetches_traverse(PyObject *self, visitproc visit, void *arg)
{
    fetches *of = (fetches *)self;
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(of->core);
    Py_VISIT(of->cannot_look);
    Py_VISIT(of->users);
    Py_VISIT(of->is_user);
    Py_VISIT(of->note_line);
    return 0;
}

static int fetches_clear(PyObject *self)
{
    fetches *of = (fetches *)self;
    Py_CLEAR(of->core); /* without it nothing is counted, and the others are not needed */
    Py_CLEAR(of->cannot_look);
    Py_CLEAR(of->users);
    Py_CLEAR(of->is_user);
    Py_CLEAR(of->note_line);
    return 0;
}

static void fetches_dealloc(PyObject *self)
{
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    fetches_clear(self);
    type->tp_free(self);
    Py_DECREF(type);
}

static PyMemberDef fetches_members[] = {
    {"calls", T_LONGLONG, offsetof(fetches, calls), READONLY, "Of the user's, so far."},
    {"own_ns", T_LONGLONG, offsetof(fetches, own), READONLY, "Time in them."},
    {NULL, 0, 0, 0, NULL},
};
static PyMethodDef fetches_methods[] = {
    {"counted", fetches_counted, METH_O, "counted(original) -> the same, counted when the user calls it"},
    {NULL, NULL, 0, NULL},
};
static PyType_Slot fetches_slots[] = {
    {Py_tp_new, fetches_new},         {Py_tp_dealloc, fetches_dealloc}, {Py_tp_traverse, fetches_traverse},
    {Py_tp_clear, fetches_clear},     {Py_tp_methods, fetches_methods}, {Py_tp_members, fetches_members},
    {0, NULL},
};
static PyType_Spec fetches_spec = {
    "neuraldbg.capture.kernels._fused.Fetches", sizeof(fetches), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    fetches_slots,
};
#endif
