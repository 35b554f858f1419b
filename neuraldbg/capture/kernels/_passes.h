/* The inner loops, written once and compiled for each instruction set: _sets.h includes this file several times with
   NAME, TARGET, VB (bytes of a vector), MIN_F32.., MUL32 and HALF_TO_FLOAT defined. Vectors are those of gcc and clang;
   without VB it is plain C, and every chunk is measured by the careful loops of _measure.h. */

#ifdef VB
typedef float NAME(vf) __attribute__((vector_size(VB)));
typedef double NAME(vd) __attribute__((vector_size(VB)));
typedef int32_t NAME(vi32) __attribute__((vector_size(VB)));
typedef int64_t NAME(vi64) __attribute__((vector_size(VB)));
typedef uint32_t NAME(vu32) __attribute__((vector_size(VB)));
typedef uint64_t NAME(vu64) __attribute__((vector_size(VB)));

/* Sums of one chunk in four sets of vectors. min and max ignore a NaN or do not: such a chunk is read again anyway. */
#define SUMS(FUNCTION, SCALAR, LOOSE_SCALAR, VECTOR, COUNTS, MIN, MAX)                                                 \
    static TARGET chunk_sums FUNCTION(const LOOSE_SCALAR *x, size_t n, SCALAR shift)                                   \
    {                                                                                                                  \
        enum { LANES = VB / sizeof(SCALAR), STEP = 4 * LANES };                                                        \
        VECTOR sum[4] = {{0}}, squares[4] = {{0}}, low[4], high[4], v, d;                                              \
        COUNTS zeros[4] = {{0}};                                                                                       \
        const VECTOR nought = {0}, far = nought + (SCALAR)INFINITY, middle = nought + shift;                           \
        chunk_sums out = {(double)n, 0, 0, INFINITY, -INFINITY, 0};                                                    \
        size_t i = 0;                                                                                                  \
        for (int k = 0; k < 4; k++)                                                                                    \
            low[k] = far, high[k] = -far;                                                                              \
        for (; i + STEP <= n; i += STEP) {                                                                             \
            _Pragma("GCC unroll 4") for (int k = 0; k < 4; k++)                                                        \
            {                                                                                                          \
                memcpy(&v, x + i + k * LANES, VB);                                                                     \
                d = v - middle;                                                                                        \
                sum[k] += d;                                                                                           \
                squares[k] += d * d;                                                                                   \
                low[k] = (VECTOR)MIN(v, low[k]);                                                                       \
                high[k] = (VECTOR)MAX(v, high[k]);                                                                     \
                zeros[k] -= (v == nought);                                                                             \
            }                                                                                                          \
        }                                                                                                              \
        sum[0] = (sum[0] + sum[1]) + (sum[2] + sum[3]);                                                                \
        squares[0] = (squares[0] + squares[1]) + (squares[2] + squares[3]);                                            \
        low[0] = (VECTOR)MIN((VECTOR)MIN(low[0], low[1]), (VECTOR)MIN(low[2], low[3]));                                \
        high[0] = (VECTOR)MAX((VECTOR)MAX(high[0], high[1]), (VECTOR)MAX(high[2], high[3]));                           \
        zeros[0] += zeros[1] + zeros[2] + zeros[3];                                                                    \
        for (size_t k = 0; k < LANES; k++) {                                                                           \
            out.sum += sum[0][k];                                                                                      \
            out.squares += squares[0][k];                                                                              \
            out.low = low[0][k] < out.low ? low[0][k] : out.low;                                                       \
            out.high = high[0][k] > out.high ? high[0][k] : out.high;                                                  \
            out.zeros += zeros[0][k];                                                                                  \
        }                                                                                                              \
        for (; i < n; i++) {                                                                                           \
            double value = x[i], off = value - (double)shift;                                                          \
            out.sum += off;                                                                                            \
            out.squares += off * off;                                                                                  \
            out.low = value < out.low ? value : out.low;                                                               \
            out.high = value > out.high ? value : out.high;                                                            \
            out.zeros += value == 0;                                                                                   \
        }                                                                                                              \
        return out;                                                                                                    \
    }
SUMS(NAME(sums_f32), float, loose_f32, NAME(vf), NAME(vi32), MIN_F32, MAX_F32)
SUMS(NAME(sums_f64), double, loose_f64, NAME(vd), NAME(vi64), MIN_F64, MAX_F64)
#undef SUMS
#endif

static TARGET void NAME(minus_f32)(const loose_f32 *a, const loose_f32 *b, size_t n, loose_f32 *out)
{
    for (size_t i = 0; i < n; i++)
        out[i] = a[i] - b[i];
}

static TARGET void NAME(minus_f64)(const loose_f64 *a, const loose_f64 *b, size_t n, loose_f64 *out)
{
    for (size_t i = 0; i < n; i++)
        out[i] = a[i] - b[i];
}

/* float8_e5m2 is the upper half of a float16; e4m3fn is one with another bias, no infinity and one NaN, 0x7f. */
static TARGET void NAME(decode_e5m2)(const uint8_t *x, size_t n, loose_f32 *out)
{
    uint16_t half[CHUNK];
    half[0] = 0;
    for (size_t i = 0; i < n; i++)
        half[i] = (uint16_t)(x[i] << 8);
    HALF_TO_FLOAT(half, n, out);
}

static TARGET void NAME(decode_e4m3)(const uint8_t *x, size_t n, loose_f32 *out)
{
    uint16_t half[CHUNK];
    half[0] = 0;
    for (size_t i = 0; i < n; i++)
        half[i] = (uint16_t)((x[i] & 0x80) << 8 | (x[i] & 0x7f) << 7);
    HALF_TO_FLOAT(half, n, out);
    for (size_t i = 0; i < n; i++)
        out[i] = as_float(as_bits(out[i] * 256.0f) | ((x[i] & 0x7f) == 0x7f ? 0x7fc00000u : 0u));
}

static TARGET void NAME(decode_f32)(const void *from, int dtype, size_t n, loose_f32 *out)
{
    const loose_u16 *half = from;
    const int8_t *small = from;
    const uint8_t *bytes = from;
    if (dtype == BF16)
        for (size_t i = 0; i < n; i++)
            out[i] = as_float((uint32_t)half[i] << 16);
    else if (dtype == F16)
        HALF_TO_FLOAT(half, n, out);
    else if (dtype == E5M2)
        NAME(decode_e5m2)(bytes, n, out);
    else if (dtype == E4M3)
        NAME(decode_e4m3)(bytes, n, out);
    else if (dtype == I8)
        for (size_t i = 0; i < n; i++)
            out[i] = small[i];
    else
        for (size_t i = 0; i < n; i++)
            out[i] = bytes[i];
}

#define WIDEN(DTYPE, TYPE)                                                                                             \
    case DTYPE:                                                                                                        \
        for (size_t i = 0; i < n; i++)                                                                                 \
            out[i] = (double)((const TYPE *)from)[i];                                                                  \
        break;

static TARGET void NAME(decode_f64)(const void *from, int dtype, size_t n, loose_f64 *out)
{
    switch (dtype) {
        WIDEN(I16, loose_i16)
        WIDEN(U16, loose_u16)
        WIDEN(I32, loose_i32)
        WIDEN(U32, loose_u32)
        WIDEN(I64, loose_i64)
        WIDEN(U64, loose_u64)
    }
}
#undef WIDEN

/* `first` is the number of the first word, a multiple of KEYS. */
static TARGET void NAME(hash)(const unsigned char *bytes, size_t words, uint64_t first, hash_sums *sums)
{
#ifdef VB
    enum { LANES = VB / 8 };
    NAME(vu64) products = {0}, plain = {0}, word, key;
    for (size_t start = 0; start < words; start += KEYS) {
        const size_t n = words - start < KEYS ? words - start : KEYS;
        const NAME(vu64) offset = (NAME(vu64)){0} + offset_of((first + start) / KEYS);
        size_t i = 0;
        for (; i + LANES <= n; i += LANES) {
            memcpy(&word, bytes + 8 * (start + i), VB);
            memcpy(&key, neuraldbg_keys + i, VB);
            plain += word;
            word = (NAME(vu64))((NAME(vu32))word + (NAME(vu32))key + (NAME(vu32))offset);
            products += (NAME(vu64))MUL32(word);
        }
        for (; i < n; i++)
            hash_word(load_word(bytes + 8 * (start + i)), first + start + i, sums);
    }
    for (size_t k = 0; k < LANES; k++)
        sums->products += products[k], sums->words += plain[k];
#else
    for (size_t i = 0; i < words; i++)
        hash_word(load_word(bytes + 8 * i), first + i, sums);
#endif
}

static const instruction_set NAME(set) = {
#ifdef VB
    NAME(sums_f32), NAME(sums_f64),
#else
    NULL, NULL,
#endif
    NAME(decode_f32), NAME(decode_f64), NAME(minus_f32), NAME(minus_f64), NAME(hash),
};

#undef NAME
#undef TARGET
#undef VB
#undef MIN_F32
#undef MAX_F32
#undef MIN_F64
#undef MAX_F64
#undef MUL32
#undef HALF_TO_FLOAT
