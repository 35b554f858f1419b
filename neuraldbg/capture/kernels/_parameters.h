/* Parameters around an update, for _layers_type.h: gradients before it, and how far each one moved. */
static PyObject *left_over(PyObject *left, PyObject *item)
{
    return PyList_Append(left, item) < 0 ? NULL : left;
}

/* Whether values of this type are part of the norm of all gradients: floats of more than one byte. */
static int with_norm(int dtype) { return dtype == F64 || dtype == F32 || dtype == F16 || dtype == BF16; }

typedef struct {
    double squares;
    long long nans, infs;
} norm_of_all;

static void add_to_norm(norm_of_all *all, const job *one)
{
    const moments *m = &one->now.of;
    if (!with_norm(one->dtype))
        return;
    all->squares += m->finite ? (m->m2 + m->finite * m->mean * m->mean) / (one->now.scale * one->now.scale) : 0;
    all->nans += m->nans;
    all->infs += m->infs;
}

/* `plan`: how the parameter is copied meanwhile; NULL = not at all. 1 = done, 0 = Python has to look at the gradient,
   -1 = an error; and what became of the copy in `kept`. */
static int look_at_gradient(watch *of, PyObject *parameter, PyObject *plan, int *kept, job *one)
{
    planned copy;
    *kept = plan ? as_planned(&of->known_as, parameter, plan, &copy) : 0;
    PyObject *gradient = *kept < 0 ? NULL : PyObject_GetAttr(parameter, S_grad);
    int plain = !gradient ? -1 : gradient == Py_None ? 2 : read_plain(&of->known_as, gradient, one);
    if (plain == 1 && *kept == 1)
        measure_and_copy(one, &copy);
    else if (plain == 1)
        measure_plain(one);
    else if (plain >= 0 && *kept == 1)
        copy_for_later(&copy);
    Py_XDECREF(gradient);
    return plain;
}

PyDoc_STRVAR(gradients_doc, "gradients(step, [(site, parameter), ...], plan)\n"
                            "-> (sum of squares, NaN, Inf, those it cannot read, whether all were copied)\n\n"
                            "plan: as that of `keep`, for all of the parameters; empty = they are not copied.");

static PyObject *watch_gradients(PyObject *self, PyObject *args)
{
    watch *of = (watch *)self;
    PyObject *items, *plan, *left = PyList_New(0);
    long long step;
    int kept;
    norm_of_all all = {0};
    if (!left || !PyArg_ParseTuple(args, "LO!O!", &step, &PyList_Type, &items, &PyList_Type, &plan))
        goto failed;
    of->step = step;
    kept = PyList_GET_SIZE(plan) && PyList_GET_SIZE(plan) == PyList_GET_SIZE(items);
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(items); i++) {
        PyObject *item = PyList_GET_ITEM(items, i);
        job one = {0};
        if (i >= PyList_GET_SIZE(plan))
            kept = 0;
        int plain = look_at_gradient(of, PyTuple_GET_ITEM(item, 1), kept ? PyList_GET_ITEM(plan, i) : NULL, &kept, &one);
        if (plain == 1) {
            add_to_norm(&all, &one);
            put_stats(of, (int32_t)PyLong_AsLong(PyTuple_GET_ITEM(item, 0)), GRADIENT, UPDATE, -1, &one.now);
        }
        if (plain < 0 || PyErr_Occurred() || (plain == 0 && !left_over(left, item)))
            goto failed;
    }
    return Py_BuildValue("(dLLNN)", all.squares, all.nans, all.infs, left, PyBool_FromLong(kept));
failed:
    Py_XDECREF(left);
    return NULL;
}

PyDoc_STRVAR(moved_doc, "moved(step, [(site, parameter, address before or 0), ...]) -> [those it cannot read, ...]\n\n"
                        "Of each parameter what it is now and how far it moved, in one pass over both.");

static PyObject *watch_moved(PyObject *self, PyObject *args)
{
    watch *of = (watch *)self;
    PyObject *items, *left = PyList_New(0);
    long long step;
    if (!left || !PyArg_ParseTuple(args, "LO!", &step, &PyList_Type, &items))
        goto failed;
    of->step = step;
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(items); i++) {
        PyObject *item = PyList_GET_ITEM(items, i);
        PyObject *value = PyTuple_GET_ITEM(item, 1), *before = PyTuple_GET_ITEM(item, 2);
        int32_t site = (int32_t)PyLong_AsLong(PyTuple_GET_ITEM(item, 0));
        job one = {0}, old = {0};
        int plain = read_plain(&of->known_as, value, &one);
        if (plain == 1 && before != Py_None) {
            plain = read_plain(&of->known_as, before, &old);
            plain = plain == 1 ? old.count == one.count && old.dtype == one.dtype : plain;
        }
        if (plain == 1 && before != Py_None) {
            PyThreadState *released = one.count * WIDTH[one.dtype] >= RELEASE_BYTES ? PyEval_SaveThread() : NULL;
            float_state floats = plain_floats();
            measure_moved(set_of(0), one.at, old.at, one.dtype, one.count, &one.now, &one.moved);
            restore_floats(floats);
            if (released)
                PyEval_RestoreThread(released);
        } else if (plain == 1)
            measure_plain(&one);
        if (plain == 1)
            put_stats(of, site, PARAMETER, UPDATE, -1, &one.now);
        if (plain == 1 && before != Py_None)
            put_stats(of, site, MOVED, UPDATE, -1, &one.moved);
        if (plain < 0 || PyErr_Occurred() || (plain == 0 && !left_over(left, item)))
            goto failed;
    }
    return left;
failed:
    Py_XDECREF(left);
    return NULL;
}

PyDoc_STRVAR(count_parameters_doc,
             "count_parameters(step, [(site, parameter), ...]) -> [those it cannot read, ...]\n\n"
             "Histograms of those that are due.");

static PyObject *watch_count_parameters(PyObject *self, PyObject *args)
{
    watch *of = (watch *)self;
    PyObject *items, *left = PyList_New(0);
    long long step;
    if (!left || !PyArg_ParseTuple(args, "LO!", &step, &PyList_Type, &items))
        goto failed;
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(items); i++) {
        PyObject *item = PyList_GET_ITEM(items, i);
        int32_t site = (int32_t)PyLong_AsLong(PyTuple_GET_ITEM(item, 0));
        job one = {0};
        int due = PyErr_Occurred() ? -1 : is_due(of, PARAMETER, site, step);
        int plain = due == 1 ? read_plain(&of->known_as, PyTuple_GET_ITEM(item, 1), &one) : due;
        if (plain == 1)
            count_one(of, PARAMETER, UPDATE, step, site, -1, &one);
        if (plain < 0 || PyErr_Occurred() || (due == 1 && plain == 0 && !left_over(left, item)))
            goto failed;
    }
    return left;
failed:
    Py_XDECREF(left);
    return NULL;
}
