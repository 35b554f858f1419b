/* The inner loops, written once and compiled for each instruction set: _sets.h includes this file several times with
   NAME, TARGET, VB (bytes of a vector), MIN_F32.., MUL32 and HALF_TO_FLOAT defined. Vectors are those of gcc and clang;
   without VB it is plain C, and every chunk is measured by the careful loops of _measure.h. */

#ifdef VB
#ifndef ZEROS_F32
#define ZEROS_F32(zeros, v) ((zeros) - ((v) == nought))
#define ZEROS_F64 ZEROS_F32
#endif
typedef float NAME(vf) __attribute__((vector_size(VB)));
typedef double NAME(vd) __attribute__((vector_size(VB)));
typedef int32_t NAME(vi32) __attribute__((vector_size(VB)));
typedef int64_t NAME(vi64) __attribute__((vector_size(VB)));
typedef uint32_t NAME(vu32) __attribute__((vector_size(VB)));
typedef uint64_t NAME(vu64) __attribute__((vector_size(VB)));

/* Sums of one chunk: four vectors each of sums and squares, two of what does not depend on the order. min and max ignore
   a NaN or do not: such a chunk is read again anyway. */
#define HELD(S, VECTOR, COUNTS)                                                                                        \
    VECTOR S##_sum[4] = {{0}}, S##_squares[4] = {{0}}, S##_low[2] = {far, far}, S##_high[2] = {-far, -far};            \
    COUNTS S##_zeros[2] = {{0}};
#define ADD(S, VECTOR, COUNTS, MIN, MAX, ZEROS, v, middle, k)                                                          \
    d = (v) - (middle);                                                                                                \
    S##_sum[k] += d;                                                                                                   \
    S##_squares[k] += d * d;                                                                                           \
    S##_low[(k) & 1] = (VECTOR)MIN(v, S##_low[(k) & 1]);                                                               \
    S##_high[(k) & 1] = (VECTOR)MAX(v, S##_high[(k) & 1]);                                                             \
    S##_zeros[(k) & 1] = (COUNTS)ZEROS(S##_zeros[(k) & 1], v);
#define TOGETHER(S, VECTOR, MIN, MAX, out)                                                                             \
    S##_sum[0] = (S##_sum[0] + S##_sum[1]) + (S##_sum[2] + S##_sum[3]);                                                \
    S##_squares[0] = (S##_squares[0] + S##_squares[1]) + (S##_squares[2] + S##_squares[3]);                            \
    S##_low[0] = (VECTOR)MIN(S##_low[0], S##_low[1]);                                                                  \
    S##_high[0] = (VECTOR)MAX(S##_high[0], S##_high[1]);                                                               \
    S##_zeros[0] += S##_zeros[1];                                                                                      \
    for (size_t k = 0; k < LANES; k++) {                                                                               \
        out.sum += S##_sum[0][k];                                                                                      \
        out.squares += S##_squares[0][k];                                                                              \
        out.low = S##_low[0][k] < out.low ? S##_low[0][k] : out.low;                                                   \
        out.high = S##_high[0][k] > out.high ? S##_high[0][k] : out.high;                                              \
        out.zeros += S##_zeros[0][k];                                                                                  \
    }
#define ADD_ONE(value, shift, out)                                                                                     \
    do {                                                                                                               \
        double value_ = (value), off_ = value_ - (double)(shift);                                                      \
        out.sum += off_;                                                                                               \
        out.squares += off_ * off_;                                                                                    \
        out.low = value_ < out.low ? value_ : out.low;                                                                 \
        out.high = value_ > out.high ? value_ : out.high;                                                              \
        out.zeros += value_ == 0;                                                                                      \
    } while (0)
#define SUMS(FUNCTION, SCALAR, ELEMENT, VECTOR, COUNTS, MIN, MAX, ZEROS, LOAD, ONE, BESIDE, ...)                       \
    static TARGET chunk_sums FUNCTION(const ELEMENT *x, size_t n, SCALAR shift, ##__VA_ARGS__)                         \
    {                                                                                                                  \
        enum { LANES = VB / sizeof(SCALAR), STEP = 4 * LANES };                                                        \
        const VECTOR nought = {0}, far = nought + (SCALAR)INFINITY, middle = nought + shift;                           \
        VECTOR v, d;                                                                                                   \
        HELD(all, VECTOR, COUNTS)                                                                                      \
        chunk_sums out = {(double)n, 0, 0, INFINITY, -INFINITY, 0};                                                    \
        size_t i = 0;                                                                                                  \
        for (; i + STEP <= n; i += STEP) {                                                                             \
            _Pragma("GCC unroll 4") for (int k = 0; k < 4; k++)                                                        \
            {                                                                                                          \
                LOAD(v, x + i, k);                                                                                     \
                BESIDE##_VECTOR(i + k * LANES);                                                                        \
                ADD(all, VECTOR, COUNTS, MIN, MAX, ZEROS, v, middle, k)                                                \
            }                                                                                                          \
        }                                                                                                              \
        TOGETHER(all, VECTOR, MIN, MAX, out)                                                                           \
        for (; i < n; i++) {                                                                                           \
            BESIDE##_ONE(i);                                                                                           \
            ADD_ONE(ONE(x[i]), shift, out);                                                                            \
        }                                                                                                              \
        return out;                                                                                                    \
    }
/* Of a chunk and of how far it moved since, in one loop: what moved is never written down. */
#define MOVED(FUNCTION, SCALAR, ELEMENT, VECTOR, COUNTS, MIN, MAX, ZEROS)                                              \
    static TARGET void FUNCTION(const ELEMENT *x, const ELEMENT *old, size_t n, const SCALAR *shifts, chunk_sums *to)  \
    {                                                                                                                  \
        enum { LANES = VB / sizeof(SCALAR), STEP = 4 * LANES };                                                        \
        const VECTOR nought = {0}, far = nought + (SCALAR)INFINITY;                                                    \
        const VECTOR middle = nought + shifts[0], middle_moved = nought + shifts[1];                                   \
        VECTOR v, before, d;                                                                                           \
        HELD(now, VECTOR, COUNTS)                                                                                      \
        HELD(moved, VECTOR, COUNTS)                                                                                    \
        chunk_sums out = {(double)n, 0, 0, INFINITY, -INFINITY, 0}, out_moved = out;                                   \
        size_t i = 0;                                                                                                  \
        for (; i + STEP <= n; i += STEP) {                                                                             \
            _Pragma("GCC unroll 4") for (int k = 0; k < 4; k++)                                                        \
            {                                                                                                          \
                memcpy(&v, (const char *)(x + i) + k * VB, VB);                                                        \
                memcpy(&before, (const char *)(old + i) + k * VB, VB);                                                 \
                ADD(now, VECTOR, COUNTS, MIN, MAX, ZEROS, v, middle, k)                                                \
                v -= before;                                                                                           \
                ADD(moved, VECTOR, COUNTS, MIN, MAX, ZEROS, v, middle_moved, k)                                        \
            }                                                                                                          \
        }                                                                                                              \
        TOGETHER(now, VECTOR, MIN, MAX, out)                                                                           \
        TOGETHER(moved, VECTOR, MIN, MAX, out_moved)                                                                   \
        for (; i < n; i++) {                                                                                           \
            SCALAR moved_by = x[i] - old[i];                                                                           \
            ADD_ONE(x[i], shifts[0], out);                                                                             \
            ADD_ONE(moved_by, shifts[1], out_moved);                                                                   \
        }                                                                                                              \
        to[0] = out, to[1] = out_moved;                                                                                \
    }
#define AS_IT_IS(x) (x)
/* What is done beside: nothing, or something else of that size is copied for later. Who only copies waits for the memory,
   and who only sums leaves it idle; written past the caches, it need not be read first to be overwritten. */
#define ALONE_VECTOR(at)
#define ALONE_ONE(at)
#define COPYING_VECTOR(at) STREAM(to + (at), from + (at))
#define COPYING_ONE(at) to[at] = from[at]
#define LOAD_PLAIN(v, from, k) memcpy(&v, (const char *)(from) + (k)*VB, VB)
/* Two vectors of bfloat16 are the upper and the lower halves of one vector of words: the order does not matter here. */
#define LOAD_BF16(v, from, k)                                                                                          \
    do {                                                                                                               \
        NAME(vu32) pairs_;                                                                                             \
        memcpy(&pairs_, (const char *)(from) + (k) / 2 * VB, VB);                                                      \
        v = (NAME(vf))((k) & 1 ? pairs_ & 0xffff0000u : pairs_ << 16);                                                 \
    } while (0)
SUMS(NAME(sums_f32), float, loose_f32, NAME(vf), NAME(vi32), MIN_F32, MAX_F32, ZEROS_F32, LOAD_PLAIN, AS_IT_IS, ALONE)
SUMS(NAME(sums_f64), double, loose_f64, NAME(vd), NAME(vi64), MIN_F64, MAX_F64, ZEROS_F64, LOAD_PLAIN, AS_IT_IS, ALONE)
SUMS(NAME(sums_bf16), float, loose_u16, NAME(vf), NAME(vi32), MIN_F32, MAX_F32, ZEROS_F32, LOAD_BF16, from_bf16, ALONE)
#ifdef LOAD_F16
SUMS(NAME(sums_f16), float, loose_u16, NAME(vf), NAME(vi32), MIN_F32, MAX_F32, ZEROS_F32, LOAD_F16, from_f16, ALONE)
#endif
SUMS(NAME(sums_beside_f32), float, loose_f32, NAME(vf), NAME(vi32), MIN_F32, MAX_F32, ZEROS_F32, LOAD_PLAIN, AS_IT_IS,
     COPYING, const loose_f32 *from, float *to)
MOVED(NAME(moved_f32), float, loose_f32, NAME(vf), NAME(vi32), MIN_F32, MAX_F32, ZEROS_F32)
MOVED(NAME(moved_f64), double, loose_f64, NAME(vd), NAME(vi64), MIN_F64, MAX_F64, ZEROS_F64)
#undef LOAD_BF16
#undef LOAD_PLAIN
#undef AS_IT_IS
#undef SUMS
#undef ALONE_VECTOR
#undef ALONE_ONE
#undef COPYING_VECTOR
#undef COPYING_ONE
#undef MOVED
#undef ADD_ONE
#undef TOGETHER
#undef ADD
#undef HELD
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
            out[i] = from_bf16(half[i]);
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

/* The bin of each value; zeros go to one more, NaN and Inf to another. */
static TARGET void NAME(octaves_f32)(const loose_f32 *x, size_t n, uint8_t *bins)
{
    for (size_t i = 0; i < n; i++) {
        int32_t bits = (int32_t)(as_bits(x[i]) & 0x7fffffff), bin = (bits >> 23) - 127 + LOWEST_BIN;
        bin = bin < 0 ? 0 : bin >= BINS ? BINS - 1 : bin;
        bins[i] = (uint8_t)(bits == 0 ? BINS : bits >= 0x7f800000 ? BINS + 1 : bin);
    }
}

static TARGET void NAME(octaves_f64)(const loose_f64 *x, size_t n, uint8_t *bins)
{
    for (size_t i = 0; i < n; i++) {
        int64_t bits = (int64_t)(as_bits64(x[i]) & INT64_MAX), bin = (bits >> 52) - 1023 + LOWEST_BIN;
        bin = bin < 0 ? 0 : bin >= BINS ? BINS - 1 : bin;
        bins[i] = (uint8_t)(bits == 0 ? BINS : bits >= INT64_C(0x7ff0000000000000) ? BINS + 1 : bin);
    }
}

/* The bits of all rows together. */
#define JOIN(FUNCTION, ELEMENT)                                                                                        \
    static TARGET void FUNCTION(const ELEMENT *x, size_t stride, size_t rows, size_t n, ELEMENT *into)                 \
    {                                                                                                                  \
        for (size_t row = 0; row < rows; row++)                                                                        \
            for (size_t i = 0; i < n; i++)                                                                             \
                into[i] |= x[row * stride + i];                                                                        \
    }
JOIN(NAME(join_u16), loose_u16)
JOIN(NAME(join_u32), loose_u32)
JOIN(NAME(join_u64), loose_u64)
#undef JOIN

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

/* A second look, once mean, std and range are known: the bin of each value (MOST_BINS where it is no number), the sum of
   magnitudes, the powers of z. Vectors first, the rest one by one. */
#ifdef VB
typedef uint8_t NAME(vs32) __attribute__((vector_size(VB / 4)));
typedef uint8_t NAME(vs64) __attribute__((vector_size(VB / 8)));
#define BINS_BY_VECTOR(SCALAR, VECTOR, INTS, SMALL, MIN, SIGN)                                                         \
    const VECTOR nought = {0}, low_ = nought + low, per_ = nought + per_width, top_ = nought + top;                    \
    const INTS trash = (INTS){0} + MOST_BINS, sign = (INTS){0} + SIGN;                                                 \
    VECTOR l1[2] = {{0}}, v;                                                                                           \
    for (; i + 2 * VB / sizeof(SCALAR) <= n; i += 2 * VB / sizeof(SCALAR))                                             \
        for (size_t k = 0; k < 2; k++) {                                                                               \
            memcpy(&v, x + i + k * VB / sizeof(SCALAR), VB);                                                           \
            INTS good = (INTS)(v - v == nought);                                                                       \
            INTS bin = __builtin_convertvector((VECTOR)MIN((v - low_) * per_, top_), INTS);                            \
            SMALL small = __builtin_convertvector((bin & good) | (trash & ~good), SMALL);                              \
            memcpy(bins + i + k * VB / sizeof(SCALAR), &small, sizeof small);                                          \
            l1[k] += (VECTOR)((INTS)v & sign & good);                                                                  \
        }                                                                                                              \
    l1[0] += l1[1];                                                                                                    \
    for (size_t k = 0; k < VB / sizeof(SCALAR); k++)                                                                   \
        sums->l1 += l1[0][k];
#define POWERS_BY_VECTOR(SCALAR, VECTOR, INTS)                                                                         \
    const VECTOR nought = {0}, mean_ = nought + mean, per_ = nought + per_std;                                         \
    VECTOR z1 = {0}, z2 = {0}, z3 = {0}, z4 = {0}, v;                                                                  \
    for (; i + VB / sizeof(SCALAR) <= n; i += VB / sizeof(SCALAR)) {                                                   \
        memcpy(&v, x + i, VB);                                                                                         \
        VECTOR z = (VECTOR)((INTS)((v - mean_) * per_) & (INTS)(v - v == nought)), square = z * z;                     \
        z1 += z;                                                                                                       \
        z2 += square;                                                                                                  \
        z3 += square * z;                                                                                              \
        z4 += square * square;                                                                                         \
    }                                                                                                                  \
    for (size_t k = 0; k < VB / sizeof(SCALAR); k++)                                                                   \
        sums->z[0] += z1[k], sums->z[1] += z2[k], sums->z[2] += z3[k], sums->z[3] += z4[k];
#else
#define BINS_BY_VECTOR(...)
#define POWERS_BY_VECTOR(...)
#endif
#define SPREAD(SCALAR, ELEMENT, BINS_OF, POWERS_OF, BINS_VECTORS, POWERS_VECTORS)                                      \
    static TARGET void BINS_OF(const ELEMENT *x, size_t n, const spread_of *of, uint8_t *bins, spread_sums *sums)      \
    {                                                                                                                  \
        const SCALAR low = (SCALAR)of->low, per_width = (SCALAR)of->per_width, top = (SCALAR)of->bins - 1;             \
        size_t i = 0;                                                                                                  \
        BINS_VECTORS                                                                                                   \
        for (; i < n; i++) {                                                                                           \
            SCALAR value = x[i], at = (value - low) * per_width;                                                       \
            int good = value - value == 0;                                                                             \
            bins[i] = (uint8_t)(good ? (int)(at < top ? at : top) : MOST_BINS);                                        \
            sums->l1 += good ? fabs((double)value) : 0;                                                                \
        }                                                                                                              \
    }                                                                                                                  \
    static TARGET void POWERS_OF(const ELEMENT *x, size_t n, const spread_of *of, spread_sums *sums)                   \
    {                                                                                                                  \
        const SCALAR mean = (SCALAR)of->mean, per_std = (SCALAR)of->per_std;                                           \
        size_t i = 0;                                                                                                  \
        POWERS_VECTORS                                                                                                 \
        for (; i < n; i++) {                                                                                           \
            double z = x[i] - x[i] == 0 ? (x[i] - mean) * per_std : 0;                                                 \
            sums->z[0] += z, sums->z[1] += z * z, sums->z[2] += z * z * z, sums->z[3] += z * z * z * z;                \
        }                                                                                                              \
    }
SPREAD(float, loose_f32, NAME(bins_f32), NAME(powers_f32),
       BINS_BY_VECTOR(float, NAME(vf), NAME(vi32), NAME(vs32), MIN_F32, INT32_MAX),
       POWERS_BY_VECTOR(float, NAME(vf), NAME(vi32)))
SPREAD(double, loose_f64, NAME(bins_f64), NAME(powers_f64),
       BINS_BY_VECTOR(double, NAME(vd), NAME(vi64), NAME(vs64), MIN_F64, INT64_MAX),
       POWERS_BY_VECTOR(double, NAME(vd), NAME(vi64)))
#undef SPREAD
#undef BINS_BY_VECTOR
#undef POWERS_BY_VECTOR

static const instruction_set NAME(set) = {
#ifdef VB
    .sums_f32 = NAME(sums_f32),
    .sums_f64 = NAME(sums_f64),
    .sums_bf16 = NAME(sums_bf16),
    .sums_beside_f32 = NAME(sums_beside_f32),
    .moved_f32 = NAME(moved_f32),
    .moved_f64 = NAME(moved_f64),
#ifdef LOAD_F16
    .sums_f16 = NAME(sums_f16),
#endif
#endif
    .decode_f32 = NAME(decode_f32),
    .decode_f64 = NAME(decode_f64),
    .minus_f32 = NAME(minus_f32),
    .minus_f64 = NAME(minus_f64),
    .octaves_f32 = NAME(octaves_f32),
    .octaves_f64 = NAME(octaves_f64),
    .join_u16 = NAME(join_u16),
    .join_u32 = NAME(join_u32),
    .join_u64 = NAME(join_u64),
    .hash = NAME(hash),
    .bins_f32 = NAME(bins_f32),
    .bins_f64 = NAME(bins_f64),
    .powers_f32 = NAME(powers_f32),
    .powers_f64 = NAME(powers_f64),
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
#undef LOAD_F16
#undef ZEROS_F32
#undef ZEROS_F64
#undef STREAM
