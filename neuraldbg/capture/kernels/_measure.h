/* One pass over a tensor: chunk by chunk, each read from memory once. */
#include "_sets.h"

typedef struct {
    int64_t count;
    moments of;
    double scale; /* by which mean and m2 are too large */
} measured;

typedef struct {
    int64_t *bins; /* NULL = none wanted */
    int64_t every; /* chunk that is put into them */
} histogram;

static moments nothing(void)
{
    moments none = {0, 0, 0, INFINITY, -INFINITY, 0, 0, 0};
    return none;
}

/* Chan, Golub and LeVeque: two sets of values with means and sums of squared deviations become one. */
static void combine(moments *all, double count, double mean, double m2)
{
    double together = all->finite + count, apart = mean - all->mean;
    if (count == 0)
        return;
    all->mean += apart * (count / together);
    all->m2 += m2 + apart * apart * (all->finite * (count / together));
    all->finite = together;
}

/* Two looks at one chunk, in double, leaving NaN and Inf out. */
#define CAREFUL(FUNCTION, TYPE)                                                                                        \
    static double FUNCTION(const TYPE *x, size_t n, double scale, moments *all)                                        \
    {                                                                                                                  \
        double sum = 0, squares = 0, count = 0, mean;                                                                  \
        for (size_t i = 0; i < n; i++) {                                                                               \
            double value = (double)x[i];                                                                               \
            all->zeros += value == 0;                                                                                  \
            if (value - value == 0) {                                                                                  \
                sum += value * scale;                                                                                  \
                count += 1;                                                                                            \
                all->low = value < all->low ? value : all->low;                                                        \
                all->high = value > all->high ? value : all->high;                                                     \
            } else if (value != value)                                                                                 \
                all->nans++;                                                                                           \
            else                                                                                                       \
                all->infs++;                                                                                           \
        }                                                                                                              \
        mean = count ? sum / count : 0;                                                                                \
        for (size_t i = 0; i < n; i++) {                                                                               \
            double off = (double)x[i] * scale - mean;                                                                  \
            squares += off - off == 0 ? off * off : 0;                                                                 \
        }                                                                                                              \
        combine(all, count, mean, squares);                                                                            \
        return mean;                                                                                                   \
    }
CAREFUL(careful_f32, loose_f32)
CAREFUL(careful_f64, loose_f64)

/* Whether the fast sums of a chunk can be trusted: nothing but numbers in it, and squares that fit. */
static int taken(chunk_sums sums, double shift, double small, double *shift_at, moments *all)
{
    double top = fabs(sums.low) > fabs(sums.high) ? fabs(sums.low) : fabs(sums.high);
    double mean = shift + sums.sum / sums.count, m2 = sums.squares - sums.sum * sums.sum / sums.count;
    if (!isfinite(sums.squares) || (top != 0 && top <= small))
        return 0;
    combine(all, sums.count, mean, m2 > 0 ? m2 : 0);
    all->low = sums.low < all->low ? sums.low : all->low;
    all->high = sums.high > all->high ? sums.high : all->high;
    all->zeros += sums.zeros;
    *shift_at = mean;
    return 1;
}

/* A first guess at the mean, so that sums of squares of x - shift keep their digits. */
#define GUESS(FUNCTION, TYPE)                                                                                          \
    static double FUNCTION(const TYPE *x, size_t n)                                                                    \
    {                                                                                                                  \
        double sum = 0, count = 0;                                                                                     \
        for (size_t i = 0; i < n && i < 64; i++)                                                                       \
            if (x[i] - x[i] == 0)                                                                                      \
                sum += x[i], count += 1;                                                                               \
        return count && sum - sum == 0 ? sum / count : 0;                                                              \
    }
GUESS(guess_f32, loose_f32)
GUESS(guess_f64, loose_f64)

static void octaves(const instruction_set *set, const void *values, int wide, size_t n, uint8_t *bin)
{
    if (wide)
        set->octaves_f64(values, n, bin);
    else
        set->octaves_f32(values, n, bin);
}

/* Adds how many values, of a chunk at most, each of the first so many bins has. */
static void count_bins(const uint8_t *bin, size_t n, int64_t *bins, int wanted)
{
    uint16_t parts[8][BINS + 2] = {{0}}; /* eight, since equal bins in a row would wait for each other */
    size_t i = 0;
    for (; i + 8 <= n; i += 8) {
        uint64_t eight = load_word(bin + i); /* to read them one by one takes twice as long */
        for (int part = 0; part < 8; part++)
            parts[part][eight >> 8 * part & 255]++;
    }
    for (; i < n; i++)
        parts[i & 7][bin[i]]++;
    for (int part = 0; part < 8; part++)
        for (int k = 0; k < wanted; k++)
            bins[k] += parts[part][k];
}

static void count_octaves(const instruction_set *set, const void *values, int wide, size_t n, int64_t *bins)
{
    uint8_t bin[CHUNK];
    octaves(set, values, wide, n, bin);
    count_bins(bin, n, bins, BINS);
}

/* The values of one chunk as floats or doubles, in place where they are that already. */
static const void *decoded(const instruction_set *set, const char *from, int dtype, size_t n, void *room)
{
    if (dtype == F32 || dtype == F64)
        return from;
    if (is_wide(dtype))
        set->decode_f64(from, dtype, n, room);
    else
        set->decode_f32(from, dtype, n, room);
    return room;
}

static double shift_for(const void *values, int dtype, size_t n, double shift_at, const moments *all)
{
    int first = all->finite + (double)(all->nans + all->infs) == 0;
    double shift = !first ? shift_at : is_wide(dtype) ? guess_f64(values, n) : guess_f32(values, n);
    return is_whole(dtype) ? floor(shift) : shift;
}

static void look(const instruction_set *set, const void *values, int dtype, size_t n, double *shift_at, moments *all)
{
    double shift = shift_for(values, dtype, n, *shift_at, all);
    if (is_wide(dtype)) {
        if (!set->sums_f64 || !taken(set->sums_f64(values, n, shift), shift, SMALL_DOUBLE, shift_at, all))
            *shift_at = careful_f64(values, n, 1.0, all);
    } else {
        float near = (float)shift;
        if (!set->sums_f32 || !taken(set->sums_f32(values, n, near), near, SMALL_SQUARES, shift_at, all))
            *shift_at = careful_f32(values, n, 1.0, all);
    }
}

/* float16 and bfloat16 are summed as they are read; 0 = decode them and look again. */
static int look_half(const instruction_set *set, const void *at, int dtype, size_t n, double *shift_at, moments *all)
{
    chunk_sums (*sums)(const loose_u16 *, size_t, float) = dtype == BF16 ? set->sums_bf16 : set->sums_f16;
    float near = (float)*shift_at;
    if (!sums || (dtype != BF16 && dtype != F16) || all->finite == 0)
        return 0;
    return taken(sums(at, n, near), near, SMALL_SQUARES, shift_at, all);
}

/* Doubles whose squares overflow or vanish: once more, scaled by a power of two. */
static int scaled_again(const char *at, const char *less, int64_t n, measured *out)
{
    double top = fabs(out->of.low) > fabs(out->of.high) ? fabs(out->of.low) : fabs(out->of.high);
    loose_f64 room[CHUNK];
    int large = !isfinite(out->of.m2) || !isfinite(out->of.mean) || top > 1 / SMALL_DOUBLE;
    if (out->of.finite == 0 || !(large || (top > 0 && top < SMALL_DOUBLE)))
        return 0;
    out->scale = large ? SHRINK : GROW;
    out->of = nothing();
    for (int64_t start = 0; start < n; start += CHUNK) {
        size_t size = (size_t)(n - start < CHUNK ? n - start : CHUNK);
        const loose_f64 *x = (const loose_f64 *)at + start;
        if (less) {
            SETS[0]->minus_f64(x, (const loose_f64 *)less + start, size, room);
            x = room;
        }
        careful_f64(x, size, out->scale, &out->of);
    }
    return 1;
}

static uint64_t finished(hash_sums sums, const char *at, int64_t bytes)
{
    uint64_t last = 0;
    if (bytes % 8) {
        memcpy(&last, at + bytes / 8 * 8, (size_t)(bytes % 8));
        hash_word(last, (uint64_t)(bytes / 8), &sums);
    }
    return mixed(sums.products + mixed(sums.words ^ (uint64_t)bytes * UINT64_C(0x9E3779B97F4A7C15)));
}

static measured measure_one(const instruction_set *set, const char *at, int dtype, int64_t n, uint64_t *hash,
                            histogram octaves)
{
    measured out = {n, nothing(), 1.0};
    double shift = 0;
    hash_sums sums = {0, 0};
    loose_f64 room[CHUNK];
    for (int64_t start = 0; start < n; start += CHUNK) {
        size_t size = (size_t)(n - start < CHUNK ? n - start : CHUNK);
        const char *here = at + start * WIDTH[dtype];
        int counted = octaves.bins && start / CHUNK % octaves.every == 0;
        if (counted || !look_half(set, here, dtype, size, &shift, &out.of)) {
            const void *values = decoded(set, here, dtype, size, room);
            look(set, values, dtype, size, &shift, &out.of);
            if (counted)
                count_octaves(set, values, is_wide(dtype), size, octaves.bins);
        }
        if (hash)
            set->hash((const unsigned char *)here, size * WIDTH[dtype] / 8, (uint64_t)start * WIDTH[dtype] / 8, &sums);
    }
    if (dtype == F64)
        scaled_again(at, NULL, n, &out);
    if (hash)
        *hash = finished(sums, at, n * WIDTH[dtype]);
    return out;
}

/* The same of floats, while as many others are copied. Only where the set can do both at once. */
static measured measure_beside(const instruction_set *set, const char *at, int64_t n, const char *from, char *to)
{
    measured out = {n, nothing(), 1.0};
    double shift = 0;
    for (int64_t start = 0; start < n; start += CHUNK) {
        size_t size = (size_t)(n - start < CHUNK ? n - start : CHUNK);
        const loose_f32 *values = (const loose_f32 *)at + start;
        float near = (float)shift_for(values, F32, size, shift, &out.of);
        chunk_sums sums = set->sums_beside_f32(values, size, near, (const loose_f32 *)from + start, (float *)to + start);
        if (!taken(sums, near, SMALL_SQUARES, &shift, &out.of))
            shift = careful_f32(values, size, 1.0, &out.of);
    }
#if defined(__GNUC__) && defined(__x86_64__)
    _mm_sfence(); /* what was written past the caches is there for other threads, too */
#endif
    return out;
}

static void minus(const instruction_set *set, const void *a, const void *b, int wide, size_t n, void *out)
{
    if (wide)
        set->minus_f64(a, b, n, out);
    else
        set->minus_f32(a, b, n, out);
}

#define GUESSED 64 /* elements: as many as a guess at the mean reads */

/* Both of one chunk at once; 0 = one of them has to be read carefully, and nothing was taken. */
static int look_at_both(const instruction_set *set, const void *values, const void *old, int dtype, size_t n,
                        double shifts[2], moments *now, moments *moved)
{
    loose_f64 room[GUESSED];
    int wide = is_wide(dtype);
    chunk_sums sums[2];
    moments both[2] = {*now, *moved};
    if (!(wide ? (void *)set->moved_f64 : (void *)set->moved_f32))
        return 0;
    minus(set, values, old, wide, n < GUESSED ? n : GUESSED, room);
    double near[2] = {shift_for(values, dtype, n, shifts[0], now),
                      shift_for(room, dtype, n < GUESSED ? n : GUESSED, shifts[1], moved)};
    float nearly[2] = {(float)near[0], (float)near[1]};
    if (wide)
        set->moved_f64(values, old, n, near, sums);
    else
        set->moved_f32(values, old, n, nearly, sums);
    for (int i = 0; i < 2; i++)
        if (!taken(sums[i], wide ? near[i] : nearly[i], wide ? SMALL_DOUBLE : SMALL_SQUARES, &near[i], &both[i]))
            return 0;
    shifts[0] = near[0], shifts[1] = near[1];
    *now = both[0], *moved = both[1];
    return 1;
}

/* A parameter as it is and how far it moved, in one pass over both. */
static void measure_moved(const instruction_set *set, const char *at, const char *before, int dtype, int64_t n,
                          measured *now, measured *moved)
{
    double shifts[2] = {0, 0};
    loose_f64 room[CHUNK], room_before[CHUNK];
    *now = *moved = (measured){n, nothing(), 1.0};
    for (int64_t start = 0; start < n; start += CHUNK) {
        size_t size = (size_t)(n - start < CHUNK ? n - start : CHUNK);
        const void *values = decoded(set, at + start * WIDTH[dtype], dtype, size, room);
        const void *old = decoded(set, before + start * WIDTH[dtype], dtype, size, room_before);
        if (look_at_both(set, values, old, dtype, size, shifts, &now->of, &moved->of))
            continue;
        look(set, values, dtype, size, &shifts[0], &now->of);
        minus(set, values, old, is_wide(dtype), size, room_before);
        look(set, room_before, dtype, size, &shifts[1], &moved->of);
    }
    if (dtype == F64) {
        scaled_again(at, NULL, n, now);
        scaled_again(at, before, n, moved);
    }
}
