/* One block of a trace's events, a JSON list, to packed columns: moescope.trace._block.columns(data).

   Takes what profilers usually write and gives up on everything else, odd or broken: it returns None, and the caller
   decodes the block another way (moescope/trace/by_records.py). So this file never decides what is wrong with a trace;
   whatever it accepts is valid JSON of which the other way makes the same columns (tests/trace/test_compiled.py).

   Bounds: the text ends with the bracket that closes the list, at `last`. Every loop over blanks or digits stops
   there, strings and words are searched up to there, and whoever steps over a closing bracket looks whether it was
   that one. So nothing behind `last` is read. */

#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030B0000
#include <Python.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#ifdef __SSE2__
#include <emmintrin.h>
#endif

typedef const unsigned char *At;

/* The columns of numbers, in the order in which they are returned; EXTERNAL_OLD is another spelling of EXTERNAL. */
enum { TS, DUR, PID, TID, EXTERNAL, DEVICE, STREAM, CORRELATION, BYTES, NUM_COLUMNS, EXTERNAL_OLD = NUM_COLUMNS, NUM_SLOTS };
/* The columns of texts: category and name of every row, shapes, types and values of those that are operators. */
enum { CATEGORY, NAME, DIMS, TYPES, VALUES, NUM_WORDS };
/* What is kept of some events as a stretch of text. */
enum { COMM, MEMORY, LABELS, SPANS, NUM_STRETCHES };

/* What a member of an event or of its arguments is: a column of numbers by its own number, or one of these. */
enum { ROLE_WORD = NUM_SLOTS, ROLE_TEXT = ROLE_WORD + NAME + 1, ROLE_PHASE = ROLE_TEXT + NUM_WORDS, ROLE_ARGUMENTS, ROLE_COLLECTIVE, ROLE_OTHER, ROLE_CLOSE };

/* What a field of the event at hand holds. TEXT is read by the caller; ODD can be no number. */
enum { ABSENT, NUMBER, TEXT, ODD };

static const int64_t NO_VALUE = INT64_MIN;
static const uint32_t NO_WORD = UINT32_MAX;
static const int64_t LARGEST_US = 4000000000000000; /* year 2096, as in decimals.py */
enum { DEEPEST = 60, MOST_TRIES = 200 /* names made to collide must not cost hours */ };
enum { USUAL_BYTES = 100 /* of an event at least; where they are shorter, room is made again */ };
enum { LONGEST_GLUE = 64, MOST_GLUES = 128, NUM_NEXT = 4 };
/* Where an event and its arguments begin, and where what stands there is not among the glues. */
enum { EVENT_START, ARGUMENTS_START, NO_GLUE, NUM_STARTS };

typedef struct {
    unsigned char *data;
    size_t size, room;
} Pile;

typedef struct {
    Pile codes, words; /* uint32 each; (start, end) of each different word */
    uint32_t *places, mask, count, none, latest;
} Words;

typedef struct {
    At start, end;
} Span;

/* What stands between two values of an object, the key of the second included, as it was met before: profilers write
   the same over and over, and comparing it takes less than reading it. */
typedef struct {
    unsigned char text[LONGEST_GLUE], mask[LONGEST_GLUE]; /* mask: 255 for each character of the text, then 0 */
    unsigned char size, role, next[NUM_NEXT]; /* next: what followed the value behind it, 0 for nothing yet */
} Glue;

typedef struct {
    At first, last;
    bool is_ascii, escaped;
    uint32_t num_recorded, num_rows, num_operators;
    int64_t *columns; /* one after the other, each with room for `most_rows` */
    size_t most_rows;
    bool any[NUM_COLUMNS];
    Words words[NUM_WORDS];
    Pile complete, operators, texts, stretches[NUM_STRETCHES];
    /* The event at hand; a field that is given twice is a reason to give up. */
    unsigned char kinds[NUM_SLOTS];
    int64_t values[NUM_SLOTS];
    Span spans[NUM_SLOTS];
    unsigned char phase, kind_of[NUM_WORDS];
    Span word[NUM_WORDS];
    bool has_word[NUM_WORDS], is_collective, has_args, has_odd_args;
    Glue glues[MOST_GLUES];
    int num_glues;
} Scan;

/* ---------------------------------------------------------------------------------------------------- memory */

static bool grow(Pile *pile) {
    size_t room = 2 * pile->room + 4096;
    unsigned char *grown = realloc(pile->data, room);
    if (!grown) return false;
    pile->data = grown;
    pile->room = room;
    return true;
}

/* Append a few bytes. */
static inline bool put(Pile *pile, const void *data, size_t size) {
    if (pile->size + size > pile->room && !grow(pile)) return false;
    memcpy(pile->data + pile->size, data, size);
    pile->size += size;
    return true;
}

static inline bool put_byte(Pile *pile, unsigned char value) { return put(pile, &value, 1); }

static inline bool put_number(Pile *pile, uint32_t value) { return put(pile, &value, sizeof value); }

/* Room for so many rows; what is there of fewer is kept. */
static bool room_for_rows(Scan *scan, size_t count) {
    int64_t *columns = malloc(count * NUM_COLUMNS * sizeof(int64_t));
    if (!columns) return false;
    for (int c = 0; scan->columns && c < NUM_COLUMNS; c++)
        memcpy(columns + c * count, scan->columns + c * scan->most_rows, scan->num_rows * sizeof(int64_t));
    free(scan->columns);
    scan->columns = columns;
    scan->most_rows = count;
    return true;
}

static void release(Scan *scan) {
    free(scan->columns);
    for (int w = 0; w < NUM_WORDS; w++) {
        free(scan->words[w].codes.data);
        free(scan->words[w].words.data);
        free(scan->words[w].places);
    }
    for (int s = 0; s < NUM_STRETCHES; s++) free(scan->stretches[s].data);
    free(scan->complete.data);
    free(scan->operators.data);
    free(scan->texts.data);
}

/* ------------------------------------------------------------------------------------------- different texts */

static inline uint64_t word_at(At at) {
    uint64_t word;
    memcpy(&word, at, 8);
    return word;
}

/* Of two halves that do not wait for each other. */
static uint32_t hash_of(At text, size_t size) {
    uint64_t one = size * 0x9E3779B97F4A7C15u, other = 0x2545F4914F6CDD1Du;
    for (; size >= 16; text += 16, size -= 16) {
        one = (one ^ word_at(text)) * 0x9E3779B97F4A7C15u;
        other = (other ^ word_at(text + 8)) * 0xD6E8FEB86659FD93u;
        one ^= one >> 29;
        other ^= other >> 31;
    }
    if (size >= 8) {
        one = (one ^ word_at(text)) * 0x9E3779B97F4A7C15u;
        one ^= one >> 29;
        text += 8, size -= 8;
    }
    uint64_t rest = 0;
    for (; size; size--) rest = rest << 8 | *text++;
    return (uint32_t)(((one ^ rest) * 0xD6E8FEB86659FD93u ^ (other ^ other >> 29) * 0x9E3779B97F4A7C15u) >> 32);
}

static bool rehash(Words *words, At first) {
    uint32_t size = words->places ? 2 * (words->mask + 1) : 256;
    uint32_t *places = calloc(size, sizeof *places);
    if (!places) return false;
    const uint32_t *known = (const uint32_t *)words->words.data;
    for (uint32_t code = 0; code < words->count; code++) {
        if (known[2 * code] == NO_WORD) continue;
        uint32_t at = hash_of(first + known[2 * code], known[2 * code + 1] - known[2 * code]) & (size - 1);
        while (places[at]) at = (at + 1) & (size - 1);
        places[at] = code + 1;
    }
    free(words->places);
    words->places = places;
    words->mask = size - 1;
    return true;
}

static bool is_word(const Words *words, uint32_t code, At first, Span text) {
    const uint32_t *known = (const uint32_t *)words->words.data + 2 * (size_t)code;
    size_t size = (size_t)(text.end - text.start);
    return known[0] != NO_WORD && known[1] - known[0] == size && !memcmp(first + known[0], text.start, size);
}

static bool add_word(Words *words, uint32_t start, uint32_t end) {
    words->latest = words->count++;
    return put_number(&words->words, start) && put_number(&words->words, end);
}

/* Append the code of `text`, or of no text, to the column. */
static bool put_word(Words *words, At first, Span text) {
    if (!text.start) {
        if (words->none == NO_WORD) {
            words->none = words->count;
            if (!add_word(words, NO_WORD, NO_WORD)) return false;
        }
        words->latest = words->none;
    } else if (!(words->count && is_word(words, words->latest, first, text))) {
        if (2 * (uint64_t)words->count >= (words->places ? words->mask : 0) && !rehash(words, first)) return false;
        uint32_t at = hash_of(text.start, (size_t)(text.end - text.start)) & words->mask;
        for (int tries = 0; words->places[at] && !is_word(words, words->places[at] - 1, first, text); tries++) {
            if (tries == MOST_TRIES) return false;
            at = (at + 1) & words->mask;
        }
        if (words->places[at]) {
            words->latest = words->places[at] - 1;
        } else {
            words->places[at] = words->count + 1;
            if (!add_word(words, (uint32_t)(text.start - first), (uint32_t)(text.end - first))) return false;
        }
    }
    return put_number(&words->codes, words->latest);
}

/* ---------------------------------------------------------------------------------- JSON: NULL where it is not */

static inline At blanks(const Scan *scan, At at) {
    if (*at > ' ') return at;
#ifdef __SSE2__
    while (scan->last - at >= 16) {
        __m128i part = _mm_loadu_si128((const __m128i *)at);
        __m128i lines = _mm_or_si128(_mm_cmpeq_epi8(part, _mm_set1_epi8('\n')), _mm_cmpeq_epi8(part, _mm_set1_epi8('\r')));
        __m128i spaces = _mm_or_si128(_mm_cmpeq_epi8(part, _mm_set1_epi8(' ')), _mm_cmpeq_epi8(part, _mm_set1_epi8('\t')));
        int others = _mm_movemask_epi8(_mm_or_si128(lines, spaces)) ^ 0xFFFF;
        if (others) return at + __builtin_ctz((unsigned)others);
        at += 16;
    }
#endif
    while (*at == ' ' || *at == '\n' || *at == '\r' || *at == '\t') at++;
    return at;
}

static inline bool is_digit(unsigned char c) { return c >= '0' && c <= '9'; }

static bool is_hex(unsigned char c) { return is_digit(c) || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F'); }

/* The quote that ends the string whose first character is at `at`. */
static inline At string_end(Scan *scan, At at) {
    At last = scan->last;
    for (;;) {
#ifdef __SSE2__
        while (last - at >= 16) {
            __m128i part = _mm_loadu_si128((const __m128i *)at);
            __m128i stops = _mm_or_si128(_mm_cmpeq_epi8(part, _mm_set1_epi8('"')), _mm_cmpeq_epi8(part, _mm_set1_epi8('\\')));
            /* Below a blank as signed numbers: control characters and what is not ASCII. */
            stops = _mm_or_si128(stops, _mm_cmplt_epi8(part, _mm_set1_epi8(' ')));
            int found = _mm_movemask_epi8(stops);
            if (found) {
                at += __builtin_ctz((unsigned)found);
                break;
            }
            at += 16;
        }
#endif
        while (at < last && *at != '"' && *at != '\\' && *at >= ' ' && *at < 128) at++;
        if (at >= last || *at < ' ') return NULL;
        if (*at == '"') return at;
        if (*at >= 128) {
            scan->is_ascii = false;
            at++;
            continue;
        }
        scan->escaped = true;
        at++;
        switch (*at) {
        case '"': case '\\': case '/': case 'b': case 'f': case 'n': case 'r': case 't':
            at++;
            break;
        case 'u': /* halves of surrogate pairs, which may lack the other, are not for here */
            for (int digit = 1; digit <= 4; digit++)
                if (at + digit >= last || !is_hex(at[digit])) return NULL;
            if ((at[1] == 'd' || at[1] == 'D') && at[2] >= '8') return NULL;
            at += 5;
            break;
        default:
            return NULL;
        }
    }
}

static At number_end(At at) {
    if (*at == '-') at++;
    if (!is_digit(*at)) return NULL;
    if (*at++ != '0') while (is_digit(*at)) at++;
    if (*at == '.') {
        if (!is_digit(*++at)) return NULL;
        while (is_digit(*at)) at++;
    }
    if (*at == 'e' || *at == 'E') {
        at++;
        if (*at == '+' || *at == '-') at++;
        if (!is_digit(*at)) return NULL;
        while (is_digit(*at)) at++;
    }
    return at;
}

static At literal_end(Scan *scan, At at) {
    if (scan->last - at >= 4 && (!memcmp(at, "true", 4) || !memcmp(at, "null", 4))) return at + 4;
    return scan->last - at >= 5 && !memcmp(at, "false", 5) ? at + 5 : NULL;
}

/* The value behind the key, at whose quote `at` is. */
static inline At key_end(Scan *scan, At at) {
    if (*at != '"' || !(at = string_end(scan, at + 1))) return NULL;
    at = blanks(scan, at + 1);
    return *at == ':' ? blanks(scan, at + 1) : NULL;
}

static At value_end(Scan *scan, At at) {
    uint64_t objects = 0; /* a bit for each level around `at`, the innermost lowest: whether it is an object */
    int depth = 0;
    for (;;) {
        bool opened = false;
        if (*at == '"') {
            if (!(at = string_end(scan, at + 1))) return NULL;
            at++;
        } else if (*at == '{') {
            at = blanks(scan, at + 1);
            if (*at == '}') at++;
            else opened = true, objects = objects << 1 | 1;
        } else if (*at == '[') {
            at = blanks(scan, at + 1);
            if (*at == ']') {
                if (at++ == scan->last) return NULL;
            } else opened = true, objects <<= 1;
        } else if (*at == 't' || *at == 'f' || *at == 'n') {
            if (!(at = literal_end(scan, at))) return NULL;
        } else if (!(at = number_end(at))) return NULL;
        if (opened) {
            if (++depth > DEEPEST || ((objects & 1) && !(at = key_end(scan, at)))) return NULL;
            continue;
        }
        for (; depth; depth--, objects >>= 1) {
            at = blanks(scan, at);
            if (*at == ',') break;
            if (*at != (objects & 1 ? '}' : ']') || at++ == scan->last) return NULL;
        }
        if (!depth) return at;
        at = blanks(scan, at + 1);
        if ((objects & 1) && !(at = key_end(scan, at))) return NULL;
    }
}

/* ----------------------------------------------------------------------------------------- fields of an event */

/* Whether the characters are an integer of up to 18 digits, and which. */
static bool integer(At at, At end, int64_t *value) {
    bool negative = at < end && *at == '-';
    at += negative;
    if (at == end || end - at > 18) return false;
    int64_t sum = 0;
    for (; at < end; at++) {
        if (!is_digit(*at)) return false;
        sum = 10 * sum + (*at - '0');
    }
    *value = negative ? -sum : sum;
    return true;
}

/* Whether the characters are a decimal number of microseconds within bounds, and how many nanoseconds it is, halves
   rounded away from zero. */
static bool nanoseconds(At at, At end, int64_t *value) {
    bool negative = at < end && *at == '-';
    at += negative;
    int64_t sum = 0;
    At digits = at;
    for (; at < end && is_digit(*at); at++) {
        if (at - digits == 16) return false;
        sum = 10 * sum + (*at - '0');
    }
    if (at == digits || sum > LARGEST_US) return false;
    sum *= 1000;
    if (at < end && *at == '.') {
        digits = ++at;
        for (int64_t unit = 100; at < end && is_digit(*at); at++) {
            if (unit) sum += unit * (*at - '0'), unit /= 10;
            else if (at - digits == 3) sum += *at >= '5';
        }
        if (at == digits) return false;
    }
    if (at < end || sum > LARGEST_US * 1000) return false;
    *value = negative ? -sum : sum;
    return true;
}

#if defined(__GNUC__) && __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
/* How many of the eight characters at `at` are digits before the first that is none, and the number these make. */
static inline int digits(At at, int64_t *value) {
    uint64_t text;
    memcpy(&text, at, 8);
    uint64_t others = ((text ^ 0x3030303030303030u) + 0x0606060606060606u) | (text ^ 0x3030303030303030u);
    others &= 0xF0F0F0F0F0F0F0F0u;
    int count = others ? __builtin_ctzll(others) / 8 : 8;
    if (!count) return 0;
    text = (text & 0x0F0F0F0F0F0F0F0Fu) << (64 - 8 * count); /* as many digits, with zeros before them */
    text = text * 10 + (text >> 8);
    *value = (int64_t)(((text & 0x000000FF000000FFu) * 0x000F424000000064u +
                        ((text >> 16) & 0x000000FF000000FFu) * 0x0000271000000001u) >> 32);
    return count;
}

/* Read a number as it usually is, of less than 16 digits, and for times up to three behind the point; where it ends,
   or NULL where it is another. */
static inline At usual_number(Scan *scan, At at, bool is_time, int64_t *value) {
    static const int64_t powers[] = {1, 10, 100, 1000, 10000, 100000, 1000000, 10000000};
    if (scan->last - at < 32) return NULL;
    int64_t sum = 0, more;
    int count = digits(at, &sum);
    if (!count || (*at == '0' && count > 1)) return NULL;
    at += count;
    if (count == 8 && (count = digits(at, &more))) {
        if (count == 8) return NULL;
        sum = sum * powers[count] + more;
        at += count;
    }
    if (is_time) {
        sum *= 1000;
        if (*at == '.') {
            count = digits(++at, &more);
            if (!count || count > 3) return NULL;
            sum += more * powers[3 - count];
            at += count;
        }
    }
    if (*at == '.' || *at == 'e' || *at == 'E') return NULL;
    *value = sum;
    return at;
}
#else
static At usual_number(Scan *scan, At at, bool is_time, int64_t *value) {
    return (void)scan, (void)at, (void)is_time, (void)value, NULL;
}
#endif

/* Read the value of a column of numbers. */
static At number_field(Scan *scan, int slot, At at) {
    bool is_time = slot == TS || slot == DUR;
    Span text = {at, at};
    if (scan->kinds[slot] != ABSENT) return NULL;
    At end = usual_number(scan, at, is_time, &scan->values[slot]);
    if (end) {
        scan->kinds[slot] = NUMBER;
        return end;
    }
    scan->kinds[slot] = TEXT;
    if (*at == '"') {
        scan->escaped = false;
        if (!(end = string_end(scan, at + 1))) return NULL;
        text.end = at = end + 1;
        if (!scan->escaped && (is_time ? nanoseconds : integer)(text.start + 1, end, &scan->values[slot]))
            scan->kinds[slot] = NUMBER;
    } else if (*at == '-' || is_digit(*at)) {
        if (!(at = number_end(at))) return NULL;
        text.end = at;
        if ((is_time ? nanoseconds : integer)(text.start, at, &scan->values[slot])) scan->kinds[slot] = NUMBER;
    } else if (*at == 'n') {
        if (!(at = literal_end(scan, at))) return NULL;
        if (!is_time) scan->kinds[slot] = NUMBER, scan->values[slot] = NO_VALUE;
    } else {
        scan->kinds[slot] = ODD;
        return value_end(scan, at);
    }
    scan->spans[slot] = text;
    return at;
}

/* Read the value of a column of texts: a string without its quotes, or null. */
static At word_field(Scan *scan, int column, At at) {
    At end;
    if (scan->has_word[column]) return NULL;
    scan->has_word[column] = true;
    if (*at == '"') {
        if (!(end = string_end(scan, at + 1))) return NULL;
        scan->word[column] = (Span){at + 1, end};
        scan->kind_of[column] = TEXT;
        return end + 1;
    }
    if (!(end = value_end(scan, at))) return NULL;
    scan->kind_of[column] = *at == 'n' ? ABSENT : *at == '-' || is_digit(*at) ? NUMBER : ODD;
    return end;
}

/* Read the value of a column of JSON texts. */
static At text_field(Scan *scan, int column, At at) {
    if (scan->has_word[column]) return NULL;
    scan->has_word[column] = true;
    At end = value_end(scan, at);
    scan->word[column] = (Span){at, end};
    return end;
}

#define IS(text) (size == sizeof(text) - 1 && !memcmp(key, text, sizeof(text) - 1))

static int role_of_argument(At key, size_t size) {
    switch (*key) {
    case 'E':
        if (IS("External id")) return EXTERNAL;
        break;
    case 'e':
        if (IS("external id")) return EXTERNAL_OLD;
        break;
    case 'd':
        if (IS("device")) return DEVICE;
        break;
    case 's':
        if (IS("stream")) return STREAM;
        break;
    case 'b':
        if (IS("bytes")) return BYTES;
        break;
    case 'c':
        if (IS("correlation")) return CORRELATION;
        break;
    case 'I':
        if (IS("Input Dims")) return ROLE_TEXT + DIMS;
        if (IS("Input type")) return ROLE_TEXT + TYPES;
        break;
    case 'C':
        if (IS("Concrete Inputs")) return ROLE_TEXT + VALUES;
        if (IS("Collective name")) return ROLE_COLLECTIVE;
        break;
    }
    return ROLE_OTHER;
}

static int role_of_field(At key, size_t size) {
    switch (*key) {
    case 'p':
        if (IS("ph")) return ROLE_PHASE;
        if (IS("pid")) return PID;
        break;
    case 't':
        if (IS("ts")) return TS;
        if (IS("tid")) return TID;
        break;
    case 'd':
        if (IS("dur")) return DUR;
        break;
    case 'c':
        if (IS("cat")) return ROLE_WORD + CATEGORY;
        break;
    case 'n':
        if (IS("name")) return ROLE_WORD + NAME;
        break;
    case 'a':
        if (IS("args")) return ROLE_ARGUMENTS;
        break;
    }
    return ROLE_OTHER;
}

/* Whether `glue` stands at `at`, where there are LONGEST_GLUE characters. */
static inline bool stands_at(const Glue *glue, At at) {
#ifdef __SSE2__
    for (int i = 0; i < glue->size; i += 16) {
        __m128i differs = _mm_xor_si128(_mm_loadu_si128((const __m128i *)(at + i)), _mm_loadu_si128((const __m128i *)(glue->text + i)));
        differs = _mm_and_si128(differs, _mm_loadu_si128((const __m128i *)(glue->mask + i)));
        if (_mm_movemask_epi8(_mm_cmpeq_epi8(differs, _mm_setzero_si128())) != 0xFFFF) return false;
    }
    return true;
#else
    return !memcmp(glue->text, at, glue->size);
#endif
}

/* The number of the glue at `at` among those that followed `before`; NO_GLUE where it is none of them. */
static inline int known_glue(const Scan *scan, int before, At at) {
    if (scan->last - at < LONGEST_GLUE) return NO_GLUE;
    for (int i = 0; i < NUM_NEXT; i++) {
        int next = scan->glues[before].next[i];
        if (!next) break;
        if (stands_at(&scan->glues[next], at)) return next;
    }
    return NO_GLUE;
}

/* Remember that the characters from `start` to `end` followed `before`; the number of this glue, or NO_GLUE. */
static int learn_glue(Scan *scan, int before, At start, At end, int role) {
    if (before == NO_GLUE || end - start > LONGEST_GLUE) return NO_GLUE;
    unsigned char *next = scan->glues[before].next;
    int place = 0;
    while (place < NUM_NEXT - 1 && next[place]) place++;
    if (!next[place]) {
        if (scan->num_glues == MOST_GLUES) return NO_GLUE;
        next[place] = (unsigned char)scan->num_glues++;
    }
    Glue *glue = &scan->glues[next[place]];
    memset(glue, 0, sizeof *glue);
    glue->size = (unsigned char)(end - start);
    glue->role = (unsigned char)role;
    memcpy(glue->text, start, glue->size);
    memset(glue->mask, 255, glue->size);
    return next[place];
}

/* Find the member that follows `*before`, of an object that began with the glue `first`: its role, and in `*at` where
   its value begins, or behind the object at its end. -1 where it is none. Keys with escapes are not for here. */
static inline int next_member(Scan *scan, At *place, int *before, int first, int (*role_of)(At, size_t)) {
    At at = *place, start = at;
    int known = known_glue(scan, *before, at), role = scan->glues[known].role;
    if (known != NO_GLUE) {
        *before = known;
        at += scan->glues[known].size;
        *place = role == ROLE_CLOSE ? at : blanks(scan, at);
        return role;
    }
    at = blanks(scan, at);
    if (*at == '}') {
        role = ROLE_CLOSE;
        at++;
    } else {
        if (*before != first) {
            if (*at != ',') return -1;
            at = blanks(scan, at + 1);
        }
        At key = at + 1;
        scan->escaped = false;
        if (*at != '"' || !(at = string_end(scan, key)) || scan->escaped) return -1;
        role = role_of(key, (size_t)(at - key));
        at = blanks(scan, at + 1);
        if (*at != ':') return -1;
        at = blanks(scan, at + 1);
    }
    *before = learn_glue(scan, *before, start, at, role);
    *place = at;
    return role;
}

/* Where the value ends; most that nobody asks for are numbers. */
static inline At skipped(Scan *scan, At at) {
    int64_t value;
    At end = usual_number(scan, at, false, &value);
    return end ? end : value_end(scan, at);
}

static At collective_name(Scan *scan, At at) {
    if (scan->is_collective) return NULL;
    scan->is_collective = true;
    return value_end(scan, at);
}

static At arguments(Scan *scan, At at) {
    if (scan->has_args) return NULL;
    scan->has_args = true;
    if (*at != '{') {
        scan->has_odd_args = *at != 'n';
        return value_end(scan, at);
    }
    at++;
    for (int before = ARGUMENTS_START, role; at;) {
        if ((role = next_member(scan, &at, &before, ARGUMENTS_START, role_of_argument)) < 0) return NULL;
        if (role == ROLE_CLOSE) break;
        if (role < NUM_SLOTS) at = number_field(scan, role, at);
        else if (role == ROLE_OTHER) at = skipped(scan, at);
        else if (role == ROLE_COLLECTIVE) at = collective_name(scan, at);
        else at = text_field(scan, role - ROLE_TEXT, at);
    }
    return at;
}

static At phase(Scan *scan, At at) {
    if (scan->phase || scan->last - at < 3 || *at != '"' || at[1] == '\\' || at[2] != '"') return NULL;
    scan->phase = at[1];
    return at + 3;
}

/* Read the fields of the event at `at`; where it ends. */
static At fields(Scan *scan, At at) {
    if (*at++ != '{') return NULL;
    for (int before = EVENT_START, role; at;) {
        if ((role = next_member(scan, &at, &before, EVENT_START, role_of_field)) < 0) return NULL;
        if (role == ROLE_CLOSE) break;
        if (role < NUM_SLOTS) at = number_field(scan, role, at);
        else if (role == ROLE_OTHER) at = skipped(scan, at);
        else if (role == ROLE_PHASE) at = phase(scan, at);
        else if (role == ROLE_ARGUMENTS) at = arguments(scan, at);
        else at = word_field(scan, role - ROLE_WORD, at);
    }
    return at;
}

/* --------------------------------------------------------------------------------------------------- an event */

static bool put_stretch(Scan *scan, int sort, uint32_t place, Span event) {
    Pile *pile = &scan->stretches[sort];
    return put_number(pile, place) && put_number(pile, (uint32_t)(event.start - scan->first)) &&
           put_number(pile, (uint32_t)(event.end - scan->first));
}

static bool put_text(Scan *scan, int column, Span text) {
    return put_number(&scan->texts, (uint32_t)column) && put_number(&scan->texts, scan->num_rows) &&
           put_number(&scan->texts, text.start ? (uint32_t)(text.start - scan->first) : 0) &&
           put_number(&scan->texts, text.start ? (uint32_t)(text.end - scan->first) : 0);
}

static bool put_number_fields(Scan *scan) {
    bool is_linked = scan->kinds[CORRELATION] || scan->kinds[DEVICE] || scan->kinds[STREAM] || scan->kinds[BYTES];
    if (is_linked && !scan->kinds[EXTERNAL] && scan->kinds[EXTERNAL_OLD]) {
        scan->kinds[EXTERNAL] = scan->kinds[EXTERNAL_OLD];
        scan->values[EXTERNAL] = scan->values[EXTERNAL_OLD];
        scan->spans[EXTERNAL] = scan->spans[EXTERNAL_OLD];
    }
    for (int c = 0; c < NUM_COLUMNS; c++) {
        int kind = scan->kinds[c];
        int64_t value = kind == NUMBER ? scan->values[c] : NO_VALUE;
        if (kind == ODD) return false;
        if (kind == TEXT && !put_text(scan, c, scan->spans[c])) return false;
        if (kind == ABSENT && (c == TS || c == DUR) && !put_text(scan, c, (Span){NULL, NULL})) return false;
        scan->any[c] |= kind != ABSENT;
        scan->columns[c * scan->most_rows + scan->num_rows] = value;
    }
    return true;
}

/* Append a complete event. */
static bool put_row(Scan *scan, Span event) {
    const unsigned char *kinds = scan->kind_of;
    if (scan->has_odd_args || kinds[CATEGORY] > TEXT || kinds[CATEGORY] == NUMBER || kinds[NAME] == NUMBER ||
        kinds[NAME] == ODD || scan->kinds[EXTERNAL_OLD] >= TEXT)
        return false;
    if (scan->num_rows == scan->most_rows && !room_for_rows(scan, 2 * scan->most_rows)) return false;
    if (!put_number_fields(scan)) return false;
    for (int w = CATEGORY; w <= NAME; w++)
        if (!put_word(&scan->words[w], scan->first, scan->word[w])) return false;
    bool is_operator =
        scan->word[DIMS].start || scan->word[TYPES].start || scan->word[VALUES].start || scan->is_collective;
    if (!put_byte(&scan->operators, is_operator)) return false;
    if (is_operator) {
        scan->num_operators++;
        for (int w = DIMS; w <= VALUES; w++)
            if (!put_word(&scan->words[w], scan->first, scan->word[w])) return false;
    }
    if (scan->is_collective && !put_stretch(scan, COMM, scan->num_rows, event)) return false;
    scan->num_rows++;
    return true;
}

static bool has_escape(Span text) {
    return text.start && memchr(text.start, '\\', (size_t)(text.end - text.start));
}

static bool is_name(Scan *scan, const char *text) {
    Span name = scan->word[NAME];
    return name.start && (size_t)(name.end - name.start) == strlen(text) && !memcmp(name.start, text, strlen(text));
}

static bool put_event(Scan *scan, Span event) {
    if (!scan->phase || !strchr("XBEiICbnestfPNODMVvRc(),", scan->phase)) return false;
    if (!put_byte(&scan->complete, scan->phase == 'X')) return false;
    switch (scan->phase) {
    case 'X':
        if (!put_row(scan, event)) return false;
        break;
    case 'B': case 'E':
        if (!put_stretch(scan, SPANS, scan->num_recorded, event)) return false;
        break;
    case 'M': case 'i': case 'I':
        if (scan->kind_of[NAME] == NUMBER || scan->kind_of[NAME] == ODD || has_escape(scan->word[NAME])) return false;
        if (is_name(scan, "[memory]") && !put_stretch(scan, MEMORY, scan->num_recorded, event)) return false;
        if (scan->phase == 'M' && (is_name(scan, "process_name") || is_name(scan, "process_labels")) &&
            !put_stretch(scan, LABELS, scan->num_recorded, event))
            return false;
        break;
    }
    scan->num_recorded++;
    return true;
}

/* Read the event that begins at `at`; where it ends. */
static At read_event(Scan *scan, At at) {
    At start = at;
    memset(scan->kinds, ABSENT, sizeof scan->kinds);
    memset(scan->kind_of, ABSENT, sizeof scan->kind_of);
    memset(scan->word, 0, sizeof scan->word);
    memset(scan->has_word, 0, sizeof scan->has_word);
    scan->is_collective = scan->has_args = scan->has_odd_args = false;
    scan->phase = 0;
    at = fields(scan, at);
    return at && put_event(scan, (Span){start, at}) ? at : NULL;
}

static bool read_list(Scan *scan) {
    At at = blanks(scan, scan->first);
    if (*at != '[' || at == scan->last) return false;
    at = blanks(scan, at + 1);
    if (at == scan->last) return true;
    for (;;) {
        if (!(at = read_event(scan, at))) return false;
        at = blanks(scan, at);
        if (at == scan->last) return true;
        if (*at != ',') return false;
        at = blanks(scan, at + 1);
    }
}

/* ----------------------------------------------------------------------------------------------------- Python */

static PyObject *bytes_of(const void *data, size_t size) { return PyBytes_FromStringAndSize(data, (Py_ssize_t)size); }

/* A tuple of `count` objects that `make` gives; NULL where one fails. */
static PyObject *tuple_of(Scan *scan, Py_ssize_t count, PyObject *(*make)(Scan *, Py_ssize_t)) {
    PyObject *all = PyTuple_New(count);
    for (Py_ssize_t i = 0; all && i < count; i++) {
        PyObject *one = make(scan, i);
        if (!one || PyTuple_SetItem(all, i, one)) Py_CLEAR(all);
    }
    return all;
}

static PyObject *column_of(Scan *scan, Py_ssize_t c) {
    if (scan->any[c] || c <= TID) return bytes_of(scan->columns + c * scan->most_rows, scan->num_rows * sizeof(int64_t));
    return Py_NewRef(Py_None);
}

/* A text: a string where it holds what it means, bytes where it is JSON still to be decoded, None where there is none. */
static PyObject *text_of(Scan *scan, Py_ssize_t column, const uint32_t *place) {
    if (place[0] == NO_WORD) return Py_NewRef(Py_None);
    const char *text = (const char *)scan->first + place[0];
    size_t size = place[1] - place[0];
    if (column > NAME || memchr(text, '\\', size)) return bytes_of(text, size);
    return PyUnicode_DecodeUTF8(text, (Py_ssize_t)size, NULL);
}

/* A column of texts: its codes, the different texts, the bytes of the longest, and whether any is not a string. */
static PyObject *words_of(Scan *scan, Py_ssize_t w) {
    Words *words = &scan->words[w];
    PyObject *texts = PyList_New(words->count);
    uint32_t longest = 0;
    bool are_strings = true;
    for (uint32_t code = 0; texts && code < words->count; code++) {
        const uint32_t *place = (const uint32_t *)words->words.data + 2 * (size_t)code;
        PyObject *text = text_of(scan, w, place);
        if (place[0] == NO_WORD || (text && PyBytes_Check(text))) are_strings = false;
        if (place[1] - place[0] > longest) longest = place[1] - place[0];
        if (!text || PyList_SetItem(texts, code, text)) Py_CLEAR(texts);
    }
    return texts ? Py_BuildValue("(NNIO)", bytes_of(words->codes.data, words->codes.size), texts, (unsigned)longest,
                                 are_strings ? Py_True : Py_False)
                 : NULL;
}

static PyObject *stretches_of(Scan *scan, Py_ssize_t s) {
    return bytes_of(scan->stretches[s].data, scan->stretches[s].size);
}

static PyObject *result_of(Scan *scan) {
    bool all = scan->num_rows == scan->num_recorded;
    return Py_BuildValue("(IIONNNNNN)", (unsigned)scan->num_recorded, (unsigned)scan->num_rows,
                         scan->is_ascii ? Py_True : Py_False,
                         bytes_of(scan->complete.data, all ? 0 : scan->complete.size),
                         tuple_of(scan, NUM_COLUMNS, column_of), bytes_of(scan->texts.data, scan->texts.size),
                         bytes_of(scan->operators.data, scan->num_operators ? scan->operators.size : 0),
                         tuple_of(scan, NUM_WORDS, words_of), tuple_of(scan, NUM_STRETCHES, stretches_of));
}

static PyObject *columns(PyObject *module, PyObject *data) {
    (void)module;
    Py_buffer view;
    if (PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)) return NULL;
    Scan scan = {.first = view.buf, .is_ascii = true, .num_glues = NUM_STARTS};
    for (int w = 0; w < NUM_WORDS; w++) scan.words[w].none = NO_WORD;
    bool done = false;
    Py_BEGIN_ALLOW_THREADS;
    At last = scan.first + view.len;
    while (last - scan.first >= 8 && word_at(last - 8) == 0x2020202020202020u) last -= 8;
    while (last > scan.first && (last[-1] == ' ' || last[-1] == '\n' || last[-1] == '\r' || last[-1] == '\t')) last--;
    if (last > scan.first && last[-1] == ']' && view.len < INT32_MAX) {
        scan.last = last - 1;
        done = room_for_rows(&scan, (size_t)(last - scan.first) / USUAL_BYTES + 1) && read_list(&scan);
    }
    Py_END_ALLOW_THREADS;
    PyObject *result = done ? result_of(&scan) : Py_NewRef(Py_None);
    release(&scan);
    PyBuffer_Release(&view);
    return result;
}

static PyMethodDef methods[] = {
    {"columns", columns, METH_O, "Packed columns of a JSON list of events; None where it is not as profilers usually write it."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, .m_name = "_block", .m_methods = methods};

PyMODINIT_FUNC PyInit__block(void) { return PyModuleDef_Init(&definition); }
