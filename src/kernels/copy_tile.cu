/*
 * copy_tile.cu: elements of one size from one layout into another whose innermost dimension is a
 * different one.
 *
 * A block reads a tile along the source's rows, turns it in shared memory and writes it along the
 * destination's. Where rows allow, threads move words of four bytes: neighbours of small elements
 * are turned in registers, so that a copy of bytes takes no more instructions a byte than one of
 * floats. To walk tiles in bands, so that blocks of one time lie near each other in both
 * directions, was tried with bands of 8 and 32 squares on an H200: nothing gained, 5 % lost on
 * channels.
 */
#include "kernels/names.h"
#include "kernels/vec.cuh"

/* Words that a thread loads before it stores; to the compiler any store to shared memory may change
 * what a later load finds. Elements of four bytes and more are stored as they come: the registers
 * that it takes otherwise cost an H200 more (turned floats 0.79 of a plain copy's speed, not 0.75).
 */
enum { LOADS = 16 };

/* Where a block's tile lies: its first element's offset in bytes, and how much of the view begins
 * there. Dimension 0 is the destination's innermost, dimension 1 the source's. */
struct tile_place {
    int64_t to, from;
    uint32_t size_0, size_1;
};

__device__ __forceinline__ tile_place place_of(const fl__tile_args &args, uint32_t edge_0,
                                               uint32_t edge_1) {
    const fl__copy_args &copy = args.copy;
    uint32_t number = blockIdx.x;
    uint32_t start_0 = number % args.tiles_0 * edge_0;
    number /= args.tiles_0;
    uint32_t start_1 = number % args.tiles_1 * edge_1;
    number /= args.tiles_1;
    tile_place place;
    fl__offsets(number, copy, 2, &place.to, &place.from);
    place.to += (int64_t)start_0 * copy.dst_stride[0] + (int64_t)start_1 * copy.dst_stride[1];
    place.from += (int64_t)start_0 * copy.src_stride[0] + (int64_t)start_1 * copy.src_stride[1];
    place.size_0 = copy.shape[0].divisor - start_0;
    place.size_1 = copy.shape[1].divisor - start_1;
    return place;
}

/* --- element by element ------------------------------------------------------------------------
 */

template <typename T>
struct elements {
    static constexpr uint32_t edge_0 = FL__TILE_TO(sizeof(T)), edge_1 = FL__TILE_FROM(sizeof(T));
    /* Rows are an odd number of words apart, so that columns meet no bank twice. */
    static constexpr uint32_t pad = sizeof(T) < 4 ? 4 / sizeof(T) : 1;
    static constexpr uint32_t row_elements = edge_1 + pad;

    static __device__ __forceinline__ void read(const fl__copy_args &copy, const tile_place &at,
                                                T *square) {
        uint32_t lane = threadIdx.x % 32, row = threadIdx.x / 32;
#pragma unroll
        for (uint32_t i = 0; i < edge_0; i += FL__TILE_ROWS) {
#pragma unroll
            for (uint32_t j = 0; j < edge_1; j += 32) {
                if (row + i < at.size_0 && lane + j < at.size_1) {
                    square[(row + i) * row_elements + lane + j] =
                        *(const T *)(copy.src + at.from + (int64_t)(row + i) * copy.src_stride[0] +
                                     (int64_t)(lane + j) * copy.src_stride[1]);
                }
            }
        }
    }

    static __device__ __forceinline__ void write(const fl__copy_args &copy, const tile_place &at,
                                                 const T *square) {
        uint32_t lane = threadIdx.x % 32, row = threadIdx.x / 32;
#pragma unroll
        for (uint32_t i = 0; i < edge_1; i += FL__TILE_ROWS) {
#pragma unroll
            for (uint32_t j = 0; j < edge_0; j += 32) {
                if (lane + j < at.size_0 && row + i < at.size_1) {
                    *(T *)(copy.dst + at.to + (int64_t)(lane + j) * copy.dst_stride[0] +
                           (int64_t)(row + i) * copy.dst_stride[1]) =
                        square[(lane + j) * row_elements + row + i];
                }
            }
        }
    }
};

/* --- word by word ------------------------------------------------------------------------------
 */

/* Squares of `pack` elements each way are turned in registers. What lies in shared memory is, for
 * each of the source's columns, a row of words along the destination's rows. A row begins further
 * along the further down it lies, so that neither side meets a bank twice. */
template <typename T>
struct words {
    static constexpr uint32_t pack = 4 / sizeof(T);
    static constexpr uint32_t edge = FL__TILE_FROM(sizeof(T));
    static_assert(FL__TILE_TO(sizeof(T)) == edge, "words turn squares");
    static constexpr uint32_t row_words = edge / pack;

    static __device__ __forceinline__ uint32_t place(uint32_t column, uint32_t word) {
        return column * row_words + (word + column / pack) % row_words;
    }

    /* Whether every row of both sides is whole words that lie on words. */
    static __device__ __forceinline__ bool serve(const fl__copy_args &copy) {
        uint64_t bits = (uint64_t)copy.src | (uint64_t)copy.dst | (uint64_t)copy.src_stride[0] |
                        (uint64_t)copy.dst_stride[1];
        bits |= (copy.shape[0].divisor | copy.shape[1].divisor) * sizeof(T);
#pragma unroll 1
        for (int32_t dim = 2; dim < copy.ndim; dim++) {
            bits |= (uint64_t)copy.src_stride[dim] | (uint64_t)copy.dst_stride[dim];
        }
        return bits % 4 == 0;
    }

    /* One word of each of `pack` rows of the source becomes one word of each of as many columns. */
    static __device__ __forceinline__ void turn(const uint32_t *in, uint32_t row, uint32_t column,
                                                uint32_t *square) {
        constexpr uint32_t bits = 8 * sizeof(T), mask = (1u << bits) - 1;
#pragma unroll
        for (uint32_t c = 0; c < pack; c++) {
            uint32_t out = 0;
#pragma unroll
            for (uint32_t r = 0; r < pack; r++) {
                out |= ((in[r] >> (c * bits)) & mask) << (r * bits);
            }
            square[place(column * pack + c, row)] = out;
        }
    }

    static __device__ __forceinline__ void read(const fl__copy_args &copy, const tile_place &at,
                                                uint32_t *square) {
        constexpr uint32_t across = row_words / 32, down = LOADS / (across * pack);
        static_assert(row_words % (down * FL__TILE_ROWS) == 0, "no row is met twice");
        uint32_t lane = threadIdx.x % 32, row = threadIdx.x / 32;
        uint32_t value[down][across][pack];
#pragma unroll 1
        for (uint32_t first = row; first < row_words; first += down * FL__TILE_ROWS) {
#pragma unroll
            for (uint32_t i = 0; i < down; i++) {
                uint32_t y = (first + i * FL__TILE_ROWS) * pack;
#pragma unroll
                for (uint32_t j = 0; j < across; j++) {
                    uint32_t x = lane + j * 32;
                    if (y < at.size_0 && x * pack < at.size_1) {
                        const char *src = copy.src + at.from + (int64_t)x * 4;
#pragma unroll
                        for (uint32_t r = 0; r < pack; r++) {
                            value[i][j][r] =
                                *(const uint32_t *)(src + (int64_t)(y + r) * copy.src_stride[0]);
                        }
                    }
                }
            }
#pragma unroll
            for (uint32_t i = 0; i < down; i++) {
#pragma unroll
                for (uint32_t j = 0; j < across; j++) {
                    turn(value[i][j], first + i * FL__TILE_ROWS, lane + j * 32, square);
                }
            }
        }
    }

    static __device__ __forceinline__ void write(const fl__copy_args &copy, const tile_place &at,
                                                 const uint32_t *square) {
        uint32_t lane = threadIdx.x % 32, row = threadIdx.x / 32;
#pragma unroll
        for (uint32_t i = 0; i < edge; i += FL__TILE_ROWS) {
#pragma unroll
            for (uint32_t j = 0; j < row_words; j += 32) {
                if ((lane + j) * pack < at.size_0 && row + i < at.size_1) {
                    *(uint32_t *)(copy.dst + at.to + (int64_t)(lane + j) * 4 +
                                  (int64_t)(row + i) * copy.dst_stride[1]) =
                        square[place(row + i, lane + j)];
                }
            }
        }
    }
};

/* --- the kernels -------------------------------------------------------------------------------
 */

template <typename T>
__device__ __forceinline__ void copy_tile(const fl__tile_args &args) {
    __shared__ T square[elements<T>::edge_0 * elements<T>::row_elements];
    const tile_place at = place_of(args, elements<T>::edge_0, elements<T>::edge_1);
    if constexpr (sizeof(T) < 4) {
        if (words<T>::serve(args.copy)) {
            uint32_t *const turned = (uint32_t *)square;
            words<T>::read(args.copy, at, turned);
            __syncthreads();
            words<T>::write(args.copy, at, turned);
            return;
        }
    }
    elements<T>::read(args.copy, at, square);
    __syncthreads();
    elements<T>::write(args.copy, at, square);
}

#define DEFINE_TILE(bytes, type)                                         \
    FL__KERNEL fl_copy_tile_u##bytes(FL__ARGUMENT(fl__tile_args) args) { \
        copy_tile<type>(args);                                           \
    }
FL__ELEMENT_LIST(DEFINE_TILE)
