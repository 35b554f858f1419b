/* Histograms of what _layers.h sees. Which are due is known to capture/torch/evidence/histograms.py, whose tables these are:
   what C leaves to Python is counted there. */

/* -1 = an error */
static int is_due(watch *of, int kind, int32_t site, int64_t step)
{
    if (!of->histograms.due[kind])
        return 0;
    PyObject *key = PyLong_FromLong(site), *next = key ? PyDict_GetItemWithError(of->histograms.due[kind], key) : NULL;
    int64_t rests = next ? PyLong_AsLongLong(next) : 0;
    Py_XDECREF(key);
    return PyErr_Occurred() ? -1 : step >= rests;
}

static int is_done(watch *of, int kind, int32_t site, int64_t step)
{
    int64_t gap = step / of->histograms.growth;
    gap = gap < of->histograms.least_gap ? of->histograms.least_gap : gap;
    PyObject *key = PyLong_FromLong(site), *next = key ? PyLong_FromLongLong(step + gap) : NULL;
    int done = next ? PyDict_SetItem(of->histograms.due[kind], key, next) : -1;
    Py_XDECREF(next);
    Py_XDECREF(key);
    return done;
}

/* Writes it down where it is due, and there are values: -1 = an error */
static int count_one(watch *of, int kind, int phase, int64_t step, int32_t site, int32_t pass, const job *one)
{
    counting *into = &of->histograms;
    MUST(is_due(of, kind, site, step));
    if (!one->count)
        return 0;
    if (into->used == HISTOGRAM_ROWS)
        into->lost++;
    else {
        counted all = count_pieces(set_of(0), one, into->size, into->pieces);
        histogram_row *row = &into->rows[into->used];
        *row = (histogram_row){step, next_seq(of), site, pass, (uint8_t)kind, (uint8_t)phase, 0, one->count,
                               (int32_t)all.looked_at, (int32_t)all.zeros, (int32_t)all.bad, {0}, clock_of(CLOCK_REALTIME)};
        memcpy(row->octaves, all.octaves, sizeof row->octaves);
        into->used++;
    }
    return is_done(of, kind, site, step);
}

/* In the step in which it arrives. An error stands for the caller to find. */
static void count_gradient(watch *of, int32_t site, int32_t pass, const job *one)
{
    if (PyErr_Occurred() || !of->histograms.core || attribute_is(of->histograms.core, S_on, Py_True) != 1)
        return;
    PyObject *step = PyObject_GetAttr(of->histograms.recorder, S_step);
    int64_t now = step ? PyLong_AsLongLong(step) : -1;
    Py_XDECREF(step);
    if (!PyErr_Occurred())
        count_one(of, GRADIENT, BACKWARD, now, site, pass, one);
}
