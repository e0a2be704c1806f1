/* Exercises contextualizer.c at its limits, for sanitizers and for processors that Python does not
 * run on here.
 *
 * c^K is compared with the equations, token by token in double precision, and bit for bit with the
 * same text alone, in other models and in threads; words, with the bytes that they were cut from.
 * Prints a line for each part; exits with 1 at the first difference. */

#include "../../ctx_embed/kernel/contextualizer.c"

#include <pthread.h>
#include <stdio.h>

enum { THREADS = 4 };

static _Thread_local u64 state = 88172645463325252u;
static _Thread_local void *taken[4096];
static _Thread_local int takings;

static void require(int holds, const char *what, i64 place) {
    if (holds) return;
    printf("FAILED: %s, at %lld\n", what, (long long)place);
    exit(1);
}

/* Let `release` free this. */
static void *keep(void *pointer) {
    require(pointer && takings < 4096, "no memory", takings);
    return taken[takings++] = pointer;
}

/* Memory of exactly this size, so that a sanitizer sees one byte too far. */
static void *memory(i64 size) { return keep(malloc(size ? size : 1)); }

static void release(int from) {
    while (takings > from) ctx_free(taken[--takings]);
}

static u64 bits(void) {
    state ^= state << 13;
    state ^= state >> 7;
    return state ^= state << 17;
}

static i64 below(i64 n) { return (i64)(bits() % (u64)n); }

/* About normal values. */
static float *normals(i64 n, double scale) {
    float *values = memory(n * sizeof *values);
    EACH(i, n) {
        double sum = -6;
        EACH(k, 12) sum += (double)(bits() >> 40) / (1 << 24);
        values[i] = (float)(scale * sum);
    }
    return values;
}

/* ---- c^K ------------------------------------------------------------------------------------ */
typedef struct {
    const char *name;
    int shared, mean, positions, relative;
} kind;

static const kind KINDS[] = {
    {"bags with one c^0", 1, 1, 0, 0}, {"bags, mean", 0, 1, 0, 0},     {"bags, sum", 0, 0, 0, 0},
    {"absolute, mean", 0, 1, 1, 0},    {"absolute, sum", 0, 0, 1, 0},  {"relative, mean", 0, 1, 1, 1},
    {"relative, sum", 0, 0, 1, 1},
};

/* Random parameters; every seventh entry is a row of zeros. */
static ctx_parameters parameters_of(kind of, i64 m, i64 K, i64 u, i64 entries, int int8, i64 path) {
    ctx_parameters p = {.m = m, .K = K, .u = u, .entries = entries, .shared = of.shared, .mean = of.mean,
                        .relative = of.relative, .held = entries, .path = path};
    float *rows = normals(entries * m, 1), *scales = normals(entries, 0.01), *s = NULL;
    int8_t *levels = memory(entries * m);
    EACH(i, entries * m) {
        if (i / m % 7 == 3) rows[i] = 0;
        levels[i] = (int8_t)(rows[i] * 31);
    }
    EACH(i, entries) scales[i] = 1 / 31.0f + fabsf(scales[i]);
    if (int8) p.levels = levels, p.scales = scales;
    else p.rows = rows;
    if (of.positions) {
        p.s = s = normals(m, of.relative ? 3 : 0.1);
        if (m > 1) s[m / 2] = 0;
    }
    if (of.shared) p.c0 = normals(m, 1);
    p.U = normals(K * u * m, 1 / sqrt((double)m)), p.V = normals(K * u * m, 1 / sqrt((double)m));
    p.W = normals(K * m * u, 1 / sqrt((double)u));
    p.b = normals(K * m, 1), p.gain = normals(K * m, 1), p.bias = normals(K * m, 1);
    return p;
}

/* Replace c^0 of a text by c^K as the equations say. */
static void equations(const ctx_parameters *p, const i32 *ids, const double *counts, i64 n, double *c) {
    i64 m = p->m, u = p->u;
    double *x = memory(n * m * sizeof *x), *total = memory(m * sizeof *total), tokens = 0;
    EACH(i, n) tokens += counts ? counts[i] : 1;
    EACH(j, m) {
        double slope = !p->s ? 0 : p->relative ? (double)p->s[j] / (double)n : p->s[j], sum = 0;
        EACH(i, n) {
            x[i * m + j] = exp(slope * (double)(slope > 0 ? i + 1 - n : i));
            sum += (counts ? counts[i] : 1) * x[i * m + j];
        }
        EACH(i, n) {
            i64 at = ids[i] * m + j;
            x[i * m + j] *= (p->rows ? p->rows[at] : p->levels[at] * (double)p->scales[ids[i]]) / sum;
            if (p->mean) x[i * m + j] *= tokens;
        }
    }
    EACH(k, n ? p->K : 0) {
        const float *U = p->U + k * u * m, *V = p->V + k * u * m, *W = p->W + k * m * u;
        double mean = 0, square = 0;
        EACH(j, m) total[j] = 0;
        EACH(i, n) {
            double *a = memory(m * sizeof *a);
            EACH(j, m) a[j] = p->b[k * m + j];
            EACH(r, u) {
                double ux = 0, vc = 0;
                EACH(j, m) ux += U[r * m + j] * x[i * m + j], vc += V[r * m + j] * c[j];
                EACH(j, m) a[j] += W[j * u + r] * ux * vc;
            }
            EACH(j, m) total[j] += (counts ? counts[i] : 1) * a[j] * x[i * m + j];
            release(takings - 1);
        }
        EACH(j, m) mean += total[j] / (double)m;
        EACH(j, m) square += (total[j] - mean) * (total[j] - mean) / (double)m;
        EACH(j, m) c[j] += (total[j] - mean) / sqrt(square + 1e-12f) * p->gain[k * m + j];
        EACH(j, m) c[j] += p->bias[k * m + j];
    }
}

typedef struct {
    i64 texts, *lengths, *begins;
    i32 *ids;
    double *counts;     /* NULL: each id once */
    float *contexts;    /* c^0 */
} batch;

/* Some texts have few different entries, some each entry once. */
static batch batch_of(const ctx_parameters *p, const i64 *lengths, i64 texts, int counted) {
    batch of = {texts, memory(texts * 8), memory(texts * 8), NULL, NULL, normals(texts * p->m, 1)};
    i64 tokens = 0;
    EACH(i, texts) of.lengths[i] = lengths[i], of.begins[i] = tokens, tokens += lengths[i];
    of.ids = memory(tokens * sizeof *of.ids);
    EACH(i, texts) {
        i64 different = i % 3 == 0 ? 1 + below(p->entries) : p->entries, first = below(p->entries);
        EACH(at, lengths[i]) of.ids[of.begins[i] + at] =
            (i32)(i % 3 == 2 ? (first + at) % p->entries : below(different));
    }
    if (counted) of.counts = memory(tokens * sizeof *of.counts);
    if (counted) EACH(i, tokens) of.counts[i] = (double)(1 + below(5));
    if (p->shared) EACH(i, texts * p->m) of.contexts[i] = p->c0[i % p->m];
    return of;
}

/* c^K of the texts from `first` on, in memory of their own. */
static float *embedded(ctx_model *model, const batch *of, i64 first, i64 texts) {
    i64 m = model->p.m, begin = of->begins[first], tokens = 0;
    EACH(i, texts) tokens += of->lengths[first + i];
    i32 *ids = memory(tokens * sizeof *ids);
    double *counts = of->counts ? memory(tokens * sizeof *counts) : NULL;
    float *contexts = memory(texts * m * sizeof *contexts);
    memcpy(ids, of->ids + begin, tokens * sizeof *ids);
    if (counts) memcpy(counts, of->counts + begin, tokens * sizeof *counts);
    memcpy(contexts, of->contexts + first * m, texts * m * sizeof *contexts);
    require(!ctx_embed(model, ids, of->lengths + first, counts, texts, contexts), "no memory", texts);
    return contexts;
}

/* A batch at once, again with its products held, each text alone in a model that holds few, and the
 * equations. Returns the largest difference from them. */
static double compare(const ctx_parameters *p, const i64 *lengths, i64 texts, int counted) {
    ctx_parameters few = *p;
    few.held /= 3;
    batch of = batch_of(p, lengths, texts, counted);
    ctx_model *model = keep(ctx_model_new(p)), *small = keep(ctx_model_new(&few));
    float *all = embedded(model, &of, 0, texts), *again = embedded(model, &of, 0, texts);
    double worst = 0, *c = memory(p->m * sizeof *c);
    require(!memcmp(all, again, texts * p->m * sizeof *all), "held products change a text", 0);
    for (i64 i = texts; i-- > 0;) {
        int from = takings;
        float *own = all + i * p->m, *alone = embedded(small, &of, i, 1);
        require(!memcmp(alone, own, p->m * sizeof *own), "a text alone has another c^K", lengths[i]);
        EACH(j, p->m) c[j] = of.contexts[i * p->m + j];
        equations(p, of.ids + of.begins[i], counted ? of.counts + of.begins[i] : NULL, lengths[i], c);
        EACH(j, p->m) {
            double difference = fabs(c[j] - own[j]) / (1 + fabs(c[j]));
            require(difference < 2e-3, "c^K is not that of the equations", lengths[i]);
            worst = difference > worst ? difference : worst;
        }
        release(from);
    }
    return worst;
}

static void exercise_kind(kind of, i64 path) {
    static const i64 shapes[][3] = {{3, 1, 1}, {1, 2, 3}, {17, 2, 5}, {16, 1, 16}, {48, 3, 33}, {96, 2, 64}};
    static const i64 lengths[] = {0, 1, 2, 3, 4, 5, 31, 0, 127, 128, 129, 256, 257, 700, 0};
    double worst = 0;
    EACH(shape, 6) for (int counted = 0; counted < 2 - of.positions; counted++) {
        const i64 *size = shapes[shape];
        ctx_parameters p = parameters_of(of, size[0], size[1], size[2], 500, (shape + counted) % 2, path);
        double found = compare(&p, lengths, sizeof lengths / sizeof *lengths, counted);
        worst = found > worst ? found : worst;
        release(0);
    }
    i64 many[] = {9000, 3, 9000};   /* of as many different entries */
    ctx_parameters p = parameters_of(of, 24, 2, 8, 9000, 1, path);
    compare(&p, many, 3, 0);
    /* Values that overflow give what they give, without reading or writing elsewhere. */
    ctx_parameters huge = parameters_of(of, 17, 2, 5, 50, 0, path);
    EACH(i, 50 * 17) ((float *)huge.rows)[i] *= i % 5 ? 1e30f : INFINITY;
    if (huge.s) EACH(j, 17) ((float *)huge.s)[j] *= 1e30f;
    batch texts = batch_of(&huge, lengths, 14, 0);
    embedded(keep(ctx_model_new(&huge)), &texts, 0, 14);
    release(0);
    printf("%s: within %.0e of the equations\n", of.name, worst);
}

/* The nearest tokens of passages, and what a query's tokens add, in memory of exactly their size. */
static void exercise_nearest(i64 path) {
    static const i64 shapes[][3] = {{3, 1, 1}, {1, 2, 3}, {17, 2, 5}, {48, 3, 33}}, few[] = {5, 0, 1, 300, 17, 0};
    double worst = 0;
    EACH(shape, 4) for (int int8 = 0; int8 < 2; int8++, release(0)) {
        i64 m = shapes[shape][0], M = (m + 15) / 16 * 16, Q = 4 + 4 * int8, n = 6, kept = 1 + below(m);
        ctx_parameters p = parameters_of(KINDS[1], m, shapes[shape][1], shapes[shape][2], 90, int8, path);
        batch of = batch_of(&p, few, n, 0);
        ctx_model *model = keep(ctx_model_new(&p));
        float *q = normals(Q * M, 1), *c = normals(n * M, 0.5), *best = memory(n * Q * 4);
        EACH(i, (Q + n) * M) if (i % M >= kept) *(i < Q * M ? q + i : c + i - Q * M) = 0;
        i32 *which = memory(n * Q * 4), *query = memory(Q * 4);
        i64 *having = memory(Q * 8), tokens = of.begins[n - 1] + of.lengths[n - 1];
        EACH(i, Q) query[i] = i ? of.ids[below(tokens)] : -1;
        const void *table = p.levels ? (const void *)p.levels : p.rows;
        require(!ctx_nearest(model, table, 90, query, q, Q, kept, of.ids, of.lengths, c, n, best, which, having),
                "memory", n);
        EACH(i, Q) {
            i64 wanted = 0;
            EACH(passage, n) {
                double highest = -1e9;
                int has = 0;
                EACH(t, of.lengths[passage]) {
                    i64 entry = of.ids[of.begins[passage] + t];
                    double square = 0, length = 1e-12, product = 0;
                    has |= entry == query[i];
                    EACH(j, kept) {
                        double x = p.levels ? p.levels[entry * m + j] : p.rows[entry * m + j];
                        square += x * x;
                    }
                    EACH(j, kept) {
                        double x = p.levels ? p.levels[entry * m + j] : p.rows[entry * m + j];
                        x = (square > 0 ? x / sqrt(square) : 0) + c[passage * M + j];
                        length += x * x, product += x * q[i * M + j];
                    }
                    product /= sqrt(length);
                    highest = product > highest ? product : highest;
                }
                wanted += has;
                double found = best[passage * Q + i];
                if (!of.lengths[passage]) require(which[passage * Q + i] == -1, "a token of nothing", passage);
                else if (highest > -1) {
                    require(fabs(found - highest) < 1e-3 * (1 + fabs(highest)), "not the nearest", passage);
                    worst = fabs(found - highest) > worst ? fabs(found - highest) : worst;
                }
            }
            require(having[i] == wanted, "passages are miscounted", i);
        }
        /* All that the tokens add, and the biases, are the way from c^0 to c^K. */
        float *x = memory(5 * M * 4), *added = memory(5 * M * 4), *context = normals(M, 1);
        double *c0 = memory(m * sizeof *c0), *cK = memory(m * sizeof *cK);
        EACH(j, M) if (j < m) c0[j] = cK[j] = context[j]; else context[j] = 0;
        EACH(i, 5 * M) x[i] = 0;
        EACH(i, 5) row_of(model, of.ids[i], x + i * M);
        EACH(i, 5) EACH(j, p.levels ? m : 0) x[i * M + j] *= p.scales[of.ids[i]];
        equations(&p, of.ids, NULL, 5, cK);
        require(!ctx_added(model, x, 5, context, added), "no memory", 5);
        EACH(j, m) {
            EACH(i, 5) c0[j] += added[i * M + j];
            EACH(k, p.K) c0[j] += p.bias[k * m + j];
            require(fabs(context[j] - cK[j]) < 2e-3 * (1 + fabs(cK[j])), "another c^K", j);
            require(fabs(c0[j] - cK[j]) < 2e-3 * (1 + fabs(cK[j])), "tokens add something else", j);
        }
    }
    printf("nearest tokens: within %.0e of the equations\n", worst);
}

typedef struct {
    ctx_model *model;
    const batch *of;
    float *const *wanted;
    i64 number;
} embedding;

static void *embed_in_thread(void *argument) {
    embedding *own = argument;
    for (i64 at = own->number; at < own->number + 8; at++, release(0)) {
        const batch *of = own->of + at % 8;
        float *found = embedded(own->model, of, 0, of->texts);
        i64 size = of->texts * own->model->p.m * sizeof *found;
        require(!memcmp(found, own->wanted[at % 8], size), "threads change a text", at);
    }
    return NULL;
}

/* Several threads fill one model's table of products, which has room for none, some or all. */
static void exercise_threads(kind of, i64 path) {
    ctx_parameters p = parameters_of(of, 33, 2, 8, 1500, 1, path);
    batch batches[8];
    float *wanted[8];
    ctx_model *model = keep(ctx_model_new(&p));
    EACH(i, 8) {
        i64 lengths[20];
        EACH(text, 20) lengths[text] = below(text ? 40 : 400);
        batches[i] = batch_of(&p, lengths, 20, 0);
        wanted[i] = embedded(model, batches + i, 0, 20);
    }
    for (p.held = 0; p.held <= 1500; p.held += 500) {
        pthread_t threads[THREADS];
        embedding own[THREADS];
        model = keep(ctx_model_new(&p));
        EACH(i, THREADS) {
            own[i] = (embedding){model, batches, wanted, i};
            require(!pthread_create(threads + i, NULL, embed_in_thread, own + i), "no thread", i);
        }
        EACH(i, THREADS) pthread_join(threads[i], NULL);
    }
    release(0);
}

/* ---- Words ---------------------------------------------------------------------------------- */
typedef struct {
    i64 texts, words, missing, known, *ends, *unknown, *starts, *lengths, size;
    i32 *records, *others, *ids, *seen;
} found;

/* The ids of texts, each of which ends with NUL; a word that the table lacks gets up to three ids,
 * made of its bytes. */
static found ids_of(const ctx_words *w, const uint8_t *s, i64 n) {
    found f = {.texts = 0};
    EACH(i, n) f.texts += !s[i];
    f.records = memory(n * sizeof *f.records), f.unknown = memory(2 * n * 8);
    f.ends = memory(f.texts * 8), f.lengths = memory(f.texts * 8);
    i64 mask = 1;
    while (mask < 2 * n) mask *= 2;
    f.seen = memory(mask * sizeof *f.seen);
    memset(f.seen, 0, mask * sizeof *f.seen);
    f.missing = ctx_words_find(w, s, f.texts, f.records, f.ends, f.unknown, f.seen, mask - 1, &f.known);
    f.words = f.ends[f.texts - 1];
    f.starts = memory((f.missing + 1) * 8), f.others = memory(3 * f.missing * sizeof *f.others);
    i64 more = 0;
    EACH(k, f.missing) {
        u32 hashed = 2166136261u;
        f.starts[k] = more;
        for (i64 i = f.unknown[2 * k]; i < f.unknown[2 * k + 1]; i++) hashed = (hashed ^ s[i]) * 16777619u;
        EACH(i, hashed % 4) f.others[more++] = (i32)(hashed >> (i + 1));
    }
    f.starts[f.missing] = more;
    i64 size = f.known;
    EACH(i, f.words) if (f.records[i] < 0) size += f.starts[-f.records[i]] - f.starts[-1 - f.records[i]];
    f.ids = memory(size * sizeof *f.ids);
    f.size = ctx_words_ids(w, NULL, f.records, f.ends, f.texts, f.others, f.starts, f.ids, f.lengths);
    require(f.size == size, "some ids are lost", f.size);
    return f;
}

static void require_same(const found *a, const found *b, const char *what) {
    require(a->size == b->size && !memcmp(a->ids, b->ids, a->size * sizeof *a->ids), what, b->missing);
    require(!memcmp(a->lengths, b->lengths, a->texts * 8), what, b->missing);
}

/* Cut texts with an empty table, then with one that has met half of their words, then all: always
 * the same ids, and words hold all bytes but spaces. */
static void exercise_text(const uint8_t *text, i64 n, i64 most) {
    uint8_t cuts[128] = {0}, *s = memory(n + 9);
    EACH(c, 128) cuts[c] = c > 32 && (c < '0' || c > '9') && ((c | 32) < 'a' || (c | 32) > 'z');
    memcpy(s, text, n);
    memset(s + n, 0, 9);            /* as many bytes as may be read */
    ctx_words *w = keep(ctx_words_new(bits(), most, cuts));
    found first = ids_of(w, s, n + 1);
    require(!first.known && first.missing <= first.words, "an empty table knows words", first.known);
    i64 at = 0;
    EACH(i, first.words + 1) {
        for (; at < n && (!s[at] || w->kind[s[at]] == SPACE); at++) continue;
        if (i == first.words) break;
        i64 *span = first.unknown + 2 * (-1 - first.records[i]), length = span[1] - span[0];
        require(length > 0 && at + length <= n && !memcmp(s + at, s + span[0], length), "a word is another one", i);
        EACH(j, length) require(w->kind[s[at + j]] != SPACE && s[at + j], "a space in a word", at);
        at += length;
    }
    require(at == n, "a byte is lost", at);
    EACH(k, first.missing) for (i64 j = k - 1; j >= 0 && j > k - 50; j--) {
        i64 *a = first.unknown + 2 * k, *b = first.unknown + 2 * j, length = a[1] - a[0];
        require(length != b[1] - b[0] || memcmp(s + a[0], s + b[0], length), "a word is there twice", k);
    }
    ctx_words_add(w, s, first.unknown, first.others, first.starts, first.missing / 2);
    found half = ids_of(w, s, n + 1);
    ctx_words_add(w, s, half.unknown, half.others, half.starts, half.missing);
    found all = ids_of(w, s, n + 1);
    require_same(&first, &half, "half the words have other ids");
    require_same(&first, &all, "words have other ids");
    release(0);
}

static void exercise_words(void) {
    static const char *pieces[] = {"the", " ", "\t", "-", ".", "don't", "\xcc\x81", "\xe4\xb8\xad", "\xff", "\x80",
                                   "\xed\xa0\x80", "\xf0\x9f\x98\x80", "\x7f", "\x01", "#", "[UNK]"};
    static uint8_t text[10 << 20];
    EACH(round, 2000) {
        i64 n = 0, size = below(round % 10 ? 60 : 2500);
        while (n < size) {
            if (round % 3 == 0) text[n++] = (uint8_t)bits();                     /* any bytes, also NUL */
            else if (round % 3 == 1) for (const char *c = pieces[below(16)]; *c; c++) text[n++] = (uint8_t)*c;
            else text[n++] = below(40) ? 'x' : ' ';                           /* some over 255 bytes */
        }
        exercise_text(text, n, round % 2 ? 16 : 4096);
    }
    for (i64 n = 250; n < 260; n++) memset(text, 'w', n), exercise_text(text, n, 16);
    for (int fill = 0; fill < 4; fill++) {   /* one word; a word a byte; bytes that no cut divides; any */
        i64 n = fill % 2 ? 1 << 20 : sizeof text;
        EACH(i, n) text[i] = (uint8_t)(fill == 0 ? 'a' : fill == 1 ? '.' : fill == 3 ? bits() : i % 2 ? 0xcc : '.');
        exercise_text(text, n, 1 << 12);
    }
    printf("words: the same ids from every table\n");
}

static struct { const ctx_words *w; const uint8_t *s; i64 n; const found *wanted; } shared;

static void *read_in_thread(void *unused) {
    for (int round = 0; round < 20; round++, release(0)) {
        found f = ids_of(shared.w, shared.s, shared.n);
        require_same(shared.wanted, &f, "a reader sees other ids");
    }
    return unused;
}

/* Threads read a table while another adds to it, until it is full. */
static void exercise_shared_words(void) {
    uint8_t cuts[128] = {['.'] = 1}, *s = memory(20009);
    EACH(i, 20009) s[i] = i >= 20000 ? 0 : below(5) ? (uint8_t)('a' + below(6)) : below(2) ? '.' : ' ';
    ctx_words *w = keep(ctx_words_new(bits(), 1 << 12, cuts));
    found all = ids_of(w, s, 20001);
    shared.w = w, shared.s = s, shared.n = 20001, shared.wanted = &all;
    pthread_t threads[THREADS];
    EACH(i, THREADS) require(!pthread_create(threads + i, NULL, read_in_thread, NULL), "no thread", i);
    EACH(k, all.missing) ctx_words_add(w, s, all.unknown + 2 * k, all.others, all.starts + k, 1);
    EACH(i, THREADS) pthread_join(threads[i], NULL);
    release(0);
    printf("words: the same ids while others add\n");
}

/* Words of random vocabularies, and what the longest entries first make of them. */
static void exercise_wordpiece(void) {
    enum { ENTRIES = 40, LONGEST = 5 };
    static const uint8_t cuts[128] = {['#'] = 1};
    char json[4096], entry[ENTRIES][16];
    for (int round = 0; round < 2000; round++, release(0)) {
        i64 size = 0, room = round % 5 ? 64 : 8, most = 1 + below(20);
        EACH(k, ENTRIES) {
            i64 n = 0, letters = 1 + below(round % 3 ? LONGEST : 1);
            if (below(2)) entry[k][n++] = '#', entry[k][n++] = '#';
            while (letters--) entry[k][n++] = "ab1B\\"[below(5)];
            entry[k][n] = 0;
            json[size++] = '"';
            EACH(i, n) size += sprintf(json + size, entry[k][i] == '\\' ? "\\%c" : "%c", entry[k][i]);
            size += sprintf(json + size, "\":%d%c", (int)k, k + 1 < ENTRIES ? ',' : '}');
        }
        memset(json + size, 0, 9);
        ctx_words *w = keep(ctx_words_new(bits(), room, cuts));
        i64 full = ctx_words_entries(w, (uint8_t *)json, size, ENTRIES, most);
        require(!full || !ctx_words_entries(w, (uint8_t *)json, size, ENTRIES - 1, most), "an id is too high", round);
        EACH(turn, full ? 50 : 0) {
            uint8_t *s = memory(270 + 9);
            i64 n = turn % 10 ? 1 + below(9) : 1 + below(260), begin = 0, known = 0, wanted[270];
            EACH(i, n) s[i] = "ab1BA"[below(turn % 3 ? 3 : 5)];
            memset(s + n, 0, 9);
            while (begin < n && n <= most) {
                i64 longest = 0;
                EACH(k, ENTRIES) {
                    const char *e = entry[k];
                    if ((begin > 0) != (e[0] == '#')) continue;
                    i64 length = strlen(e += begin ? 2 : 0), same = begin + length <= n;
                    EACH(i, same ? length : 0) same &= e[i] == (s[begin + i] < 'A' ? s[begin + i] : (s[begin + i] | 32));
                    if (same && length > longest) longest = length, wanted[known] = k;
                }
                if (!longest) break;
                begin += longest, known++;
            }
            if (begin < n) known = 0;
            found f = ids_of(w, s, n + 1);
            require(f.known == known && f.missing == !known, "WordPiece finds other pieces", n);
            EACH(i, known) require(!strcmp(entry[f.ids[i]], entry[wanted[i]]), "another piece", i);
        }
    }
    printf("words: WordPiece's pieces\n");
}

int main(void) {
    setvbuf(stdout, NULL, _IONBF, 0);
    for (i64 path = PLAIN; path <= AVX2; path++) {
        if (!(ctx_paths() >> path & 1)) continue;
        printf("-- %s\n", path == AVX2 ? "AVX2" : "plain");
        EACH(i, sizeof KINDS / sizeof *KINDS) exercise_kind(KINDS[i], path), exercise_threads(KINDS[i], path);
        exercise_nearest(path);
    }
    exercise_words();
    exercise_shared_words();
    exercise_wordpiece();
    return 0;
}
