/* The Python side of _layers.h: what is told to it, what is taken from it, and parameters around an update. */
#ifdef HAVE_LAYERS

static int hook_traverse(PyObject *self, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(((hook *)self)->of);
    return 0;
}

static void hook_dealloc(PyObject *self)
{
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    Py_DECREF(((hook *)self)->of);
    PyObject_GC_Del(self);
    Py_DECREF(type);
}

static PyObject *hook_copy(PyObject *self, PyObject *ignored) { return Py_NewRef(self); }

static PyMemberDef hook_members[] = {
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(hook, call), READONLY, NULL},
    {NULL, 0, 0, 0, NULL},
};
static PyMethodDef hook_methods[] = {
    {"__deepcopy__", hook_copy, METH_O, "A copy of a tensor or module shares it."},
    {NULL, NULL, 0, NULL},
};
static PyType_Slot hook_slots[] = {
    {Py_tp_dealloc, hook_dealloc}, {Py_tp_traverse, hook_traverse}, {Py_tp_call, PyVectorcall_Call},
    {Py_tp_members, hook_members}, {Py_tp_methods, hook_methods},   {0, NULL},
};
static PyType_Spec hook_spec = {
    "neuraldbg.capture.kernels._fused.Hook", sizeof(hook), 0,
    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL | Py_TPFLAGS_DISALLOW_INSTANTIATION, hook_slots,
};

static int watch_traverse(PyObject *self, visitproc visit, void *arg)
{
    watch *of = (watch *)self;
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(of->next_seq);
    Py_VISIT(of->missed);
    Py_VISIT(of->missed_gradient);
    Py_VISIT(of->looked);
    Py_VISIT(of->below);
    Py_VISIT(of->above);
    Py_VISIT(of->histograms.core);
    Py_VISIT(of->histograms.recorder);
    for (int kind = 0; kind <= PARAMETER; kind++)
        Py_VISIT(of->histograms.due[kind]);
    Py_VISIT(of->error);
    return 0;
}

static void count_no_more(watch *of)
{
    Py_CLEAR(of->histograms.core);
    Py_CLEAR(of->histograms.recorder);
    for (int kind = 0; kind <= PARAMETER; kind++)
        Py_CLEAR(of->histograms.due[kind]);
}

static void forget_layers(watch *of)
{
    for (int i = 0; of->layers && i < SLOTS; i++)
        Py_CLEAR(of->layers[i].weak);
    if (of->layers)
        memset(of->layers, 0, SLOTS * sizeof(layer));
    of->known = 0;
}

static int watch_clear(PyObject *self)
{
    watch *of = (watch *)self;
    Py_CLEAR(of->missed);
    Py_CLEAR(of->missed_gradient);
    Py_CLEAR(of->looked);
    Py_CLEAR(of->below);
    Py_CLEAR(of->above);
    Py_CLEAR(of->error);
    count_no_more(of);
    forget_layers(of);
    return 0;
}

static void forget_kinds(kinds *of)
{
    Py_CLEAR(of->tensor);
    Py_CLEAR(of->other_tensor);
    Py_CLEAR(of->strided);
    Py_CLEAR(of->is_negated);
    for (int i = 0; i < DTYPES; i++)
        Py_CLEAR(of->dtypes[i]);
}

static void learn_kinds(kinds *of, PyObject *tensor, PyObject *other, PyObject *strided, PyObject *dtypes)
{
    of->tensor = Py_NewRef(tensor);
    of->other_tensor = Py_NewRef(other);
    of->strided = Py_NewRef(strided);
    for (Py_ssize_t i = 0; i < DTYPES && i < PyList_GET_SIZE(dtypes); i++)
        of->dtypes[i] = Py_NewRef(PyList_GET_ITEM(dtypes, i));
    of->is_negated = PyObject_GetAttr(tensor, S_neg);
    of->ask = of->is_negated ? exchange_of(tensor) : NULL;
    PyErr_Clear();
}

static void watch_dealloc(PyObject *self)
{
    watch *of = (watch *)self;
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    watch_clear(self);
    Py_CLEAR(of->next_seq);
    Py_CLEAR(of->modes);
    forget_kinds(&of->known_as);
    PyMem_Free(of->stats);
    PyMem_Free(of->spans);
    PyMem_Free(of->histograms.rows);
    PyMem_Free(of->layers);
    type->tp_free(self);
    Py_DECREF(type);
}

static int watch_init(PyObject *self, PyObject *args, PyObject *names)
{
    watch *of = (watch *)self;
    PyObject *next, *tensor, *other, *strided, *modes, *dtypes;
    if (of->stats) {
        PyErr_SetString(PyExc_RuntimeError, "made already");
        return -1;
    }
    if (!PyArg_ParseTuple(args, "OOOOOO!", &next, &tensor, &other, &strided, &modes, &PyList_Type, &dtypes))
        return -1;
    of->next_seq = Py_NewRef(next);
    of->modes = Py_NewRef(modes);
    learn_kinds(&of->known_as, tensor, other, strided, dtypes);
    of->stats = PyMem_Calloc(ROWS, sizeof(stats_row));
    of->spans = PyMem_Calloc(ROWS, sizeof(span_row));
    of->histograms.rows = PyMem_Calloc(HISTOGRAM_ROWS, sizeof(histogram_row));
    of->layers = PyMem_Calloc(SLOTS, sizeof(layer));
    of->last_site = -1;
    if (of->stats && of->spans && of->histograms.rows && of->layers)
        return 0;
    PyErr_NoMemory();
    return -1;
}

static PyObject *watch_hook(PyObject *self, vectorcallfunc call) { return (PyObject *)new_hook((watch *)self, call, -1, 0); }
static PyObject *watch_before(PyObject *self, void *closure) { return watch_hook(self, before_layer); }
static PyObject *watch_after(PyObject *self, void *closure) { return watch_hook(self, after_layer); }

static PyObject *watch_error(PyObject *self, void *closure)
{
    PyObject *error = ((watch *)self)->error;
    return Py_NewRef(error ? error : Py_None);
}

PyDoc_STRVAR(listen_doc, "listen(missed, missed_gradient, looked, below, above): what Python is called for; None = never");

static PyObject *watch_listen(PyObject *self, PyObject *const *args, Py_ssize_t given)
{
    watch *of = (watch *)self;
    if (given != 5)
        return PyErr_Format(PyExc_TypeError, "listen takes 5 arguments, not %zd", given);
    PyObject **places[5] = {&of->missed, &of->missed_gradient, &of->looked, &of->below, &of->above};
    for (int i = 0; i < 5; i++)
        Py_XSETREF(*places[i], args[i] == Py_None ? NULL : Py_NewRef(args[i]));
    Py_RETURN_NONE;
}

PyDoc_STRVAR(learn_doc, "learn(module, site, leaf, watched, timed, fresh) -> whether there was room");

static PyObject *watch_learn(PyObject *self, PyObject *args)
{
    watch *of = (watch *)self;
    PyObject *module;
    int site, leaf, watched, timed, fresh;
    if (!PyArg_ParseTuple(args, "Oipppp", &module, &site, &leaf, &watched, &timed, &fresh))
        return NULL;
    if (of->known > SLOTS / 2)
        Py_RETURN_FALSE;
    layer *one = layer_of(of, module);
    PyObject *weak = one ? PyWeakref_NewRef(module, NULL) : NULL;
    if (!weak)
        return PyErr_Occurred() ? NULL : Py_NewRef(Py_False);
    of->known += !one->module;
    one->module = module;
    Py_XSETREF(one->weak, weak);
    one->site = site;
    one->leaf = (char)leaf;
    one->watched = (char)watched;
    one->timed = (char)timed;
    one->fresh = (char)fresh;
    Py_RETURN_TRUE;
}

PyDoc_STRVAR(begin_doc, "begin(step, pass_id, phase, depth, with_gradient, wants_activation, wants_gradient,\n"
                        "largest, looks): a pass; tensors above so many bytes are left out; whether `looked` is called for all layers");

static PyObject *watch_begin(PyObject *self, PyObject *args)
{
    watch *of = (watch *)self;
    long long step;
    int pass, phase, depth, with_gradient, activation, gradient, looks;
    long long largest;
    if (!PyArg_ParseTuple(args, "LiiipppLp", &step, &pass, &phase, &depth, &with_gradient, &activation, &gradient,
                          &largest, &looks))
        return NULL;
    of->largest = largest;
    of->step = step;
    of->pass = pass;
    of->phase = (char)phase;
    of->above_depth = depth;
    of->with_gradient = (char)with_gradient;
    of->wants_activation = (char)activation;
    of->wants_gradient = (char)gradient;
    of->looks = (char)looks;
    of->resting = 0;
    of->owner = PyThread_get_thread_ident();
    of->depth = 0;
    Py_RETURN_NONE;
}

static PyObject *watch_own(PyObject *self, PyObject *ignored)
{
    watch *of = (watch *)self;
    int64_t own = of->own - of->taken; /* layers under way remember what it was: it only grows */
    of->taken = of->own;
    return PyLong_FromLongLong(own);
}

static PyObject *watch_bytes(PyObject *self, PyObject *ignored)
{
    watch *of = (watch *)self;
    int64_t read = of->read;
    of->read = 0;
    return PyLong_FromLongLong(read);
}

PyDoc_STRVAR(arrived_doc, "arrived(site, pass_id, now) -> a gradient that Python looks at: its time is charged as any");

static PyObject *watch_arrived(PyObject *self, PyObject *args)
{
    watch *of = (watch *)self;
    int site, pass;
    long long now;
    if (!PyArg_ParseTuple(args, "iiL", &site, &pass, &now))
        return NULL;
    charge_backward(of, now);
    of->last_site = site;
    of->last_pass = pass;
    of->last_at = clock_of(CLOCK_MONOTONIC);
    Py_RETURN_NONE;
}

static PyObject *watch_backward_ended(PyObject *self, PyObject *ignored)
{
    watch *of = (watch *)self;
    charge_backward(of, clock_of(CLOCK_MONOTONIC));
    of->last_site = -1;
    Py_RETURN_NONE;
}

static PyObject *watch_rest(PyObject *self, PyObject *ignored)
{
    ((watch *)self)->resting = 1;
    return watch_backward_ended(self, ignored); /* an optimizer may step inside of one */
}

PyDoc_STRVAR(set_aside_doc, "set_aside(nanoseconds): spent by us since the last gradient arrived, so no layer's");

static PyObject *watch_set_aside(PyObject *self, PyObject *took)
{
    ((watch *)self)->last_at += PyLong_AsLongLong(took);
    return PyErr_Occurred() ? NULL : Py_NewRef(Py_None);
}

PyDoc_STRVAR(count_doc, "count(core, recorder, (due of activations, of gradients, of parameters), (values in a piece, pieces,\n"
                        "least gap, growth)): from now on histograms that are due are taken; count() = no more");

static PyObject *watch_count(PyObject *self, PyObject *args)
{
    watch *of = (watch *)self;
    PyObject *core, *recorder, *due[3];
    long long numbers[4];
    if (!PyTuple_GET_SIZE(args)) {
        count_no_more(of);
        Py_RETURN_NONE;
    }
    if (!PyArg_ParseTuple(args, "OO(O!O!O!)(LLLL)", &core, &recorder, &PyDict_Type, &due[0], &PyDict_Type, &due[1],
                          &PyDict_Type, &due[2], &numbers[0], &numbers[1], &numbers[2], &numbers[3]))
        return NULL;
    if (numbers[0] < 1 || numbers[1] < 1 || numbers[0] > UINT16_MAX / numbers[1] || numbers[2] < 1 || numbers[3] < 1)
        return PyErr_Format(PyExc_ValueError, "pieces of 1 to %d values in all, gaps of a step at least", UINT16_MAX);
    Py_XSETREF(of->histograms.core, Py_NewRef(core));
    Py_XSETREF(of->histograms.recorder, Py_NewRef(recorder));
    for (int i = 0; i < 3; i++)
        Py_XSETREF(of->histograms.due[ACTIVATION + i], Py_NewRef(due[i]));
    of->histograms.size = numbers[0], of->histograms.pieces = numbers[1];
    of->histograms.least_gap = numbers[2], of->histograms.growth = numbers[3];
    Py_RETURN_NONE;
}

static PyObject *watch_forget(PyObject *self, PyObject *ignored)
{
    forget_layers((watch *)self);
    Py_RETURN_NONE;
}

static PyObject *taken_rows(const void *rows, int64_t *used, size_t width)
{
    PyObject *bytes = PyBytes_FromStringAndSize(rows, (Py_ssize_t)((size_t)*used * width));
    if (bytes)
        *used = 0;
    return bytes;
}

PyDoc_STRVAR(drain_doc, "drain() -> (rows of stats, of spans, of histograms, of each how many were lost since)");

static PyObject *watch_drain(PyObject *self, PyObject *ignored)
{
    watch *of = (watch *)self;
    PyObject *stats = taken_rows(of->stats, &of->stats_used, sizeof(stats_row));
    PyObject *spans = taken_rows(of->spans, &of->spans_used, sizeof(span_row));
    PyObject *counted = taken_rows(of->histograms.rows, &of->histograms.used, sizeof(histogram_row));
    long long lost = of->stats_lost, lost_spans = of->spans_lost, lost_counted = of->histograms.lost;
    of->stats_lost = of->spans_lost = of->histograms.lost = 0;
    if (stats && spans && counted)
        return Py_BuildValue("(NNNLLL)", stats, spans, counted, lost, lost_spans, lost_counted);
    Py_XDECREF(stats);
    Py_XDECREF(spans);
    Py_XDECREF(counted);
    return NULL;
}

#include "_keep.h"
#include "_parameters.h"
#include "_straight.h"

static PyMethodDef watch_methods[] = {
    {"listen", (PyCFunction)(void (*)(void))watch_listen, METH_FASTCALL, listen_doc},
    {"learn", watch_learn, METH_VARARGS, learn_doc},
    {"begin", watch_begin, METH_VARARGS, begin_doc},
    {"take_own_ns", watch_own, METH_NOARGS, "Nanoseconds spent here since the last time."},
    {"take_bytes", watch_bytes, METH_NOARGS, "Bytes of outputs and their gradients read since the last time."},
    {"arrived", watch_arrived, METH_VARARGS, arrived_doc},
    {"backward_ended", watch_backward_ended, METH_NOARGS, "Charge the rest of the backward to the last layer."},
    {"rest", watch_rest, METH_NOARGS, "Until the next pass begins, gradients that arrive are not timed."},
    {"set_aside", watch_set_aside, METH_O, set_aside_doc},
    {"forget", watch_forget, METH_NOARGS, "No layer is known any more."},
    {"drain", watch_drain, METH_NOARGS, drain_doc},
    {"straight", watch_straight, METH_VARARGS, straight_doc},
    {"count", watch_count, METH_VARARGS, count_doc},
    {"count_parameters", watch_count_parameters, METH_VARARGS, count_parameters_doc},
    {"gradients", watch_gradients, METH_VARARGS, gradients_doc},
    {"moved", watch_moved, METH_VARARGS, moved_doc},
    {NULL, NULL, 0, NULL},
};
static PyGetSetDef watch_getset[] = {
    {"before", watch_before, NULL, "A hook for torch's table of hooks before a forward.", NULL},
    {"after", watch_after, NULL, "A hook for the table of those after it.", NULL},
    {"error", watch_error, NULL, "What went wrong first; None while nothing has.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};
static PyType_Slot watch_slots[] = {
    {Py_tp_init, watch_init},         {Py_tp_dealloc, watch_dealloc}, {Py_tp_traverse, watch_traverse},
    {Py_tp_clear, watch_clear},       {Py_tp_methods, watch_methods}, {Py_tp_getset, watch_getset},
    {Py_tp_new, PyType_GenericNew},   {0, NULL},
};
static PyType_Spec watch_spec = {
    "neuraldbg.capture.kernels._fused.Layers", sizeof(watch), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC, watch_slots,
};

static int add_layers(PyObject *module)
{
    struct {
        PyObject **at;
        const char *name;
    } names[] = {{&S_is_cpu, "is_cpu"},       {&S_layout, "layout"},
                 {&S_nested, "is_nested"},    {&S_dtype, "dtype"},        {&S_shape, "shape"},
                 {&S_numel, "numel"},         {&S_contiguous, "is_contiguous"},
                 {&S_neg, "is_neg"},          {&S_data_ptr, "data_ptr"},
                 {&S_requires, "requires_grad"}, {&S_leaf, "is_leaf"},
                 {&S_hooks, "_backward_hooks"}, {&S_grad_fn, "grad_fn"},
                 {&S_register, "_register_hook_dict"}, {&S_grad, "grad"},
                 {&S_on, "on"},               {&S_step, "step"}};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if (!(*names[i].at = PyUnicode_InternFromString(names[i].name)))
            return -1;
    hook_type = (PyTypeObject *)PyType_FromModuleAndSpec(module, &hook_spec, NULL);
    if (!hook_type || PyObject_SetAttrString((PyObject *)hook_type, "__torch_unserializable__", Py_True) < 0)
        return -1;
    PyObject *type = add_straight(module) < 0 ? NULL : PyType_FromModuleAndSpec(module, &watch_spec, NULL);
    int failed = !type || PyModule_AddObjectRef(module, "Layers", type) < 0;
    Py_XDECREF(type);
    return failed ? -1 : 0;
}
#endif
