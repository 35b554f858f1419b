/* The second pass over a tensor, once its moments are known: a histogram of equal widths, the sum of magnitudes, and the
   powers that skewness and kurtosis are made of. */

#define PAIRS ((MOST_BINS + 1) * (MOST_BINS + 1))
#define PIECE 2048   /* elements: with the counts they stay in the first cache */
#define FLUSH 100    /* pieces after which a count of 16 bits might be full (each gets at most 512 of a piece) */

typedef struct {
    uint16_t of[2][PAIRS]; /* two, since equal pairs in a row would wait for each other */
    uint64_t all[PAIRS];
#if defined(__GNUC__)
    uint64_t masks[MOST_BINS + 1][8] __attribute__((aligned(64)));
#else
    uint64_t masks[MOST_BINS + 1][8];
#endif
} pair_counts;

/* Two values at a time, the one of the first half of a piece with that of the second: half the stores. */
static void count_pairs(const uint8_t *bin, size_t n, pair_counts *counts)
{
    size_t half = n / 2, i = 0;
    uint16_t pair[PIECE / 2];
    for (; i < half; i++)
        pair[i] = (uint16_t)(bin[i] + (MOST_BINS + 1) * bin[half + i]);
    for (i = 0; i + 4 <= half; i += 4) {
        uint64_t four;
        memcpy(&four, pair + i, 8);
        counts->of[0][four & 0xffff]++;
        counts->of[1][four >> 16 & 0xffff]++;
        counts->of[0][four >> 32 & 0xffff]++;
        counts->of[1][four >> 48]++;
    }
    for (; i < half; i++)
        counts->of[i & 1][pair[i]]++;
}

#if defined(__GNUC__) && defined(__x86_64__)
#define HAVE_MASKS
#define MASKS __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx512vpopcntdq")))
#define UNROLLED _Pragma("GCC unroll 8")

/* Where the processor counts bits: 512 bins become six vectors of bits, and each value of three of them met with each
   of the other three leaves the bits of one bin. Nothing is looked up, and no store waits for another. */
static MASKS size_t count_masks(const uint8_t *bin, size_t n, int bins, pair_counts *counts)
{
    size_t i = 0;
    for (; i + 512 <= n; i += 512) {
        uint64_t bits[6][8];
        __m512i high[8], low[8], of[6];
        UNROLLED for (int part = 0; part < 8; part++)
        {
            __m512i v = _mm512_loadu_si512(bin + i + 64 * part);
            UNROLLED for (int k = 0; k < 6; k++) bits[k][part] = _mm512_movepi8_mask(_mm512_slli_epi16(v, 7 - k));
        }
        UNROLLED for (int k = 0; k < 6; k++) of[k] = _mm512_loadu_si512(bits[k]);
        UNROLLED for (int value = 0; value < 8; value++)
        {
            __m512i l = _mm512_xor_si512(of[0], _mm512_set1_epi64((value & 1) - 1));
            __m512i h = _mm512_xor_si512(of[3], _mm512_set1_epi64((value & 1) - 1));
            l = value & 2 ? _mm512_and_si512(l, of[1]) : _mm512_andnot_si512(of[1], l);
            h = value & 2 ? _mm512_and_si512(h, of[4]) : _mm512_andnot_si512(of[4], h);
            low[value] = value & 4 ? _mm512_and_si512(l, of[2]) : _mm512_andnot_si512(of[2], l);
            high[value] = value & 4 ? _mm512_and_si512(h, of[5]) : _mm512_andnot_si512(of[5], h);
        }
        for (int h = 0; h * 8 < bins; h++)
            UNROLLED for (int l = 0; l < 8; l++)
            {
                __m512i found = _mm512_popcnt_epi64(_mm512_and_si512(high[h], low[l]));
                __m512i *sum = (__m512i *)counts->masks[h * 8 + l];
                *sum = _mm512_add_epi64(*sum, found);
            }
    }
    return i;
}
static int counts_bits(void) { return __builtin_cpu_supports("avx512vpopcntdq"); }
#endif

static void gather(pair_counts *counts)
{
    for (int pair = 0; pair < PAIRS; pair++)
        counts->all[pair] += (uint64_t)counts->of[0][pair] + counts->of[1][pair];
    memset(counts->of, 0, sizeof counts->of);
}

static void add_counts(pair_counts *counts, int bins, int64_t *into)
{
    gather(counts);
    for (int i = 0; i < bins; i++)
        for (int part = 0; part < 8; part++)
            into[i] += (int64_t)counts->masks[i][part];
    for (int pair = 0; pair < PAIRS; pair++) {
        int first = pair % (MOST_BINS + 1), second = pair / (MOST_BINS + 1);
        if (first < bins)
            into[first] += (int64_t)counts->all[pair];
        if (second < bins)
            into[second] += (int64_t)counts->all[pair];
    }
}

/* Whether floats (or doubles) can hold what the pass multiplies by; else it is left to another. */
static int spread_fits(const spread_of *of, double low, double high, int wide)
{
    double most = wide ? 1e300 : 1e37, least = wide ? 1e-300 : 1e-37;
    double numbers[] = {of->per_std, of->per_width};
    for (int i = 0; i < 2; i++)
        if (numbers[i] != 0 && !(fabs(numbers[i]) < most && fabs(numbers[i]) > least))
            return 0;
    return fabs(low) < most && fabs(high) < most;
}

static spread_sums spread_one(const instruction_set *set, const char *at, int dtype, int64_t n, const spread_of *of,
                              int powers, int64_t *into)
{
    spread_sums sums = {0, {0}};
    pair_counts counts;
    loose_f64 room[PIECE];
    uint8_t bin[PIECE];
#ifdef HAVE_MASKS
    const int masks = set == SETS[SET_COUNT - 1] && counts_bits();
#endif
    memset(&counts, 0, sizeof counts);
    for (int64_t start = 0, pieces = 1; start < n; start += PIECE, pieces++) {
        size_t size = (size_t)(n - start < PIECE ? n - start : PIECE);
        const void *values = decoded(set, at + start * WIDTH[dtype], dtype, size, room);
        if (is_wide(dtype))
            set->bins_f64(values, size, of, bin, &sums);
        else
            set->bins_f32(values, size, of, bin, &sums);
        if (powers && is_wide(dtype))
            set->powers_f64(values, size, of, &sums);
        else if (powers)
            set->powers_f32(values, size, of, &sums);
        size_t done = 0;
#ifdef HAVE_MASKS
        if (masks)
            done = count_masks(bin, size, of->bins, &counts);
#endif
        count_pairs(bin + done, size - done, &counts);
        if (size % 2 && bin[size - 1] < of->bins)
            into[bin[size - 1]]++;
        if (pieces % FLUSH == 0)
            gather(&counts);
    }
    add_counts(&counts, of->bins, into);
    return sums;
}
