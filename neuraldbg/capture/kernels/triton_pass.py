"""The fused pass for CUDA. Imports triton, so only `device` imports this, and only once a CUDA tensor is measured.

A tensor is read once, as words of 8 bytes that hold 1 to 8 elements. Each program takes one piece of a tensor, keeps
its sums in vectors over unmasked blocks and reduces them once, at the end; a piece whose sum of squares is not finite
is read again with care. `finish` makes one row of all pieces of a tensor. Nothing waits, nothing is locked.
"""

# ruff: noqa: N803, PLR0913  (Triton's compile-time parameters, and functions that are all inlined)

from __future__ import annotations

import triton
import triton.language as tl

from neuraldbg.capture.kernels.apart import compile_apart

FIELDS = 8  # of a partial row: finite, mean, squared deviations, min, max, zeros, NaN, Inf
ROW = 9  # count, mean, std, min, max, l2, zeros, NaN, Inf
KEYS = tl.constexpr(512)
F64, F32, F16, BF16, E4M3, E5M2, I8, U8, BOOL, I16, I32, I64 = (
    tl.constexpr(code)
    for code in (0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 11, 13)  # Element
)
_SMALL = tl.constexpr(1e-15)  # floats below it have squares that lose digits or vanish
_GOLDEN = tl.constexpr(0x9E3779B97F4A7C15)
_MIX_1 = tl.constexpr(0xBF58476D1CE4E5B9)
_MIX_2 = tl.constexpr(0x94D049BB133111EB)


@triton.jit
def _value(word, j: tl.constexpr, KIND: tl.constexpr):
    """Element j of each word: float64 of 64-bit types and of integers over 8 bits, else float32."""
    if KIND == F64:
        value = word.to(tl.float64, bitcast=True)
    elif KIND == I64:
        value = word.to(tl.float64)
    elif KIND == F32:
        value = (word >> (32 * j)).to(tl.int32).to(tl.float32, bitcast=True)
    elif KIND == I32:
        value = (word >> (32 * j)).to(tl.int32).to(tl.float64)
    elif KIND == BF16:
        half = (word >> (32 * (j // 2))).to(tl.int32)
        value = (half << 16 if j % 2 == 0 else half & -65536).to(tl.float32, bitcast=True)
    elif KIND == F16:
        value = (word >> (16 * j)).to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32)
    elif KIND == I16:
        value = (word >> (16 * j)).to(tl.int16).to(tl.float64)
    else:
        value = _byte_value((word >> (32 * (j // 4))).to(tl.int32) >> (8 * (j % 4)), KIND)
    return value


@triton.jit
def _difference(word, old, j: tl.constexpr, KIND: tl.constexpr, MOVED: tl.constexpr):
    value = _value(word, j, KIND)
    if MOVED:
        value -= _value(old, j, KIND)
    return value


@triton.jit
def _byte_value(byte, KIND: tl.constexpr):
    if KIND == I8:
        value = byte.to(tl.int8).to(tl.float32)
    elif KIND == E5M2:
        value = ((byte & 0xFF) << 8).to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32)
    elif KIND == E4M3:
        half = ((byte & 0x80) << 8) | ((byte & 0x7F) << 7)
        value = half.to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32) * 256.0
        value = tl.where((byte & 0x7F) == 0x7F, float("nan"), value)
    else:
        value = (byte & 0xFF).to(tl.float32)
    return value


@triton.jit
def _mixed(x):
    x = (x ^ (x >> 30)) * _MIX_1
    x = (x ^ (x >> 27)) * _MIX_2
    return x ^ (x >> 31)


@triton.jit
def _product(word, key, block):
    """The halves of word plus key, multiplied; see `twin.hash_of`."""
    offset = _mixed((block.to(tl.uint64) + 4294967297) * _GOLDEN)
    low = word.to(tl.uint32) + key.to(tl.uint32) + offset.to(tl.uint32)
    high = (word >> 32).to(tl.uint32) + (key >> 32).to(tl.uint32) + (offset >> 32).to(tl.uint32)
    return low.to(tl.uint64) * high.to(tl.uint64)


@triton.jit
def _words_of(words, olds, index, end, MOVED: tl.constexpr):
    word = tl.load(words + index, mask=index < end, other=0)
    old = word
    if MOVED:
        old = tl.load(olds + index, mask=index < end, other=0)
    return word, old


@triton.jit
def _last_word(address, whole, size):
    """The bytes after the last whole word."""
    places = tl.arange(0, 8)
    at = (address + whole * 8).to(tl.pointer_type(tl.uint8))
    left = tl.load(at + places, mask=places < size - whole * 8, other=0).to(tl.int64)
    return tl.sum(left << (8 * places.to(tl.int64)))


@triton.jit
def _which(address, count, table, TENSORS: tl.constexpr, MOVED: tl.constexpr):
    """Address, address of what is subtracted, count, and number of the piece of this program."""
    piece = tl.program_id(0)
    before = address
    if TENSORS < 0:
        pieces_of_row = tl.load(table + 1).to(tl.int32)
        address += tl.load(table) * (piece // pieces_of_row)
        before = address
        piece %= pieces_of_row
    elif TENSORS > 0:
        firsts = tl.load(table + 2 * TENSORS + tl.arange(0, TENSORS))
        which = tl.sum((firsts <= piece).to(tl.int32)) - 1
        address = tl.load(table + which)
        count = tl.load(table + TENSORS + which)
        piece -= tl.load(table + 2 * TENSORS + which).to(tl.int32)
        before = address
        if MOVED:
            before = tl.load(table + 3 * TENSORS + which)
    return address, before, count.to(tl.int64), piece.to(tl.int64)


@triton.jit
def _guess(words, olds, start, end, KIND: tl.constexpr, K: tl.constexpr, MOVED: tl.constexpr, ACC: tl.constexpr):
    """About the mean, so that sums of squares of x - shift keep their digits. Of 32 words: every warp has them all, and
    none waits for another before the first block."""
    index = start + tl.arange(0, 32)
    word, old = _words_of(words, olds, index, end, MOVED)
    near = tl.zeros((32,), ACC)
    known = tl.zeros((32,), tl.float32)
    for j in tl.static_range(K):
        value = _difference(word, old, j, KIND, MOVED)
        good = (index < end) & (tl.abs(value) < float("inf"))
        near += tl.where(good, value, 0.0)
        known += good.to(tl.float32)
    shift = tl.sum(near) / tl.maximum(tl.sum(known), 1.0).to(ACC)
    return tl.where(tl.abs(shift) < float("inf"), shift, 0.0).to(ACC)


@triton.jit
def _sum_blocks(
    words, olds, start, blocks, shift, KIND: tl.constexpr, K: tl.constexpr, MOVED: tl.constexpr, HASH: tl.constexpr,
    BLOCK: tl.constexpr, ACC: tl.constexpr,
):  # fmt: skip
    places = tl.arange(0, BLOCK)
    keys = _mixed(((places % KEYS).to(tl.uint64) + 1) * _GOLDEN)
    sums, squares = tl.zeros((BLOCK,), ACC), tl.zeros((BLOCK,), ACC)
    low, high = tl.full((BLOCK,), float("inf"), ACC), tl.full((BLOCK,), float("-inf"), ACC)
    zeros = tl.zeros((BLOCK,), tl.int32)
    products, plain = tl.zeros((BLOCK,), tl.uint64), tl.zeros((BLOCK,), tl.uint64)
    for block in tl.range(0, blocks, num_stages=4):  # the next blocks are on their way meanwhile: 11 % on an H200
        first = start + block * BLOCK
        word = tl.load(words + first + places)
        old = word
        if MOVED:
            old = tl.load(olds + first + places)
        for j in tl.static_range(K):
            value = _difference(word, old, j, KIND, MOVED)
            off = value - shift
            sums += off
            squares += off * off
            low = tl.minimum(low, value)
            high = tl.maximum(high, value)
            zeros += (value == 0).to(tl.int32)
        if HASH:
            products += _product(word.to(tl.uint64), keys, (first + places) // KEYS)
            plain += word.to(tl.uint64)
    return sums, squares, low, high, zeros, products, plain


@triton.jit
def _sum_rest(
    sums, squares, low, high, zeros, word, old, index, end, count, shift,
    KIND: tl.constexpr, K: tl.constexpr, MOVED: tl.constexpr,
):  # fmt: skip
    """What is left: less than a block, and the bytes after the last whole word."""
    for j in tl.static_range(K):
        value = _difference(word, old, j, KIND, MOVED)
        inside = (index < end) & (index * K + j < count)
        off = tl.where(inside, value - shift, 0.0)
        sums += off
        squares += off * off
        low = tl.minimum(low, tl.where(inside, value, float("inf")))
        high = tl.maximum(high, tl.where(inside, value, float("-inf")))
        zeros += (inside & (value == 0)).to(tl.int32)
    return sums, squares, low, high, zeros


@triton.jit
def _reduced(sums, squares, low, high, zeros):
    """Of all lanes. Warps wait for each other twice and not five times: all programs of a launch end together."""
    numbers = zeros.to(tl.float64)
    added = tl.sum(tl.join(tl.join(sums.to(tl.float64), squares.to(tl.float64)), tl.join(numbers, numbers)), 0)
    most = tl.max(tl.join(0.0 - low, high), 0).to(tl.float64)
    first, second = tl.split(added)
    total, square = tl.split(first)
    zero, _ = tl.split(second)
    lowest, highest = tl.split(most)
    return total, square, 0.0 - lowest, highest, zero


@triton.jit(do_not_specialize=["address", "count", "base"])
def measure_pass(
    address, count, table, base, partials, hashes, words_of_piece,
    KIND: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr,
    TENSORS: tl.constexpr, MOVED: tl.constexpr, HASH: tl.constexpr,
):  # fmt: skip
    """One piece of one tensor; `words_of_piece` is a multiple of BLOCK. TENSORS = 0: the one at `address`. -1: rows,
    of `count` elements each, with gaps between them; `table` holds the bytes from one to the next, and the pieces of
    each. Else a power of two, and `table` holds as many addresses, counts, numbers of first pieces and, if MOVED,
    addresses of what is subtracted."""
    K: tl.constexpr = 8 // WIDTH
    ACC: tl.constexpr = tl.float64 if KIND == F64 or KIND >= I16 else tl.float32
    address, before, count, piece = _which(address, count, table, TENSORS, MOVED)
    size = count * WIDTH
    start, whole = piece * words_of_piece, size // 8
    end = tl.minimum(start + words_of_piece, (size + 7) // 8)
    safe = tl.minimum(end, whole)
    words = tl.multiple_of(address.to(tl.pointer_type(tl.int64)), 16)
    olds = tl.multiple_of(before.to(tl.pointer_type(tl.int64)), 16)
    shift = _guess(words, olds, start, safe, KIND, K, MOVED, ACC)
    blocks = ((safe - start) // BLOCK).to(tl.int32)
    sums, squares, low, high, zeros, products, plain = _sum_blocks(
        words, olds, start, blocks, shift, KIND, K, MOVED, HASH, BLOCK, ACC
    )
    index = start + blocks.to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    word = tl.zeros((BLOCK,), tl.int64)
    if start + blocks.to(tl.int64) * BLOCK < end:
        word, old = _words_of(words, olds, index, safe, MOVED)
        word = tl.where(index == whole, _last_word(address, whole, size), word)
        old = tl.where(index == whole, _last_word(before, whole, size), old)
        sums, squares, low, high, zeros = _sum_rest(
            sums, squares, low, high, zeros, word, old, index, end, count, shift, KIND, K, MOVED
        )
    at, finite = base + tl.program_id(0), (tl.minimum(end * K, count) - start * K).to(tl.float64)
    if HASH:
        _store_hash(hashes + at * 2, products, plain, word.to(tl.uint64), index, end)
    total, square, lowest, highest, zero = _reduced(sums, squares, low, high, zeros)
    mean, spread = shift.to(tl.float64) + total / finite, tl.maximum(square - total * total / finite, 0.0)
    _store(partials + at * 8, finite, mean, spread, lowest, highest, zero, finite * 0.0, finite * 0.0)
    top = tl.maximum(tl.abs(lowest), tl.abs(highest))
    if (square >= float("inf")) | (square != square) | ((top > 0.0) & (top <= _SMALL)):
        finite, mean, spread, lowest, highest, nans, infs = _careful(
            address, before, start, end, count, size, shift.to(tl.float64), KIND, K, MOVED, 256
        )
        _store(partials + at * 8, finite, mean, spread, lowest, highest, zero, nans, infs)


@triton.jit
def _store_hash(at, products, plain, word, index, end):
    keys = _mixed(((index % KEYS).to(tl.uint64) + 1) * _GOLDEN)
    products += tl.where(index < end, _product(word, keys, index // KEYS), 0)
    plain += tl.where(index < end, word, 0)
    tl.store(at, tl.sum(products).to(tl.int64))
    tl.store(at + 1, tl.sum(plain).to(tl.int64))


@triton.jit
def _store(at, finite, mean, spread, lowest, highest, zeros, nans, infs):
    tl.store(at, finite)
    tl.store(at + 1, mean)
    tl.store(at + 2, spread)
    tl.store(at + 3, lowest)
    tl.store(at + 4, highest)
    tl.store(at + 5, zeros)
    tl.store(at + 6, nans)
    tl.store(at + 7, infs)


@triton.jit
def _careful(
    address, before, start, end, count, size, shift,
    KIND: tl.constexpr, K: tl.constexpr, MOVED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The same piece again in float64, NaN and Inf counted and left out."""
    whole = size // 8
    last, last_old = _last_word(address, whole, size), _last_word(before, whole, size)
    words, olds = address.to(tl.pointer_type(tl.int64)), before.to(tl.pointer_type(tl.int64))
    places = tl.arange(0, BLOCK)
    sums = tl.zeros((BLOCK,), tl.float64)
    squares = tl.zeros((BLOCK,), tl.float64)
    good_ones = tl.zeros((BLOCK,), tl.int32)
    nans = tl.zeros((BLOCK,), tl.int32)
    infs = tl.zeros((BLOCK,), tl.int32)
    low = tl.full((BLOCK,), float("inf"), tl.float64)
    high = tl.full((BLOCK,), float("-inf"), tl.float64)
    for first in range(start, end, BLOCK):
        index = first + places
        word, old = _words_of(words, olds, index, tl.minimum(end, whole), MOVED)
        word = tl.where(index == whole, last, word)
        old = tl.where(index == whole, last_old, old)
        for j in tl.static_range(K):
            value = _difference(word, old, j, KIND, MOVED).to(tl.float64)
            inside = (index < end) & (index * K + j < count)
            good = inside & (tl.abs(value) < float("inf"))
            off = tl.where(good, value - shift, 0.0)
            sums += off
            squares += off * off
            good_ones += good.to(tl.int32)
            nans += (inside & (value != value)).to(tl.int32)
            infs += (inside & (tl.abs(value) == float("inf"))).to(tl.int32)
            low = tl.minimum(low, tl.where(good, value, float("inf")))
            high = tl.maximum(high, tl.where(good, value, float("-inf")))
    finite = tl.sum(good_ones).to(tl.float64)
    total = tl.sum(sums)
    some = tl.maximum(finite, 1.0)
    mean = tl.where(finite > 0, shift + total / some, 0.0)
    spread = tl.maximum(tl.sum(squares) - total * total / some, 0.0)
    return finite, mean, spread, tl.min(low), tl.max(high), tl.sum(nans).to(tl.float64), tl.sum(infs).to(tl.float64)


@triton.jit
def finish(jobs, partials, rows, BLOCK: tl.constexpr):
    """One row of the pieces of one tensor. `jobs`: row, first partial, pieces, count of each."""
    job = jobs + tl.program_id(0) * 4
    row = tl.load(job)
    first = tl.load(job + 1)
    pieces = tl.load(job + 2)
    count = tl.load(job + 3).to(tl.float64)
    places = tl.arange(0, BLOCK)
    n, weighted = tl.zeros((BLOCK,), tl.float64), tl.zeros((BLOCK,), tl.float64)
    zeros, nans, infs = n, n, n
    low, high = tl.full((BLOCK,), float("inf"), tl.float64), tl.full((BLOCK,), float("-inf"), tl.float64)
    for start in range(0, pieces, BLOCK):
        inside = start + places < pieces
        at = partials + (first + start + places) * 8
        finite = tl.load(at, mask=inside, other=0.0)
        n += finite
        weighted += finite * tl.load(at + 1, mask=inside, other=0.0)
        low = tl.minimum(low, tl.load(at + 3, mask=inside, other=float("inf")))
        high = tl.maximum(high, tl.load(at + 4, mask=inside, other=float("-inf")))
        zeros += tl.load(at + 5, mask=inside, other=0.0)
        nans += tl.load(at + 6, mask=inside, other=0.0)
        infs += tl.load(at + 7, mask=inside, other=0.0)
    total = tl.maximum(tl.sum(n), 1.0)
    mean = tl.sum(weighted) / total
    spread = tl.zeros((BLOCK,), tl.float64)
    for start in range(0, pieces, BLOCK):
        inside = start + places < pieces
        at = partials + (first + start + places) * 8
        apart = tl.load(at + 1, mask=inside, other=0.0) - mean
        spread += tl.load(at + 2, mask=inside, other=0.0) + tl.load(at, mask=inside, other=0.0) * apart * apart
    m2 = tl.sum(spread)
    out = rows + row * 9
    tl.store(out, count)
    tl.store(out + 1, mean)
    tl.store(out + 2, tl.sqrt(m2 / total))
    tl.store(out + 3, tl.min(low))
    tl.store(out + 4, tl.max(high))
    tl.store(out + 5, tl.sqrt(m2 + total * mean * mean))
    tl.store(out + 6, tl.sum(zeros))
    tl.store(out + 7, tl.sum(nans))
    tl.store(out + 8, tl.sum(infs))


for _launched in (measure_pass, finish):
    compile_apart(_launched)
