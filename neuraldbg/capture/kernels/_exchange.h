/* Where a tensor lies, from torch itself in one call: the table of functions that DLPack 1.2 has frameworks put on their
   tensor type (torch 2.10 and later). Asking for device, layout, type, shape and address one by one takes nine. */

typedef struct {
    void *data;
    struct {
        int32_t type, number;
    } device;
    int32_t ndim;
    struct {
        uint8_t code, bits;
        uint16_t lanes;
    } dtype;
    int64_t *shape, *strides;
    uint64_t byte_offset;
} exchanged;

typedef struct {
    struct {
        uint32_t major, minor;
    } version;
    void *earlier, *allocate, *to_owned, *from_owned;
    int (*ask)(void *tensor, exchanged *into);
    void *stream;
} exchange_table;

#define EXCHANGE_ATTRIBUTE "__dlpack_c_exchange_api__"
#define EXCHANGE_CAPSULE "dlpack_exchange_api"
#define ON_HOST 1

typedef int (*asking)(void *, exchanged *);

/* NULL without an error where there is none, or one of another kind. */
static asking exchange_of(PyObject *type)
{
    PyObject *capsule = PyObject_GetAttrString(type, EXCHANGE_ATTRIBUTE);
    const exchange_table *table = NULL;
    if (capsule && PyCapsule_IsValid(capsule, EXCHANGE_CAPSULE))
        table = PyCapsule_GetPointer(capsule, EXCHANGE_CAPSULE);
    PyErr_Clear();
    Py_XDECREF(capsule); /* the type holds it as long as it lives */
    return table && table->version.major == 1 ? table->ask : NULL;
}

static int dtype_of_exchanged(const exchanged *one)
{
    static const struct {
        uint8_t code, bits, dtype;
    } known[] = {{2, 32, F32}, {4, 16, BF16}, {2, 16, F16}, {2, 64, F64}, {0, 64, I64},  {6, 8, BOOL}, {10, 8, E4M3}, {12, 8, E5M2},
                 {0, 8, I8},   {1, 8, U8},    {0, 16, I16}, {1, 16, U16}, {0, 32, I32}, {1, 32, U32}, {1, 64, U64}};
    for (size_t i = 0; one->dtype.lanes == 1 && i < sizeof known / sizeof *known; i++)
        if (known[i].code == one->dtype.code && known[i].bits == one->dtype.bits)
            return known[i].dtype;
    return -1;
}

static int in_order(const exchanged *one, int64_t *count)
{
    int64_t expected = 1, elements = 1;
    int ordered = 1;
    for (int d = one->ndim - 1; d >= 0; d--) {
        elements *= one->shape[d];
        if (one->shape[d] != 1) {
            ordered &= one->strides[d] == expected;
            expected *= one->shape[d];
        }
    }
    *count = elements;
    return ordered || elements == 0;
}

/* Sparse, nested and wrapped tensors, and devices that DLPack has no name for: torch takes a millisecond to refuse them,
   with a stack trace. Where there are some of these, it is asked one by one from then on. */
#define MOST_REFUSED 3

/* As `ask_plain`: 1 = a plain tensor in order, 0 = another; 2 = torch has to be asked one by one. */
static int ask_at_once(asking ask, int *refused, PyObject *tensor, job *one)
{
    exchanged seen;
    if (!ask || *refused >= MOST_REFUSED)
        return 2;
    if (ask(tensor, &seen) != 0) {
        PyErr_Clear();
        ++*refused;
        return 2;
    }
    if (seen.device.type != ON_HOST || !in_order(&seen, &one->count))
        return 0;
    one->dtype = dtype_of_exchanged(&seen);
    one->at = one->count ? (const char *)seen.data + seen.byte_offset : NULL;
    return one->dtype >= 0 && (one->at || !one->count);
}
