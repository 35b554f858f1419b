/* What the passes of every instruction set share: element types, the running moments, the keys of the hash. */
#ifndef NEURALDBG_FUSED_H
#define NEURALDBG_FUSED_H

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define CHUNK 4096      /* elements that are looked at together: 16 KB of floats stay in the first cache */
#define KEYS 512        /* words of 8 bytes after which the keys of the hash repeat, with another offset */
#define BINS 64         /* octaves of the histogram; the first and the last also hold what lies beyond */
#define LOWEST_BIN 40   /* bin 0 is below 2^-39 */
#define SMALL_SQUARES 1e-15  /* floats below it have squares that lose digits or vanish */
#define SMALL_DOUBLE 1e-140
#define SHRINK 0x1p-540 /* for doubles whose squares do not fit, above and below */
#define GROW 0x1p600

enum dtype { F64, F32, F16, BF16, E4M3, E5M2, I8, U8, BOOL, I16, U16, I32, U32, I64, U64, DTYPES };
static const unsigned char WIDTH[DTYPES] = {8, 4, 2, 2, 1, 1, 1, 1, 1, 2, 2, 4, 4, 8, 8};

/* Types whose values are all floats are measured as floats, the others as doubles. */
static inline int is_wide(int dtype) { return dtype == F64 || dtype >= I16; }
/* With a whole number as shift, sums over 8-bit integers are exact. */
static inline int is_whole(int dtype) { return dtype >= I8; }

#if defined(__GNUC__)
#define LOOSE __attribute__((aligned(1), may_alias)) /* a view may start anywhere */
#else
#define LOOSE
#endif
typedef uint16_t LOOSE loose_u16;
typedef uint32_t LOOSE loose_u32;
typedef uint64_t LOOSE loose_u64;
typedef int16_t LOOSE loose_i16;
typedef int32_t LOOSE loose_i32;
typedef int64_t LOOSE loose_i64;
typedef float LOOSE loose_f32;
typedef double LOOSE loose_f64;

typedef struct {
    double finite, mean, m2, low, high; /* of the finite values; m2 = sum of squared deviations */
    int64_t zeros, nans, infs;
} moments;

typedef struct {
    double count, sum, squares, low, high; /* of one chunk, of x - shift; low and high of x */
    int64_t zeros;
} chunk_sums;

typedef struct {
    uint64_t products, words;
} hash_sums;

#define MOST_BINS 63 /* of a histogram of equal widths; one more takes NaN and Inf: six bits in all */

typedef struct {
    double mean, per_std, low, per_width; /* per_std = 1 / std, per_width = bins / (high - low) */
    int bins;
} spread_of;

typedef struct {
    double l1, z[4]; /* sums of |x| and of the powers of z = (x - mean) / std */
} spread_sums;

typedef struct {
    chunk_sums (*sums_f32)(const loose_f32 *, size_t, float);
    chunk_sums (*sums_f64)(const loose_f64 *, size_t, double);
    chunk_sums (*sums_bf16)(const loose_u16 *, size_t, float); /* NULL = decode first */
    chunk_sums (*sums_f16)(const loose_u16 *, size_t, float);
    /* sums of one tensor while another is copied; NULL without vectors */
    chunk_sums (*sums_beside_f32)(const loose_f32 *, size_t, float, const loose_f32 *, float *);
    /* sums of x and of x - old, by shifts of their own; NULL without vectors */
    void (*moved_f32)(const loose_f32 *, const loose_f32 *, size_t, const float *, chunk_sums *);
    void (*moved_f64)(const loose_f64 *, const loose_f64 *, size_t, const double *, chunk_sums *);
    void (*decode_f32)(const void *, int dtype, size_t, loose_f32 *);
    void (*decode_f64)(const void *, int dtype, size_t, loose_f64 *);
    void (*minus_f32)(const loose_f32 *, const loose_f32 *, size_t, loose_f32 *);
    void (*minus_f64)(const loose_f64 *, const loose_f64 *, size_t, loose_f64 *);
    void (*octaves_f32)(const loose_f32 *, size_t, uint8_t *);
    void (*octaves_f64)(const loose_f64 *, size_t, uint8_t *);
    void (*join_u16)(const loose_u16 *, size_t stride, size_t rows, size_t n, loose_u16 *);
    void (*join_u32)(const loose_u32 *, size_t stride, size_t rows, size_t n, loose_u32 *);
    void (*join_u64)(const loose_u64 *, size_t stride, size_t rows, size_t n, loose_u64 *);
    void (*hash)(const unsigned char *, size_t words, uint64_t first, hash_sums *);
    void (*bins_f32)(const loose_f32 *, size_t, const spread_of *, uint8_t *, spread_sums *);
    void (*bins_f64)(const loose_f64 *, size_t, const spread_of *, uint8_t *, spread_sums *);
    void (*powers_f32)(const loose_f32 *, size_t, const spread_of *, spread_sums *);
    void (*powers_f64)(const loose_f64 *, size_t, const spread_of *, spread_sums *);
} instruction_set;

extern uint64_t neuraldbg_keys[KEYS];

static inline uint64_t mixed(uint64_t x) /* the finaliser of splitmix64: one-to-one */
{
    x = (x ^ (x >> 30)) * UINT64_C(0xBF58476D1CE4E5B9);
    x = (x ^ (x >> 27)) * UINT64_C(0x94D049BB133111EB);
    return x ^ (x >> 31);
}

static inline uint64_t key_of(uint64_t index) { return mixed((index + 1) * UINT64_C(0x9E3779B97F4A7C15)); }
static inline uint64_t offset_of(uint64_t block) { return key_of(block + (UINT64_C(1) << 32)); }

static inline uint64_t load_word(const unsigned char *bytes)
{
    uint64_t word;
    memcpy(&word, bytes, 8);
    return word;
}

/* The halves of a word plus those of its key, multiplied: what NH and XXH3 do. */
static inline void hash_word(uint64_t word, uint64_t index, hash_sums *sums)
{
    uint64_t key = neuraldbg_keys[index % KEYS], offset = offset_of(index / KEYS);
    uint32_t low = (uint32_t)word + (uint32_t)key + (uint32_t)offset;
    uint32_t high = (uint32_t)(word >> 32) + (uint32_t)(key >> 32) + (uint32_t)(offset >> 32);
    sums->products += (uint64_t)low * high;
    sums->words += word;
}

static inline float as_float(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, 4);
    return value;
}

static inline uint32_t as_bits(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, 4);
    return bits;
}

static inline float from_bf16(uint16_t half) { return as_float((uint32_t)half << 16); }

/* Exact for all 65,536 values; subnormal ones are slow here, which the conversions in hardware are not. */
static inline float from_f16(uint16_t half)
{
    uint32_t bits = as_bits(as_float((uint32_t)(half & 0x7fff) << 13) * 0x1p112f);
    bits |= (half & 0x7c00) == 0x7c00 ? 0x7f800000u : 0u;
    return as_float(bits | (uint32_t)(half & 0x8000) << 16);
}

static inline uint64_t as_bits64(double value)
{
    uint64_t bits;
    memcpy(&bits, &value, 8);
    return bits;
}

#endif
