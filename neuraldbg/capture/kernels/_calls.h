/* Calls of ours that are made at every step, without a Python frame: what guards an observer, what tells many of one
   moment, what counts the user's own calls, and a table by identity. What is out of the ordinary is left to Python. */
#ifdef HAVE_LAYERS

#define MOST_TOLD 6 /* arguments of a moment */

static PyObject *S_broken, *S_undisturbed, *S_on, *S_enter, *S_exit;

static PyObject *the_error(void)
{
    PyObject *kind, *value, *trace;
    PyErr_Fetch(&kind, &value, &trace);
    PyErr_NormalizeException(&kind, &value, &trace);
    if (trace)
        PyException_SetTraceback(value, trace);
    Py_XDECREF(kind);
    Py_XDECREF(trace);
    return value;
}

/* -- a guarded observer ------------------------------------------------------------------------------------------- */

typedef struct {
    PyObject_HEAD vectorcallfunc call;
    PyObject *observe, *careful, *caught, *guard, *plain, *dispatch_modes, *function_modes, *hidden, *enter, *leave;
    PyObject *dict;
} shield;

static PyTypeObject *shield_type = NULL;

/* 1 = nothing has failed so far and no mode or other surroundings are to be minded; -1 = an error */
static int all_is_usual(shield *of)
{
    if (!of->guard)
        return 0;
    PyObject *broken = PyObject_GetAttr(of->guard, S_broken);
    int usual = !broken ? -1 : PyDict_Check(broken) && PyDict_GET_SIZE(broken) == 0;
    Py_XDECREF(broken);
    if (usual == 1)
        usual = attribute_is(of->guard, S_undisturbed, of->plain);
    PyObject *modes[] = {of->dispatch_modes, of->function_modes};
    for (int i = 0; usual == 1 && i < 2; i++) {
        PyObject *depth = PyObject_CallNoArgs(modes[i]);
        usual = depth ? !PyObject_IsTrue(depth) : -1;
        Py_XDECREF(depth);
    }
    return usual;
}

/* Nothing that is only ours to know reaches user code: Python says whether this does. */
static PyObject *swallowed(shield *of, PyObject *const *args, Py_ssize_t n)
{
    if (!PyErr_ExceptionMatches(PyExc_Exception))
        return NULL;
    PyObject *error = the_error(), *given = PyTuple_New(n), *result = NULL;
    for (Py_ssize_t i = 0; given && i < n; i++)
        PyTuple_SET_ITEM(given, i, Py_NewRef(args[i]));
    if (given)
        result = PyObject_CallFunctionObjArgs(of->caught, given, error, NULL);
    Py_XDECREF(given);
    Py_XDECREF(error);
    return result;
}

static PyObject *shield_call(PyObject *self, PyObject *const *args, size_t given, PyObject *names)
{
    shield *of = (shield *)self;
    int usual = all_is_usual(of);
    if (usual != 1)
        return usual < 0 ? NULL : PyObject_Vectorcall(of->careful, args, given, names);
    PyObject *hidden = PyObject_CallNoArgs(of->hidden), *entered = hidden ? PyObject_CallOneArg(of->enter, hidden) : NULL;
    if (!entered) {
        Py_XDECREF(hidden);
        return NULL;
    }
    Py_DECREF(entered);
    PyObject *result = PyObject_Vectorcall(of->observe, args, given, names);
    PyObject *kind, *value, *trace;
    PyErr_Fetch(&kind, &value, &trace);
    PyObject *const leaving[] = {hidden, Py_None, Py_None, Py_None};
    PyObject *left = PyObject_Vectorcall(of->leave, leaving, 4, NULL);
    Py_DECREF(hidden);
    if (!left)
        PyErr_Clear(); /* it sets a flag of the thread: it cannot fail */
    Py_XDECREF(left);
    PyErr_Restore(kind, value, trace);
    return result ? result : swallowed(of, args, PyVectorcall_NARGS(given));
}

static int shield_traverse(PyObject *self, visitproc visit, void *arg)
{
    shield *of = (shield *)self;
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(of->observe);
    Py_VISIT(of->careful);
    Py_VISIT(of->caught);
    Py_VISIT(of->guard);
    Py_VISIT(of->plain);
    Py_VISIT(of->dict);
    return 0;
}

static int shield_clear(PyObject *self)
{
    shield *of = (shield *)self;
    Py_CLEAR(of->dict);
    Py_CLEAR(of->guard); /* from now on `careful` is called, which is kept for that */
    return 0;
}

static void shield_dealloc(PyObject *self)
{
    shield *of = (shield *)self;
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    shield_clear(self);
    PyObject **held[] = {&of->observe, &of->careful, &of->caught, &of->plain, &of->dispatch_modes, &of->function_modes,
                         &of->hidden,  &of->enter,   &of->leave};
    for (size_t i = 0; i < sizeof held / sizeof held[0]; i++)
        Py_CLEAR(*held[i]);
    PyObject_GC_Del(self);
    Py_DECREF(type);
}

PyDoc_STRVAR(shield_doc,
             "shield(observe, careful, caught, guard, plain, dispatch_modes, function_modes, hidden) -> observe, guarded\n\n"
             "`hidden` is the context it runs in while `guard.undisturbed` is `plain` and there are no modes; otherwise,\n"
             "and once anything has failed, `careful` is called. `caught(args, error)` swallows or raises.");

static PyObject *new_shield(PyObject *module, PyObject *args)
{
    PyObject *o[8];
    if (!PyArg_ParseTuple(args, "OOOOOOOO", &o[0], &o[1], &o[2], &o[3], &o[4], &o[5], &o[6], &o[7]))
        return NULL;
    PyObject *enter = PyObject_GetAttr(o[7], S_enter), *leave = enter ? PyObject_GetAttr(o[7], S_exit) : NULL;
    shield *of = leave ? PyObject_GC_New(shield, shield_type) : NULL;
    if (!of) {
        Py_XDECREF(enter);
        Py_XDECREF(leave);
        return NULL;
    }
    PyObject **held[] = {&of->observe, &of->careful, &of->caught, &of->guard, &of->plain, &of->dispatch_modes,
                         &of->function_modes, &of->hidden};
    for (int i = 0; i < 8; i++)
        *held[i] = Py_NewRef(o[i]);
    of->enter = enter;
    of->leave = leave;
    of->dict = NULL;
    of->call = shield_call;
    PyObject_GC_Track(of);
    return (PyObject *)of;
}

static PyMemberDef shield_members[] = {
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(shield, call), READONLY, NULL},
    {"__dictoffset__", T_PYSSIZET, offsetof(shield, dict), READONLY, NULL},
    {"__wrapped__", T_OBJECT_EX, offsetof(shield, observe), READONLY, NULL},
    {NULL, 0, 0, 0, NULL},
};
static PyGetSetDef shield_getset[] = {
    {"__dict__", PyObject_GenericGetDict, PyObject_GenericSetDict, NULL, NULL},
    {NULL, NULL, NULL, NULL, NULL},
};
static PyType_Slot shield_slots[] = {
    {Py_tp_dealloc, shield_dealloc}, {Py_tp_traverse, shield_traverse}, {Py_tp_clear, shield_clear},
    {Py_tp_call, PyVectorcall_Call}, {Py_tp_members, shield_members},   {Py_tp_getset, shield_getset},
    {0, NULL},
};
static PyType_Spec shield_spec = {
    "neuraldbg.capture.kernels._fused.Shield", sizeof(shield), 0,
    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    shield_slots,
};

/* -- one moment to many ------------------------------------------------------------------------------------------- */

PyDoc_STRVAR(tell_doc, "tell(failed, notices, *args): call each; one that raises is handed to failed(notice, error)");

static PyObject *tell(PyObject *module, PyObject *const *args, Py_ssize_t given)
{
    PyObject *room[MOST_TOLD + 1] = {NULL};
    Py_ssize_t n = given - 2;
    if (n < 0 || n > MOST_TOLD || !PyList_Check(args[1]))
        return PyErr_Format(PyExc_TypeError, "tell takes a function, a list and at most %d arguments", MOST_TOLD);
    memcpy(room + 1, args + 2, (size_t)n * sizeof room[0]);
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(args[1]); i++) {
        PyObject *notice = Py_NewRef(PyList_GET_ITEM(args[1], i));
        PyObject *done = PyObject_Vectorcall(notice, room + 1, (size_t)n | PY_VECTORCALL_ARGUMENTS_OFFSET, NULL);
        if (!done && PyErr_ExceptionMatches(PyExc_Exception)) {
            PyObject *error = the_error();
            done = PyObject_CallFunctionObjArgs(args[0], notice, error, NULL);
            Py_XDECREF(error);
        }
        Py_DECREF(notice);
        if (!done)
            return NULL;
        Py_DECREF(done);
    }
    Py_RETURN_NONE;
}

/* -- a table by identity ------------------------------------------------------------------------------------------ */

typedef struct {
    PyObject_HEAD PyObject *entries; /* {id: (weak reference, value)} */
    PyObject *forget;                /* what their references call */
} identities;

typedef struct {
    PyWeakReference itself;
    void *key;
} keyed; /* a weak reference that knows under which number it stands: two objects for an entry, and no function of its own */

static PyTypeObject *keyed_type = NULL;
static PyType_Slot keyed_slots[] = {{Py_tp_base, &_PyWeakref_RefType}, {0, NULL}};
static PyType_Spec keyed_spec = {"neuraldbg.capture.kernels._fused.KeyedRef", sizeof(keyed), 0, Py_TPFLAGS_DEFAULT, keyed_slots};

/* Borrowed; NULL without an error where this very object has none. */
static PyObject *entry_of(PyObject *self, PyObject *key)
{
    PyObject *number = PyLong_FromVoidPtr(key), *entries = ((identities *)self)->entries;
    PyObject *entry = number && entries ? PyDict_GetItemWithError(entries, number) : NULL;
    Py_XDECREF(number);
    int same = entry && PyTuple_Check(entry) && PyWeakref_GetObject(PyTuple_GET_ITEM(entry, 0)) == key;
    return same ? PyTuple_GET_ITEM(entry, 1) : NULL;
}

static PyObject *identities_get(PyObject *self, PyObject *key)
{
    PyObject *found = entry_of(self, key);
    return found ? Py_NewRef(found) : PyErr_Occurred() ? NULL : Py_NewRef(Py_None);
}

static PyObject *identities_pairs(PyObject *self, PyObject *keys)
{
    if (!PyList_Check(keys))
        return PyErr_Format(PyExc_TypeError, "pairs takes a list");
    PyObject *found = PyList_New(0);
    for (Py_ssize_t i = 0; found && i < PyList_GET_SIZE(keys); i++) {
        PyObject *key = Py_NewRef(PyList_GET_ITEM(keys, i)), *value = entry_of(self, key);
        int unknown = !value || value == Py_None;
        PyObject *pair = unknown ? NULL : PyTuple_Pack(2, value, key);
        Py_DECREF(key);
        if (!pair || PyList_Append(found, pair) < 0)
            Py_CLEAR(found);
        Py_XDECREF(pair);
        if (unknown && !PyErr_Occurred())
            Py_RETURN_NONE;
    }
    return found;
}

static int identities_have(PyObject *self, PyObject *key)
{
    PyObject *found = entry_of(self, key);
    return found ? found != Py_None : PyErr_Occurred() ? -1 : 0;
}

/* An object of theirs is gone. */
static PyObject *identities_forget(PyObject *entries, PyObject *ref)
{
    PyObject *number = Py_IS_TYPE(ref, keyed_type) ? PyLong_FromVoidPtr(((keyed *)ref)->key) : NULL;
    PyObject *entry = number ? PyDict_GetItemWithError(entries, number) : NULL;
    int ours = entry && PyTuple_Check(entry) && PyTuple_GET_ITEM(entry, 0) == ref;
    if (ours)
        PyDict_DelItem(entries, number);
    Py_XDECREF(number);
    return PyErr_Occurred() ? NULL : Py_NewRef(Py_None);
}
static PyMethodDef identities_forget_def = {"forget", identities_forget, METH_O, NULL};

static int identities_put(PyObject *self, PyObject *key, PyObject *value)
{
    identities *of = (identities *)self;
    if (!value || !of->entries || !of->forget) {
        PyErr_SetString(PyExc_TypeError, "entries are taken out by pop");
        return -1;
    }
    PyObject *ref = PyObject_CallFunctionObjArgs((PyObject *)keyed_type, key, of->forget, NULL);
    PyObject *entry = ref ? PyTuple_Pack(2, ref, value) : NULL, *number = entry ? PyLong_FromVoidPtr(key) : NULL;
    if (ref)
        ((keyed *)ref)->key = key;
    int failed = !number || PyDict_SetItem(of->entries, number, entry) < 0;
    Py_XDECREF(number);
    Py_XDECREF(entry);
    Py_XDECREF(ref);
    return failed ? -1 : 0;
}

static Py_ssize_t identities_count(PyObject *self)
{
    PyObject *entries = ((identities *)self)->entries;
    return entries ? PyDict_GET_SIZE(entries) : 0;
}

static PyObject *identities_new(PyTypeObject *type, PyObject *args, PyObject *names)
{
    identities *of = (identities *)type->tp_alloc(type, 0);
    if (of && (!(of->entries = PyDict_New()) || !(of->forget = PyCFunction_New(&identities_forget_def, of->entries))))
        Py_CLEAR(of);
    return (PyObject *)of;
}

static int identities_traverse(PyObject *self, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(((identities *)self)->entries);
    Py_VISIT(((identities *)self)->forget);
    return 0;
}

static int identities_clear(PyObject *self)
{
    Py_CLEAR(((identities *)self)->entries);
    Py_CLEAR(((identities *)self)->forget);
    return 0;
}

static void identities_dealloc(PyObject *self)
{
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    identities_clear(self);
    type->tp_free(self);
    Py_DECREF(type);
}

static PyMemberDef identities_members[] = {
    {"_entries", T_OBJECT_EX, offsetof(identities, entries), READONLY, NULL},
    {NULL, 0, 0, 0, NULL},
};
static PyMethodDef identities_methods[] = {
    {"get", identities_get, METH_O, "The value of this very object; None without one."},
    {"pairs", identities_pairs, METH_O, "(value, key) of each in a list; None where one of them has no value."},
    {NULL, NULL, 0, NULL},
};
static PyType_Slot identities_slots[] = {
    {Py_tp_new, identities_new},           {Py_tp_dealloc, identities_dealloc}, {Py_tp_traverse, identities_traverse},
    {Py_tp_clear, identities_clear},       {Py_tp_methods, identities_methods}, {Py_tp_members, identities_members},
    {Py_sq_contains, identities_have},     {Py_mp_length, identities_count},    {Py_mp_ass_subscript, identities_put},
    {0, NULL},
};
static PyType_Spec identities_spec = {
    "neuraldbg.capture.kernels._fused.Identities", sizeof(identities), 0,
    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_BASETYPE, identities_slots,
};
#endif
