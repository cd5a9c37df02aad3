/* The whole ABI of the native kernels: plain C, no Python, no framework.
 *
 * docs/format.md defines every byte. Pointers need no alignment. No kernel allocates, throws or keeps state;
 * all return an actnn_status. `threads` bounds the OpenMP threads of one call. */
#ifndef ACTNN_H
#define ACTNN_H

#include <stdint.h>

#if defined(_WIN32)
#define ACTNN_API __declspec(dllexport)
#else
#define ACTNN_API __attribute__((visibility("default")))
#endif

#ifdef __cplusplus
extern "C" {
#endif

#define ACTNN_ABI_VERSION 9

typedef enum { ACTNN_FLOAT32 = 0, ACTNN_FLOAT16 = 1, ACTNN_BFLOAT16 = 2 } actnn_dtype;
typedef enum { ACTNN_DITHER = 0, ACTNN_STOCHASTIC = 1, ACTNN_NEAREST = 2 } actnn_rounding;
typedef enum { ACTNN_LINEAR = 0, ACTNN_CUBIC = 1, ACTNN_ROOT = 2 } actnn_curve;
typedef enum { ACTNN_WHOLE = 0, ACTNN_POSITIVE = 1 } actnn_part;
// A library has scalar kernels and those for the vectors of its processor, which therefore share a number.
typedef enum { ACTNN_SCALAR = 0, ACTNN_AVX2 = 1, ACTNN_NEON = 1 } actnn_simd;

typedef enum {
    ACTNN_OK = 0,
    ACTNN_BAD_ARGUMENT = 1, /* a null pointer, a negative size, an unknown enumerator */
    ACTNN_BAD_WIDTH = 2,    /* a width or a number of negative levels outside the format */
    ACTNN_UNSUPPORTED = 3   /* this CPU lacks the instructions that were asked for */
} actnn_status;

/* Where the planes of a code lie and what its words mean. */
typedef struct {
    int64_t samples;
    int64_t elements;              /* of one sample */
    int32_t bits;                  /* width of every sample; unused where sample_bits is given */
    int32_t rounding;              /* actnn_rounding */
    uint8_t negative[10];          /* N of a split code by width, entries 1 to 8; the rest is padding */
    uint8_t curve;                 /* actnn_curve; only without sides where it is ACTNN_ROOT */
    uint8_t unit;                  /* 1 where groups store their unit, with ACTNN_CUBIC only, else 0 */
    const uint8_t *sample_bits;    /* NULL, or the width of each sample */
    const int64_t *sample_offsets; /* NULL, or the byte offset in the buffer of each sample's planes */
} actnn_layout;

ACTNN_API int32_t actnn_abi_version(void);
/* The best instruction set that this CPU runs. */
ACTNN_API int32_t actnn_best_simd(void);

/* An OpenMP runtime: its GOMP_parallel, omp_get_thread_num and omp_get_num_threads. On Linux those of Intel and LLVM have
 * them as GNU's has. */
typedef struct {
    void (*parallel)(void (*work)(void *), void *data, unsigned threads, unsigned flags);
    int (*thread_num)(void);
    int (*num_threads)(void);
} actnn_runtime;

/* Let the calling thread's kernels compute with the threads of this runtime from now on; NULL: with those of the one
 * that this library was linked to. A program that computes in another runtime between calls would otherwise have two
 * teams on the same cores, of which the one that waits spins. */
ACTNN_API int32_t actnn_use_runtime(const actnn_runtime *runtime);
/* Threads that the library's own OpenMP would use by itself; 1 in a build without it. */
ACTNN_API int32_t actnn_max_threads(void);

/* Split codes: values -> buffer (key, scales, planes) and back. Decoding yields the samples first to
 * first + count - 1, and writes nothing else. */
ACTNN_API int32_t actnn_encode(const actnn_layout *layout, int32_t simd, int32_t threads, const uint32_t key[4],
                               const void *values, int32_t dtype, uint8_t *buffer);
ACTNN_API int32_t actnn_decode(const actnn_layout *layout, int32_t simd, int32_t threads, int64_t first,
                               int64_t count, const uint8_t *buffer, int32_t part, void *values, int32_t dtype);

/* Masks: one plane of `not (x <= 0) and not (x >= upper)`; no upper bound where that is NaN. */
ACTNN_API int32_t actnn_encode_mask(int64_t samples, int64_t elements, int32_t simd, int32_t threads, float upper,
                                    const void *values, int32_t dtype, uint8_t *planes);
/* out = grad * (bit ? above : below); grad and out may be the same array.
 * The mask is a mask code (layout NULL) or a split code read as `word >= N`. */
ACTNN_API int32_t actnn_apply_mask(const actnn_layout *layout, int64_t samples, int64_t elements, int32_t simd,
                                   int32_t threads, const uint8_t *buffer, float above, float below,
                                   const void *grad, void *out, int32_t dtype);

/* Index codes: int32 values below 2^bits, widths 1 to 24. */
ACTNN_API int32_t actnn_encode_index(int64_t samples, int64_t elements, int32_t bits, int32_t threads,
                                     const int32_t *values, uint8_t *planes);
ACTNN_API int32_t actnn_decode_index(int64_t samples, int64_t elements, int32_t bits, int32_t threads,
                                     const uint8_t *planes, int32_t *values);

/* memcpy and memset by the kernels' own threads, one call for each piece: yardsticks for the benchmark. */
ACTNN_API int32_t actnn_copy(int64_t bytes, int64_t piece, int32_t threads, const uint8_t *from, uint8_t *to);
ACTNN_API int32_t actnn_clear(int64_t bytes, int64_t piece, int32_t threads, uint8_t *to);

/* Element e of a sample belongs to channel e / inner % channels: inner is H*W for NCHW and 1 for channels_last. */
typedef struct {
    int64_t channels;
    int64_t inner;
} actnn_channels;

/* Arrays of one float a channel. y = x * slope + offset; coded is v = (x - mean) * inverse - threshold. */
typedef struct {
    const float *slope;
    const float *offset;
    const float *mean;
    const float *inverse;
    const float *threshold;
} actnn_normalization;

/* The parameters of a BatchNorm by which its output reads from the coded value, one number a channel: NULL stands for
 * gamma 1 and beta 0, and for no threshold. */
typedef struct {
    actnn_channels channels;
    const void *gamma;
    const void *beta;
    const float *threshold;
    float *workspace; /* two floats a channel */
    int32_t gamma_dtype;
    int32_t beta_dtype;
} actnn_output;

/* As actnn_decode, returning v * scale[c] + shift[c] (two operations). Without a threshold, scale and shift are gamma
 * and beta; else |gamma| and beta + |gamma| * threshold, of which a positive part takes 0 where it is not above that. */
ACTNN_API int32_t actnn_decode_output(const actnn_layout *layout, const actnn_output *parameters, int32_t simd,
                                      int32_t threads, int64_t first, int64_t count, const uint8_t *buffer,
                                      int32_t part, void *values, int32_t dtype);

typedef enum {
    ACTNN_GELU = 0,
    ACTNN_GELU_TANH = 1,
    ACTNN_SILU = 2,
    ACTNN_SIGMOID = 3,
    ACTNN_TANH = 4,
    ACTNN_HARDSWISH = 5,
    ACTNN_HARDSIGMOID = 6,
    ACTNN_SOFTPLUS = 7, /* beta 1, threshold 20 */
    ACTNN_MISH = 8,
    ACTNN_ELU = 9, /* alpha 1 */
    ACTNN_QUICK_GELU = 10
} actnn_smooth;

/* As actnn_decode, returning f (derivative 0) or its derivative (1) of the value, or of gamma[c] * value + beta[c] where
 * parameters are given, which have no threshold: then only for codes without sides. What noise adds on average is taken
 * away to second order: with g what is returned, s the step of u and x(u) the value before the mean of dither is mended,
 * it is g - s^2 / 24 * (g'' x'^2 + g' x''). Where grad is not NULL, the result is grad times that; it may be values. */
ACTNN_API int32_t actnn_decode_function(const actnn_layout *layout, int32_t function, int32_t derivative,
                                        const actnn_output *parameters, int32_t simd, int32_t threads, int64_t first,
                                        int64_t count, const uint8_t *buffer, const void *grad, void *values,
                                        int32_t dtype);

/* Floats of workspace that actnn_channel_statistics needs. */
ACTNN_API int64_t actnn_statistics_workspace(int64_t samples, int64_t elements, const actnn_channels *channels);

/* Mean, biased variance, minimum and maximum of each channel; independent of the number of threads. */
ACTNN_API int32_t actnn_channel_statistics(int64_t samples, int64_t elements, const actnn_channels *channels,
                                           int32_t simd, int32_t threads, const void *values, int32_t dtype,
                                           float *workspace, float *mean, float *variance, float *low, float *high);

/* One pass that writes y to out (which may be values) and the code of v to buffer. In a split code the side of an
 * element is that of y, `not (y <= 0)`, and a v on the wrong side of zero by rounding counts as zero. */
ACTNN_API int32_t actnn_normalize(const actnn_layout *layout, const actnn_channels *channels,
                                  const actnn_normalization *normalization, int32_t simd, int32_t threads,
                                  const uint32_t key[4], const void *values, void *out, int32_t dtype,
                                  uint8_t *buffer);

/* Floats of workspace that actnn_gradient_sums needs. */
ACTNN_API int64_t actnn_gradient_workspace(const actnn_layout *layout, const actnn_channels *channels);

/* Sums over each channel of grad and of grad * v, v decoded on the way; independent of the number of threads.
 * With `rectified`, grad counts as zero where the code's word lies below N (a ReLU's backward on the way). */
ACTNN_API int32_t actnn_gradient_sums(const actnn_layout *layout, const actnn_channels *channels, int32_t rectified,
                                      int32_t simd, int32_t threads, const uint8_t *buffer, const void *grad,
                                      int32_t dtype, float *workspace, float *sum_grad, float *sum_product);

/* out = grad * of_grad[c] + (v * of_value[c] + constant[c]); out may be grad. Where of_noise is not NULL, grad is
 * multiplied by 1 + of_noise[c] * (the variance of the noise in v) before. */
ACTNN_API int32_t actnn_gradient(const actnn_layout *layout, const actnn_channels *channels, int32_t rectified,
                                 int32_t simd, int32_t threads, const uint8_t *buffer, const void *grad,
                                 int32_t dtype, const float *of_grad, const float *of_value, const float *constant,
                                 const float *of_noise, void *out);

/* What the widths of samples are chosen by, measured on the groups stride / 2, stride / 2 + stride, ... of each sample
 * (the first group where there are none of these) and multiplied up to the whole sample. Sums are taken in double and
 * are the same for every instruction set and number of threads.
 *
 * Four floats a sample: A-, A+, B-, B+. With v the coded value (as in actnn_normalize where a normalization is given,
 * which is read without slope and offset, else the value itself), A is the sum over the elements of a side of the
 * squared range of that side of their group, and B the same sum weighted by weight[c]; B = A where weight is NULL.
 * Along a curve, the range is that of what is coded, and an element counts not once but by its squared slope, which is
 * reach^2 (1 + 3 u^2)^2 (cubic) or 4 v (root): times the squared step over a range of 1 and 1/12, A is the energy of noise in v.
 * Affine codes have the one range max v - min v, on the positive side; else the side is `not (v <= 0)` and its range
 * max(0, max v) or max(0, -min v), the negative one being 0 in zero-exact codes. All four are NaN where a v is not
 * finite. Of the layout only samples, elements and the family count, which is that of width 8; channels may be NULL
 * where normalization and weight are. */
ACTNN_API int32_t actnn_ranges(const actnn_layout *layout, const actnn_channels *channels,
                               const actnn_normalization *normalization, const float *weight, int32_t simd,
                               int32_t threads, int64_t stride, const void *values, int32_t dtype, float *ranges);
/* One float a sample: the sum of its squares. */
ACTNN_API int32_t actnn_energy(int64_t samples, int64_t elements, int32_t simd, int32_t threads, int64_t stride,
                               const void *values, int32_t dtype, float *energy);

/* How the planes of a code are divided between its samples. Noise in a sample costs, in units of the squared step of a
 * side, (weights[0] A- + weights[2] B-) * norm and (weights[1] A+ + weights[3] B+) * norm. Every sample has the least
 * width; the planes that remain go where they lower the cost most, among equals to the lower width and then to the
 * first sample. Planes are divided evenly, the first samples getting what remains, where `weighted` is 0 and where a
 * range or what a plane gains is not finite. */
typedef struct {
    int64_t planes;          /* of all samples: least_bits to 8 for each */
    int64_t stride;          /* as in actnn_ranges */
    const double *relief;    /* by how much the squared step of the negative side falls with each plane after the least
                              * width, seven numbers of which the last ones may be unused; then the positive side's */
    const double *norms;     /* NULL, which stands for 1, or one a sample */
    double weights[4];
    int32_t weighted;
    int32_t least_bits;
    float *ranges;           /* four a sample */
    uint8_t *sample_bits;    /* result */
    int64_t *sample_offsets; /* result; the size of the buffer follows the last sample's */
} actnn_division;

/* Of the layout only shape and family count; its widths and offsets may be those that are written. */
ACTNN_API int32_t actnn_divide(const actnn_layout *layout, const actnn_division *division);
/* As actnn_encode, at widths that are decided on the way: ranges are measured and written, then divided. */
ACTNN_API int32_t actnn_encode_divided(const actnn_layout *layout, const actnn_division *division, int32_t simd,
                                       int32_t threads, const uint32_t key[4], const void *values, int32_t dtype,
                                       uint8_t *buffer);

/* One call of a BatchNorm in training. Arrays have one number a channel. */
typedef struct {
    actnn_channels channels;
    int64_t count;           /* values of a channel, in all processes */
    double epsilon;
    double momentum;         /* weight of the new value in running statistics */
    const void *gamma;       /* NULL stands for 1 */
    const void *beta;        /* NULL stands for 0 */
    void *running_mean;      /* NULL, or updated */
    void *running_variance;  /* NULL, or updated */
    const float *statistics; /* NULL, or a row each of mean, variance, minimum and maximum, which are then not measured */
    float *saved;            /* a row of inverse deviations, then one of thresholds where the code has sides */
    float *workspace;
    int64_t *batches;        /* NULL, or a number of batches, which is counted up */
    int32_t gamma_dtype, beta_dtype, mean_dtype, variance_dtype;
    int32_t unbiased;        /* whether the running variance is that of unbiased estimates */
} actnn_batch_norm;

typedef struct {
    actnn_batch_norm layer;
    int32_t simd, threads, dtype;
    uint32_t key[4];
    const void *values;
    void *out; /* may be values */
    uint8_t *buffer;
} actnn_forward;

/* Floats of workspace that actnn_batch_norm_forward and actnn_batch_norm_backward need. */
ACTNN_API int64_t actnn_forward_workspace(const actnn_layout *layout, const actnn_channels *channels);
ACTNN_API int64_t actnn_backward_workspace(const actnn_layout *layout, const actnn_channels *channels);

/* The statistics of each channel, what follows from them, and actnn_normalize; with a division (which may be NULL)
 * ranges are measured on the way, weighted by gamma * gamma, and divided. */
ACTNN_API int32_t actnn_batch_norm_forward(const actnn_layout *layout, const actnn_division *division,
                                           const actnn_forward *call);

typedef struct {
    actnn_batch_norm layer; /* beta, the running statistics and the number of batches are not read */
    int32_t simd, threads, dtype;
    int32_t rectified;      /* as in actnn_gradient_sums */
    int32_t of_input;       /* the code is one of the input, and the second row of `saved` the mean */
    const uint8_t *buffer;
    const void *grad;
    float *grads;           /* gradients of gamma, then of beta */
    const float *sums;      /* NULL, or the gradients of gamma, then of beta, of all processes: grads is then not written */
    void *out;              /* NULL, or the gradient of the input; may be grad */
    int64_t stride;         /* as in actnn_energy */
    float *energy;          /* NULL, or one a sample: that of grad, where no sums are given */
} actnn_backward;

/* actnn_gradient_sums and actnn_gradient, with what leads from one to the other. */
ACTNN_API int32_t actnn_batch_norm_backward(const actnn_layout *layout, const actnn_backward *call);

/* Element e of a sample belongs to the row e / width, of values that are normalised together, and has the parameters
 * e / inner % channels. */
typedef struct {
    int64_t width;
    actnn_channels parameters;
} actnn_rows;

/* One call of a normalisation over rows in training: LayerNorm, RMSNorm, GroupNorm, InstanceNorm. */
typedef struct {
    actnn_rows rows;
    double epsilon;
    const void *gamma;       /* NULL stands for 1 */
    const void *beta;        /* NULL stands for 0 */
    float *saved;            /* the inverse deviation of each row of the batch */
    float *workspace;
    int32_t gamma_dtype, beta_dtype;
    int32_t centred;         /* whether the mean of a row is subtracted from it */
} actnn_row_norm;

typedef struct {
    actnn_row_norm layer;
    int32_t simd, threads, dtype;
    uint32_t key[4];
    const void *values;
    void *out; /* may be values */
    uint8_t *buffer;
} actnn_forward_row;

typedef struct {
    actnn_row_norm layer; /* beta and epsilon are not read */
    int32_t simd, threads, dtype;
    const uint8_t *buffer;
    const void *grad;
    float *grads;   /* NULL, or the gradients of gamma, then of beta */
    void *out;      /* NULL, or the gradient of the input; may be grad */
    int64_t stride; /* as in actnn_energy */
    float *energy;  /* NULL, or one a sample: that of grad */
} actnn_backward_row;

/* Floats of workspace that actnn_row_norm_forward and actnn_row_norm_backward need. */
ACTNN_API int64_t actnn_row_forward_workspace(const actnn_layout *layout, const actnn_rows *rows);
ACTNN_API int64_t actnn_row_backward_workspace(const actnn_layout *layout, const actnn_rows *rows);

/* With mean (0 where rows are not centred) and variance of each row: inverse = 1 / sqrt(variance + epsilon), the coded
 * value v = (x - mean) * inverse, the output v * gamma + beta, each a single float32 operation. Sums are float32, over
 * the parts of a row that lie in one group each: element i of a part goes to sum i % 32, these 32 are added up by halves
 * (i and i + 16, then i and i + 8, ...), and so are the (width - 1) / 256 + 2 sums of the parts, of which the last may
 * be 0. With a division (which may be NULL), ranges of v are measured, weighted by gamma * gamma, and divided. Only
 * affine codes are made. */
ACTNN_API int32_t actnn_row_norm_forward(const actnn_layout *layout, const actnn_division *division,
                                         const actnn_forward_row *call);

/* With w = grad * gamma and v decoded: out = (w * (1 + noise / width) - (v * mean(w * v) + mean(w))) * inverse, means
 * being those of the row, summed as above, mean(w) 0 where rows are not centred, and noise the variance of v: a product
 * of v with a mean that contains it would be biased by as much. The gradients of gamma and beta are sums of grad * v and
 * of grad, independent of the number of threads. */
ACTNN_API int32_t actnn_row_norm_backward(const actnn_layout *layout, const actnn_backward_row *call);

/* Max pooling over two axes (one-dimensional pooling has height 1): positions within windows, row by row, go into an
 * index code of `bits` planes in the memory order of the output. NaN wins, as in the frameworks. */
typedef struct {
    int64_t samples, channels;
    int64_t input[2], output[2]; /* height, width */
    int32_t kernel[2], stride[2], padding[2], dilation[2];
    int32_t channels_last;
    int32_t bits;
} actnn_pool;

ACTNN_API int32_t actnn_max_pool(const actnn_pool *pool, int32_t threads, const void *values, int32_t dtype,
                                 void *out, uint8_t *planes);
/* Writes the whole of grad_values; sums windows that overlap in the order of the output. */
ACTNN_API int32_t actnn_max_pool_backward(const actnn_pool *pool, int32_t threads, const uint8_t *planes,
                                          const void *grad, int32_t dtype, void *grad_values);

/* The allocator of the C library: bytes that it holds, and those of them that nobody uses; give these back; and keep
 * blocks of at least so many bytes apart from now on, so that each goes back when it is freed. ACTNN_UNSUPPORTED where
 * the C library does not offer it. */
ACTNN_API int32_t actnn_heap_usage(int64_t *held, int64_t *unused);
ACTNN_API int32_t actnn_trim_heap(void);
ACTNN_API int32_t actnn_separate_blocks(int64_t least);

#ifdef __cplusplus
}
#endif
#endif
