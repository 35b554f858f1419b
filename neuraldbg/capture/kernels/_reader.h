/* One plain tensor in host memory, read where it lies: what capture/kernels/host.py does in several calls. */
#ifdef HAVE_LAYERS

typedef struct {
    PyObject_HEAD kinds known_as;
} reader;

PyDoc_STRVAR(measured_doc, "measured(tensor) -> its row; None where it is not a plain tensor in order");

static PyObject *reader_measured(PyObject *self, PyObject *tensor)
{
    job one = {0};
    int plain = read_plain(&((reader *)self)->known_as, tensor, &one);
    if (plain != 1)
        return plain < 0 ? NULL : Py_NewRef(Py_None);
    measure_plain(&one);
    return row_of(&one.now, 0);
}

PyDoc_STRVAR(hashed_doc, "hashed(tensor, most) -> the hash of its elements; None where it is not plain or above so many bytes");

static PyObject *reader_hashed(PyObject *self, PyObject *const *args, Py_ssize_t given)
{
    job one = {0};
    if (given != 2)
        return PyErr_Format(PyExc_TypeError, "hashed takes a tensor and bytes, not %zd arguments", given);
    long long most = PyLong_AsLongLong(args[1]);
    int plain = PyErr_Occurred() ? -1 : read_plain(&((reader *)self)->known_as, args[0], &one);
    int64_t bytes = plain == 1 ? one.count * WIDTH[one.dtype] : 0;
    if (plain != 1 || bytes > most)
        return plain < 0 ? NULL : Py_NewRef(Py_None);
    return PyLong_FromUnsignedLongLong(hash_of_bytes(set_of(0), one.at, bytes));
}

PyDoc_STRVAR(rows_of_doc, "rows(tensor, most, longest) -> eight bytes of each row, its hash; None where it is not plain, above so many\n"
                          "bytes, or its rows are empty or above so many elements");

static PyObject *reader_rows(PyObject *self, PyObject *const *args, Py_ssize_t given)
{
    job one = {0};
    if (given != 3)
        return PyErr_Format(PyExc_TypeError, "rows takes a tensor, bytes and elements, not %zd arguments", given);
    long long most = PyLong_AsLongLong(args[1]), longest = PyErr_Occurred() ? 0 : PyLong_AsLongLong(args[2]);
    int plain = PyErr_Occurred() ? -1 : read_plain(&((reader *)self)->known_as, args[0], &one);
    PyObject *shape = plain == 1 ? PyObject_GetAttr(args[0], S_shape) : NULL;
    if (plain == 1 && !shape)
        return NULL;
    int64_t rows = shape && PyTuple_Check(shape) && PyTuple_GET_SIZE(shape) ? PyLong_AsLongLong(PyTuple_GET_ITEM(shape, 0)) : 0;
    Py_XDECREF(shape);
    if (PyErr_Occurred())
        return NULL;
    int64_t wide = rows > 0 ? one.count / rows : 0, width = plain == 1 ? WIDTH[one.dtype] : 0;
    if (wide < 1 || wide > longest || one.count * width > most)
        return plain < 0 ? NULL : Py_NewRef(Py_None);
    return hashes_of_rows(one.at, rows, wide * width);
}

PyDoc_STRVAR(octaves_doc, "octaves(tensor, piece, pieces, flags=0) -> (elements, looked at, zeros, NaN or Inf, octaves of the others as\n"
                          "uint16); of a tensor that is larger than all pieces these, spread over it. None where it is not a plain\n"
                          "tensor in order, or empty");

static PyObject *reader_octaves(PyObject *self, PyObject *const *args, Py_ssize_t given)
{
    job one = {0};
    if (given < 3 || given > 4)
        return PyErr_Format(PyExc_TypeError, "octaves takes a tensor, two numbers and flags, not %zd arguments", given);
    unsigned long flags = given > 3 ? PyLong_AsUnsignedLong(args[3]) : 0;
    if (PyErr_Occurred())
        return NULL;
    long long size = PyLong_AsLongLong(args[1]), pieces = PyErr_Occurred() ? 0 : PyLong_AsLongLong(args[2]);
    if (PyErr_Occurred() || size < 1 || pieces < 1 || size > UINT16_MAX / pieces)
        return PyErr_Occurred() ? NULL : PyErr_Format(PyExc_ValueError, "pieces of 1 to %d values in all", UINT16_MAX);
    int plain = read_plain(&((reader *)self)->known_as, args[0], &one);
    if (plain != 1 || one.count == 0)
        return plain < 0 ? NULL : Py_NewRef(Py_None);
    counted all = count_pieces(set_of(flags), &one, size, pieces);
    return Py_BuildValue("(LLLLy#)", (long long)one.count, (long long)all.looked_at, (long long)all.zeros, (long long)all.bad,
                         (char *)all.octaves, (Py_ssize_t)sizeof(all.octaves));
}

PyDoc_STRVAR(finite_doc, "finite(refs) -> whether the gradients of all these weakly held tensors are; None where one is gone,\n"
                         "has none, or is not a plain tensor in order");

static PyObject *reader_finite(PyObject *self, PyObject *refs)
{
    if (!PyList_Check(refs))
        return PyErr_Format(PyExc_TypeError, "finite takes a list");
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(refs); i++) {
        PyObject *ref = PyList_GET_ITEM(refs, i), *tensor = PyWeakref_Check(ref) ? PyWeakref_GetObject(ref) : Py_None;
        PyObject *gradient = tensor == Py_None ? Py_NewRef(Py_None) : PyObject_GetAttr(tensor, S_grad);
        job one = {0};
        int plain = gradient ? read_plain(&((reader *)self)->known_as, gradient, &one) : -1;
        if (plain == 1)
            measure_plain(&one);
        Py_XDECREF(gradient);
        if (plain != 1)
            return plain < 0 ? NULL : Py_NewRef(Py_None);
        if (one.now.of.nans || one.now.of.infs)
            Py_RETURN_FALSE;
    }
    Py_RETURN_TRUE;
}

PyDoc_STRVAR(same_doc, "same(tensors, others) -> whether each holds the same bits as the other one, in the same layout");

static int same_plain(kinds *of, PyObject *tensor, PyObject *other)
{
    job one = {0}, two = {0};
    MUST(read_plain(of, tensor, &one));
    MUST(read_plain(of, other, &two));
    PyObject *shape = PyObject_GetAttr(tensor, S_shape), *its_shape = shape ? PyObject_GetAttr(other, S_shape) : NULL;
    int alike = its_shape ? PyObject_RichCompareBool(shape, its_shape, Py_EQ) : -1;
    Py_XDECREF(its_shape);
    Py_XDECREF(shape);
    MUST(alike);
    return one.dtype == two.dtype && memcmp(one.at, two.at, (size_t)(one.count * WIDTH[one.dtype])) == 0;
}

static PyObject *reader_same(PyObject *self, PyObject *const *args, Py_ssize_t given)
{
    if (given != 2 || !PyList_Check(args[0]) || !PyList_Check(args[1]))
        return PyErr_Format(PyExc_TypeError, "same takes two lists");
    int same = PyList_GET_SIZE(args[0]) == PyList_GET_SIZE(args[1]);
    for (Py_ssize_t i = 0; same == 1 && i < PyList_GET_SIZE(args[0]) && i < PyList_GET_SIZE(args[1]); i++)
        same = same_plain(&((reader *)self)->known_as, PyList_GET_ITEM(args[0], i), PyList_GET_ITEM(args[1], i));
    return same < 0 ? NULL : PyBool_FromLong(same);
}

#include "_taking.h"
#include "_silent.h"

static PyObject *reader_new(PyTypeObject *type, PyObject *args, PyObject *names)
{
    PyObject *tensor, *other, *strided, *dtypes;
    if (!PyArg_ParseTuple(args, "OOOO!", &tensor, &other, &strided, &PyList_Type, &dtypes))
        return NULL;
    reader *of = (reader *)type->tp_alloc(type, 0);
    if (of)
        learn_kinds(&of->known_as, tensor, other, strided, dtypes);
    return (PyObject *)of;
}

static void reader_dealloc(PyObject *self)
{
    PyTypeObject *type = Py_TYPE(self);
    forget_kinds(&((reader *)self)->known_as);
    type->tp_free(self);
    Py_DECREF(type);
}

PyDoc_STRVAR(hang_doc, "hang(tensor, observer) -> whether it is called with the tensor's gradient; not on a leaf");

static PyObject *hang_on(PyObject *module, PyObject *const *args, Py_ssize_t given)
{
    if (given != 2)
        return PyErr_Format(PyExc_TypeError, "hang takes a tensor and an observer, not %zd arguments", given);
    int hung = hang(args[0], args[1]);
    return hung < 0 ? NULL : PyBool_FromLong(hung);
}

PyDoc_STRVAR(instances_doc, "instances_of(get_objects, types, exact) -> those of what is got whose type is one of a tuple");

/* A process has half a million objects: Python looks at each for 60 ns. And it would let other threads run meanwhile, of
   which one may be filling a tuple that is among them: that fails while somebody else holds it. */
static PyObject *instances_of(PyObject *module, PyObject *const *args, Py_ssize_t given)
{
    if (given != 3 || !PyTuple_Check(args[1]))
        return PyErr_Format(PyExc_TypeError, "instances_of takes a function, a tuple of types and a flag");
    int exact = PyObject_IsTrue(args[2]);
    PyObject *all = exact < 0 ? NULL : PyObject_CallNoArgs(args[0]), *found = all && PyList_Check(all) ? PyList_New(0) : NULL;
    for (Py_ssize_t i = 0; found && i < PyList_GET_SIZE(all); i++) {
        PyObject *one = PyList_GET_ITEM(all, i);
        for (Py_ssize_t k = 0; found && k < PyTuple_GET_SIZE(args[1]); k++) {
            PyObject *kind = PyTuple_GET_ITEM(args[1], k);
            int fits = (PyObject *)Py_TYPE(one) == kind;
            if (!fits && !exact && PyType_Check(kind))
                fits = PyType_IsSubtype(Py_TYPE(one), (PyTypeObject *)kind);
            if (fits && PyList_Append(found, one) < 0)
                Py_CLEAR(found);
            if (fits)
                break;
        }
    }
    if (all && !PyList_Check(all))
        PyErr_SetString(PyExc_TypeError, "a list is to be got");
    Py_XDECREF(all);
    return found;
}

static PyMethodDef reader_methods[] = {
    {"measured", reader_measured, METH_O, measured_doc},
    {"finite", reader_finite, METH_O, finite_doc},
    {"octaves", (PyCFunction)(void (*)(void))reader_octaves, METH_FASTCALL, octaves_doc},
    {"silent", (PyCFunction)(void (*)(void))reader_silent, METH_FASTCALL, silent_doc},
    {"hashed", (PyCFunction)(void (*)(void))reader_hashed, METH_FASTCALL, hashed_doc},
    {"gradients", (PyCFunction)(void (*)(void))reader_gradients, METH_FASTCALL, some_gradients_doc},
    {"same", (PyCFunction)(void (*)(void))reader_same, METH_FASTCALL, same_doc},
    {"rows", (PyCFunction)(void (*)(void))reader_rows, METH_FASTCALL, rows_of_doc},
    {NULL, NULL, 0, NULL},
};
static PyType_Slot reader_slots[] = {
    {Py_tp_new, reader_new}, {Py_tp_dealloc, reader_dealloc}, {Py_tp_methods, reader_methods}, {0, NULL},
};
static PyType_Spec reader_spec = {
    "neuraldbg.capture.kernels._fused.Reader", sizeof(reader), 0, Py_TPFLAGS_DEFAULT, reader_slots,
};
#endif
