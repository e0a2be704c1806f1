/* The Contextualizer on a processor: packed UTF-8 to token ids, and token ids to c^K.
 * The equations and letters are those of ctx_embed/second_order; tests hold this file to them. The
 * sum over a text's tokens is taken first, and the context is applied to it:
 *
 *     c^k = c^(k-1) + LayerNorm( sum_i a_i * x_i ),    a_i = W_k (U_k x_i * V_k c^(k-1)) + b_k
 *     sum_i a_i * x_i = sum_r (V_k c^(k-1))_r W_k[:, r] * G_k[r, :] + b_k * t
 *     G_k[r, :] = sum_i (U_k x_i)_r x_i,    t = sum_i x_i
 *
 * Without position weights a text is a bag of entries. The products U_k x of an entry, and its part
 * of the first update where all texts begin with one c^0, are computed once and held.
 *
 * What a text gets depends on the text alone: sums run over its tokens in one order, whatever else
 * is in the batch, for any number of threads, and whether products were held or computed again. The
 * file is compiled once for any processor and, on x86-64, once more with AVX2 and FMA; the
 * first has the calls, and chooses. Nothing here knows Python; kernel/library.py calls it. */

#include <math.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#if defined(WITH_AVX2)
#include <cpuid.h>
#endif
#if defined(__linux__)
#include <sys/mman.h>
#endif

#if defined(_WIN32)
#define API __declspec(dllexport)
#else
#define API __attribute__((visibility("default")))
#endif
#define INLINE static inline __attribute__((always_inline))
#define EACH(i, n) for (i64 i = 0; i < (i64)(n); i++)

typedef int32_t i32; typedef int64_t i64; typedef uint32_t u32; typedef uint64_t u64;

#if defined(__AVX2__)
enum { LANES = 8 };
#define EMBED embed_avx2
#define NEAREST nearest_avx2
#define ADDED added_avx2
#else
enum { LANES = 4 };
#define EMBED embed_plain
#define NEAREST nearest_plain
#define ADDED added_plain
#endif
/* A tile is HEADS x BLOCK sums in registers, two vectors a head. CHUNK items are packed at once. */
enum { PLAIN, AVX2, BLOCK = 2 * LANES, HEADS = 4, CHUNK = 128, ABSENT = -1, CLAIMED = -2 };

typedef float vector __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
#define AT(pointer) (*(vector *)(pointer))
#define ALL(value) ((value) - (vector){0})

/* ---- The model ------------------------------------------------------------------------------ */
typedef struct {
    i64 m, K, u, entries;          /* features, steps, rank; rows of the table */
    i64 shared, mean, relative;    /* all texts begin with c0; scale "mean"; positions i / n */
    i64 held, path;                /* entries whose products are held, at most; PLAIN or AVX2 */
    const int8_t *levels;          /* (entries, m) int8 rows; NULL: the rows are in `rows` */
    const float *scales, *rows;    /* (entries,) of the int8 rows; (entries, m) float32 rows */
    const float *U, *V, *W;        /* (K, u, m), (K, u, m), (K, m, u) */
    const float *b, *gain, *bias;  /* (K, m) */
    const float *c0, *s;           /* (m,) where shared; (m,) slopes, NULL: a text is a bag */
} ctx_parameters;

typedef struct {
    ctx_parameters p;
    i64 M, u, held;                /* m and u, padded with zeros to multiples of 16; products */
    i64 first, heads, width;       /* features of the first update (M or 0); other heads; sum */
    float *U, *V, *W;              /* (K u/BLOCK, M, BLOCK), (K, u, M), (K, M/BLOCK, u, BLOCK) */
    float *b, *gain, *bias;        /* (K, M) */
    float *s, *v0;                 /* (M,) or NULL; (u,) V_1 c0 */
    float *products;               /* (held, width) by place: a^1 * x, then scale * U_k x */
    _Atomic i32 *place;            /* (entries,) an entry's row there; ABSENT, or CLAIMED */
    _Atomic i32 used;              /* rows of `products` that are taken */
} ctx_model;

/* What one call needs besides, for its longest text. */
typedef struct {
    float *x, *h;                /* a chunk's rows (M / BLOCK, n, BLOCK), heads (heads / 4, n, 4) */
    float *computed;             /* products that are not held, (CHUNK, width) */
    float *rows, *four, *heads;  /* (4, M) rows; (n / 4, M, 4) in fours; (n, K u) their heads */
    float *attended;             /* (n / 4, u, 4) U_1 x * V_1 c0, in fours */
    float *weights, *factor;     /* (CHUNK, M) position weights; (M,) what they are times */
    double *Z, *G, *t2, *first2; /* (M,) sums of weights; of chunks: (heads, M), (M,), (M,) */
    const i32 *ahead, *stop;     /* tokens of the next text that memory was not asked for ... */
    i64 some;                    /* ... yet; so many are asked for at a time */
    float *t, *first, *total, *c, *v;
    double *count;               /* of a bag's entries */
    i32 *entry, *slots;          /* these, and the table that finds them */
    const float *product[CHUNK];
} work;

/* ---- Arithmetic ----------------------------------------------------------------------------- */
INLINE float sum(vector a) {
    if (LANES == 8) EACH(l, 4) a[l] += a[l + LANES - 4];
    return (a[0] + a[1]) + (a[2] + a[3]);
}

/* acc[r, :] = sum_i h[i, r] a[i, :] over n items: 4 heads, BLOCK features. All time goes here. */
INLINE void tile(const float *a, const float *h, i64 n, vector acc[HEADS][2]) {
    vector s[HEADS][2] = {{{0}}};
    for (i64 i = 0; i < n; i++, a += BLOCK, h += HEADS)
        for (int r = 0; r < HEADS; r++) {
            s[r][0] += ALL(h[r]) * AT(a);
            s[r][1] += ALL(h[r]) * AT(a + LANES);
        }
    memcpy(acc, s, sizeof s);
}

/* The row of an entry as it is stored, (M,) padded with zeros; returns its scale. */
INLINE float row_of(const ctx_model *model, i32 entry, float *out) {
    const ctx_parameters *p = &model->p;
    i64 m = p->m, begin = entry * m;
    EACH(j, m) out[j] = p->levels ? (float)p->levels[begin + j] : p->rows[begin + j];
    for (i64 j = m; j < model->M; j++) out[j] = 0;
    return p->levels ? p->scales[entry] : 1;
}

/* Ask memory for the row of an entry, and for its products if they are held: both lie anywhere. */
INLINE void ask_for(const ctx_model *model, i32 entry) {
    const ctx_parameters *p = &model->p;
    i64 size = p->levels ? p->m : p->m * 4, place = p->s ? ABSENT : model->place[entry];
    const char *row = p->levels ? (const char *)p->levels : (const char *)p->rows;
    for (i64 at = 0; at < size; at += 64) __builtin_prefetch(row + entry * size + at, 0, 2);
    for (i64 at = 0; place >= 0 && at < model->width; at += 16)
        __builtin_prefetch(model->products + place * model->width + at, 0, 2);
}

/* The heads of all steps, (U x_i)_r, of n rows x in fours: four (n / 4, M, 4), out (K u / 4, n, 4).
 * Blocks of U stay in cache. */
INLINE void project(const ctx_model *model, const float *four, i64 n, float *out) {
    i64 M = model->M;
    for (i64 head = 0; head < model->p.K * model->u; head += BLOCK)
        for (i64 i = 0; i < n; i += 4) {
            vector acc[HEADS][2];
            tile(model->U + head * M, four + i * M, M, acc);
            for (i64 l = 0; l < 4 && i + l < n; l++) EACH(q, BLOCK / 4)
                memcpy(out + (head + 4 * q) * n + 4 * (i + l), (float *)acc[l] + 4 * q, 16);
        }
}

/* Products of n <= CHUNK entries into rows (width,): a^1 * x = (W_1 (U_1 x * V_1 c0) + b_1) * x and
 * scale * U_k x. Fours are filled with the last entry, so that each is computed alike. */
INLINE void compute(const ctx_model *model, work *w, const i32 *entry, float **out, i64 n) {
    i64 M = model->M, u = model->u, first = model->first, all = model->p.K * u;
    float scale[CHUNK];
    EACH(i, (n + 3) / 4 * 4) {
        scale[i] = row_of(model, entry[i < n ? i : n - 1], w->rows);
        EACH(j, M) w->four[(i / 4 * M + j) * 4 + i % 4] = w->rows[j] * scale[i];
    }
    project(model, w->four, n, w->heads);
    EACH(r, all) EACH(i, n) {
        float head = w->heads[(r / 4 * n + i) * 4 + r % 4];
        if (r >= all - model->heads) out[i][first + r - (all - model->heads)] = scale[i] * head;
        else w->attended[(i / 4 * u + r) * 4 + i % 4] = head * model->v0[r];
    }
    for (i64 j = 0; j < first; j += BLOCK)
        for (i64 i = 0; i < n; i += 4) {
            vector acc[HEADS][2];
            tile(model->W + j * u, w->attended + i * u, u, acc);
            for (i64 l = 0; l < 4 && i + l < n; l++) EACH(q, BLOCK) {
                float a = ((float *)acc[l])[q] + model->b[j + q];
                out[i + l][j + q] = a * w->four[(i / 4 * M + j + q) * 4 + l];
            }
        }
}

/* Hold the products of entries that no thread has claimed, while there is room. */
INLINE void hold(ctx_model *model, work *w, const i32 *ids, i64 n) {
    i32 entry[CHUNK], row[CHUNK];
    float *out[CHUNK];
    for (i64 i = 0, count = 0; i < n; count = 0) {
        for (; i < n && count < CHUNK; i++) {
            _Atomic i32 *place = &model->place[ids[i]];
            i32 absent = ABSENT;
            if (*place != ABSENT || model->used >= model->held ||
                !atomic_compare_exchange_strong(place, &absent, CLAIMED)) continue;
            row[count] = model->used++;
            if (row[count] >= model->held) continue;  /* others took the last: it is never held */
            ask_for(model, ids[i]);
            entry[count] = ids[i];
            out[count] = model->products + row[count] * model->width, count++;
        }
        if (count) compute(model, w, entry, out, count);
        EACH(k, count) model->place[entry[k]] = row[k];
    }
}

/* ---- A text's items, packed ----------------------------------------------------------------- */
/* The distinct entries of a text in order, and how often each occurs; returns their number. */
INLINE i64 bag_of(work *w, const i32 *ids, const double *counts, i64 n) {
    i64 size = 16, found = 0;
    while (size < 2 * n) size *= 2;
    memset(w->slots, 0, size * sizeof(i32));
    EACH(i, n) {
        u64 at = (u64)ids[i] * 0x9E3779B97F4A7C15ull >> 32;
        while (w->slots[at &= size - 1] && w->entry[w->slots[at] - 1] != ids[i]) at++;
        if (!w->slots[at]) {
            w->entry[found] = ids[i], w->count[found] = 0;
            w->slots[at] = (i32)++found;
        }
        w->count[w->slots[at] - 1] += counts ? counts[i] : 1;
    }
    return found;
}

/* Pack `size` of n entries from i on, each token times `factor`: rows as stored, all else in h. */
INLINE void pack_entries(const ctx_model *model, work *w, const i32 *entry, const double *count,
                         i64 i, i64 size, i64 n, double factor) {
    i64 M = model->M, first = model->first;
    vector token[4], times[4];
    EACH(l, size) {
        float scale = row_of(model, entry[i + l], w->rows + l * M), *h = w->h + (i + l) * HEADS;
        float squared = (float)(count[i + l] * factor * factor);
        token[l] = ALL((float)(count[i + l] * factor) * scale);
        times[l] = ALL((float)count[i + l]);
        for (i64 r = 0; r < model->heads; r += HEADS)
            EACH(q, HEADS) h[r * n + q] = squared * w->product[i + l][first + r + q];
    }
    for (i64 j = 0; j < M; j += LANES) {
        vector t = AT(w->t + j), update = AT(w->first + j);
        EACH(l, size) {
            vector x = AT(w->rows + l * M + j);
            AT(w->x + (j / BLOCK * n + i + l) * BLOCK + j % BLOCK) = x;
            t += token[l] * x;
            if (first) update += times[l] * AT(w->product[i + l] + j);
        }
        AT(w->t + j) = t, AT(w->first + j) = update;
    }
}

/* Pack n <= CHUNK entries of a bag. Products that are not held are computed for this call. */
INLINE void pack_bag(const ctx_model *model, work *w, const i32 *entry, const double *count, i64 n,
                     double factor, int cold) {
    i32 missing[CHUNK];
    float *out[CHUNK];
    i64 i, absent = 0, width = model->width;
    EACH(k, n) {
        i32 place = model->place[entry[k]];
        w->product[k] = place < 0 ? w->computed + absent * width : model->products + place * width;
        if (place < 0) missing[absent] = entry[k], out[absent++] = (float *)w->product[k];
    }
    if (absent) compute(model, w, missing, out, absent);
    memset(w->t, 0, model->M * sizeof(float));
    memset(w->first, 0, model->M * sizeof(float));
    for (i = 0; i + 4 <= n; i += 4) {
        if (cold) EACH(l, 4) if (i + 4 + l < n) ask_for(model, entry[i + 4 + l]);
        pack_entries(model, w, entry, count, i, 4, n, factor);
    }
    for (; i < n; i++) pack_entries(model, w, entry, count, i, 1, n, factor);
}

/* exp(i s) of n tokens from begin on of a text, (n, M), over the largest, at the first token where
 * s < 0, else at the last; neighbours have the ratio exp(-|s|). Adds their sums to Z. */
INLINE void weights_of(const ctx_model *model, work *w, i64 length, i64 begin, i64 n) {
    EACH(j, model->M) {
        int rises = model->s[j] > 0;
        double slope = fabs((double)model->s[j]) / (model->p.relative ? (double)length : 1);
        i64 distance = rises ? length - begin - n : begin;
        double ratio = exp(-slope), weight = exp(-slope * (double)distance);
        EACH(i, n) {
            w->weights[(rises ? n - 1 - i : i) * model->M + j] = (float)weight;
            w->Z[j] += weight;
            weight *= ratio;
        }
    }
}

/* Pack n <= CHUNK tokens with position weights: x_i = e(w_i) * p(i), and U x_i. */
INLINE void pack_sequence(const ctx_model *model, work *w, const i32 *ids, i64 n) {
    i64 M = model->M;
    memset(w->t, 0, M * sizeof(float));
    EACH(i, n) {
        float scale = row_of(model, ids[i], w->rows);
        EACH(j, M) {
            float x = w->rows[j] * scale * (w->weights[i * M + j] * w->factor[j]);
            w->x[(j / BLOCK * n + i) * BLOCK + j % BLOCK] = x;
            w->four[(i / 4 * M + j) * 4 + i % 4] = x;
            w->t[j] += x;
        }
    }
    project(model, w->four, n, w->h);
}

/* ---- The steps ------------------------------------------------------------------------------ */
/* c^k = c^{k-1} + LayerNorm(total); overwrites total. */
INLINE void correct(const ctx_model *model, i64 k, float *total, float *c) {
    i64 M = model->M, m = model->p.m;
    const float *gain = model->gain + k * M, *bias = model->bias + k * M;
    for (int again = 0; again < 2; again++) {     /* what is left of the mean was rounding */
        vector all = {0};
        for (i64 j = 0; j < M; j += LANES) all += AT(total + j);
        float mean = sum(all) / (float)m;
        EACH(j, m) total[j] -= mean;
    }
    vector s0 = {0}, s1 = {0};
    for (i64 j = 0; j < M; j += BLOCK) {
        s0 += AT(total + j) * AT(total + j);
        s1 += AT(total + j + LANES) * AT(total + j + LANES);
    }
    float scale = 1 / sqrtf(sum(s0 + s1) / (float)m + 1e-12f);
    EACH(j, m) c[j] += total[j] * scale * gain[j] + bias[j];
}

/* total = sum_r v_r W[:, r] * G[r, :] + b * t with v = V_k c. G (u, M) is given, or NULL stands for
 * G[r, :] = sum_i h[i, r] a[i, :] over n items, a: (M / BLOCK, n, BLOCK), h: (u / 4, n, 4). */
INLINE void fold(const ctx_model *model, work *w, i64 k, const float *a, const float *h, i64 n,
                 const double *G) {
    i64 M = model->M, u = model->u;
    const float *W = model->W + k * M * u, *b = model->b + k * M;
    for (i64 r = 0; r < u; r += 8) {
        vector s[8] = {{0}};
        const float *V = model->V + (k * u + r) * M;
        for (i64 j = 0; j < M; j += LANES)
            for (int l = 0; l < 8; l++) s[l] += AT(V + l * M + j) * AT(w->c + j);
        for (int l = 0; l < 8; l++) w->v[r + l] = sum(s[l]);
    }
    for (i64 j = 0; j < M; j += BLOCK, a += n * BLOCK) {
        for (i64 some = w->some; some && w->ahead < w->stop; some--) ask_for(model, *w->ahead++);
        vector t0 = AT(b + j) * AT(w->t + j), t1 = AT(b + j + LANES) * AT(w->t + j + LANES);
        for (i64 r = 0; r < u; r += HEADS) {
            vector acc[HEADS][2];
            if (!G) tile(a, h + r * n, n, acc);
            else EACH(l, HEADS * BLOCK)
                ((float *)acc)[l] = (float)G[(r + l / BLOCK) * M + j + l % BLOCK];
            for (int l = 0; l < HEADS; l++, W += BLOCK) {
                vector v = ALL(w->v[r + l]);
                t0 += v * AT(W) * acc[l][0];
                t1 += v * AT(W + LANES) * acc[l][1];
            }
        }
        AT(w->total + j) = t0, AT(w->total + j + LANES) = t1;
    }
}

/* Add a packed chunk to the sums of a text, or begin them: G (heads, M), t, the first update. */
INLINE void accumulate(const ctx_model *model, work *w, i64 heads, i64 n, int begin) {
    i64 M = model->M;
    for (i64 j = 0; j < M; j += BLOCK)
        for (i64 r = 0; r < heads; r += HEADS) {
            vector acc[HEADS][2];
            tile(w->x + j * n, w->h + r * n, n, acc);
            EACH(l, HEADS) EACH(i, BLOCK) {
                double *G = &w->G[(r + l) * M + j + i];
                *G = (begin ? 0 : *G) + ((float *)acc[l])[i];
            }
        }
    EACH(j, M) w->t2[j] = (begin ? 0 : w->t2[j]) + w->t[j];
    EACH(j, M) w->first2[j] = (begin ? 0 : w->first2[j]) + w->first[j];
}

/* Replace c^0 of one text of n tokens, or entries with counts, by c^K. */
INLINE void embed_text(const ctx_model *model, work *w, const i32 *ids, const double *counts, i64 n,
                       int cold, float *context) {
    const ctx_parameters *p = &model->p;
    i64 M = model->M, u = model->u, k = model->first ? 1 : 0, heads = (p->K - k) * u, items = n;
    double factor = 1;
    memcpy(w->c, context, p->m * sizeof(float));
    memset(w->first, 0, M * sizeof(float));
    if (p->s) {     /* the factor gives the weights the sum 1, or the text's length under "mean" */
        memset(w->Z, 0, M * sizeof(double));
        for (i64 begin = 0; begin < n; begin += CHUNK)
            weights_of(model, w, n, begin, n - begin < CHUNK ? n - begin : CHUNK);
        EACH(j, M) w->factor[j] = (float)((p->mean ? (double)n : 1.0) / w->Z[j]);
    } else {
        double tokens = 0;
        items = bag_of(w, ids, counts, n);
        EACH(i, items) tokens += w->count[i];
        if (!p->mean) factor = 1 / tokens;
    }
    int several = items > CHUNK;    /* then G is summed first */
    for (i64 begin = 0; begin < items; begin += CHUNK) {
        i64 size = items - begin < CHUNK ? items - begin : CHUNK;
        if (p->s && several) weights_of(model, w, n, begin, size);
        if (p->s) pack_sequence(model, w, ids + begin, size);
        else pack_bag(model, w, w->entry + begin, w->count + begin, size, factor, cold || begin);
        if (several) accumulate(model, w, heads, size, begin == 0);
    }
    if (several) EACH(j, M) w->t[j] = (float)w->t2[j], w->first[j] = (float)w->first2[j];
    if (k) correct(model, 0, w->first, w->c);
    for (const double *G = w->G; k < p->K; k++, G += u * M) {
        i64 before = several ? 0 : (heads - (p->K - k) * u) * items;
        fold(model, w, k, w->x, w->h + before, several ? 0 : items, several ? G : NULL);
        correct(model, k, w->total, w->c);
    }
    memcpy(context, w->c, p->m * sizeof(float));
}

/* Compiled once for each path, with everything above. */
void EMBED(ctx_model *model, work *w, const i32 *ids, i64 tokens, const i64 *lengths,
           const double *counts, i64 texts, float *contexts) {
    if (!model->p.s) hold(model, w, ids, tokens);
    w->ahead = ids;
    EACH(i, texts) {
        const i32 *end = ids + lengths[i];
        i64 next = i + 1 < texts ? lengths[i + 1] : 0, slots = model->p.K * model->M / BLOCK;
        int cold = w->ahead == ids;
        if (next > 2 * CHUNK) next = 2 * CHUNK;
        w->ahead = end, w->stop = end + next, w->some = (2 * next + slots - 1) / slots;
        if (lengths[i]) embed_text(model, w, ids, counts, lengths[i], cold, contexts);
        ids = end, contexts += model->p.m;
        if (counts) counts += lengths[i];
    }
}

/* out[i] = times * <q_i, x> for rows q (Q, M), four at a time, and x (M,). */
INLINE void dots(const float *q, i64 Q, const float *x, i64 M, float times, float *out) {
    for (i64 i = 0; i < Q; i += 4, q += 4 * M) {
        vector s[4] = {{0}};
        for (i64 j = 0; j < M; j += LANES)
            for (int l = 0; l < 4; l++) s[l] += AT(q + l * M + j) * AT(x + j);
        for (int l = 0; l < 4; l++) out[i + l] = times * sum(s[l]);
    }
}

/* The sum of products of two rows (M,). */
INLINE float dot(const float *a, const float *b, i64 M) {
    vector s0 = {0}, s1 = {0};
    for (i64 j = 0; j < M; j += BLOCK) {
        s0 += AT(a + j) * AT(b + j);
        s1 += AT(a + j + LANES) * AT(b + j + LANES);
    }
    return sum(s0 + s1);
}

/* See ctx_added. v, h (u,); total (M,). */
void ADDED(const ctx_model *model, const float *x, i64 n, float *c, float *v, float *h,
           float *total, float *y, float *added) {
    i64 M = model->M, u = model->u, m = model->p.m;
    const float *U = model->U, *V = model->V, *W = model->W, *b = model->b;
    memset(added, 0, n * M * sizeof *added);
    for (i64 k = 0; k < model->p.K; k++, U += u * M, V += u * M, W += u * M, b += M) {
        EACH(r, u) v[r] = dot(V + r * M, c, M);
        memset(total, 0, M * sizeof *total);
        EACH(i, n) {
            const float *own = x + i * M;
            float *of = y + i * M, mean = 0;
            for (i64 r = 0; r < u; r += BLOCK) {
                vector s0 = {0}, s1 = {0};
                EACH(j, M) {
                    s0 += ALL(own[j]) * AT(U + r * M + j * BLOCK);
                    s1 += ALL(own[j]) * AT(U + r * M + j * BLOCK + LANES);
                }
                AT(h + r) = s0 * AT(v + r), AT(h + r + LANES) = s1 * AT(v + r + LANES);
            }
            for (i64 j = 0; j < M; j += BLOCK) {
                vector a0 = AT(b + j), a1 = AT(b + j + LANES);
                EACH(r, u) {
                    a0 += ALL(h[r]) * AT(W + j * u + r * BLOCK);
                    a1 += ALL(h[r]) * AT(W + j * u + r * BLOCK + LANES);
                }
                AT(of + j) = a0 * AT(own + j), AT(of + j + LANES) = a1 * AT(own + j + LANES);
            }
            EACH(j, m) mean += of[j] / (float)m;
            EACH(j, m) total[j] += of[j] -= mean;
        }
        float scale = 1 / sqrtf(dot(total, total, M) / (float)m + 1e-12f);
        const float *gain = model->gain + k * M, *bias = model->bias + k * M;
        EACH(i, n) EACH(j, M) added[i * M + j] += scale * gain[j] * y[i * M + j];
        EACH(j, M) c[j] += scale * gain[j] * total[j] + bias[j];
    }
}

/* See ctx_nearest. of_query (entries,): the first of the query's tokens that is this one, or -1;
 * last (Q,): -1; row (M,), half (Q,); held (entries, Q + 1): of each entry, the cosines of its row
 * with q, and 1 over its length. */
void NEAREST(const ctx_model *model, const i32 *of_query, const float *q, i64 Q, i64 kept,
             const i32 *ids, const i64 *lengths, const float *c, i64 n, i32 *last, float *row,
             float *half, float *held, float *best, i32 *which, i64 *having) {
    i64 M = model->M, rest = sizeof *row * (model->p.m - kept);
    EACH(entry, model->p.entries) {
        float *of = held + entry * (Q + 1);
        row_of(model, (i32)entry, row);
        memset(row + kept, 0, rest);
        float length = sqrtf(dot(row, row, M));
        of[Q] = length > 0 ? 1 / length : 0;
        dots(q, Q, row, M, of[Q], of);
    }
    for (i64 p = 0; p < n; p++, c += M, best += Q, which += Q) {
        float square = dot(c, c, M) + 1e-12f;
        dots(q, Q, c, M, 1, half);
        EACH(i, Q) best[i] = -1, which[i] = -1;
        EACH(t, lengths[p]) {
            i32 entry = *ids++, first = of_query[entry];
            float *of = held + entry * (Q + 1);
            row_of(model, entry, row);
            memset(row + kept, 0, rest);
            float scale = 1 / sqrtf(square + (of[Q] > 0) + 2 * dot(row, c, M) * of[Q]);
            EACH(i, Q) {
                float cosine = (of[i] + half[i]) * scale;
                if (cosine > best[i]) best[i] = cosine, which[i] = (i32)t;
            }
            if (first >= 0 && last[first] != p) having[first]++, last[first] = (i32)p;
        }
    }
}

#if !defined(__AVX2__)
/* Ask for large pages, which are found and cleared sooner, where memory is used all over. */
static void large_pages(void *memory, i64 bytes) {
#if defined(MADV_HUGEPAGE)
    uintptr_t page = 1 << 16, begin = ((uintptr_t)memory + page - 1) & ~(page - 1);
    if (bytes > 1 << 22) madvise((void *)begin, (bytes - page) & ~(page - 1), MADV_HUGEPAGE);
#else
    (void)memory, (void)bytes;
#endif
}

/* ---- Calls: the model ----------------------------------------------------------------------- */
void embed_avx2(ctx_model *, work *, const i32 *, i64, const i64 *, const double *, i64, float *);
void added_avx2(const ctx_model *, const float *, i64, float *, float *, float *, float *, float *,
                float *);
void nearest_avx2(const ctx_model *, const i32 *, const float *, i64, i64, const i32 *, const i64 *,
                  const float *, i64, i32 *, float *, float *, float *, float *, i32 *, i64 *);

/* The CRC-32 of this file when it was compiled, by which a stale library is known. */
API const char *ctx_source(void) { return SOURCE; }

/* The paths that run here, a bit each: __builtin_cpu_supports, which zig lacks. */
API i64 ctx_paths(void) {
#if defined(WITH_AVX2)
    u32 a, b, c, d, saved, upper;
    if (__get_cpuid(1, &a, &b, &c, &d) && c >> 12 & c >> 27 & 1) {
        __asm__("xgetbv" : "=a"(saved), "=d"(upper) : "c"(0));
        if ((saved & 6) == 6 && __get_cpuid_count(7, 0, &a, &b, &c, &d) && b >> 5 & 1)
            return 1 << PLAIN | 1 << AVX2;
    }
#endif
    return 1 << PLAIN;
}

/* Free a model or words: each is one block of memory. */
API void ctx_free(void *memory) { free(memory); }

/* A model; the arrays of its table must outlive it, the others are copied. NULL: no memory. */
API ctx_model *ctx_model_new(const ctx_parameters *p) {
    i64 m = p->m, K = p->K, M = (m + 15) / 16 * 16, u = (p->u + 15) / 16 * 16, matrix = K * u * M;
    i64 first = p->shared ? M : 0, heads = (K - (p->shared ? 1 : 0)) * u;
    i64 held = p->s ? 0 : p->held < p->entries ? p->held : p->entries;
    i64 block = p->path == AVX2 ? 16 : 8, floats = 3 * matrix + (3 * K + 1) * M + u;
    i64 products = held * (first + heads);
    ctx_model *model = calloc(1, sizeof *model + 4 * (floats + p->entries + products));
    if (!model) return NULL;
    float *U = (float *)(model + 1), *V = U + matrix, *W = V + matrix, *b = W + matrix;
    *model = (ctx_model){.p = *p, .M = M, .u = u, .first = first, .heads = heads, .held = held,
                         .width = first + heads, .U = U, .V = V, .W = W, .b = b, .gain = b + K * M,
                         .bias = b + 2 * K * M, .s = b + 3 * K * M, .v0 = b + (3 * K + 1) * M};
    model->place = (_Atomic i32 *)(U + floats);
    model->products = U + floats + p->entries;
    if (products > 1 << 20) large_pages(model->products + (1 << 19), 4 * products - (1 << 21));
    EACH(i, p->entries) atomic_init(&model->place[i], ABSENT);
    EACH(k, K) EACH(j, m) {
        EACH(r, p->u) {
            i64 head = k * u + r;
            U[(head / block * M + j) * block + head % block] = p->U[(k * p->u + r) * m + j];
            V[head * M + j] = p->V[(k * p->u + r) * m + j];
            if (p->shared && !k) model->v0[r] += V[r * M + j] * p->c0[j];
            W[((k * M + j) / block * u + r) * block + j % block] = p->W[(k * m + j) * p->u + r];
        }
        if (p->s) model->s[j] = p->s[j];
        b[k * M + j] = p->b[k * m + j];
        model->gain[k * M + j] = p->gain[k * m + j];
        model->bias[k * M + j] = p->bias[k * m + j];
    }
    return model;
}

/* Replace c^0 by c^K in contexts (texts, m), in any thread. ids: packed, lengths[i] of text i;
 * counts: how often each occurs; NULL: once. Returns 0; -1: no memory; -2: an id is not a row. */
API i64 ctx_embed(ctx_model *model, const i32 *ids, const i64 *lengths, const double *counts,
                  i64 texts, float *contexts) {
    const ctx_parameters *p = &model->p;
    i64 M = model->M, u = model->u, all = p->K * u, longest = 0, tokens = 0, slots = 16;
    u32 highest = 0;
    EACH(i, texts) longest = lengths[i] > longest ? lengths[i] : longest, tokens += lengths[i];
    EACH(i, tokens) highest = (u32)ids[i] > highest ? (u32)ids[i] : highest;
    if (tokens && highest >= p->entries) return -2;
    while (slots < 2 * longest) slots *= 2;
    i64 several = longest > CHUNK, chunk = several ? CHUNK : longest;
    i64 room = tokens < CHUNK ? (tokens + 3) / 4 * 4 : CHUNK;
    i64 floats = chunk * (2 * M + all + model->width) + room * (M + all + u) + 9 * M + u + 16;
    i64 doubles = 3 * M + several * all * M + longest;
    char *memory = malloc(8 * doubles + 4 * (floats + longest + slots)), *next = memory;
    if (!memory) return -1;
    work w;
#define TAKE(pointer, n) pointer = (void *)next, next += (n) * sizeof *pointer
    TAKE(w.Z, M); TAKE(w.G, several * all * M); TAKE(w.t2, M); TAKE(w.first2, M);
    TAKE(w.count, longest); TAKE(w.x, chunk * M); TAKE(w.h, chunk * all);
    TAKE(w.weights, chunk * M); TAKE(w.computed, chunk * model->width); TAKE(w.rows, 4 * M);
    TAKE(w.four, room * M); TAKE(w.heads, room * all); TAKE(w.attended, room * u);
    TAKE(w.factor, M); TAKE(w.t, M); TAKE(w.first, M); TAKE(w.total, M); TAKE(w.c, M);
    TAKE(w.v, u + 16); TAKE(w.entry, longest); TAKE(w.slots, slots);
    memset(w.c, 0, M * sizeof(float));
    memset(w.four, 0, room * M * sizeof(float));
#if defined(WITH_AVX2)
    if (p->path == AVX2) embed_avx2(model, &w, ids, tokens, lengths, counts, texts, contexts);
    else
#endif
        embed_plain(model, &w, ids, tokens, lengths, counts, texts, contexts);
    free(memory);
    return 0;
}

/* What each of n weighted tokens x (n, M) adds to c^K: added (n, M), the sum of its parts of all
 * z^k. c (M,): c^0, which becomes c^K. All are padded with zeros. Returns 0; -1: no memory. */
API i64 ctx_added(const ctx_model *model, const float *x, i64 n, float *c, float *added) {
    i64 M = model->M, u = model->u;
    float *v = malloc((2 * u + M + n * M) * sizeof *v), *h = v + u, *total = h + u, *y = total + M;
    if (!v) return -1;
#if defined(WITH_AVX2)
    if (model->p.path == AVX2) added_avx2(model, x, n, c, v, h, total, y, added);
    else
#endif
        added_plain(model, x, n, c, v, h, total, y, added);
    free(v);
    return 0;
}

/* For n packed passages and 4 k = Q query tokens, the highest cosine of q, a unit row (Q, M), and
 * d + c over the passage's tokens, and at which token: best, which (n, Q); -1 without tokens. d are
 * unit rows of `kept` features, c (n, M) what is added to each. having (Q,): how many passages have
 * each id of `query`, -1 for none. Ids are rows of `table`, some of the model's as stored, instead
 * of its own. Returns 0; -1: no memory. */
API i64 ctx_nearest(const ctx_model *of, const void *table, i64 entries, const i32 *query,
                    const float *q, i64 Q, i64 kept, const i32 *ids, const i64 *lengths,
                    const float *c, i64 n, float *best, i32 *which, i64 *having) {
    ctx_model own = *of, *model = &own;
    own.p.entries = entries;
    if (own.p.levels) own.p.levels = table;
    else own.p.rows = table;
    float *row = malloc((own.M + 2 * Q + entries * (Q + 2)) * sizeof *row), *half = row + own.M;
    if (!row) return -1;
    float *held = half + Q;
    i32 *last = (i32 *)(held + entries * (Q + 1)), *of_query = last + Q;
    memset(last, -1, (Q + entries) * sizeof *last);
    memset(having, 0, Q * sizeof *having);
    for (i64 i = Q; i-- > 0;) if (query[i] >= 0) of_query[query[i]] = (i32)i;
#if defined(WITH_AVX2)
    if (own.p.path == AVX2)
        nearest_avx2(model, of_query, q, Q, kept, ids, lengths, c, n, last, row, half, held, best,
                     which, having);
    else
#endif
        nearest_plain(model, of_query, q, Q, kept, ids, lengths, c, n, last, row, half, held, best,
                      which, having);
    EACH(i, Q) if (query[i] >= 0) having[i] = having[of_query[query[i]]];
    free(row);
    return 0;
}

/* ---- Calls: words to ids -------------------------------------------------------------------- */
enum { LETTER = 0, SPACE, CUT, END };   /* kinds of bytes; END is NUL, which ends a text */

/* Words with their ids. One caller at a time adds; readers need no lock: each word is complete. */
typedef struct {
    u64 seed, mask;        /* of the hash: nobody can prepare collisions; slots less 1 */
    _Atomic u64 *slots;    /* upper half of the hash | place of the record; 0: free */
    u32 *records;          /* length | ids << 8, the word in eights of bytes, its ids */
    u64 used, size, words;
    i64 entries, longest, most;    /* WordPiece: records, bytes of the longest, letters it reads */
    uint8_t kind[256];
} ctx_words;

/* A hash of n bytes, 8 at a time; 8 are readable wherever a word ends. */
static inline u64 hash(u64 h, const uint8_t *s, u64 n) {
    for (h ^= n;; s += 8, n -= 8) {
        u64 bytes;
        memcpy(&bytes, s, 8);
        if (n < 8) bytes &= (1ull << 8 * n) - 1;
        h = (h ^ bytes) * 0x9E3779B97F4A7C15ull;
        h = (h ^ h >> 29) * 0xBF58476D1CE4E5B9ull, h ^= h >> 32;
        if (n <= 8) return h;
    }
}

/* The slot of a word of up to 255 bytes, or the free one where it belongs. */
static inline u64 slot_of(const ctx_words *w, u64 h, const uint8_t *s, u64 n, u64 *content) {
    for (u64 at = h & w->mask;; at = (at + 1) & w->mask) {
        u64 slot = *content = w->slots[at];
        if (!slot) return at;
        const u32 *record = w->records + (u32)slot;
        if ((slot ^ h) >> 32 || (*record & 255) != n) continue;
        if (!memcmp(record + 1, s, n)) return at;
    }
}

/* An empty table of at most `most` words, a power of 2. cuts (128,): 1 for ASCII characters that
 * are tokens of their own. NULL: no memory. */
API ctx_words *ctx_words_new(u64 seed, i64 most, const uint8_t *cuts) {
    ctx_words *w = calloc(1, sizeof *w + 16 * most + 4 * (8 * most + 600));
    if (!w) return NULL;
    *w = (ctx_words){.seed = seed, .mask = 2 * most - 1, .size = 8 * most, .used = 1,
                     .slots = (void *)(w + 1), .records = (u32 *)((u64 *)(w + 1) + 2 * most)};
    EACH(c, 128) w->kind[c] = c <= 32 || c == 127 ? SPACE : cuts[c] ? CUT : LETTER;
    w->kind[0] = END;
    return w;
}

/* Add words: spans (n, 2) are where each begins and ends in s; its ids are ids[starts[i]] up to
 * starts[i + 1]. What does not fit is left out. Returns 1 while there is room. */
API i64 ctx_words_add(ctx_words *w, const uint8_t *s, const i64 *spans, const i32 *ids,
                      const i64 *starts, i64 n) {
    for (i64 i = 0; i < n; i++, spans += 2, starts++) {
        const uint8_t *word = s + spans[0];
        u64 length = spans[1] - spans[0], count = starts[1] - starts[0], content;
        if (length > 255 || count > 255) continue;
        if (w->used >= w->size || 2 * ++w->words > w->mask) return 0;
        u64 h = hash(w->seed, word, length), at = slot_of(w, h, word, length, &content);
        if (content) continue;
        u32 *record = w->records + w->used, before = 1 + (length + 7) / 8 * 2;
        *record = (u32)(length | count << 8);
        memcpy(record + 1, word, length);
        memcpy(record + before, ids + *starts, count * sizeof *ids);
        atomic_store_explicit(&w->slots[at], h >> 32 << 32 | w->used, memory_order_release);
        w->used += before + count;
    }
    return 1;
}

/* Whether there are letters, and all are digits or small ASCII letters. */
static int is_small(const uint8_t *s, i64 n) {
    EACH(i, n) if (!((s[i] >= '0' && s[i] <= '9') || (s[i] >= 'a' && s[i] <= 'z'))) return 0;
    return n > 0;
}

/* Add WordPiece's entries, which may begin with ##, to an empty table. json: "entry":id,"entry":id
 * ... behind which 8 bytes are readable. most: letters of a word that it reads, at most 255.
 * Returns 0 if an id is not below `ids`, or there is no room. */
API i64 ctx_words_entries(ctx_words *w, const uint8_t *json, i64 size, i64 ids, i64 most) {
    large_pages(w, (i64)(8 * w->mask + 4 * w->size));
    for (i64 at = 0, id = 0; at < size && json[at] == '"'; at++, id = 0) {
        i64 span[2] = {++at, 0};
        for (; at < size && json[at] != '"'; at++) at += json[at] == '\\';
        span[1] = at, at += 2;
        for (; at < size && json[at] != ',' && json[at] != '}'; at++) id = 10 * id + json[at] - '0';
        if (id >= ids) return 0;
        const uint8_t *entry = json + span[0];
        i64 length = span[1] - span[0], mark = length > 2 && !memcmp(entry, "##", 2) ? 2 : 0;
        if (!is_small(entry + mark, length - mark) || length - mark > most) continue;
        if (!ctx_words_add(w, json, span, &(i32){(i32)id}, (i64[]){0, 1}, 1)) return 0;
        if (length > w->longest) w->longest = length;
    }
    w->entries = (i64)w->used, w->most = most;
    return 1;
}

/* The record of a word, or those of the entries that make it if it has ASCII letters and digits
 * only: in lower case and the longest first, as WordPiece does. Returns how many; 0: unknown. */
static i64 records_of(const ctx_words *w, const uint8_t *word, i64 length, u64 h, i32 *records) {
    u64 content = 0;
    if (length < 256) slot_of(w, h, word, length, &content);
    records[0] = (i32)(u32)content;
    if (content || !w->entries || length > w->most) return content != 0;
    uint8_t lower[2 + 255 + 8] = {0};
    i64 n = 0;
    EACH(i, length) lower[2 + i] = word[i] >= 'A' && word[i] <= 'Z' ? word[i] + 32 : word[i];
    if (!is_small(lower + 2, length)) return 0;
    for (i64 begin = 0, mark = 0; begin < length; mark = 2) {
        uint8_t *piece = memcpy(lower + begin + 2 - mark, "##", mark);
        i64 size = length - begin + mark < w->longest ? length - begin + mark : w->longest;
        for (; size > mark; size--, content = 0) {
            slot_of(w, hash(w->seed, piece, size), piece, size, &content);
            if (content && (i64)(u32)content < w->entries) break;
        }
        if (size <= mark) return 0;
        records[n++] = (i32)(u32)content;
        begin += size - mark;
    }
    return n;
}

/* Find the words of UTF-8 texts, each of which ends with NUL; 8 bytes behind the last are readable.
 * records: one for each word or piece, or -1 - k of the k-th unknown word; ends (texts,): how many
 * up to each text's end; unknown (.., 2): where unknown words begin and end; seen (mask + 1,):
 * zeros, two for each word. *known: ids of known words, in all. Returns how many are unknown. */
API i64 ctx_words_find(const ctx_words *w, const uint8_t *s, i64 texts, i32 *records, i64 *ends,
                       i64 *unknown, i32 *seen, i64 mask, i64 *known) {
    const uint8_t *begin = s;
    i64 n = 0, missing = *known = 0;
    for (i64 text = 0; text < texts;) {
        int kind = w->kind[*s];
        const uint8_t *word = s++;
        if (kind == END) ends[text++] = n;
        if (kind == SPACE || kind == END) continue;
        /* A cut before a byte above 127 could separate a letter from its accent. */
        if (kind == LETTER || *s > 127)
            while ((kind = w->kind[*s]) == LETTER || (kind == CUT && s[1] > 127)) s++;
        u64 h = hash(w->seed, word, s - word);
        i64 found = records_of(w, word, s - word, h, records + n), k;
        for (k = 0; k < found; k++) *known += w->records[records[n++]] >> 8;
        if (found) continue;
        unknown[2 * missing] = word - begin, unknown[2 * missing + 1] = s - begin;
        while ((k = seen[h &= mask] - 1) >= 0 &&
               (unknown[2 * k + 1] - unknown[2 * k] != s - word ||
                memcmp(begin + unknown[2 * k], word, s - word))) h++;
        if (k < 0) k = missing++, seen[h] = (i32)missing;
        records[n++] = (i32)(-1 - k);
    }
    return missing;
}

/* Pairs of ids that become one id. */
typedef struct {
    i64 width, shift;               /* ids below which all lie; 64 - bits of a bucket */
    const i64 *keys;                /* (n,) first * width + second, bucket by bucket */
    const i32 *values, *starts;     /* (n,); (buckets + 1,) where each bucket begins in keys */
} ctx_phrases;

/* The ids of texts from what ctx_words_find has found, one text after the other, with phrases
 * merged (NULL: none). The k-th unknown word has the ids others[starts[k] .. starts[k + 1]].
 * ids: room for all before phrases are merged. Returns the number of ids. */
API i64 ctx_words_ids(const ctx_words *w, const ctx_phrases *phrases, const i32 *records,
                      const i64 *ends, i64 texts, const i32 *others, const i64 *starts, i32 *ids,
                      i64 *lengths) {
    i64 begin = 0, word = 0;
    EACH(text, texts) {
        i64 n = begin;
        for (; word < ends[text]; word++) {
            i64 k = -1 - (i64)records[word];
            const u32 *record = w->records + (k < 0 ? records[word] : 0);
            const i32 *own = (const i32 *)record + 1 + ((*record & 255) + 7) / 8 * 2;
            if (k >= 0) own = others + starts[k];
            i64 size = k < 0 ? *record >> 8 : starts[k + 1] - starts[k];
            for (i64 i = 0; i < size; i++) ids[n++] = own[i];
        }
        /* Pairs are merged from left to right, again while there are phrases of phrases. */
        for (i64 end = -1, out = begin; phrases && end != n; n = out, out = begin) {
            end = n;
            for (i64 i = begin; i < end; i++) {
                i64 key = i + 1 < end ? ids[i] * phrases->width + ids[i + 1] : -1;
                u64 bucket = (u64)key * 0x9E3779B97F4A7C15ull >> phrases->shift;
                i32 at = phrases->starts[bucket], last = phrases->starts[bucket + 1];
                while (at < last && phrases->keys[at] != key) at++;
                ids[out++] = at < last ? phrases->values[at] : ids[i];
                i += at < last;
            }
        }
        lengths[text] = n - begin;
        begin = n;
    }
    return begin;
}
#endif
