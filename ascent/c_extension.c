/* CPU kernels for models/paged_attention_cpu.py and engines/native/sampling.py; c_extension.py compiles them. Vectors
   are four floats wide, which every 64-bit processor supports. */

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define INLINE static inline __attribute__((always_inline))

typedef float Four __attribute__((vector_size(16)));
typedef float Anywhere __attribute__((vector_size(16), aligned(4), may_alias)); /* any four floats in memory */
typedef int32_t FourInts __attribute__((vector_size(16)));

/* Decode attention: one new token per row against its cached tokens, in float32.

   A row is computed by itself, token after token in order: its result depends neither on other rows nor on the block
   size, and nothing is padded. A block is read for one head after the other, while it is in the CPU's cache.

   `Arguments` has the fields of `_Arguments` in paged_attention_cpu.py, in the same order. Strides and widths count
   floats. */

typedef struct {
    const float *queries, *new_keys, *new_values; /* (rows, heads, size); the last axis is dense */
    float *keys, *values;                         /* the KV cache: (slots, key/value heads, size) */
    float *out;                                   /* (rows, heads, value size), dense */
    const int32_t *block_table;                   /* the blocks of every row, in order */
    const int32_t *lengths;                       /* tokens of a row, the new one included; 0: the row is done */
    const float *sinks;                           /* the score, per head, of a key whose value is 0; or NULL */
    int64_t query_row, query_head, key_row, key_head, value_row, value_head, block_table_row;
    int32_t heads, kv_heads, key_size, value_size, block_size, window; /* window 0: none */
    float scaling, softcap;                                            /* softcap 0: none */
} Arguments;

INLINE Four larger(Four a, Four b) { /* keeps a NaN of a */
    FourInts less = a < b;
    return (Four)((less & (FourInts)b) | (~less & (FourInts)a));
}

INLINE float total(Four a) { return (a[0] + a[2]) + (a[1] + a[3]); }

INLINE float dot(const float *a, const float *b, int size) {
    Four even = {0}, odd = {0};
    int i = 0;
    for (; i + 8 <= size; i += 8) {
        even += *(const Anywhere *)(a + i) * *(const Anywhere *)(b + i);
        odd += *(const Anywhere *)(a + i + 4) * *(const Anywhere *)(b + i + 4);
    }
    float sum = total(even + odd);
    for (; i < size; i++) sum += a[i] * b[i];
    return sum;
}

/* exp(x) for x <= 0, to two units in the last place: 2^n e^r with |r| <= log(2) / 2, e^r by its series up to r^7 / 7!.
   Adding 1.5 * 2^23 rounds to a whole number, which is then in the last bits. Below -87 it stays at e^-87, which no sum
   notices. */
INLINE Four exponential(Four x) {
    x = larger(x, (Four){-87, -87, -87, -87});
    const Four rounder = {12582912, 12582912, 12582912, 12582912}, shifted = x * 1.44269504f + rounder;
    const Four n = shifted - rounder;
    Four r = (x - n * 0.693145752f) - n * 1.42860677e-6f; /* log(2) in two parts, of which n times the first is exact */
    Four sum = r * (1.0f / 5040) + 1.0f / 720;
    sum = sum * r + 1.0f / 120;
    sum = sum * r + 1.0f / 24;
    sum = sum * r + 1.0f / 6;
    sum = sum * r + 0.5f;
    sum = sum * r + 1.0f;
    sum = sum * r + 1.0f;
    const FourInts power = ((FourInts)shifted - (FourInts)rounder + 127) << 23;
    return sum * (Four)power;
}

/* sum += weights[0] * value 0 + weights[1] * value 1 ..., one after the other; values lie `stride` floats apart. */
INLINE void add_weighted(float *sum, const float *weights, const float *values, int32_t count, int64_t stride,
                         int size) {
    int d = 0;
    for (; d + 16 <= size; d += 16) {
        Four a = *(Anywhere *)(sum + d), b = *(Anywhere *)(sum + d + 4);
        Four e = *(Anywhere *)(sum + d + 8), f = *(Anywhere *)(sum + d + 12);
        const float *value = values + d;
        for (int32_t i = 0; i < count; i++, value += stride) {
            a += weights[i] * *(const Anywhere *)value;
            b += weights[i] * *(const Anywhere *)(value + 4);
            e += weights[i] * *(const Anywhere *)(value + 8);
            f += weights[i] * *(const Anywhere *)(value + 12);
        }
        *(Anywhere *)(sum + d) = a, *(Anywhere *)(sum + d + 4) = b;
        *(Anywhere *)(sum + d + 8) = e, *(Anywhere *)(sum + d + 12) = f;
    }
    for (; d < size; d++)
        for (int32_t i = 0; i < count; i++) sum[d] += weights[i] * values[i * stride + d];
}

/* How many tokens from `at` to `end` are adjacent in the KV cache; `slot` is the slot of the first. */
INLINE int32_t adjacent(const Arguments *args, const int32_t *table, int32_t at, int32_t end, int64_t *slot) {
    int32_t place = at % args->block_size, left = args->block_size - place;
    *slot = (int64_t)table[at / args->block_size] * args->block_size + place;
    return left < end - at ? left : end - at;
}

/* Scores become weights that sum to 1 with that of the sink; `width` is `count` rounded up to a multiple of four. */
INLINE void softmax(const Arguments *args, float *scores, int32_t count, int32_t width, float sink) {
    float scaling = args->scaling;
    if (args->softcap != 0) {
        for (int32_t i = 0; i < count; i++) scores[i] = args->softcap * tanhf(scores[i] * scaling / args->softcap);
        scaling = 1;
    }
    for (int32_t i = count; i < width; i++) scores[i] = -INFINITY;
    Four most = *(Anywhere *)scores;
    for (int32_t i = 0; i < width; i += 4) most = larger(*(Anywhere *)(scores + i), most);
    sink /= scaling;
    float top = fmaxf(sink, fmaxf(fmaxf(most[0], most[1]), fmaxf(most[2], most[3])));
    Four sum = {0}, apart = {(sink - top) * scaling};
    for (int32_t i = 0; i < width; i += 4) {
        Four each = exponential((*(Anywhere *)(scores + i) - top) * scaling);
        *(Anywhere *)(scores + i) = each;
        sum += each;
    }
    Four share = {0};
    share += 1 / (total(sum) + exponential(apart)[0]); /* without a sink e^-87 is added, which changes no bit */
    for (int32_t i = 0; i < width; i += 4) *(Anywhere *)(scores + i) *= share;
}

INLINE void one_row(const Arguments *args, int32_t row, float *scores, int key_size, int value_size) {
    const int32_t *table = args->block_table + row * args->block_table_row;
    const int32_t groups = args->kv_heads, group = args->heads / groups, end = args->lengths[row];
    const int64_t keys_width = (int64_t)groups * key_size, values_width = (int64_t)groups * value_size;
    int64_t slot;
    const int32_t begin = args->window && end > args->window ? end - args->window : 0;
    const int32_t count = end - begin, width = (count + 3) & ~3;
    for (int32_t at = begin, run; at < end; at += run) {
        run = adjacent(args, table, at, end, &slot);
        for (int32_t head = 0; head < args->heads; head++) {
            const float *query = args->queries + row * args->query_row + head * args->query_head;
            const float *key = args->keys + slot * keys_width + head / group * key_size;
            float *score = scores + head * width + at - begin;
            for (int32_t i = 0; i < run; i++, key += keys_width) score[i] = dot(query, key, key_size);
        }
    }
    for (int32_t head = 0; head < args->heads; head++)
        softmax(args, scores + head * width, count, width, args->sinks ? args->sinks[head] : -INFINITY);
    float *out = args->out + (int64_t)row * args->heads * value_size;
    for (int32_t at = begin, run; at < end; at += run) {
        run = adjacent(args, table, at, end, &slot);
        for (int32_t head = 0; head < args->heads; head++) {
            const float *value = args->values + slot * values_width + head / group * value_size;
            const float *weights = scores + head * width + at - begin;
            add_weighted(out + head * value_size, weights, value, run, values_width, value_size);
        }
    }
}

/* Store the new token of every row. */
void store_kv(const Arguments *args, int32_t rows) {
    for (int32_t row = 0; row < rows; row++) {
        int64_t slot;
        if (args->lengths[row] == 0) continue;
        adjacent(args, args->block_table + row * args->block_table_row, args->lengths[row] - 1, args->lengths[row], &slot);
        for (int32_t head = 0; head < args->kv_heads; head++) {
            const float *key = args->new_keys + row * args->key_row + head * args->key_head;
            const float *value = args->new_values + row * args->value_row + head * args->value_head;
            const int64_t place = slot * args->kv_heads + head;
            memcpy(args->keys + place * args->key_size, key, args->key_size * sizeof(float));
            memcpy(args->values + place * args->value_size, value, args->value_size * sizeof(float));
        }
    }
}

/* Attention of rows `from` to `to` (exclusive), after store_kv. Returns 1 if out of memory, else 0. */
int attend(const Arguments *args, int32_t from, int32_t to) {
    int32_t longest = 0;
    for (int32_t row = from; row < to; row++) longest = args->lengths[row] > longest ? args->lengths[row] : longest;
    float *scores = malloc(((size_t)longest + 3) * args->heads * sizeof(float));
    if (!scores) return 1;
    memset(args->out + (int64_t)from * args->heads * args->value_size, 0,
           (size_t)(to - from) * args->heads * args->value_size * sizeof(float));
    const int size = args->key_size == args->value_size ? args->key_size : 0;
    for (int32_t row = from; row < to; row++) {
        if (args->lengths[row] == 0) continue;
        switch (size) { /* loops of constant length are unrolled */
        case 16: one_row(args, row, scores, 16, 16); break;
        case 64: one_row(args, row, scores, 64, 64); break;
        case 128: one_row(args, row, scores, 128, 128); break;
        default: one_row(args, row, scores, args->key_size, args->value_size);
        }
    }
    free(scores);
    return 0;
}

/* Sampling: for every row the token with the largest p / E, the first of equals. E = -log(1 - x) is the exponential
   number of counter_rng.py, x its uniform one. E is never below x, so most tokens are ruled out before E is computed.
   The integers equal those of counter_rng.py; E may differ in its last digit. */

#define HASHED 64 /* tokens hashed per iteration */

INLINE uint32_t mix(uint32_t x) {
    x = (x ^ (x >> 16)) * 0x7feb352du;
    x = (x ^ (x >> 15)) * 0x846ca68bu;
    return x ^ (x >> 16);
}

void gumbel_argmax(const float *p, const uint32_t *keys, const int32_t *positions, int32_t rows, int32_t size,
                   int64_t *tokens) {
    for (int32_t row = 0; row < rows; row++, p += size) {
        const uint32_t position = (uint32_t)positions[row];
        const uint32_t first = mix(keys[2 * row] ^ mix(position + 0x9e3779b9u));
        const uint32_t second = mix(keys[2 * row + 1] ^ mix(position + 0x85ebca6bu));
        float best = -1, uniform[HASHED];
        tokens[row] = 0;
        for (int32_t start = 0; start < size; start += HASHED) {
            for (int32_t i = 0; i < HASHED; i++) {
                const uint32_t hash = mix(mix((uint32_t)(start + i) ^ first) + second);
                const float x = ((float)hash + 0.5f) * 2.3283064365386963e-10f; /* 2^-32 */
                uniform[i] = x > 0.99999994f ? 0.99999994f : x;                /* 1 - 2^-24 */
            }
            const int32_t count = size - start < HASHED ? size - start : HASHED;
            for (int32_t i = 0; i < count; i++) {
                if (p[start + i] <= best * uniform[i] * 0.999999f) continue; /* a NaN passes */
                const float ratio = p[start + i] / -log1pf(-uniform[i]);
                if (ratio > best || (ratio != ratio && best == best)) {
                    best = ratio;
                    tokens[row] = start + i;
                }
            }
        }
    }
}
