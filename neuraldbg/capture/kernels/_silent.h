/* Which units of an activation are zero for all samples, by the bits of its floats: all but the sign. For _reader.h */
#define TILE 512   /* units at a time */
#define WIDE 64    /* elements of one unit at a time */
#define FEW 8      /* units that are looked at one by one, past what lies between them */
#define SAMPLES 16 /* after which it is asked whether all units of a tile have been seen to put something out */

static void join(const instruction_set *set, const char *at, int width, size_t stride, size_t rows, size_t n, loose_u64 *into)
{
    if (width == 2)
        set->join_u16((const loose_u16 *)at, stride, rows, n, (loose_u16 *)into);
    else if (width == 4)
        set->join_u32((const loose_u32 *)at, stride, rows, n, (loose_u32 *)into);
    else
        set->join_u64((const loose_u64 *)at, stride, rows, n, into);
}

/* Of some rows that lie `stride` elements apart: which of n columns hold nothing but zeros. */
static void silent_columns(const instruction_set *set, const char *at, int width, size_t stride, size_t rows, size_t n,
                           unsigned char *silent)
{
    loose_u64 joined[TILE];
    size_t left = n;
    memset(joined, 0, n * (size_t)width);
    for (size_t row = 0; row < rows && left; row += SAMPLES) {
        join(set, at + row * stride * (size_t)width, width, stride, rows - row < SAMPLES ? rows - row : SAMPLES, n, joined);
        left = 0;
        for (size_t i = 0; i < n; i++) {
            silent[i] = width == 2   ? !(((loose_u16 *)joined)[i] & 0x7fff)
                        : width == 4 ? !(((loose_u32 *)joined)[i] & 0x7fffffff)
                                     : !(joined[i] & INT64_MAX);
            left += silent[i];
        }
    }
}

/* Whether so many elements in a row are all zero. */
static int is_silent(const instruction_set *set, const char *at, int width, size_t n)
{
    const uint64_t signless = width == 2 ? UINT64_C(0x7fff7fff7fff7fff) : width == 4 ? UINT64_C(0x7fffffff7fffffff) : INT64_MAX;
    loose_u64 joined[WIDE] = {0};
    uint64_t seen = 0;
    for (size_t done = 0, rows = 1; done < n && !(seen & signless); done += rows * WIDE, rows = SAMPLES) {
        size_t left = (n - done) / WIDE;
        rows = rows < left ? rows : left ? left : 1;
        join(set, at + done * (size_t)width, width, WIDE, rows, left ? WIDE : n - done, joined);
        for (size_t i = 0; i < WIDE * (size_t)width / 8; i++)
            seen |= joined[i];
    }
    return !(seen & signless);
}

/* Of a tile: all at once, or one by one those few that were silent before. */
static void silent_in_tile(const instruction_set *set, const char *at, int width, size_t stride, size_t rows, size_t n,
                           const unsigned char *before, unsigned char *silent)
{
    size_t asked = before ? 0 : n;
    for (size_t i = 0; before && i < n; i++)
        asked += before[i];
    if (asked > FEW)
        silent_columns(set, at, width, stride, rows, n, silent);
    for (size_t i = 0; i < n && asked <= FEW; i++) {
        silent[i] = 0;
        if (!before || before[i])
            silent_columns(set, at + i * (size_t)width, width, stride, rows, 1, silent + i);
    }
    for (size_t i = 0; before && i < n; i++)
        silent[i] &= before[i];
}

/* A tensor is `outer` times all units, each of them `inner` elements in a row. */
static void find_silent(const instruction_set *set, const job *one, const size_t sizes[3], const unsigned char *before,
                        unsigned char *silent)
{
    size_t outer = sizes[0], units = sizes[1], inner = sizes[2], width = WIDTH[one->dtype];
    for (size_t first = 0; inner == 1 && first < units; first += TILE)
        silent_in_tile(set, one->at + first * width, (int)width, units, outer, units - first < TILE ? units - first : TILE,
                       before ? before + first : NULL, silent + first);
    for (size_t unit = 0; inner > 1 && unit < units; unit++) {
        silent[unit] = before ? before[unit] : 1;
        for (size_t i = 0; silent[unit] && i < outer; i++)
            silent[unit] = (unsigned char)is_silent(set, one->at + (i * units + unit) * inner * width, (int)width, inner);
    }
}

PyDoc_STRVAR(silent_doc,
             "silent(tensor, axis, before=None, flags=0) -> a byte of each unit along an axis: 1 where it is zero for all\n\n"
             "before: such bytes of an earlier look, of as many units: 1 only where it was so then. None where the tensor\n"
             "is not a plain one of floats in order, or empty.");

/* Elements before, along and after an axis; 0 = there is no such axis */
static int around_axis(PyObject *tensor, long long axis, size_t sizes[3])
{
    PyObject *shape = PyObject_GetAttr(tensor, S_shape);
    Py_ssize_t n = shape && PyTuple_Check(shape) ? PyTuple_GET_SIZE(shape) : 0;
    sizes[0] = sizes[1] = sizes[2] = 1;
    for (Py_ssize_t i = 0; i < n; i++)
        sizes[i < axis ? 0 : i == axis ? 1 : 2] *= PyLong_AsSize_t(PyTuple_GET_ITEM(shape, i));
    Py_XDECREF(shape);
    return PyErr_Occurred() ? -1 : axis >= 0 && axis < n;
}

static PyObject *reader_silent(PyObject *self, PyObject *const *args, Py_ssize_t given)
{
    job one = {0};
    size_t sizes[3];
    if (given < 2 || given > 4)
        return PyErr_Format(PyExc_TypeError, "silent takes a tensor, an axis, bytes and flags, not %zd arguments", given);
    long long axis = PyLong_AsLongLong(args[1]);
    unsigned long flags = !PyErr_Occurred() && given > 3 ? PyLong_AsUnsignedLong(args[3]) : 0;
    int plain = PyErr_Occurred() ? -1 : read_plain(&((reader *)self)->known_as, args[0], &one);
    if (plain == 1)
        plain = one.count && with_norm(one.dtype) ? around_axis(args[0], axis, sizes) : 0;
    if (plain != 1)
        return plain < 0 ? NULL : Py_NewRef(Py_None);
    PyObject *found = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)sizes[1]);
    if (!found)
        return NULL;
    unsigned char *silent = (unsigned char *)PyBytes_AS_STRING(found);
    const unsigned char *before = NULL;
    if (given > 2 && PyBytes_Check(args[2]) && PyBytes_GET_SIZE(args[2]) == PyBytes_GET_SIZE(found))
        before = (const unsigned char *)PyBytes_AS_STRING(args[2]);
    find_silent(set_of(flags), &one, sizes, before, silent);
    return found;
}
