/* The modules of a model and what they hold, in the order of torch's own iterators: capture/torch/members.py says what
   is asked, and does it itself where this gives None, because something is named or kept in a way of its own. */
#ifdef HAVE_LAYERS

#define LONGEST_PATH 8192 /* of a module that stands inside of itself the path has no end */

static PyObject *S_named_modules;

/* 1 = it names what is inside of it as torch's own modules do; `by` is what does that */
static int names_as_usual(PyObject *module, PyObject *by)
{
    int same = attribute_is((PyObject *)Py_TYPE(module), S_named_modules, by);
    PyObject *own = same == 1 ? PyObject_GenericGetDict(module, NULL) : NULL;
    int another = own ? PyDict_Contains(own, S_named_modules) : -1;
    Py_XDECREF(own);
    return same != 1 ? same : another < 0 ? -1 : !another;
}

/* The items of one of its dicts; NULL without an error: there are none, or (`fine` is 2) Python has to look. */
static PyObject *items_in(PyObject *module, PyObject *name, int *fine)
{
    PyObject *held = PyObject_GetAttr(module, name), *items = NULL;
    *fine = !held ? -1 : PyDict_CheckExact(held) ? 1 : 2;
    if (*fine == 1 && PyDict_GET_SIZE(held) && !(items = PyDict_Items(held)))
        *fine = -1;
    Py_XDECREF(held);
    return items;
}

/* The path of a child; NULL without an error: Python has to make it. */
static PyObject *path_to(PyObject *path, PyObject *name)
{
    if (!PyUnicode_CheckExact(name) || PyUnicode_GET_LENGTH(path) > LONGEST_PATH)
        return NULL;
    return PyUnicode_GET_LENGTH(path) ? PyUnicode_FromFormat("%U.%U", path, name) : Py_NewRef(name);
}

/* The last child is put there first: the first one is taken first. 2 = Python has to look */
static int await_children(PyObject *waiting, PyObject *path, PyObject *module)
{
    int fine;
    PyObject *held = items_in(module, S_own_modules, &fine);
    for (Py_ssize_t i = held ? PyList_GET_SIZE(held) - 1 : -1; fine == 1 && i >= 0; i--) {
        PyObject *name = PyTuple_GET_ITEM(PyList_GET_ITEM(held, i), 0), *child = PyTuple_GET_ITEM(PyList_GET_ITEM(held, i), 1);
        if (child == Py_None)
            continue;
        PyObject *entry = path ? NULL : Py_NewRef(child), *inner = path ? path_to(path, name) : NULL;
        if (inner)
            entry = PyTuple_Pack(2, inner, child);
        fine = entry ? (PyList_Append(waiting, entry) < 0 ? -1 : 1) : PyErr_Occurred() ? -1 : 2;
        Py_XDECREF(inner);
        Py_XDECREF(entry);
    }
    Py_XDECREF(held);
    return fine;
}

/* One that waits, with what is inside of it. */
static int meet(PyObject *entry, PyObject *by, PyObject *seen, PyObject *waiting, PyObject *found)
{
    int named = PyTuple_CheckExact(entry);
    PyObject *module = named ? PyTuple_GET_ITEM(entry, 1) : entry;
    int known = seen ? PySet_Contains(seen, module) : 0;
    if (known)
        return known;
    int usual = names_as_usual(module, by);
    if (usual != 1)
        return usual < 0 ? -1 : 2;
    if ((seen && PySet_Add(seen, module) < 0) || PyList_Append(found, entry) < 0)
        return -1;
    return await_children(waiting, named ? PyTuple_GET_ITEM(entry, 0) : NULL, module);
}

static PyObject *walk_through(PyObject *first, PyObject *by, int once)
{
    PyObject *waiting = first ? PyList_New(0) : NULL, *found = PyList_New(0), *seen = once ? PySet_New(NULL) : NULL;
    int fine = waiting && found && (seen || !once) ? (PyList_Append(waiting, first) < 0 ? -1 : 1) : -1;
    while (fine == 1 && PyList_GET_SIZE(waiting)) {
        Py_ssize_t last = PyList_GET_SIZE(waiting) - 1;
        PyObject *entry = Py_NewRef(PyList_GET_ITEM(waiting, last));
        fine = PyList_SetSlice(waiting, last, last + 1, NULL) < 0 ? -1 : meet(entry, by, seen, waiting, found);
        Py_DECREF(entry);
    }
    Py_XDECREF(waiting);
    Py_XDECREF(seen);
    if (fine != 1)
        Py_CLEAR(found);
    return fine == 2 ? Py_NewRef(Py_None) : found;
}

PyDoc_STRVAR(modules_doc, "modules_in(root, by) -> modules, each once; `by`: torch's own way to name them");

static PyObject *modules_in(PyObject *module, PyObject *const *args, Py_ssize_t given)
{
    if (given != 2)
        return PyErr_Format(PyExc_TypeError, "modules_in takes a module and a function");
    return walk_through(args[0], args[1], 1);
}

PyDoc_STRVAR(named_modules_doc, "named_modules_in(root, by, once) -> (path, module), once or in each place");

static PyObject *named_modules_in(PyObject *module, PyObject *const *args, Py_ssize_t given)
{
    if (given != 3)
        return PyErr_Format(PyExc_TypeError, "named_modules_in takes a module, a function and a flag");
    PyObject *path = PyUnicode_New(0, 0), *first = path ? PyTuple_Pack(2, path, args[0]) : NULL;
    PyObject *found = first ? walk_through(first, args[1], args[2] == Py_True) : NULL;
    Py_XDECREF(first);
    Py_XDECREF(path);
    return found;
}

/* What one module holds under the name of a dict of its own. `seen` has the numbers of those found before, if each is
   wanted once. 2 = Python has to look */
static int take_held(PyObject *entry, PyObject *name, PyObject *seen, PyObject *found)
{
    int named = PyTuple_CheckExact(entry), fine;
    PyObject *held = items_in(named ? PyTuple_GET_ITEM(entry, 1) : entry, name, &fine);
    for (Py_ssize_t i = 0; held && fine == 1 && i < PyList_GET_SIZE(held); i++) {
        PyObject *own = PyTuple_GET_ITEM(PyList_GET_ITEM(held, i), 0), *value = PyTuple_GET_ITEM(PyList_GET_ITEM(held, i), 1);
        if (value == Py_None)
            continue;
        PyObject *number = seen ? PyLong_FromVoidPtr(value) : NULL;
        int known = seen ? (number ? PySet_Contains(seen, number) : -1) : 0;
        if (seen && !known)
            known = PySet_Add(seen, number);
        Py_XDECREF(number);
        PyObject *path = named && !known ? path_to(PyTuple_GET_ITEM(entry, 0), own) : NULL;
        PyObject *item = known ? NULL : !named ? Py_NewRef(value) : path ? PyTuple_Pack(2, path, value) : NULL;
        if (!known)
            fine = item ? (PyList_Append(found, item) < 0 ? -1 : 1) : PyErr_Occurred() ? -1 : 2;
        fine = known < 0 ? -1 : fine;
        Py_XDECREF(path);
        Py_XDECREF(item);
    }
    Py_XDECREF(held);
    return fine;
}

PyDoc_STRVAR(held_doc, "held_in(modules, name, once) -> what they hold in their dicts of that name; of named ones, with names");

static PyObject *held_in(PyObject *module, PyObject *const *args, Py_ssize_t given)
{
    if (given != 3 || !PyList_Check(args[0]))
        return PyErr_Format(PyExc_TypeError, "held_in takes a list, a name and a flag");
    int once = args[2] == Py_True, fine = 1;
    PyObject *found = PyList_New(0), *seen = once ? PySet_New(NULL) : NULL;
    if (!found || (once && !seen))
        fine = -1;
    for (Py_ssize_t i = 0; fine == 1 && i < PyList_GET_SIZE(args[0]); i++) {
        PyObject *entry = Py_NewRef(PyList_GET_ITEM(args[0], i));
        fine = take_held(entry, args[1], seen, found);
        Py_DECREF(entry);
    }
    Py_XDECREF(seen);
    if (fine != 1)
        Py_CLEAR(found);
    return fine == 2 ? Py_NewRef(Py_None) : found;
}

PyDoc_STRVAR(usual_doc, "usual(module, names, values): whether its class has these, and the object none of its own");

static PyObject *usual(PyObject *module, PyObject *const *args, Py_ssize_t given)
{
    if (given != 3 || !PyTuple_Check(args[1]) || !PyTuple_Check(args[2]) || PyTuple_GET_SIZE(args[1]) != PyTuple_GET_SIZE(args[2]))
        return PyErr_Format(PyExc_TypeError, "usual takes a module and two tuples of one length");
    PyObject *own = PyObject_GenericGetDict(args[0], NULL);
    int fine = own ? 1 : -1;
    for (Py_ssize_t i = 0; fine == 1 && i < PyTuple_GET_SIZE(args[1]); i++) {
        PyObject *name = PyTuple_GET_ITEM(args[1], i);
        fine = attribute_is((PyObject *)Py_TYPE(args[0]), name, PyTuple_GET_ITEM(args[2], i));
        int another = fine == 1 ? PyDict_Contains(own, name) : 0;
        fine = another < 0 ? -1 : another ? 0 : fine;
    }
    Py_XDECREF(own);
    return fine < 0 ? NULL : PyBool_FromLong(fine);
}
#endif
