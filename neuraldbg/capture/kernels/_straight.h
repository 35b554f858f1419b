/* Modules of a pass that C sees, called without torch's long way through hooks: two Python frames and a closure for each.
   torch asks a module for `_compiled_call_impl` before it takes that way: there is one only while our hooks, and nobody
   else's, are in torch's tables. */
#ifdef HAVE_LAYERS

typedef struct {
    PyObject_HEAD vectorcallfunc call;
    watch *of;
    PyObject *tables; /* hooks of all modules: before a forward, after it, before a backward, after it */
    PyObject *usual;  /* Module._call_impl: a class that has another one knows why */
    PyObject *tracing;
} straight;

typedef struct {
    PyObject_HEAD straight *way;
    PyObject *module;
} straight_call;

static PyTypeObject *straight_type = NULL, *straight_call_type = NULL;
static PyObject *S_call_impl, *S_forward, *S_own_hooks[4];

/* Whether the only hooks of all modules are the two of this watch. */
static int ours_alone(const straight *way)
{
    const vectorcallfunc ours[] = {before_layer, after_layer};
    for (Py_ssize_t i = 0; i < 4; i++) {
        PyObject *table = PyTuple_GET_ITEM(way->tables, i), *key, *found = NULL;
        Py_ssize_t at = 0;
        if (PyDict_GET_SIZE(table) != (i < 2))
            return 0;
        if (i < 2 && !(PyDict_Next(table, &at, &key, &found) && Py_TYPE(found) == hook_type &&
                       ((hook *)found)->of == way->of && ((hook *)found)->call == ours[i]))
            return 0;
    }
    return 1;
}

/* Whether a module has neither hooks nor a way of its own to be called; -1 = an error */
static int is_usual_module(const straight *way, PyObject *module)
{
    PyObject *call = PyObject_GetAttr((PyObject *)Py_TYPE(module), S_call_impl);
    PyObject *own = call == way->usual ? PyObject_GenericGetDict(module, NULL) : NULL;
    int usual = own ? !PyDict_Contains(own, S_call_impl) : PyErr_Occurred() ? -1 : 0;
    for (int i = 0; usual == 1 && i < 4; i++) {
        PyObject *hooks = PyDict_GetItemWithError(own, S_own_hooks[i]);
        usual = hooks ? PyDict_Check(hooks) && PyDict_GET_SIZE(hooks) == 0 : PyErr_Occurred() ? -1 : 0;
    }
    Py_XDECREF(own);
    Py_XDECREF(call);
    return usual;
}

/* What is known at once, asked twice for each call. */
static int is_ours_to_call(const straight *way, PyObject *module)
{
    watch *of = way->of;
    return module && of->missed && !of->error && of->depth < DEEPEST && PyThread_get_thread_ident() == of->owner &&
           known_layer(of, module) && ours_alone(way);
}

static int may_go_straight(const straight *way, PyObject *module)
{
    if (!is_ours_to_call(way, module))
        return 0;
    PyObject *state = PyObject_CallNoArgs(way->tracing);
    int traced = !state ? -1 : state != Py_None;
    Py_XDECREF(state);
    return traced ? (traced < 0 ? -1 : 0) : is_usual_module(way, module);
}

static PyObject *straight_for(PyObject *self, PyObject *const *args, size_t given, PyObject *names)
{
    straight *way = (straight *)self;
    PyObject *module = PyVectorcall_NARGS(given) == 1 ? args[0] : NULL;
    straight_call *made = is_ours_to_call(way, module) ? PyObject_New(straight_call, straight_call_type) : NULL;
    if (!made)
        return PyErr_Occurred() ? NULL : Py_NewRef(Py_None);
    made->way = (straight *)Py_NewRef(way);
    made->module = Py_NewRef(module);
    return (PyObject *)made;
}

/* Who keeps what was to be called, and calls it when things have changed, goes torch's way. */
static PyObject *go_straight(PyObject *self, PyObject *args, PyObject *named)
{
    const straight *way = ((straight_call *)self)->way;
    watch *of = way->of;
    PyObject *module = ((straight_call *)self)->module;
    int may = may_go_straight(way, module);
    PyObject *forward = may < 0 ? NULL : PyObject_GetAttr(module, may ? S_forward : S_call_impl);
    if (!forward)
        return NULL;
    int known = may && begin_layer(of, module);
    PyObject *output = PyObject_Call(forward, args, named);
    int64_t end = clock_of(CLOCK_MONOTONIC);
    int at = known ? end_layer(of, module) : -1;
    PyObject *kwargs = output && at >= 0 && !named ? PyDict_New() : Py_XNewRef(named);
    if (output && at >= 0 && !layer_ran(of, at, end, (PyObject *const[]){module, args, kwargs, output}))
        Py_CLEAR(output);
    Py_XDECREF(kwargs);
    Py_DECREF(forward);
    return output;
}

static void straight_call_dealloc(PyObject *self)
{
    PyTypeObject *type = Py_TYPE(self);
    Py_DECREF(((straight_call *)self)->way);
    Py_DECREF(((straight_call *)self)->module);
    type->tp_free(self);
    Py_DECREF(type);
}

static int straight_traverse(PyObject *self, visitproc visit, void *arg)
{
    straight *way = (straight *)self;
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(way->of);
    Py_VISIT(way->tables);
    Py_VISIT(way->usual);
    Py_VISIT(way->tracing);
    return 0;
}

static void straight_dealloc(PyObject *self)
{
    straight *way = (straight *)self;
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    Py_XDECREF(way->of);
    Py_XDECREF(way->tables);
    Py_XDECREF(way->usual);
    Py_XDECREF(way->tracing);
    PyObject_GC_Del(self);
    Py_DECREF(type);
}

static PyMemberDef straight_members[] = {
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(straight, call), READONLY, NULL},
    {NULL, 0, 0, 0, NULL},
};
static PyType_Slot straight_slots[] = {
    {Py_tp_dealloc, straight_dealloc}, {Py_tp_traverse, straight_traverse}, {Py_tp_call, PyVectorcall_Call},
    {Py_tp_members, straight_members}, {0, NULL},
};
static PyType_Spec straight_spec = {
    "neuraldbg.capture.kernels._fused.Straight", sizeof(straight), 0,
    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    straight_slots,
};
static PyType_Slot straight_call_slots[] = {
    {Py_tp_dealloc, straight_call_dealloc}, {Py_tp_call, go_straight}, {0, NULL},
};
static PyType_Spec straight_call_spec = {
    "neuraldbg.capture.kernels._fused.StraightCall", sizeof(straight_call), 0,
    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION, straight_call_slots,
};

PyDoc_STRVAR(straight_doc, "straight(tables, usual, tracing) -> of a module what to call in its place, or None\n\n"
                           "tables: torch's, of hooks of all modules; usual: Module._call_impl; tracing: tells of torch.jit.trace.");

static PyObject *watch_straight(PyObject *self, PyObject *args)
{
    PyObject *tables, *usual, *tracing;
    if (!PyArg_ParseTuple(args, "O!OO", &PyTuple_Type, &tables, &usual, &tracing))
        return NULL;
    for (Py_ssize_t i = 0; i < 4; i++)
        if (PyTuple_GET_SIZE(tables) != 4 || !PyDict_Check(PyTuple_GET_ITEM(tables, i)))
            return PyErr_Format(PyExc_TypeError, "four tables of hooks are wanted");
    straight *way = PyObject_GC_New(straight, straight_type);
    if (way) {
        way->call = straight_for;
        way->of = (watch *)Py_NewRef(self);
        way->tables = Py_NewRef(tables);
        way->usual = Py_NewRef(usual);
        way->tracing = Py_NewRef(tracing);
        PyObject_GC_Track(way);
    }
    return (PyObject *)way;
}

static int add_straight(PyObject *module)
{
    struct {
        PyObject **at;
        const char *name;
    } names[] = {{&S_call_impl, "_call_impl"},
                 {&S_forward, "forward"},
                 {&S_own_hooks[0], "_forward_pre_hooks"},
                 {&S_own_hooks[1], "_forward_hooks"},
                 {&S_own_hooks[2], "_backward_pre_hooks"},
                 {&S_own_hooks[3], "_backward_hooks"}};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if (!(*names[i].at = PyUnicode_InternFromString(names[i].name)))
            return -1;
    straight_type = (PyTypeObject *)PyType_FromModuleAndSpec(module, &straight_spec, NULL);
    straight_call_type = (PyTypeObject *)PyType_FromModuleAndSpec(module, &straight_call_spec, NULL);
    return straight_type && straight_call_type ? 0 : -1;
}
#endif
