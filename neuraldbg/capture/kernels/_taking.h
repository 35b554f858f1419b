/* What a recording reads of a model at every step: which gradients stand where, their hashes, and what lies around a
   pass. Its twin in Python stands in capture/torch/structures.py and recording/marks.py. */
#ifdef HAVE_LAYERS

static PyObject *S_version, *S_training, *S_own_parameters, *S_own_buffers, *S_own_modules;

/* -- marks of gradients ------------------------------------------------------------------------------------------- */

/* Identity and version of a parameter's gradient: (0, 0) without one. */
static PyObject *mark_of(PyObject *parameter)
{
    PyObject *gradient = PyObject_GetAttr(parameter, S_grad), *mark = NULL;
    if (gradient == Py_None)
        mark = Py_BuildValue("(ii)", 0, 0);
    else if (gradient) {
        PyObject *version = PyObject_GetAttr(gradient, S_version), *place = version ? PyLong_FromVoidPtr(gradient) : NULL;
        mark = place ? PyTuple_Pack(2, place, version) : NULL;
        Py_XDECREF(place);
        Py_XDECREF(version);
    }
    Py_XDECREF(gradient);
    return mark;
}

static int put_mark(PyObject *parameter, PyObject *marks, int known_only)
{
    PyObject *key = PyLong_FromVoidPtr(parameter);
    int wanted = !key ? -1 : known_only ? PyDict_Contains(marks, key) : 1;
    PyObject *mark = wanted == 1 ? mark_of(parameter) : NULL;
    if (wanted == 1)
        wanted = mark ? PyDict_SetItem(marks, key, mark) : -1;
    Py_XDECREF(mark);
    Py_XDECREF(key);
    return wanted < 0 ? -1 : 0;
}

PyDoc_STRVAR(mark_doc, "mark(parameters, marks, known_only) -> None; puts the mark of each by its id");

static PyObject *mark(PyObject *module, PyObject *const *args, Py_ssize_t given)
{
    if (given != 3 || !PyList_Check(args[0]) || !PyDict_Check(args[1]))
        return PyErr_Format(PyExc_TypeError, "mark takes a list, a dict and a flag");
    int known_only = PyObject_IsTrue(args[2]);
    for (Py_ssize_t i = 0; known_only >= 0 && i < PyList_GET_SIZE(args[0]); i++)
        if (put_mark(PyList_GET_ITEM(args[0], i), args[1], known_only) < 0)
            return NULL;
    return known_only < 0 ? NULL : Py_NewRef(Py_None);
}

PyDoc_STRVAR(as_marked_doc, "as_marked(parameters, marks) -> whether each has the mark it had");

static PyObject *as_marked(PyObject *module, PyObject *const *args, Py_ssize_t given)
{
    if (given != 2 || !PyList_Check(args[0]) || !PyDict_Check(args[1]))
        return PyErr_Format(PyExc_TypeError, "as_marked takes a list and a dict");
    int same = 1;
    for (Py_ssize_t i = 0; same == 1 && i < PyList_GET_SIZE(args[0]); i++) {
        PyObject *parameter = PyList_GET_ITEM(args[0], i), *key = PyLong_FromVoidPtr(parameter);
        PyObject *before = key ? PyDict_GetItemWithError(args[1], key) : NULL;
        Py_XINCREF(before); /* to ask for a gradient may run anything */
        PyObject *now = before ? mark_of(parameter) : NULL;
        same = now ? PyObject_RichCompareBool(before, now, Py_EQ) : PyErr_Occurred() ? -1 : 0;
        Py_XDECREF(before);
        Py_XDECREF(now);
        Py_XDECREF(key);
    }
    return same < 0 ? NULL : PyBool_FromLong(same);
}

/* -- hashes of gradients ------------------------------------------------------------------------------------------ */

/* Appends (position, hash, shape, dtype) and adds to the bytes read; 0 = not a plain tensor in order */
static int hash_gradient(kinds *of, PyObject *gradient, Py_ssize_t position, PyObject *found, int64_t *read)
{
    job one = {0};
    MUST(read_plain(of, gradient, &one));
    int64_t bytes = one.count * WIDTH[one.dtype];
    PyObject *shape = PyObject_GetAttr(gradient, S_shape), *dtype = shape ? PyObject_GetAttr(gradient, S_dtype) : NULL;
    unsigned long long hash = dtype ? hash_of_bytes(set_of(0), one.at, bytes) : 0;
    PyObject *entry = dtype ? Py_BuildValue("(nKOO)", position, hash, shape, dtype) : NULL;
    int failed = !entry || PyList_Append(found, entry) < 0;
    Py_XDECREF(entry);
    Py_XDECREF(dtype);
    Py_XDECREF(shape);
    *read += bytes;
    return failed ? -1 : 1;
}

PyDoc_STRVAR(some_gradients_doc,
             "gradients(parameters, first, most) -> [(position, hash, shape, dtype), ...], the position after the last one\n\n"
             "Of the gradients from a position on, round to it again, until more than so many bytes were read: None where\n"
             "all were. None in place of it all where one of them is not a plain tensor in order.");

static PyObject *reader_gradients(PyObject *self, PyObject *const *args, Py_ssize_t given)
{
    if (given != 3 || !PyList_Check(args[0]))
        return PyErr_Format(PyExc_TypeError, "gradients takes a list, a position and bytes");
    Py_ssize_t first = PyLong_AsSsize_t(args[1]), n = PyList_GET_SIZE(args[0]), after = -1;
    long long most = PyErr_Occurred() ? 0 : PyLong_AsLongLong(args[2]);
    PyObject *found = PyErr_Occurred() || first < 0 ? NULL : PyList_New(0);
    int plain = found ? 1 : -1;
    int64_t read = 0;
    for (Py_ssize_t i = 0; plain == 1 && after < 0 && i < n && n == PyList_GET_SIZE(args[0]); i++) {
        Py_ssize_t at = (first % n + i) % n;
        PyObject *gradient = PyObject_GetAttr(PyList_GET_ITEM(args[0], at), S_grad);
        plain = !gradient ? -1
                : gradient == Py_None
                    ? 1
                    : hash_gradient(&((reader *)self)->known_as, gradient, at, found, &read);
        Py_XDECREF(gradient);
        if (read > most)
            after = at + 1;
    }
    if (plain != 1) {
        Py_XDECREF(found);
        if (plain < 0 && !PyErr_Occurred())
            PyErr_SetString(PyExc_ValueError, "a position is not negative");
        return plain < 0 ? NULL : Py_NewRef(Py_None);
    }
    PyObject *next = after < 0 ? Py_NewRef(Py_None) : PyLong_FromSsize_t(after);
    if (!next)
        Py_CLEAR(found);
    return next ? Py_BuildValue("(NN)", found, next) : NULL;
}

/* -- what lies around a pass -------------------------------------------------------------------------------------- */

typedef struct {
    PyObject *training, *trainable, *buffers; /* lists */
    PyObject *children;                       /* that are expected of each module: a tuple of names and ids */
    Py_ssize_t seen;                          /* modules */
} surroundings;

/* The values, or the items, of a dict among a module's attributes; NULL without an error: it is something else. */
static PyObject *those_in(PyObject *module, PyObject *name, int items)
{
    PyObject *held = PyObject_GetAttr(module, name), *found = NULL;
    if (held && PyDict_CheckExact(held))
        found = items ? PyDict_Items(held) : PyDict_Values(held);
    Py_XDECREF(held);
    return found;
}

/* -1 = an error, 0 = another child or another name than was expected, 1 = done, 2 = Python has to look */
static int look_at_children(surroundings *of, PyObject *module)
{
    PyObject *held = those_in(module, S_own_modules, 1);
    if (!held)
        return PyErr_Occurred() ? -1 : 2;
    PyObject *expected = of->seen < PyList_GET_SIZE(of->children) ? PyList_GET_ITEM(of->children, of->seen++) : NULL;
    int same = expected && PyTuple_Check(expected) && PyTuple_GET_SIZE(expected) == 2 * PyList_GET_SIZE(held);
    for (Py_ssize_t i = 0; same == 1 && i < PyList_GET_SIZE(held); i++) {
        PyObject *item = PyList_GET_ITEM(held, i);
        same = PyLong_AsVoidPtr(PyTuple_GET_ITEM(expected, 2 * i + 1)) == (void *)PyTuple_GET_ITEM(item, 1);
        if (same == 1)
            same = PyObject_RichCompareBool(PyTuple_GET_ITEM(expected, 2 * i), PyTuple_GET_ITEM(item, 0), Py_EQ);
    }
    Py_DECREF(held);
    return PyErr_Occurred() ? -1 : same;
}

static int look_at_parameters(surroundings *of, PyObject *module)
{
    PyObject *held = those_in(module, S_own_parameters, 0);
    int fine = held ? 1 : PyErr_Occurred() ? -1 : 2;
    for (Py_ssize_t i = 0; fine == 1 && i < PyList_GET_SIZE(held); i++) {
        PyObject *parameter = PyList_GET_ITEM(held, i);
        PyObject *flag = parameter == Py_None ? NULL : PyObject_GetAttr(parameter, S_requires);
        if (parameter != Py_None && (!flag || PyList_Append(of->trainable, flag) < 0))
            fine = -1;
        Py_XDECREF(flag);
    }
    Py_XDECREF(held);
    return fine;
}

static int look_at_buffers(surroundings *of, PyObject *module, PyObject *path)
{
    PyObject *held = those_in(module, S_own_buffers, 1);
    int fine = held ? 1 : PyErr_Occurred() ? -1 : 2;
    for (Py_ssize_t i = 0; fine == 1 && i < PyList_GET_SIZE(held); i++) {
        PyObject *name = PyTuple_GET_ITEM(PyList_GET_ITEM(held, i), 0), *buffer = PyTuple_GET_ITEM(PyList_GET_ITEM(held, i), 1);
        PyObject *entry = buffer == Py_None ? NULL : PyTuple_Pack(3, path, name, buffer);
        if (buffer != Py_None && (!entry || PyList_Append(of->buffers, entry) < 0))
            fine = -1;
        Py_XDECREF(entry);
    }
    Py_XDECREF(held);
    return fine;
}

static int look_at_module(surroundings *of, PyObject *named)
{
    if (!PyTuple_Check(named) || PyTuple_GET_SIZE(named) != 2 || !PyWeakref_Check(PyTuple_GET_ITEM(named, 1)))
        return PyErr_SetString(PyExc_TypeError, "a module is given by its path and a weak reference"), -1;
    PyObject *module = PyWeakref_GetObject(PyTuple_GET_ITEM(named, 1));
    if (module == Py_None)
        return 0;
    Py_INCREF(module);
    PyObject *training = PyObject_GetAttr(module, S_training);
    int fine = training && PyList_Append(of->training, training) == 0 ? look_at_children(of, module) : -1;
    if (fine == 1)
        fine = look_at_parameters(of, module);
    if (fine == 1)
        fine = look_at_buffers(of, module, PyTuple_GET_ITEM(named, 0));
    Py_XDECREF(training);
    Py_DECREF(module);
    return fine;
}

PyDoc_STRVAR(surroundings_doc,
             "surroundings([(path, weak reference of a module), ...], [(name, id of a child, name, id, ...), ...])\n"
             "-> (training flags, requires_grad of the parameters, [(path, name, buffer), ...])\n\n"
             "False where they are no longer built like this; None where a module keeps its things otherwise.");

static PyObject *surroundings_of(PyObject *module, PyObject *const *args, Py_ssize_t given)
{
    if (given != 2 || !PyList_Check(args[0]) || !PyList_Check(args[1]))
        return PyErr_Format(PyExc_TypeError, "surroundings takes two lists");
    surroundings of = {PyList_New(0), PyList_New(0), PyList_New(0), args[1], 0};
    int fine = of.training && of.trainable && of.buffers ? 1 : -1;
    for (Py_ssize_t i = 0; fine == 1 && i < PyList_GET_SIZE(args[0]); i++)
        fine = look_at_module(&of, PyList_GET_ITEM(args[0], i));
    if (fine == 1 && of.seen != PyList_GET_SIZE(args[1]))
        fine = 0;
    PyObject *training = fine == 1 ? PyList_AsTuple(of.training) : NULL;
    PyObject *trainable = training ? PyList_AsTuple(of.trainable) : NULL;
    PyObject *found = trainable ? PyTuple_Pack(3, training, trainable, of.buffers) : NULL;
    Py_XDECREF(training);
    Py_XDECREF(trainable);
    Py_XDECREF(of.training);
    Py_XDECREF(of.trainable);
    Py_XDECREF(of.buffers);
    return fine == 0 ? Py_NewRef(Py_False) : fine == 2 ? Py_NewRef(Py_None) : found;
}
#endif
