/* Parameters as they are before an update, copied to where they were copied before; and their gradients measured
   meanwhile. */
#ifdef HAVE_LAYERS

#define PAST_CACHES 131072 /* bytes: a larger copy is not read before the update has taken the caches for itself */
#define ALIGNED 64         /* bytes of the longest vector */

typedef struct {
    const char *at;
    char *to;
    int64_t bytes;
    int dtype;
} planned;

/* Written past the caches, memory need not be read first to be overwritten: a fifth less time for 5 MB. */
static void copy_for_later(const planned *one)
{
    int64_t done = 0;
#if defined(__GNUC__) && defined(__x86_64__)
    if (one->bytes >= PAST_CACHES && (uintptr_t)one->to % 16 == 0) {
        for (; done + 64 <= one->bytes; done += 64)
            for (int64_t k = done; k < done + 64; k += 16)
                _mm_stream_si128((__m128i *)(one->to + k), _mm_loadu_si128((const __m128i *)(one->at + k)));
        _mm_sfence();
    }
#endif
    memcpy(one->to + done, one->at + done, (size_t)(one->bytes - done));
}

/* Whether a tensor is the one of the plan and lies as it did. `of` may be NULL: its type is not asked for. */
static int as_planned(const kinds *of, PyObject *tensor, PyObject *plan, planned *one)
{
    PyObject *ref, *shape, *dtype;
    unsigned long long at, to;
    long long bytes;
    int64_t now_at;
    if (!PyArg_ParseTuple(plan, "OKOOKL", &ref, &at, &shape, &dtype, &to, &bytes))
        return -1;
    if (!PyWeakref_Check(ref) || PyWeakref_GetObject(ref) != tensor)
        return 0;
    MUST(number_of(tensor, S_data_ptr, &now_at));
    if ((unsigned long long)now_at != at)
        return 0;
    MUST(attribute_is(tensor, S_dtype, dtype));
    MUST(method_is(tensor, S_contiguous, Py_True));
    PyObject *now_shape = PyObject_GetAttr(tensor, S_shape);
    int same = now_shape ? PyObject_RichCompareBool(now_shape, shape, Py_EQ) : -1;
    Py_XDECREF(now_shape);
    *one = (planned){(const char *)(uintptr_t)at, (char *)(uintptr_t)to, bytes, -1};
    if (of && dtype == of->dtypes[F32])
        one->dtype = F32;
    return same;
}

/* The statistics of a gradient, while its parameter is copied: one waits for the memory while the other computes. */
static void measure_and_copy(job *gradient, const planned *copy)
{
    const instruction_set *set = set_of(0);
    int short_enough = copy->bytes < RELEASE_BYTES; /* for longer ones others may go on, who may let go of the parameter */
    int together = short_enough && gradient->dtype == F32 && copy->dtype == F32 && gradient->count * WIDTH[F32] == copy->bytes;
    if (!together || !set->sums_beside_f32 || copy->bytes < PAST_CACHES || (uintptr_t)copy->to % ALIGNED) {
        measure_plain(gradient);
        copy_for_later(copy);
        return;
    }
    float_state floats = plain_floats();
    gradient->now = measure_beside(set, gradient->at, gradient->count, copy->at, copy->to);
    restore_floats(floats);
}

PyDoc_STRVAR(keep_doc, "keep(tensors, plan) -> whether each was copied as planned\n\n"
                       "plan: (weak reference, address, shape, dtype, where to, bytes) of each, in order. Nothing is promised of\n"
                       "the copies where one of them is another tensor now or lies otherwise.");

static PyObject *keep(PyObject *module, PyObject *const *args, Py_ssize_t given)
{
    if (given != 2 || !PyList_Check(args[0]) || !PyList_Check(args[1]))
        return PyErr_Format(PyExc_TypeError, "keep takes two lists");
    Py_ssize_t n = PyList_GET_SIZE(args[0]);
    int kept = n == PyList_GET_SIZE(args[1]);
    for (Py_ssize_t i = 0; kept == 1 && i < n; i++) {
        planned one;
        kept = as_planned(NULL, PyList_GET_ITEM(args[0], i), PyList_GET_ITEM(args[1], i), &one);
        if (kept == 1)
            copy_for_later(&one);
    }
    return kept < 0 ? NULL : PyBool_FromLong(kept);
}
#endif
