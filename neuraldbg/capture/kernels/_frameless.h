/* What _rows.h, _calls.h, _fetches.h, _reader.h, _taking.h and _members.h add to the module. */
#ifdef HAVE_LAYERS

static int add_frameless(PyObject *module)
{
    struct {
        PyObject **at;
        const char *name;
    } names[] = {{&S_step, "step"},       {&S_at_step, "at_step"},        {&S_pass_id, "pass_id"}, {&S_digest, "digest"},
                 {&S_value, "value"},     {&S_duration, "duration_ns"},   {&S_aux, "aux"},         {&S_source, "source"},
                 {&S_site, "site"},       {&S_undisturbed, "undisturbed"}, {&S_broken, "broken"},  {&S_on, "on"},
                 {&S_enter, "__enter__"}, {&S_exit, "__exit__"},         {&S_version, "_version"},
                 {&S_training, "training"}, {&S_own_parameters, "_parameters"}, {&S_own_buffers, "_buffers"},
                 {&S_own_modules, "_modules"}, {&S_named_modules, "named_modules"}};
    struct {
        PyTypeObject **at;
        PyType_Spec *spec;
        const char *name; /* NULL: made by one of the others */
    } types[] = {{NULL, &rows_spec, "Rows"},
                 {NULL, &identities_spec, "Identities"},
                 {NULL, &fetches_spec, "Fetches"},
                 {NULL, &reader_spec, "Reader"},
                 {&keyed_type, &keyed_spec, NULL},
                 {&shield_type, &shield_spec, NULL},
                 {&fetch_type, &fetch_spec, NULL}};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if (!(*names[i].at = PyUnicode_InternFromString(names[i].name)))
            return -1;
    for (size_t i = 0; i < sizeof types / sizeof types[0]; i++) {
        PyObject *type = PyType_FromModuleAndSpec(module, types[i].spec, NULL);
        if (!type || (types[i].name && PyModule_AddObjectRef(module, types[i].name, type) < 0))
            return -1;
        if (types[i].at)
            *types[i].at = (PyTypeObject *)type;
        else
            Py_DECREF(type);
    }
    return 0;
}
#endif
