/* Layers of a pass that is measured, without a Python frame for any of them: hooks that torch calls, rows that the flush
   thread takes. Whatever is not a plain tensor in host memory is handed to Python. */
#if defined(__linux__) && !defined(Py_GIL_DISABLED) /* the clock is Python's there, and the interpreter's lock ours */
#define HAVE_LAYERS 1
#include <time.h>

#define ROWS 65536 /* that wait for the flush thread: more are dropped and counted */
#define HISTOGRAM_ROWS 2000 /* likewise: they are dropped long before anything else */
#define SLOTS 8192 /* layers, in an open table; a model with more is watched from Python */
#define DEEPEST 512
enum { FORWARD = 2, BACKWARD = 3, UPDATE = 4 };                  /* phases of the trace */
enum { ACTIVATION = 1, GRADIENT = 2, PARAMETER = 3, MOVED = 4 }; /* kinds */

#pragma pack(push, 1)
typedef struct {
    int64_t step, seq;
    int32_t site, pass;
    uint8_t kind, phase;
    uint16_t slot;
    int64_t count;
    double mean, std, low, high, l2;
    int64_t zeros, nans, infs;
    uint64_t digest;
    int64_t wall;
} stats_row;

typedef struct {
    int64_t step, seq;
    int32_t site, pass;
    uint8_t phase, depth;
    int64_t start, duration, host_bytes, device_bytes;
} span_row;

typedef struct {
    int64_t step, seq;
    int32_t site, pass;
    uint8_t kind, phase;
    uint16_t slot;
    int64_t count;
    int32_t looked_at, zeros, bad;
    unsigned char octaves[2 * BINS];
    int64_t wall;
} histogram_row;
#pragma pack(pop)

typedef struct {
    PyObject *core, *recorder;                 /* asked when a gradient arrives: whether we are on, and the step */
    PyObject *due[PARAMETER + 1];              /* of a kind: site -> step before which it has none; NULL = nobody counts */
    int64_t size, pieces, least_gap, growth;   /* what is looked at, and the steps between two */
    histogram_row *rows;
    int64_t used, lost;
} counting;

typedef struct {
    PyObject *module, *weak;
    int32_t site;
    char leaf, watched, timed, fresh; /* fresh: Python is to be shown it once, in whatever pass */
} layer;

typedef struct {
    PyObject *module;
    int64_t start, own;
} call;

#include "_exchange.h"
#include "_octaves.h"

typedef struct {
    PyObject *tensor, *other_tensor, *strided, *is_negated;
    PyObject *dtypes[DTYPES];
    asking ask; /* NULL = attribute by attribute */
    int refused;
} kinds; /* what torch calls them */

typedef struct {
    PyObject_HEAD PyObject *next_seq, *missed, *missed_gradient, *looked, *modes;
    kinds known_as;
    PyObject *below, *above; /* the hooks before and after a module in Python: for other threads, and what began before us */
    stats_row *stats;
    span_row *spans;
    int64_t stats_used, spans_used, stats_lost, spans_lost;
    layer *layers;
    int known;
    call stack[DEEPEST];
    int depth, above_depth;
    int64_t step, largest, read; /* tensors above `largest` bytes are left out; bytes of those that were not */
    int64_t own, taken;          /* nanoseconds spent here, and of them those that Python knows of */
    int32_t pass;
    char phase, with_gradient, wants_activation, wants_gradient, looks, fresh, resting;
    unsigned long owner;
    int32_t last_site, last_pass; /* whose output gradient arrived last; -1 = none */
    int64_t last_at;
    counting histograms;
    PyObject *error;
} watch;

typedef struct {
    PyObject_HEAD vectorcallfunc call;
    watch *of;
    int32_t site, pass;
    char leaf, counts; /* counts: a histogram of the gradient was due when its layer ran */
} hook;

static PyTypeObject *hook_type = NULL;
static PyObject *S_is_cpu, *S_layout, *S_nested, *S_dtype, *S_shape, *S_numel, *S_contiguous, *S_neg, *S_data_ptr, *S_requires,
    *S_leaf, *S_hooks, *S_grad_fn, *S_register, *S_grad, *S_on, *S_step;

static int64_t clock_of(clockid_t which)
{
    struct timespec now;
    clock_gettime(which, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

/* The first failure is kept for Python to read; from then on everything goes its way. */
static void give_up(watch *of)
{
    PyObject *kind, *value, *trace;
    PyErr_Fetch(&kind, &value, &trace);
    if (!of->error && kind) {
        PyErr_NormalizeException(&kind, &value, &trace);
        of->error = Py_NewRef(value ? value : kind);
    }
    Py_XDECREF(kind);
    Py_XDECREF(value);
    Py_XDECREF(trace);
}

static int64_t next_seq(watch *of)
{
    PyObject *number = PyObject_CallNoArgs(of->next_seq);
    int64_t seq = number ? PyLong_AsLongLong(number) : -1;
    Py_XDECREF(number);
    return seq;
}

static void put_stats(watch *of, int32_t site, int kind, int phase, int32_t pass, const measured *one)
{
    if (of->stats_used == ROWS) {
        of->stats_lost++;
        return;
    }
    const moments *m = &one->of;
    double n = m->finite, none = NAN, scale = one->scale;
    stats_row *row = &of->stats[of->stats_used];
    *row = (stats_row){of->step, next_seq(of), site, pass, (uint8_t)kind, (uint8_t)phase, 0, one->count,
                       n ? m->mean / scale : none, n ? sqrt(m->m2 / n) / scale : none, n ? m->low : none,
                       n ? m->high : none, n ? sqrt(m->m2 + n * m->mean * m->mean) / scale : none, m->zeros, m->nans,
                       m->infs, 0, clock_of(CLOCK_REALTIME)};
    of->stats_used++;
}

static void put_span(watch *of, int32_t site, int phase, int32_t pass, int depth, int64_t start, int64_t took,
                     int64_t bytes)
{
    if (of->spans_used == ROWS) {
        of->spans_lost++;
        return;
    }
    of->spans[of->spans_used] = (span_row){of->step, next_seq(of), site, pass, (uint8_t)phase,
                                           (uint8_t)(depth > 255 ? 255 : depth), start, took, bytes,
                                           bytes < 0 ? -1 : 0};
    of->spans_used++;
}

/* -1 = an error, 0 = no, 1 = yes */
static int attribute_is(PyObject *of, PyObject *name, PyObject *wanted)
{
    PyObject *value = PyObject_GetAttr(of, name);
    int same = value == wanted;
    Py_XDECREF(value);
    return value ? same : -1;
}

static int method_is(PyObject *of, PyObject *name, PyObject *wanted)
{
    PyObject *value = PyObject_CallMethodNoArgs(of, name);
    int same = value == wanted;
    Py_XDECREF(value);
    return value ? same : -1;
}

static int number_of(PyObject *of, PyObject *name, int64_t *into)
{
    PyObject *value = PyObject_CallMethodNoArgs(of, name);
    *into = value ? (int64_t)PyLong_AsUnsignedLongLong(value) : -1;
    Py_XDECREF(value);
    return value && !PyErr_Occurred() ? 1 : -1;
}

static int code_of(const kinds *of, PyObject *tensor)
{
    PyObject *dtype = PyObject_GetAttr(tensor, S_dtype);
    int code = -1;
    for (int i = 0; dtype && i < DTYPES; i++)
        if (of->dtypes[i] == dtype)
            code = i;
    Py_XDECREF(dtype);
    return code;
}

#define MUST(x)                                                                                                        \
    do {                                                                                                               \
        int is_so = (x);                                                                                               \
        if (is_so != 1)                                                                                                \
            return is_so;                                                                                              \
    } while (0)

static int ask_plain(const kinds *of, PyObject *tensor, job *one)
{
    int64_t at = 0;
    MUST(attribute_is(tensor, S_is_cpu, Py_True));
    MUST(attribute_is(tensor, S_layout, of->strided));
    MUST(attribute_is(tensor, S_nested, Py_False));
    MUST(method_is(tensor, S_neg, Py_False));
    MUST(method_is(tensor, S_contiguous, Py_True));
    one->dtype = code_of(of, tensor);
    if (one->dtype < 0)
        return PyErr_Occurred() ? -1 : 0;
    MUST(number_of(tensor, S_numel, &one->count));
    if (one->count)
        MUST(number_of(tensor, S_data_ptr, &at));
    one->at = (const char *)(intptr_t)at;
    return one->at || !one->count;
}

/* Whether memory shows all: not of a view with the signs turned, nor of integers of less than a byte, which are told as
   bytes. */
static int as_it_lies(const kinds *of, PyObject *tensor, job *one)
{
    PyObject *const given[] = {tensor}, *answer = PyObject_Vectorcall(of->is_negated, given, 1, NULL);
    int plain = answer == Py_False;
    Py_XDECREF(answer);
    if (!answer)
        return -1;
    if (plain && (one->dtype == I8 || one->dtype == U8))
        plain = code_of(of, tensor) == one->dtype;
    return PyErr_Occurred() ? -1 : plain;
}

/* Where the elements of a tensor lie, when they fill a piece of host memory in order: 1. Another kind of tensor: 0. One
   without memory of its own (inside vmap or grad of torch.func) refuses to say where it lies. */
static int read_plain(kinds *of, PyObject *tensor, job *one)
{
    if ((PyObject *)Py_TYPE(tensor) != of->tensor && (PyObject *)Py_TYPE(tensor) != of->other_tensor)
        return 0;
    int plain = ask_at_once(of->ask, &of->refused, tensor, one);
    if (plain == 1)
        plain = as_it_lies(of, tensor, one);
    else if (plain == 2)
        plain = ask_plain(of, tensor, one);
    if (plain >= 0 || !PyErr_ExceptionMatches(PyExc_RuntimeError))
        return plain;
    PyErr_Clear();
    return 0;
}

static void measure_plain(job *one)
{
    const histogram none = {NULL, 1};
    PyThreadState *released = one->count * WIDTH[one->dtype] >= RELEASE_BYTES ? PyEval_SaveThread() : NULL;
    float_state floats = plain_floats();
    one->now = measure_one(set_of(0), one->at, one->dtype, one->count, NULL, none);
    restore_floats(floats);
    if (released)
        PyEval_RestoreThread(released);
}

static int not_too_large(watch *of, const job *one)
{
    int64_t bytes = one->count * WIDTH[one->dtype];
    if (bytes > of->largest)
        return 0;
    of->read += bytes;
    return 1;
}

#include "_histograms.h"

static layer *layer_of(watch *of, PyObject *module)
{
    size_t place = ((size_t)(uintptr_t)module >> 4) * 0x9E3779B1u;
    for (size_t i = 0; i < SLOTS; i++) {
        layer *one = &of->layers[(place + i) % SLOTS];
        if (!one->module || one->module == module)
            return one;
    }
    return NULL;
}

static layer *known_layer(watch *of, PyObject *module)
{
    layer *one = layer_of(of, module);
    return one && one->module && PyWeakref_GetObject(one->weak) == module ? one : NULL;
}

static hook *new_hook(watch *of, vectorcallfunc call, int32_t site, int leaf)
{
    hook *one = PyObject_GC_New(hook, hook_type);
    if (one) {
        one->call = call;
        one->of = (watch *)Py_NewRef(of);
        one->site = site;
        one->pass = of->pass;
        one->leaf = (char)leaf;
        one->counts = 0;
        PyObject_GC_Track(one);
    }
    return one;
}

static void charge_backward(watch *of, int64_t now)
{
    if (of->last_site >= 0)
        put_span(of, of->last_site, BACKWARD, of->last_pass, 0, of->last_at, now - of->last_at, -1);
}

/* Python's part. Whether it may go on: what its guard lets through (Ctrl-C, a stop that was asked for) is the user's. */
static int tell_python(PyObject *listener, PyObject *given)
{
    PyObject *held = Py_XNewRef(listener); /* it may be let go of meanwhile */
    PyObject *told = held && given ? PyObject_CallObject(held, given) : NULL;
    int fine = told || !held;
    Py_XDECREF(told);
    Py_XDECREF(held);
    Py_XDECREF(given);
    return fine;
}

static PyObject *gradient_arrived(PyObject *self, PyObject *const *args, size_t given, PyObject *names)
{
    hook *mine = (hook *)self;
    watch *of = mine->of;
    job one = {0};
    if (!of->missed_gradient || of->error || PyVectorcall_NARGS(given) < 1 || args[0] == Py_None)
        Py_RETURN_NONE;
    int64_t now = clock_of(CLOCK_MONOTONIC);
    int timed = mine->leaf && !of->resting, fine = 1;
    if (timed)
        charge_backward(of, now);
    int plain = read_plain(&of->known_as, args[0], &one);
    if (plain == 1 && not_too_large(of, &one)) {
        measure_plain(&one);
        put_stats(of, mine->site, GRADIENT, BACKWARD, mine->pass, &one.now);
    } else if (plain == 0)
        fine = tell_python(of->missed_gradient, Py_BuildValue("(iiOi)", mine->site, mine->pass, args[0], mine->counts));
    if (plain == 1 && mine->counts)
        count_gradient(of, mine->site, mine->pass, &one);
    int64_t end = clock_of(CLOCK_MONOTONIC);
    of->own += end - now;
    if (timed) {
        of->last_site = mine->site;
        of->last_pass = mine->pass;
        of->last_at = end;
    } else
        of->last_at += end - now; /* our own time is nobody's */
    if (!fine)
        return NULL;
    if (PyErr_Occurred())
        give_up(of);
    Py_RETURN_NONE;
}

/* What Tensor.register_hook does, without its frame. -1 = an error, 0 = a leaf, which outlives the pass, 1 = done */
static int hang(PyObject *output, PyObject *observer)
{
    int inner = attribute_is(output, S_leaf, Py_False);
    if (inner != 1)
        return inner;
    PyObject *hooks = PyObject_GetAttr(output, S_hooks);
    if (hooks == Py_None) {
        Py_DECREF(hooks);
        hooks = PyODict_New();
        PyObject *node = hooks && PyObject_SetAttr(output, S_hooks, hooks) == 0 ? PyObject_GetAttr(output, S_grad_fn) : NULL;
        PyObject *done = node && node != Py_None ? PyObject_CallMethodOneArg(node, S_register, output) : node;
        if (done != node)
            Py_XDECREF(done);
        Py_XDECREF(node);
        if (!done)
            Py_CLEAR(hooks);
    }
    int failed = !hooks || PyObject_SetItem(hooks, observer, observer) < 0;
    Py_XDECREF(hooks);
    return failed ? -1 : 1;
}

static int watch_gradient(watch *of, PyObject *output, const layer *from)
{
    hook *mine = new_hook(of, gradient_arrived, from->site, from->leaf);
    int due = mine && of->looks ? is_due(of, GRADIENT, from->site, of->step) : 0;
    if (due > 0)
        mine->counts = 1;
    int hung = mine && due >= 0 ? hang(output, (PyObject *)mine) : -1;
    Py_XDECREF(mine);
    return hung;
}

/* 0 = too deep, and nothing is known of it */
static int begin_layer(watch *of, PyObject *module)
{
    if (of->depth == DEEPEST)
        return 0;
    call *top = &of->stack[of->depth++];
    top->module = module;
    top->own = of->own;
    top->start = clock_of(CLOCK_MONOTONIC);
    return 1;
}

/* Where it stood among those under way; -1 = nowhere. What began inside of it has ended, or was interrupted. */
static int end_layer(watch *of, PyObject *module)
{
    int at = of->depth - 1;
    while (at >= 0 && of->stack[at].module != module)
        at--;
    if (at >= 0)
        of->depth = at;
    return at;
}

static PyObject *before_layer(PyObject *self, PyObject *const *args, size_t given, PyObject *names)
{
    watch *of = ((hook *)self)->of;
    if (PyThread_get_thread_ident() != of->owner)
        return of->below ? PyObject_Vectorcall(of->below, args, given, names) : Py_NewRef(Py_None);
    if (PyVectorcall_NARGS(given) >= 1)
        begin_layer(of, args[0]);
    Py_RETURN_NONE;
}

/* 1 = written down, 0 = for Python, -1 = failed; `fresh` is whether it is its first time */
static int write_layer(watch *of, PyObject *module, PyObject *output, const call *begun, int64_t end)
{
    job one = {0};
    layer *from = known_layer(of, module);
    if (!from || of->error)
        return 0;
    PyObject *modes = PyObject_CallNoArgs(of->modes);
    int64_t active = modes ? PyLong_AsLongLong(modes) : -1;
    Py_XDECREF(modes);
    if (active)
        return active < 0 ? -1 : 0;
    MUST(read_plain(&of->known_as, output, &one));
    int wanted = of->with_gradient && of->wants_gradient && from->watched ? attribute_is(output, S_requires, Py_True) : 0;
    int leaf = wanted == 1 ? attribute_is(output, S_leaf, Py_True) : 0;
    if (wanted < 0 || leaf < 0)
        return -1;
    if (leaf == 1)
        return 0; /* a weight that the module puts out: its hook has to be taken off again */
    of->fresh = from->fresh;
    from->fresh = 0;
    if (from->timed)
        put_span(of, from->site, of->phase, of->pass, of->above_depth + of->depth, begun->start,
                 end - begun->start - (of->own - begun->own), one.count * WIDTH[one.dtype]);
    if (!from->watched)
        return 1;
    if (of->wants_activation && not_too_large(of, &one)) {
        measure_plain(&one);
        put_stats(of, from->site, ACTIVATION, of->phase, of->pass, &one.now);
    }
    if (of->wants_activation && of->looks && of->phase == FORWARD &&
        count_one(of, ACTIVATION, FORWARD, of->step, from->site, of->pass, &one) < 0)
        return -1;
    return wanted == 1 && watch_gradient(of, output, from) < 0 ? -1 : 1;
}

/* `given`: module, args, kwargs, output. Whether the training may go on. */
static int layer_ran(watch *of, int at, int64_t end, PyObject *const *given)
{
    call begun = of->stack[at];
    int done = write_layer(of, given[0], given[3], &begun, end), fine = 1;
    if (done == 0)
        fine = tell_python(of->missed, Py_BuildValue("(O(LL)(OOO)i)", given[0], (long long)begun.start,
                                                     (long long)(end - begun.start - (of->own - begun.own)), given[1],
                                                     given[2], given[3], of->above_depth + at));
    else if (done == 1 && (of->looks || of->fresh))
        fine = tell_python(of->looked, Py_BuildValue("(O(OOO))", given[0], given[1], given[2], given[3]));
    of->own += clock_of(CLOCK_MONOTONIC) - end;
    if (fine && PyErr_Occurred())
        give_up(of);
    return fine;
}

static PyObject *after_layer(PyObject *self, PyObject *const *args, size_t given, PyObject *names)
{
    watch *of = ((hook *)self)->of;
    Py_ssize_t n = PyVectorcall_NARGS(given);
    int64_t end = clock_of(CLOCK_MONOTONIC);
    int at = n > 0 && PyThread_get_thread_ident() == of->owner ? end_layer(of, args[0]) : -1;
    if (at < 0)
        return of->above ? PyObject_Vectorcall(of->above, args, given, names) : Py_NewRef(Py_None);
    if (n >= 4 && !layer_ran(of, at, end, args)) /* with fewer the forward raised */
        return NULL;
    Py_RETURN_NONE;
}
#endif
