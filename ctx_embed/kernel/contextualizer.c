/* The Contextualizer on a processor: packed UTF-8 to token ids, and token ids to c^K.
 *
 * The equations, and the letters, are those of ctx_embed/second_order; tests hold this file to them.
 *
 *     z^k = LayerNorm( sum_i (W_k (U_k x_i * V_k c^(k-1)) + b_k) * x_i ),    c^k = c^(k-1) + z^k
 *
 * The sum over a text's tokens is taken first, and the context is applied to it:
 *
 *     sum_i a_i * x_i = sum_r (V_k c)_r W_k[:, r] * G_k[r, :] + b_k * t
 *     G_k[r, :] = sum_i (U_k x_i)_r x_i,    t = sum_i x_i
 *
 * Without position weights a text is a bag of entries. The products U_k x of an entry, and its part of the first
 * update where all texts begin with one c^0, do not depend on the text: they are computed once and held.
 *
 * What a text gets depends on the text alone: sums run over its tokens in one order, whatever stands beside it in
 * the batch, however many threads there are, and whether products were held or are computed again.
 *
 * The file is compiled once for any processor and, on x86-64, once more with AVX2 and FMA; the first of the two has
 * the calls, and chooses. Nothing here knows Python; kernel/library.py calls it.
 */

#include <math.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#if defined(_WIN32)
#define API __declspec(dllexport)
#else
#define API __attribute__((visibility("default")))
#endif
#define INLINE static inline __attribute__((always_inline))

enum { PLAIN = 0, AVX2 = 1 };
/* A tile is HEADS x BLOCK sums, held in registers: two vectors for each head. */
#if defined(__AVX2__)
enum { LANES = 8 };
#else
enum { LANES = 4 };
#endif
enum { BLOCK = 2 * LANES, HEADS = 4 };
enum { CHUNK = 128 };   /* items that are packed together; their rows stay in cache */
enum { ABSENT = -1, CLAIMED = -2 };
#define LAYER_NORM_EPS 1e-12f

typedef float vector __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
#define AT(pointer) (*(vector *)(pointer))
#define ALL(value) ((value) - (vector){0})

/* ---- The model --------------------------------------------------------------------------------- */

typedef struct {
    int64_t m, K, u;               /* features, steps, rank */
    int64_t entries;               /* rows of the table */
    int64_t shared;                /* 1: all texts begin with c0, and the first update is a sum over their entries */
    int64_t mean, relative;        /* scale "mean" rather than "sum"; positions i / n rather than i */
    int64_t held;                  /* entries whose products are held, at most */
    int64_t path;                  /* PLAIN or AVX2 */
    const int8_t *levels;          /* (entries, m) int8 rows; NULL: the rows are in `rows` */
    const float *scales, *rows;    /* (entries,) of the int8 rows; (entries, m) float32 rows */
    const float *U, *V, *W;        /* (K, u, m), (K, u, m), (K, m, u) */
    const float *b, *gain, *bias;  /* (K, m) */
    const float *c0, *s;           /* (m,) where shared; (m,) slopes of position weights, NULL: a text is a bag */
} ctx_parameters;

typedef struct {
    ctx_parameters p;
    int64_t M, u;                  /* m and u, padded with zeros to multiples of 16 */
    int64_t first, heads, width;   /* features of the first update (M or 0); heads of the other steps; their sum */
    float *U, *V, *W;              /* by blocks (K u / BLOCK, M, BLOCK); (K, u, M); (K, M / BLOCK, u, BLOCK) */
    float *b, *gain, *bias;        /* (K, M) */
    float *s, *v0;                 /* (M,) or NULL; (u,) V_1 c0 */
    float *products;               /* (held, width) by place: a^1 * x, then scale * U_k x of the other steps */
    _Atomic int32_t *place;        /* (entries,) row of an entry's products; ABSENT, or CLAIMED by a thread */
    _Atomic int32_t used;          /* rows of `products` that are taken */
} ctx_model;

/* What one call needs besides, for its longest text. */
typedef struct {
    float *x, *h;                /* a chunk's rows by blocks (M / BLOCK, n, BLOCK), and its products (heads / 4, n, 4) */
    float *computed;             /* products that are not held, (CHUNK, width) */
    float *row, *four, *heads4;  /* (M,) a row; four side by side, (M, 4); their products, (4, K u) */
    float *weights;              /* (CHUNK, M) position weights of a chunk */
    double *q, *up, *down, *Z;   /* (M,) ratio of neighbouring weights, running weights, factor that makes them sum to 1 */
    double *G, *t2, *first2;     /* sums of a text of several chunks: (heads, M), (M,), (M,) */
    float *moments, *U4;         /* (M, M); one step's U by heads, (u / 4, M, 4) */
    float *t, *first, *total, *c, *v;
    int32_t *entry, *slots;      /* a bag's entries, and the table that finds them */
    double *count;
    const float *product[CHUNK];
} work;

/* ---- Arithmetic -------------------------------------------------------------------------------- */

INLINE float sum(vector a) {
#if defined(__AVX2__)
    return ((a[0] + a[4]) + (a[1] + a[5])) + ((a[2] + a[6]) + (a[3] + a[7]));
#else
    return (a[0] + a[1]) + (a[2] + a[3]);
#endif
}

/* sum_j a_j b_j of n features, a multiple of 16. */
INLINE float dot(const float *a, const float *b, int64_t n) {
    vector s0 = {0}, s1 = {0};
    for (int64_t j = 0; j < n; j += BLOCK) {
        s0 += AT(a + j) * AT(b + j);
        s1 += AT(a + j + LANES) * AT(b + j + LANES);
    }
    return sum(s0 + s1);
}

/* acc[r, :] = sum_i h[i, r] a[i, :] over n items: 4 heads times BLOCK features. All time goes here. */
INLINE void tile(const float *a, int64_t a_step, const float *h, int64_t n, vector acc[HEADS][2]) {
    vector s00 = {0}, s01 = {0}, s10 = {0}, s11 = {0}, s20 = {0}, s21 = {0}, s30 = {0}, s31 = {0};
    for (int64_t i = 0; i < n; i++, a += a_step, h += HEADS) {
        vector x0 = AT(a), x1 = AT(a + LANES), b;
        b = ALL(h[0]); s00 += b * x0; s01 += b * x1;
        b = ALL(h[1]); s10 += b * x0; s11 += b * x1;
        b = ALL(h[2]); s20 += b * x0; s21 += b * x1;
        b = ALL(h[3]); s30 += b * x0; s31 += b * x1;
    }
    acc[0][0] = s00; acc[0][1] = s01; acc[1][0] = s10; acc[1][1] = s11;
    acc[2][0] = s20; acc[2][1] = s21; acc[3][0] = s30; acc[3][1] = s31;
}

/* The row of an entry as it is stored, (M,) padded with zeros; returns its scale. */
INLINE float row_of(const ctx_model *model, int32_t entry, float *out) {
    const ctx_parameters *p = &model->p;
    int64_t m = p->m;
    if (p->levels) {
        const int8_t *row = p->levels + entry * m;
        for (int64_t j = 0; j < m; j++) out[j] = (float)row[j];
    } else {
        memcpy(out, p->rows + entry * m, m * sizeof(float));
    }
    for (int64_t j = m; j < model->M; j++) out[j] = 0;
    return p->levels ? p->scales[entry] : 1.0f;
}

/* out[i][r] = (U x_i)_r, the heads of all steps, of four rows that stand side by side in w->four. */
INLINE void project(const ctx_model *model, const work *w, float *out[4]) {
    for (int64_t head = 0; head < model->p.K * model->u; head += BLOCK) {
        vector acc[HEADS][2];
        tile(model->U + head * model->M, BLOCK, w->four, model->M, acc);
        for (int i = 0; i < 4; i++) AT(out[i] + head) = acc[i][0], AT(out[i] + head + LANES) = acc[i][1];
    }
}

/* ---- Products of entries ----------------------------------------------------------------------- */

/* Products of up to four entries into rows (width,): a^1 * x = (W_1 (U_1 x * V_1 c0) + b_1) * x, and scale * U_k x. */
INLINE void products_of(const ctx_model *model, work *w, const int32_t *entry, int64_t n, float *out[4]) {
    int64_t M = model->M, u = model->u, own = model->first ? u : 0;
    float *heads[4], scale[4];
    for (int i = 0; i < 4; i++) {   /* fewer than four: the last one again, so that each is computed alike */
        scale[i] = row_of(model, entry[i < n ? i : n - 1], w->row);
        for (int64_t j = 0; j < M; j++) w->four[j * 4 + i] = w->row[j] * scale[i];
        heads[i] = w->heads4 + i * model->p.K * u;
    }
    project(model, w, heads);
    for (int64_t i = 0; i < n; i++)
        for (int64_t r = 0; r < model->heads; r++) out[i][model->first + r] = scale[i] * heads[i][own + r];
    if (!model->first) return;
    for (int64_t r = 0; r < u; r++)
        for (int i = 0; i < 4; i++) w->v[r * 4 + i] = heads[i][r] * model->v0[r];
    for (int64_t j = 0; j < M; j += BLOCK) {
        vector acc[HEADS][2];
        tile(model->W + j * u, BLOCK, w->v, u, acc);
        for (int i = 0; i < n; i++)
            for (int l = 0; l < BLOCK; l++)
                out[i][j + l] = (((float *)acc[i])[l] + model->b[j + l]) * w->four[(j + l) * 4 + i];
    }
}

INLINE void compute(const ctx_model *model, work *w, const int32_t *entry, float **out, int64_t n) {
    for (int64_t i = 0; i < n; i += 4) products_of(model, w, entry + i, n - i < 4 ? n - i : 4, out + i);
}

/* Hold the products of entries that no thread has claimed, while rows are free. An entry is found by others only
 * once its products are complete. */
INLINE void hold(ctx_model *model, work *w, const int32_t *ids, int64_t n) {
    int32_t entry[CHUNK], row[CHUNK];
    float *out[CHUNK];
    int64_t count = 0;
    for (int64_t i = 0; i <= n; i++) {
        if (i == n || count == CHUNK) {
            compute(model, w, entry, out, count);
            for (int64_t k = 0; k < count; k++)
                atomic_store_explicit(&model->place[entry[k]], row[k], memory_order_release);
            count = 0;
        }
        int32_t absent = ABSENT;
        if (i == n || atomic_load_explicit(&model->place[ids[i]], memory_order_relaxed) != ABSENT ||
            atomic_load_explicit(&model->used, memory_order_relaxed) >= model->p.held ||
            !atomic_compare_exchange_strong(&model->place[ids[i]], &absent, CLAIMED))
            continue;
        row[count] = atomic_fetch_add(&model->used, 1);
        if (row[count] >= model->p.held) continue;  /* other threads took the last rows: it is never held */
        entry[count] = ids[i];
        out[count] = model->products + row[count] * model->width;
        count++;
    }
}

/* Point w->product at the products of n <= CHUNK entries; those that are not held are computed for this call. */
INLINE void find_products(const ctx_model *model, work *w, const int32_t *entry, int64_t n) {
    int32_t missing[CHUNK];
    float *out[CHUNK];
    int64_t count = 0;
    for (int64_t i = 0; i < n; i++) {
        int32_t place = atomic_load_explicit(&model->place[entry[i]], memory_order_acquire);
        if (place < 0) {
            missing[count] = entry[i];
            out[count] = w->computed + count * model->width;
            w->product[i] = out[count++];
        } else {
            w->product[i] = model->products + place * model->width;
        }
    }
    compute(model, w, missing, out, count);
}

/* ---- A text's items, packed -------------------------------------------------------------------- */

/* Distinct entries of a text in order of appearance, and how often each occurs; returns their number. */
INLINE int64_t bag_of(work *w, const int32_t *ids, const double *counts, int64_t n) {
    int64_t size = 16, found = 0;
    int shift = 28;
    while (size < 2 * n) size *= 2, shift--;
    memset(w->slots, 0, size * sizeof(int32_t));
    for (int64_t i = 0; i < n; i++) {
        uint64_t at = ((uint32_t)ids[i] * 2654435769u) >> (shift > 0 ? shift : 0);
        while (w->slots[at &= size - 1] && w->entry[w->slots[at] - 1] != ids[i]) at++;
        if (!w->slots[at]) {
            w->entry[found] = ids[i];
            w->count[found] = 0;
            w->slots[at] = (int32_t)++found;
        }
        w->count[w->slots[at] - 1] += counts ? counts[i] : 1;
    }
    return found;
}

/* Pack n <= CHUNK entries of a bag. factor: the weight of each token. x: rows as stored; h: everything else. */
INLINE void pack_bag(const ctx_model *model, work *w, const int32_t *entry, const double *count, int64_t n,
                     double factor, int moments) {
    const ctx_parameters *p = &model->p;
    int64_t M = model->M, first = model->first, size = p->levels ? p->m : p->m * 4;
    int64_t products = first || !moments ? model->width * 4 : 0, heads = moments ? M : model->heads;
    const char *table = p->levels ? (const char *)p->levels : (const char *)p->rows;
    if (products) find_products(model, w, entry, n);
    memset(w->t, 0, M * sizeof(float));
    memset(w->first, 0, M * sizeof(float));
    for (int64_t i = 0; i < n; i++) {
        if (i + 3 < n) {            /* rows lie anywhere in memory: ask for them early */
            for (int64_t at = 0; at < products; at += 64) __builtin_prefetch((const char *)w->product[i + 3] + at);
            for (int64_t at = 0; at < size; at += 64) __builtin_prefetch(table + entry[i + 3] * size + at);
        }
        float scale = row_of(model, entry[i], w->row), squared = (float)(count[i] * factor * factor);
        vector token = ALL((float)(count[i] * factor) * scale), times = ALL((float)count[i]);
        for (int64_t j = 0; j < M; j += LANES) {
            vector x = AT(w->row + j);
            AT(w->x + (j / BLOCK * n + i) * BLOCK + j % BLOCK) = x;
            AT(w->t + j) += token * x;
            if (first) AT(w->first + j) += times * AT(w->product[i] + j);
        }
        if (moments) squared *= scale * scale;
        const float *h = moments ? w->row : w->product[i] + first;
        for (int64_t r = 0; r < heads; r += HEADS)
            for (int l = 0; l < HEADS; l++) w->h[(r / HEADS * n + i) * HEADS + l] = squared * h[r + l];
    }
}

/* Position weights of tokens begin..begin+n of a text of `length`: exp of the logits less their maximum, (n, M).
 * Neighbouring weights have the constant ratio q = exp(-|s|): rising features (s > 0) are 1 at the last token,
 * falling ones at the first. */
INLINE void weights_of(const ctx_model *model, work *w, int64_t length, int64_t begin, int64_t n) {
    int64_t M = model->M, after = length - begin - n;
    double unit = model->p.relative ? 1.0 / (double)length : 1.0;
    for (int64_t j = 0; j < M; j++) {
        double slope = fabs((double)model->s[j]) * unit;
        int rises = model->s[j] > 0;
        w->up[j] = rises ? 0 : begin ? exp(-slope * (double)begin) : 1;
        w->down[j] = !rises ? 0 : after ? exp(-slope * (double)after) : 1;
    }
    for (int64_t i = 0; i < n; i++)
        for (int64_t j = 0; j < M; j++) {
            w->weights[i * M + j] = (float)w->up[j];
            w->up[j] *= w->q[j];
        }
    for (int64_t i = n; i-- > 0;)
        for (int64_t j = 0; j < M; j++) {
            w->weights[i * M + j] += (float)w->down[j];
            w->down[j] *= w->q[j];
        }
}

/* Prepare q, and the factor Z that gives the weights of a text their sum: 1, or its length under "mean". */
INLINE void weigh(const ctx_model *model, work *w, int64_t length) {
    int64_t M = model->M;
    double unit = model->p.relative ? 1.0 / (double)length : 1.0;
    for (int64_t j = 0; j < M; j++) w->q[j] = exp(-fabs((double)model->s[j]) * unit), w->Z[j] = 0;
    for (int64_t begin = 0; begin < length; begin += CHUNK) {
        int64_t n = length - begin < CHUNK ? length - begin : CHUNK;
        weights_of(model, w, length, begin, n);
        for (int64_t i = 0; i < n; i++)
            for (int64_t j = 0; j < M; j++) w->Z[j] += w->weights[i * M + j];
    }
    for (int64_t j = 0; j < M; j++) w->Z[j] = (model->p.mean ? (double)length : 1.0) / w->Z[j];
}

/* Pack n <= CHUNK tokens begin.. of a text with position weights: x_i = e(w_i) * p(i), and all steps' U x_i. */
INLINE void pack_sequence(const ctx_model *model, work *w, const int32_t *ids, int64_t length, int64_t begin,
                          int64_t n, int moments) {
    int64_t M = model->M, heads = model->p.K * model->u;
    float *out[4];
    for (int l = 0; l < 4; l++) out[l] = w->heads4 + l * heads;
    if (length > CHUNK) weights_of(model, w, length, begin, n);
    memset(w->t, 0, M * sizeof(float));
    for (int64_t i = 0; i < n; i++) {
        float scale = row_of(model, ids[begin + i], w->row);
        for (int64_t j = 0; j < M; j++) {
            float x = w->row[j] * scale * (w->weights[i * M + j] * (float)w->Z[j]);
            w->x[(j / BLOCK * n + i) * BLOCK + j % BLOCK] = x;
            w->four[j * 4 + i % 4] = x;
            w->t[j] += x;
            if (moments) w->h[(j / HEADS * n + i) * HEADS + j % HEADS] = x;
        }
        if (moments || (i % 4 != 3 && i != n - 1)) continue;
        project(model, w, out);
        for (int64_t l = 0; l <= i % 4; l++)
            for (int64_t r = 0; r < heads; r += HEADS)
                memcpy(w->h + (r / HEADS * n + i - i % 4 + l) * HEADS, out[l] + r, HEADS * sizeof(float));
    }
}

/* ---- The steps --------------------------------------------------------------------------------- */

/* c^k = c^{k-1} + LayerNorm(total); overwrites total. */
INLINE void correct(const ctx_model *model, int64_t k, float *total, float *c) {
    int64_t M = model->M, m = model->p.m;
    const float *gain = model->gain + k * M, *bias = model->bias + k * M;
    vector all = {0};
    for (int64_t j = 0; j < M; j += LANES) all += AT(total + j);
    float mean = sum(all) / (float)m;
    for (int64_t j = 0; j < m; j++) total[j] -= mean;
    float scale = 1 / sqrtf(dot(total, total, M) / (float)m + LAYER_NORM_EPS);
    for (int64_t j = 0; j < m; j++) c[j] += total[j] * scale * gain[j] + bias[j];
}

/* total = sum_r v_r W[:, r] * G[r, :] + b * t with v = V_k c and G[r, :] = sum_i h[i, r] a[i, :], which is not stored.
 * a: (M / BLOCK, n, BLOCK); h: (u / 4, n, 4); t: (M,). */
INLINE void fold(const ctx_model *model, work *w, int64_t k, const float *a, const float *h, int64_t n) {
    int64_t M = model->M, u = model->u;
    const float *W = model->W + k * M * u, *b = model->b + k * M;
    for (int64_t r = 0; r < u; r++) w->v[r] = dot(model->V + (k * u + r) * M, w->c, M);
    for (int64_t j = 0; j < M; j += BLOCK, a += n * BLOCK) {
        vector t0 = AT(b + j) * AT(w->t + j), t1 = AT(b + j + LANES) * AT(w->t + j + LANES);
        for (int64_t r = 0; r < u; r += HEADS) {
            vector acc[HEADS][2];
            tile(a, BLOCK, h + r * n, n, acc);
            for (int l = 0; l < HEADS; l++, W += BLOCK) {
                vector v = ALL(w->v[r + l]);
                t0 += v * AT(W) * acc[l][0];
                t1 += v * AT(W + LANES) * acc[l][1];
            }
        }
        AT(w->total + j) = t0;
        AT(w->total + j + LANES) = t1;
    }
}

/* The same from stored sums G (u, M). */
INLINE void read_sums(const ctx_model *model, work *w, int64_t k, const double *G) {
    int64_t M = model->M, u = model->u;
    const float *W = model->W + k * M * u, *b = model->b + k * M;
    for (int64_t r = 0; r < u; r++) w->v[r] = dot(model->V + (k * u + r) * M, w->c, M);
    for (int64_t j = 0; j < M; j += BLOCK)
        for (int l = 0; l < BLOCK; l++) {
            double total = b[j + l] * w->t[j + l];
            for (int64_t r = 0; r < u; r++) total += w->v[r] * W[j * u + r * BLOCK + l] * G[r * M + j + l];
            w->total[j + l] = (float)total;
        }
}

/* Add a packed chunk to the sums of a text: G (heads, M), t, and the first update. */
INLINE void accumulate(const ctx_model *model, work *w, int64_t heads, int64_t n) {
    int64_t M = model->M;
    for (int64_t j = 0; j < M; j += BLOCK)
        for (int64_t r = 0; r < heads; r += HEADS) {
            vector acc[HEADS][2];
            tile(w->x + j * n, BLOCK, w->h + r * n, n, acc);
            for (int l = 0; l < HEADS; l++)
                for (int i = 0; i < BLOCK; i++) w->G[(r + l) * M + j + i] += ((float *)acc[l])[i];
        }
    for (int64_t j = 0; j < M; j++) w->t2[j] += w->t[j], w->first2[j] += w->first[j];
}

/* Replace c^0 of one text of n tokens (or entries with counts) by c^K. */
INLINE void embed_text(const ctx_model *model, work *w, const int32_t *ids, const double *counts, int64_t n,
                       float *context) {
    const ctx_parameters *p = &model->p;
    int64_t M = model->M, u = model->u, k = model->first ? 1 : 0, heads = (p->K - k) * u, items = n;
    double factor = 1;
    memcpy(w->c, context, p->m * sizeof(float));
    memset(w->first, 0, M * sizeof(float));
    if (p->s) {
        weigh(model, w, n);
    } else {
        double tokens = 0;
        items = bag_of(w, ids, counts, n);
        for (int64_t i = 0; i < items; i++) tokens += w->count[i];
        if (!p->mean) factor = 1 / tokens;
    }
    /* A text of several chunks is summed first. Multiplications, divided by M: n heads for all G_k (a sequence's
     * products as many again), or n M for the moments M = sum_i x_i x_i^T and M heads for G_k = U_k M. */
    int several = items > CHUNK, moments = several && items * M + M * heads < (p->s ? 2 : 1) * items * heads;
    if (several) {
        memset(w->G, 0, (moments ? M : heads) * M * sizeof(double));
        memset(w->t2, 0, M * sizeof(double));
        memset(w->first2, 0, M * sizeof(double));
    }
    for (int64_t begin = 0; begin < items; begin += CHUNK) {
        int64_t size = items - begin < CHUNK ? items - begin : CHUNK;
        if (p->s) pack_sequence(model, w, ids, n, begin, size, moments);
        else pack_bag(model, w, w->entry + begin, w->count + begin, size, factor, moments);
        if (several) accumulate(model, w, moments ? M : heads, size);
    }
    if (several)
        for (int64_t j = 0; j < M; j++) w->t[j] = (float)w->t2[j], w->first[j] = (float)w->first2[j];
    if (moments)
        for (int64_t i = 0; i < M; i++)
            for (int64_t j = 0; j < M; j++)
                w->moments[(j / BLOCK * M + i) * BLOCK + j % BLOCK] = (float)w->G[i * M + j];
    if (k) correct(model, 0, w->first, w->c);
    for (const double *G = w->G; k < p->K; k++, G += u * M) {
        if (!several) {
            fold(model, w, k, w->x, w->h + (heads - (p->K - k) * u) * items, items);
        } else if (moments) {       /* as if M's rows were tokens, and the columns of U_k their products */
            for (int64_t r = 0; r < u; r++)
                for (int64_t j = 0; j < M; j++) {
                    int64_t head = k * u + r;
                    w->U4[(r / HEADS * M + j) * HEADS + r % HEADS] =
                        model->U[(head / BLOCK * M + j) * BLOCK + head % BLOCK];
                }
            fold(model, w, k, w->moments, w->U4, M);
        } else {
            read_sums(model, w, k, G);
        }
        correct(model, k, w->total, w->c);
    }
    memcpy(context, w->c, p->m * sizeof(float));
}

/* Compiled once for each kind of processor: everything above is part of it. */
#if defined(__AVX2__)
void ctx_embed_avx2
#else
void ctx_embed_plain
#endif
(ctx_model *model, work *w, const int32_t *ids, const int64_t *lengths, const double *counts, int64_t texts,
 float *contexts) {
    int64_t tokens = 0;
    for (int64_t i = 0; i < texts; i++) tokens += lengths[i];
    if (!model->p.s) hold(model, w, ids, tokens);
    for (int64_t i = 0; i < texts; i++) {
        if (lengths[i]) embed_text(model, w, ids, counts, lengths[i], contexts + i * model->p.m);
        ids += lengths[i];
        if (counts) counts += lengths[i];
    }
}

#if !defined(__AVX2__)
/* ---- Calls: the model -------------------------------------------------------------------------- */

#if defined(WITH_AVX2)
void ctx_embed_avx2(ctx_model *, work *, const int32_t *, const int64_t *, const double *, int64_t, float *);
#endif

#if !defined(SOURCE)
#define SOURCE ""
#endif

/* The SHA-256 of this file when it was compiled, by which a stale library is known. */
API const char *ctx_source(void) { return SOURCE; }

/* The kinds of processor code that run here: bit PLAIN, bit AVX2. */
API int64_t ctx_paths(void) {
#if defined(WITH_AVX2)
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return 1 << PLAIN | 1 << AVX2;
#endif
    return 1 << PLAIN;
}

API void ctx_model_free(ctx_model *model) {
    if (!model) return;
    free(model->U);
    free(model->products);
    free((void *)model->place);
    free(model);
}

/* A model; the arrays of its table must outlive it, the others are copied. NULL if memory runs out. */
API ctx_model *ctx_model_new(const ctx_parameters *parameters) {
    ctx_model *model = calloc(1, sizeof *model);
    if (!model) return NULL;
    ctx_parameters *p = &model->p;
    *p = *parameters;
    int64_t m = p->m, K = p->K, M = model->M = (m + 15) / 16 * 16, u = model->u = (p->u + 15) / 16 * 16;
    int64_t block = p->path == AVX2 ? 16 : 8;
    model->first = p->shared ? M : 0;
    model->heads = (K - (p->shared ? 1 : 0)) * u;
    model->width = model->first + model->heads;
    if (p->held > p->entries) p->held = p->entries;
    if (p->s) p->held = 0;
    model->U = calloc(3 * K * u * M + 3 * K * M + M + u, sizeof(float));
    model->products = malloc(p->held * model->width * sizeof(float) + 64);
    model->place = malloc((p->entries + 1) * sizeof(int32_t));
    if (!model->U || !model->products || !model->place) {
        ctx_model_free(model);
        return NULL;
    }
    model->V = model->U + K * u * M; model->W = model->V + K * u * M; model->b = model->W + K * u * M;
    model->gain = model->b + K * M; model->bias = model->gain + K * M; model->s = model->bias + K * M;
    model->v0 = model->s + M;
    for (int64_t k = 0; k < K; k++)
        for (int64_t j = 0; j < m; j++) {
            for (int64_t r = 0; r < p->u; r++) {
                int64_t head = k * u + r;
                model->U[(head / block * M + j) * block + head % block] = p->U[(k * p->u + r) * m + j];
                model->V[head * M + j] = p->V[(k * p->u + r) * m + j];
                model->W[((k * M / block + j / block) * u + r) * block + j % block] = p->W[(k * m + j) * p->u + r];
            }
            model->b[k * M + j] = p->b[k * m + j];
            model->gain[k * M + j] = p->gain[k * m + j];
            model->bias[k * M + j] = p->bias[k * m + j];
        }
    for (int64_t j = 0; j < m; j++) {
        if (p->s) model->s[j] = p->s[j];
        if (p->shared)
            for (int64_t r = 0; r < u; r++) model->v0[r] += model->V[r * M + j] * p->c0[j];
    }
    for (int64_t i = 0; i < p->entries; i++) atomic_init(&model->place[i], ABSENT);
    return model;
}

/* Replace c^0 by c^K in contexts (texts, m). ids: packed, lengths[i] of text i, each below `entries`; counts: how
 * often each occurs, or NULL for once. Several threads may embed with one model. Returns 0, or -1. */
API int64_t ctx_embed(ctx_model *model, const int32_t *ids, const int64_t *lengths, const double *counts, int64_t texts,
                      float *contexts) {
    const ctx_parameters *p = &model->p;
    int64_t M = model->M, u = model->u, all = p->K * u, longest = 0, slots = 16;
    for (int64_t i = 0; i < texts; i++) longest = lengths[i] > longest ? lengths[i] : longest;
    while (slots < 2 * longest) slots *= 2;
    int64_t chunk = longest < CHUNK ? longest : CHUNK, widest = all > M ? all : M, several = longest > CHUNK;
    int64_t floats[] = {chunk * M, chunk * widest, p->s ? 0 : chunk * model->width, M, 4 * M, 4 * all,
                        p->s ? chunk * M : 0, several ? M * M : 0, several ? u * M : 0, M, M, M, M, 4 * u};
    int64_t doubles[] = {M, M, M, M, several ? widest * M : 0, M, M, longest};
    int64_t floats_in_all = 16, doubles_in_all = 0;
    work w;
    float **f[] = {&w.x, &w.h, &w.computed, &w.row, &w.four, &w.heads4, &w.weights,
                   &w.moments, &w.U4, &w.t, &w.first, &w.total, &w.c, &w.v};
    double **d[] = {&w.q, &w.up, &w.down, &w.Z, &w.G, &w.t2, &w.first2, &w.count};
    for (size_t i = 0; i < sizeof f / sizeof *f; i++) floats_in_all += floats[i];
    for (size_t i = 0; i < sizeof d / sizeof *d; i++) doubles_in_all += doubles[i];
    double *memory = malloc(doubles_in_all * sizeof(double) + floats_in_all * sizeof(float) +
                            (longest + slots) * sizeof(int32_t));
    if (!memory) return -1;
    double *next = memory;
    for (size_t i = 0; i < sizeof d / sizeof *d; next += doubles[i++]) *d[i] = next;
    float *after = (float *)next;
    for (size_t i = 0; i < sizeof f / sizeof *f; after += floats[i++]) *f[i] = after;
    w.entry = (int32_t *)(after + 16);
    w.slots = w.entry + longest;
    memset(w.c, 0, M * sizeof(float));
    memset(w.four, 0, 4 * M * sizeof(float));
#if defined(WITH_AVX2)
    if (p->path == AVX2) ctx_embed_avx2(model, &w, ids, lengths, counts, texts, contexts);
    else
#endif
        ctx_embed_plain(model, &w, ids, lengths, counts, texts, contexts);
    free(memory);
    return 0;
}

/* ---- Calls: words to ids ----------------------------------------------------------------------- */

enum { LETTER = 0, SPACE, CUT, END };   /* kinds of bytes; END is NUL, which ends a text */

/* Words with the ids that the tokenizer gave them. Words are only ever added, one caller at a time, and each is
 * published when it is complete, so readers need no lock. The hash is seeded: nobody can prepare collisions. */
typedef struct {
    uint64_t seed, mask;
    _Atomic uint64_t *slots;    /* upper half of the hash | place of the record; 0: free */
    uint32_t *records;          /* length | ids << 8, the word's bytes, its ids */
    uint64_t used, size, words;
    uint8_t kind[256];
} ctx_words;

/* Up to 8 bytes of a word; 8 are readable wherever a word ends. */
static inline uint64_t load(const uint8_t *s, uint64_t n) {
    uint64_t bytes;
    memcpy(&bytes, s, 8);
    return n < 8 ? bytes & ((1ull << 8 * n) - 1) : bytes;
}

static inline uint64_t hash(uint64_t h, const uint8_t *s, uint64_t n) {
    for (h ^= n;; s += 8, n -= 8) {
        h = (h ^ load(s, n)) * 0x9E3779B97F4A7C15ull;
        h = (h ^ h >> 29) * 0xBF58476D1CE4E5B9ull;
        h ^= h >> 32;
        if (n <= 8) return h;
    }
}

/* The slot of a word of up to 255 bytes, or the free one where it belongs. */
static inline uint64_t slot_of(const ctx_words *w, uint64_t h, const uint8_t *s, uint64_t n, uint64_t *content) {
    for (uint64_t at = h & w->mask;; at = (at + 1) & w->mask) {
        uint64_t slot = *content = atomic_load_explicit(&w->slots[at], memory_order_acquire);
        if (!slot) return at;
        const uint32_t *record = w->records + (uint32_t)slot;
        if ((slot ^ h) >> 32 || (*record & 255) != n) continue;
        uint64_t same = 0;
        while (same < n && load(s + same, n - same) == load((const uint8_t *)(record + 1) + same, n - same)) same += 8;
        if (same >= n) return at;
    }
}

API void ctx_words_free(ctx_words *w) {
    if (!w) return;
    free((void *)w->slots);
    free(w->records);
    free(w);
}

/* An empty table of at most `most` words, a power of 2. cuts (128,): 1 for the ASCII characters that the tokenizer
 * makes tokens of their own. NULL if memory runs out. */
API ctx_words *ctx_words_new(uint64_t seed, int64_t most, const uint8_t *cuts) {
    ctx_words *w = calloc(1, sizeof *w);
    if (!w) return NULL;
    w->seed = seed;
    w->mask = 2 * most - 1;
    w->size = 8 * most;
    w->used = 1;
    w->slots = calloc(2 * most, sizeof *w->slots);
    w->records = calloc(w->size + 600, sizeof *w->records);
    for (int c = 0; c < 128; c++) w->kind[c] = c <= 32 || c == 127 ? SPACE : cuts[c] ? CUT : LETTER;
    w->kind[0] = END;
    if (w->slots && w->records) return w;
    ctx_words_free(w);
    return NULL;
}

/* Add words: spans (n, 2) are where each begins and ends in s, and begins and ends in ids. What does not fit is left
 * out. Returns 1 while there is room. */
API int64_t ctx_words_add(ctx_words *w, const uint8_t *s, const int64_t *spans, const int32_t *ids,
                          const int64_t *ids_spans, int64_t n) {
    for (int64_t i = 0; i < n; i++, spans += 2, ids_spans += 2) {
        const uint8_t *word = s + spans[0];
        uint64_t length = spans[1] - spans[0], count = ids_spans[1] - ids_spans[0], content;
        if (length > 255 || count > 255) continue;
        if (w->used >= w->size || 2 * ++w->words > w->mask) return 0;
        uint64_t h = hash(w->seed, word, length), at = slot_of(w, h, word, length, &content);
        if (content) continue;
        uint32_t *record = w->records + w->used;
        *record = (uint32_t)(length | count << 8);
        memcpy(record + 1, word, length);
        memcpy(record + 1 + (length + 3) / 4, ids + ids_spans[0], count * sizeof *ids);
        atomic_store_explicit(&w->slots[at], h >> 32 << 32 | w->used, memory_order_release);
        w->used += 1 + (length + 3) / 4 + count;
    }
    return 1;
}

/* Find the words of UTF-8 texts, each of which ends with NUL; 8 bytes must be readable behind the last one.
 * records: a record for each word, or -1 - k of the k-th unknown one; ends (texts,): how many words there are up to
 * the end of each text; unknown (.., 2): where unknown words begin and end. *known: ids of known words, in all.
 * Returns the number of unknown words. */
API int64_t ctx_words_find(const ctx_words *w, const uint8_t *s, int64_t texts, int32_t *records, int64_t *ends,
                           int64_t *unknown, int64_t *known) {
    int64_t n = 0, missing = 0;
    const uint8_t *begin = s;
    *known = 0;
    for (int64_t text = 0; text < texts;) {
        int kind = w->kind[*s];
        if (kind == SPACE) { s++; continue; }
        if (kind == END) { s++; ends[text++] = n; continue; }
        const uint8_t *word = s++;
        /* A cut before a byte above 127 could separate a letter from its accent. */
        if (kind == LETTER || *s > 127)
            while ((kind = w->kind[*s]) == LETTER || (kind == CUT && s[1] > 127)) s++;
        uint64_t content = 0, length = s - word;
        if (length < 256) slot_of(w, hash(w->seed, word, length), word, length, &content);
        if (content) {
            records[n++] = (int32_t)(uint32_t)content;
            *known += w->records[(uint32_t)content] >> 8;
        } else {
            unknown[2 * missing] = word - begin;
            unknown[2 * missing + 1] = s - begin;
            records[n++] = (int32_t)(-1 - missing++);
        }
    }
    return missing;
}

/* Phrases: pairs of ids that become one. */
typedef struct {
    uint64_t mask;
    int64_t width;              /* ids below which all parts and phrases lie */
    uint64_t *keys;             /* first * width + second + 1; 0: free */
    int32_t *values;
    uint8_t *part;              /* (width,) 1: begins a pair; 2: ends one */
} ctx_phrases;

static inline int32_t *phrase_of(const ctx_phrases *p, uint64_t key, int make) {
    uint64_t at = (key * 0x9E3779B97F4A7C15ull >> 32) & p->mask;
    for (; p->keys[at] != key; at = (at + 1) & p->mask) {
        if (p->keys[at]) continue;
        if (!make) return NULL;
        p->keys[at] = key;
        break;
    }
    return p->values + at;
}

API void ctx_phrases_free(ctx_phrases *p) {
    if (!p) return;
    free(p->keys); free(p->values); free(p->part);
    free(p);
}

/* pairs (n, 2): pair i has the id entries + i; its parts are below that. NULL if memory runs out. */
API ctx_phrases *ctx_phrases_new(const int32_t *pairs, int64_t n, int64_t entries) {
    ctx_phrases *p = calloc(1, sizeof *p);
    if (!p) return NULL;
    for (p->mask = 15; p->mask < 2 * (uint64_t)n; p->mask = 2 * p->mask + 1) {}
    p->width = entries + n;
    p->keys = calloc(p->mask + 1, sizeof *p->keys);
    p->values = calloc(p->mask + 1, sizeof *p->values);
    p->part = calloc(p->width + 1, 1);
    if (!p->keys || !p->values || !p->part) {
        ctx_phrases_free(p);
        return NULL;
    }
    for (int64_t i = 0; i < n; i++) {
        p->part[pairs[2 * i]] |= 1;
        p->part[pairs[2 * i + 1]] |= 2;
        *phrase_of(p, pairs[2 * i] * (uint64_t)p->width + pairs[2 * i + 1] + 1, 1) = (int32_t)(entries + i);
    }
    return p;
}

/* Merge pairs from left to right, and again while there are phrases of phrases; returns how many of n ids remain. */
static int64_t merge(const ctx_phrases *p, int32_t *ids, int64_t n) {
    for (int64_t left = 0; p && left != n;) {
        int64_t out = 0;
        for (int64_t i = 0; i < n; i++) {
            int32_t *value = NULL;
            if (i + 1 < n && p->part[ids[i]] & 1 && p->part[ids[i + 1]] & 2)
                value = phrase_of(p, ids[i] * (uint64_t)p->width + ids[i + 1] + 1, 0);
            ids[out++] = value ? *value : ids[i];
            i += value != NULL;
        }
        left = n;
        n = out;
    }
    return n;
}

/* The ids of texts from what ctx_words_find has found, one text after the other, with phrases merged (NULL: none).
 * The k-th unknown word has the ids others[spans[k, 0] .. spans[k, 1]]. Returns the number of ids. */
API int64_t ctx_words_ids(const ctx_words *w, const ctx_phrases *phrases, const int32_t *records, const int64_t *ends,
                          int64_t texts, const int32_t *others, const int64_t *spans, int32_t *ids, int64_t *lengths) {
    int64_t total = 0, word = 0;
    for (int64_t text = 0; text < texts; text++) {
        int64_t n = total;
        for (; word < ends[text]; word++) {
            if (records[word] >= 0) {
                const uint32_t *record = w->records + records[word];
                const uint32_t *own = record + 1 + ((*record & 255) + 3) / 4;
                for (uint32_t i = 0; i < *record >> 8; i++) ids[n++] = (int32_t)own[i];
            } else {
                const int64_t *span = spans + 2 * (-1 - (int64_t)records[word]);
                for (int64_t i = span[0]; i < span[1]; i++) ids[n++] = others[i];
            }
        }
        lengths[text] = merge(phrases, ids + total, n - total);
        total += lengths[text];
    }
    return total;
}

/* Merge phrases in packed ids; lengths change, too. Returns the number of ids. */
API int64_t ctx_phrases_merge(const ctx_phrases *phrases, int32_t *ids, int64_t *lengths, int64_t texts) {
    int64_t from = 0, total = 0;
    for (int64_t text = 0; text < texts; text++) {
        int64_t n = lengths[text];
        memmove(ids + total, ids + from, n * sizeof *ids);
        from += n;
        total += lengths[text] = merge(phrases, ids + total, n);
    }
    return total;
}
#endif
