/* A histogram of some of a tensor's values by the power of two of their magnitude. */

typedef struct {
    int64_t looked_at, zeros, bad;     /* bad: NaN or Inf */
    unsigned char octaves[2 * BINS]; /* of the others: uint16, little-endian */
} counted;

/* Of a tensor that is larger than all pieces these, spread over it; they have no more than UINT16_MAX values. */
static counted count_pieces(const instruction_set *set, const job *one, int64_t size, int64_t pieces)
{
    int64_t bins[BINS + 2] = {0};
    uint8_t bin[CHUNK];
    loose_f64 room[CHUNK];
    size_t used = 0;
    if (one->count <= size * pieces)
        size = one->count, pieces = 1;
    float_state floats = plain_floats();
    for (int64_t piece = 0; piece < pieces; piece++) {
        int64_t start = piece * (one->count - size) / (pieces > 1 ? pieces - 1 : 1), end = start + size;
        while (start < end) {
            size_t n = end - start < (int64_t)(CHUNK - used) ? (size_t)(end - start) : CHUNK - used;
            const void *values = decoded(set, one->at + start * WIDTH[one->dtype], one->dtype, n, room);
            octaves(set, values, is_wide(one->dtype), n, bin + used);
            start += (int64_t)n, used += n;
            if (used == CHUNK)
                count_bins(bin, used, bins, BINS + 2), used = 0;
        }
    }
    count_bins(bin, used, bins, BINS + 2);
    restore_floats(floats);
    counted all = {size * pieces, bins[BINS], bins[BINS + 1], {0}};
    for (int i = 0; i < BINS; i++)
        all.octaves[2 * i] = (unsigned char)(bins[i] & 255), all.octaves[2 * i + 1] = (unsigned char)(bins[i] >> 8);
    return all;
}
