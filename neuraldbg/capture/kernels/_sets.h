/* The instruction sets, best last, and which of them this processor has. */
#include "_fused.h"

uint64_t neuraldbg_keys[KEYS];

static inline void half_to_float(const loose_u16 *half, size_t n, loose_f32 *out)
{
    for (size_t i = 0; i < n; i++)
        out[i] = from_f16(half[i]);
}

#define NAME(x) scalar_##x
#define TARGET
#define HALF_TO_FLOAT half_to_float
#include "_passes.h"

#if defined(__GNUC__) && defined(__x86_64__)
#include <immintrin.h>

#define NAME(x) sse2_##x
#define TARGET
#define VB 16
#define MIN_F32(a, b) _mm_min_ps((__m128)(a), (__m128)(b))
#define MAX_F32(a, b) _mm_max_ps((__m128)(a), (__m128)(b))
#define MIN_F64(a, b) _mm_min_pd((__m128d)(a), (__m128d)(b))
#define MAX_F64(a, b) _mm_max_pd((__m128d)(a), (__m128d)(b))
#define MUL32(x) _mm_mul_epu32((__m128i)(x), _mm_srli_epi64((__m128i)(x), 32))
#define HALF_TO_FLOAT half_to_float
#define STREAM(to, from) _mm_stream_ps(to, _mm_loadu_ps((const float *)(from)))
#include "_passes.h"

#define AVX2 __attribute__((target("avx2,fma,f16c")))
static AVX2 void avx2_half(const loose_u16 *half, size_t n, loose_f32 *out)
{
    size_t i = 0;
    for (; i + 8 <= n; i += 8)
        _mm256_storeu_ps(out + i, _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(half + i))));
    half_to_float(half + i, n - i, out + i);
}

#define NAME(x) avx2_##x
#define TARGET AVX2
#define VB 32
#define MIN_F32(a, b) _mm256_min_ps((__m256)(a), (__m256)(b))
#define MAX_F32(a, b) _mm256_max_ps((__m256)(a), (__m256)(b))
#define MIN_F64(a, b) _mm256_min_pd((__m256d)(a), (__m256d)(b))
#define MAX_F64(a, b) _mm256_max_pd((__m256d)(a), (__m256d)(b))
#define MUL32(x) _mm256_mul_epu32((__m256i)(x), _mm256_srli_epi64((__m256i)(x), 32))
#define HALF_TO_FLOAT avx2_half
#define STREAM(to, from) _mm256_stream_ps(to, _mm256_loadu_ps((const float *)(from)))
#define LOAD_F16(v, from, k) v = (avx2_vf)_mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(from) + (k)))
#include "_passes.h"

#define AVX512 __attribute__((target("avx512f,avx512dq,avx512bw,avx512vl,avx2,fma,f16c,prefer-vector-width=512")))
static AVX512 void avx512_half(const loose_u16 *half, size_t n, loose_f32 *out)
{
    size_t i = 0;
    for (; i + 16 <= n; i += 16)
        _mm512_storeu_ps(out + i, _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(half + i))));
    half_to_float(half + i, n - i, out + i);
}

#define NAME(x) avx512_##x
#define TARGET AVX512
#define VB 64
#define MIN_F32(a, b) _mm512_min_ps((__m512)(a), (__m512)(b))
#define MAX_F32(a, b) _mm512_max_ps((__m512)(a), (__m512)(b))
#define MIN_F64(a, b) _mm512_min_pd((__m512d)(a), (__m512d)(b))
#define MAX_F64(a, b) _mm512_max_pd((__m512d)(a), (__m512d)(b))
#define MUL32(x) _mm512_mul_epu32((__m512i)(x), _mm512_srli_epi64((__m512i)(x), 32))
#define HALF_TO_FLOAT avx512_half
#define STREAM(to, from) _mm512_stream_ps(to, _mm512_loadu_ps((const float *)(from)))
#define LOAD_F16(v, from, k) v = (avx512_vf)_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(from) + (k)))
#define ZEROS_F32(zeros, v)                                                                                            \
    _mm512_mask_add_epi32((__m512i)(zeros), _mm512_cmp_ps_mask((__m512)(v), _mm512_setzero_ps(), _CMP_EQ_OQ),          \
                          (__m512i)(zeros), _mm512_set1_epi32(1))
#define ZEROS_F64(zeros, v)                                                                                            \
    _mm512_mask_add_epi64((__m512i)(zeros), _mm512_cmp_pd_mask((__m512d)(v), _mm512_setzero_pd(), _CMP_EQ_OQ),         \
                          (__m512i)(zeros), _mm512_set1_epi64(1))
#include "_passes.h"

static const char *const SET_NAMES[] = {"scalar", "sse2", "avx2", "avx512"};
static const instruction_set *const SETS[] = {&scalar_set, &sse2_set, &avx2_set, &avx512_set};

static int best_set(void)
{
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512vl"))
        return 3;
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c") ? 2 : 1;
}

/* torch.set_flush_denormal changes how this thread's processor treats the smallest numbers: not ours. */
typedef unsigned int float_state;
static inline float_state plain_floats(void)
{
    float_state before = _mm_getcsr();
    _mm_setcsr(0x1f80);
    return before;
}
static inline void restore_floats(float_state before) { _mm_setcsr(before); }

#elif defined(__GNUC__) && defined(__aarch64__)
#include <arm_neon.h>

static void neon_half(const loose_u16 *half, size_t n, loose_f32 *out)
{
    size_t i = 0;
    for (; i + 4 <= n; i += 4) {
        uint16x4_t bits;
        memcpy(&bits, half + i, 8);
        vst1q_f32(out + i, vcvt_f32_f16(vreinterpret_f16_u16(bits)));
    }
    half_to_float(half + i, n - i, out + i);
}

#define NAME(x) neon_##x
#define TARGET
#define VB 16
#define MIN_F32(a, b) vminq_f32((float32x4_t)(a), (float32x4_t)(b))
#define MAX_F32(a, b) vmaxq_f32((float32x4_t)(a), (float32x4_t)(b))
#define MIN_F64(a, b) vminq_f64((float64x2_t)(a), (float64x2_t)(b))
#define MAX_F64(a, b) vmaxq_f64((float64x2_t)(a), (float64x2_t)(b))
#define MUL32(x) vmull_u32(vmovn_u64((uint64x2_t)(x)), vshrn_n_u64((uint64x2_t)(x), 32))
#define HALF_TO_FLOAT neon_half
#define STREAM(to, from) vst1q_f32(to, vld1q_f32((const float *)(from)))
#include "_passes.h"

static const char *const SET_NAMES[] = {"scalar", "neon"};
static const instruction_set *const SETS[] = {&scalar_set, &neon_set};
static int best_set(void) { return 1; }
typedef int float_state;
static inline float_state plain_floats(void) { return 0; }
static inline void restore_floats(float_state before) { (void)before; }

#else
static const char *const SET_NAMES[] = {"scalar"};
static const instruction_set *const SETS[] = {&scalar_set};
static int best_set(void) { return 0; }
typedef int float_state;
static inline float_state plain_floats(void) { return 0; }
static inline void restore_floats(float_state before) { (void)before; }
#endif

enum { SET_COUNT = sizeof SETS / sizeof SETS[0] };
