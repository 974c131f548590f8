/* What a CPU does too slowly in numpy or torch. c_extension.py compiles it; models/paged_attention_cpu.py and
   engines/native/sampling.py call it. Vectors are four floats wide, which every 64-bit processor has. */

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define INLINE static inline __attribute__((always_inline))

typedef float Four __attribute__((vector_size(16)));
typedef float Anywhere __attribute__((vector_size(16), aligned(4), may_alias)); /* any four floats in memory */
typedef int32_t FourInts __attribute__((vector_size(16)));

/* Attention: one new token of every row against its pages, in float32.

   A row is computed by itself, token after token in the order of its own past: what it gets depends neither on its
   neighbours nor on the size of pages, and nothing is padded. A page is read for one head after the other, while it is
   in the cache.

   `Call` has the fields of `_Call` in paged_cpu.py, in the same order. Strides and widths count floats. */

typedef struct {
    const float *queries, *new_keys, *new_values; /* (rows, heads, size); the last axis is dense */
    float *keys, *values;                         /* the pool: (slots, key/value heads, size) */
    float *out;                                   /* (rows, heads, value size), dense */
    const int32_t *table;                         /* the pages of every row, in order */
    const int32_t *lengths;                       /* what a row sees, its new token included; 0: it stands still */
    const float *sinks;                           /* a score for every head that takes weight and gives nothing, or 0 */
    int64_t query_row, query_head, key_row, key_head, value_row, value_head, table_row;
    int32_t heads, kv_heads, key_size, value_size, page, window; /* window 0: a token sees all before it */
    float scaling, softcap;                                      /* softcap 0: none */
} Call;

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

/* How many tokens lie one behind the other from token `at` on, up to `end`; `slot` is where the first of them lies. */
INLINE int32_t together(const Call *call, const int32_t *table, int32_t at, int32_t end, int64_t *slot) {
    int32_t place = at % call->page, left = call->page - place;
    *slot = (int64_t)table[at / call->page] * call->page + place;
    return left < end - at ? left : end - at;
}

/* Scores become weights that sum to 1 with that of the sink; `width` is `count` rounded up to a multiple of four. */
INLINE void softmax(const Call *call, float *scores, int32_t count, int32_t width, float sink) {
    float scaling = call->scaling;
    if (call->softcap != 0) {
        for (int32_t i = 0; i < count; i++) scores[i] = call->softcap * tanhf(scores[i] * scaling / call->softcap);
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

INLINE void one_row(const Call *call, int32_t row, float *scores, int key_size, int value_size) {
    const int32_t *table = call->table + row * call->table_row;
    const int32_t groups = call->kv_heads, group = call->heads / groups, end = call->lengths[row];
    const int64_t keys_width = (int64_t)groups * key_size, values_width = (int64_t)groups * value_size;
    int64_t slot;
    const int32_t begin = call->window && end > call->window ? end - call->window : 0;
    const int32_t count = end - begin, width = (count + 3) & ~3;
    for (int32_t at = begin, run; at < end; at += run) {
        run = together(call, table, at, end, &slot);
        for (int32_t head = 0; head < call->heads; head++) {
            const float *query = call->queries + row * call->query_row + head * call->query_head;
            const float *key = call->keys + slot * keys_width + head / group * key_size;
            float *score = scores + head * width + at - begin;
            for (int32_t i = 0; i < run; i++, key += keys_width) score[i] = dot(query, key, key_size);
        }
    }
    for (int32_t head = 0; head < call->heads; head++)
        softmax(call, scores + head * width, count, width, call->sinks ? call->sinks[head] : -INFINITY);
    float *out = call->out + (int64_t)row * call->heads * value_size;
    for (int32_t at = begin, run; at < end; at += run) {
        run = together(call, table, at, end, &slot);
        for (int32_t head = 0; head < call->heads; head++) {
            const float *value = call->values + slot * values_width + head / group * value_size;
            const float *weights = scores + head * width + at - begin;
            add_weighted(out + head * value_size, weights, value, run, values_width, value_size);
        }
    }
}

/* Put the new token of every row where its table says. */
void store(const Call *call, int32_t rows) {
    for (int32_t row = 0; row < rows; row++) {
        int64_t slot;
        if (call->lengths[row] == 0) continue;
        together(call, call->table + row * call->table_row, call->lengths[row] - 1, call->lengths[row], &slot);
        for (int32_t head = 0; head < call->kv_heads; head++) {
            const float *key = call->new_keys + row * call->key_row + head * call->key_head;
            const float *value = call->new_values + row * call->value_row + head * call->value_head;
            const int64_t place = slot * call->kv_heads + head;
            memcpy(call->keys + place * call->key_size, key, call->key_size * sizeof(float));
            memcpy(call->values + place * call->value_size, value, call->value_size * sizeof(float));
        }
    }
}

/* What rows `from` to `to` (not included) see, once all are stored. 1 if there was no memory for the scores, else 0. */
int attend(const Call *call, int32_t from, int32_t to) {
    int32_t longest = 0;
    for (int32_t row = from; row < to; row++) longest = call->lengths[row] > longest ? call->lengths[row] : longest;
    float *scores = malloc(((size_t)longest + 3) * call->heads * sizeof(float));
    if (!scores) return 1;
    memset(call->out + (int64_t)from * call->heads * call->value_size, 0,
           (size_t)(to - from) * call->heads * call->value_size * sizeof(float));
    const int size = call->key_size == call->value_size ? call->key_size : 0;
    for (int32_t row = from; row < to; row++) {
        if (call->lengths[row] == 0) continue;
        switch (size) { /* loops of known length are unrolled */
        case 16: one_row(call, row, scores, 16, 16); break;
        case 64: one_row(call, row, scores, 64, 64); break;
        case 128: one_row(call, row, scores, 128, 128); break;
        default: one_row(call, row, scores, call->key_size, call->value_size);
        }
    }
    free(scores);
    return 0;
}

/* The race of sampling.py: for every row the token with the largest p / E, the first of them. E = -log(1 - x) is the
   exponential number of noise.py, x its uniform one. E is never below x, so most tokens lose before E is computed: of
   V about log(V) lead at some time. The integers are those of noise.py; E may differ in its last digit. */

#define HASHED 64 /* tokens that are hashed together */

INLINE uint32_t mixed(uint32_t x) {
    x = (x ^ (x >> 16)) * 0x7feb352du;
    x = (x ^ (x >> 15)) * 0x846ca68bu;
    return x ^ (x >> 16);
}

void race(const float *p, const uint32_t *words, const int32_t *positions, int32_t rows, int32_t size,
          int64_t *tokens) {
    for (int32_t row = 0; row < rows; row++, p += size) {
        const uint32_t position = (uint32_t)positions[row];
        const uint32_t first = mixed(words[2 * row] ^ mixed(position + 0x9e3779b9u));
        const uint32_t second = mixed(words[2 * row + 1] ^ mixed(position + 0x85ebca6bu));
        float best = -1, uniform[HASHED];
        tokens[row] = 0;
        for (int32_t start = 0; start < size; start += HASHED) {
            for (int32_t i = 0; i < HASHED; i++) {
                const uint32_t hash = mixed(mixed((uint32_t)(start + i) ^ first) + second);
                const float x = ((float)hash + 0.5f) * 2.3283064365386963e-10f; /* 2^-32 */
                uniform[i] = x > 0.99999994f ? 0.99999994f : x;                /* 1 - 2^-24 */
            }
            const int32_t count = size - start < HASHED ? size - start : HASHED;
            for (int32_t i = 0; i < count; i++) {
                if (p[start + i] <= best * uniform[i] * 0.999999f) continue; /* a NaN goes on */
                const float ratio = p[start + i] / -log1pf(-uniform[i]);
                if (ratio > best || (ratio != ratio && best == best)) {
                    best = ratio;
                    tokens[row] = start + i;
                }
            }
        }
    }
}
