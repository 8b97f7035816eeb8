// C functions for ctypes (calls.py): every operation for float and bfloat16, on plain pointers.
#include "all_reduce.h"
#include "attention.h"
#include "dot_products.h"
#include "grouped_integer_linear.h"
#include "grouped_tile_linear.h"
#include "integer_attention.h"
#include "integer_linear.h"
#include "kv_store.h"
#include "likeliest.h"
#include "linear.h"
#include "low_rank.h"
#include "quantized_linear.h"
#include "quantized_tile_linear.h"
#include "replay.h"
#include "rows.h"
#include "segments.h"
#include "tile_attention.h"
#include "tile_linear.h"

#define ORCA_EXPORT extern "C" __attribute__((visibility("default")))

#define ORCA_FOR_EACH_TYPE(define) \
  define(float32, float)           \
  define(bfloat16, orca::BFloat16)

// `orca_run_X` replays a recorded call of `orca_X`.
#define ORCA_DEFINE_RUN(function)                                                                                     \
  ORCA_EXPORT void orca_run_##function(const uint64_t *words) { orca::apply(orca_##function, words); }

ORCA_EXPORT void orca_replay(const orca::Call *calls, int64_t count) {
  for (int64_t i = 0; i < count; ++i) calls[i].run(calls[i].words);
}

#define ORCA_DEFINE(name, T)                                                                                          \
  ORCA_EXPORT void orca_layer_norm_##name(const T *x, const T *weight, const T *bias, T *y, int64_t rows,             \
                                          int64_t size, float epsilon) {                                             \
    orca::layer_norm(x, weight, bias, y, rows, size, epsilon);                                                       \
  }                                                                                                                   \
  ORCA_EXPORT void orca_rms_norm_##name(const T *x, const T *weight, T *y, int64_t rows, int64_t size,                \
                                        float epsilon) {                                                             \
    orca::rms_norm(x, weight, y, rows, size, epsilon);                                                               \
  }                                                                                                                   \
  ORCA_EXPORT void orca_silu_and_multiply_##name(const T *gate_up, T *y, int64_t rows, int64_t size) {                \
    orca::silu_and_multiply(gate_up, y, rows, size);                                                                 \
  }                                                                                                                   \
  ORCA_EXPORT void orca_rotate_##name(T *x, const float *cosine, const float *sine, int64_t rows, int64_t heads,      \
                                      int64_t dim, int64_t stride) {                                                 \
    orca::rotate(x, cosine, sine, rows, heads, dim, stride);                                                         \
  }                                                                                                                   \
  ORCA_EXPORT void orca_store_##name(const T *key, const T *value, T *key_pool, T *value_pool, const int64_t *slots,  \
                                     int64_t rows, int64_t heads, int64_t dim, int64_t key_stride,                   \
                                     int64_t value_stride) {                                                         \
    orca::store_kv(key, value, key_pool, value_pool, slots, rows, heads, dim, key_stride, value_stride);             \
  }                                                                                                                   \
  ORCA_EXPORT void orca_store_int8_##name(const T *key, const T *value, int8_t *key_pool, int8_t *value_pool,         \
                                          float *key_scales, float *value_scales, const int64_t *slots, int64_t rows, \
                                          int64_t heads, int64_t dim, int64_t key_stride, int64_t value_stride) {     \
    orca::store_kv_int8(key, value, key_pool, value_pool, key_scales, value_scales, slots, rows, heads, dim,          \
                        key_stride, value_stride);                                                                    \
  }                                                                                                                   \
  ORCA_DEFINE_RUN(layer_norm_##name)                                                                                  \
  ORCA_DEFINE_RUN(rms_norm_##name)                                                                                    \
  ORCA_DEFINE_RUN(silu_and_multiply_##name)                                                                           \
  ORCA_DEFINE_RUN(rotate_##name)                                                                                      \
  ORCA_DEFINE_RUN(store_##name)                                                                                       \
  ORCA_DEFINE_RUN(store_int8_##name)

#define ORCA_DEFINE_ATTENTION(name, T, Work)                                                                          \
  ORCA_EXPORT void orca_attention_##name(const T *query, const T *key_pool, const T *value_pool,                      \
                                         const int64_t *query_start, const int64_t *context_length,                  \
                                         const int32_t *block_table, T *output, int64_t num_requests,                 \
                                         int64_t num_heads, int64_t num_kv_heads, int64_t head_dim,                   \
                                         int64_t table_width, int64_t query_stride, int64_t window, float scale) {    \
    orca::attention<T, T, orca::Work>(                                                                                \
        {{num_requests, num_heads, num_kv_heads, head_dim, table_width, query_stride, window, scale},                 \
         query, key_pool, value_pool, nullptr, nullptr, query_start, context_length, block_table, output});           \
  }                                                                                                                   \
  ORCA_DEFINE_RUN(attention_##name)

#define ORCA_DEFINE_INTEGER_ATTENTION(name, T, ...)                                                                   \
  ORCA_EXPORT void orca_attention_##name(                                                                             \
      const T *query, const int8_t *key_pool, const int8_t *value_pool, const float *key_scales,                      \
      const float *value_scales, const int64_t *query_start, const int64_t *context_length,                           \
      const int32_t *block_table, T *output, int64_t num_requests, int64_t num_heads, int64_t num_kv_heads,           \
      int64_t head_dim, int64_t table_width, int64_t query_stride, int64_t window, float scale) {                     \
    orca::attention<T, int8_t, orca::__VA_ARGS__>(                                                                    \
        {{num_requests, num_heads, num_kv_heads, head_dim, table_width, query_stride, window, scale},                 \
         query, key_pool, value_pool, key_scales, value_scales, query_start, context_length, block_table, output});   \
  }                                                                                                                   \
  ORCA_DEFINE_RUN(attention_##name)

#define ORCA_DEFINE_SUM(name, T)                                                                                      \
  ORCA_EXPORT int64_t orca_all_reduce_##name(T *x, int64_t count, char *memory, int64_t rank, int64_t size,           \
                                             int64_t capacity, int64_t round, double seconds) {                      \
    return orca::all_reduce(x, count, memory, rank, size, capacity, round, seconds);                                 \
  }

ORCA_FOR_EACH_TYPE(ORCA_DEFINE)
ORCA_FOR_EACH_TYPE(ORCA_DEFINE_SUM)
ORCA_DEFINE_ATTENTION(float32, float, AttentionItem<float>)
ORCA_DEFINE_ATTENTION(bfloat16, orca::BFloat16, AttentionItem<orca::BFloat16>)
#define ORCA_DEFINE_WIDENING(name, T) ORCA_DEFINE_INTEGER_ATTENTION(int8_##name, T, AttentionItem<T, int8_t>)
ORCA_FOR_EACH_TYPE(ORCA_DEFINE_WIDENING)
#if defined(__AVX512F__)
ORCA_DEFINE_INTEGER_ATTENTION(int8_vnni_bfloat16, orca::BFloat16, IntegerAttentionItem)
#endif

#define ORCA_DEFINE_PACK(name, T)                                                                                     \
  ORCA_EXPORT void orca_pack_##name(const T *weight, uint32_t *panels, int64_t inputs, int64_t outputs) {             \
    orca::pack(weight, panels, inputs, outputs);                                                                      \
  }                                                                                                                   \
  ORCA_DEFINE_RUN(pack_##name)

#define ORCA_DEFINE_LINEAR(name, T, Call)                                                                             \
  ORCA_EXPORT void orca_linear_##name(const T *x, const uint32_t *panels, const T *bias, const T *residual, T *y,     \
                                      T *activated, int64_t rows, int64_t inputs, int64_t outputs) {                  \
    orca::linear(orca::Call{{x, bias, residual, y, activated, rows, inputs, outputs}, panels});                       \
  }                                                                                                                   \
  ORCA_EXPORT void orca_low_rank_##name(const T *x, const int64_t *adapters, const orca::LowRankFactors *factors,     \
                                        T *y, T *activated, int64_t rows, int64_t inputs, int64_t outputs,            \
                                        int64_t num_factors) {                                                        \
    orca::add_low_rank<orca::Call>(                                                                                   \
        orca::LowRankCall<T>{x, adapters, factors, y, activated, rows, inputs, outputs, num_factors});                \
  }                                                                                                                   \
  ORCA_DEFINE_RUN(linear_##name)                                                                                      \
  ORCA_DEFINE_RUN(low_rank_##name)

#if defined(ORCA_MULTIPLY_ADD)
ORCA_FOR_EACH_TYPE(ORCA_DEFINE_PACK)
ORCA_DEFINE_LINEAR(float32, float, LinearCall<float>)
ORCA_DEFINE_LINEAR(bfloat16, orca::BFloat16, WideCall)
#endif
#if defined(__AVX512BF16__)
ORCA_DEFINE_LINEAR(dots_bfloat16, orca::BFloat16, LinearCall<orca::BFloat16>)

// 1 if linear_dots_bfloat16 is faster than linear_bfloat16, otherwise 0.
ORCA_EXPORT int64_t orca_dot_products_pay() { return orca::dot_products_pay(); }
#endif

#if defined(__AMX_BF16__)
ORCA_DEFINE_LINEAR(tiles_bfloat16, orca::BFloat16, TileCall)
ORCA_DEFINE_ATTENTION(tiles_bfloat16, orca::BFloat16, TileAttentionItem)

// 1 if tiles multiply bfloat16 faster than the other instructions, otherwise 0.
ORCA_EXPORT int64_t orca_tiles_pay() { return orca::tiles_pay(); }
#endif

// Scales or zero points of quantised weights.
ORCA_EXPORT void orca_pack_groups(const float *from, float *to, int64_t outputs, int64_t groups) {
  orca::pack_groups(from, to, outputs, groups);
}
ORCA_DEFINE_RUN(pack_groups)

// Quantised weights, with activations of either type.
#define ORCA_DEFINE_QUANTIZED_LINEAR(name, Format, T, product)                                                        \
  ORCA_EXPORT void orca_linear_##name(                                                                                \
      const T *x, const orca::Format::Word *panels, const float *scales, const float *zeros, const T *bias,           \
      const T *residual, T *y, T *activated, int64_t rows, int64_t inputs, int64_t outputs, int64_t group) {          \
    product(orca::QuantizedCall<T, orca::Format>{                                                                     \
        {x, bias, residual, y, activated, rows, inputs, outputs}, panels, scales, zeros, group});                     \
  }                                                                                                                   \
  ORCA_DEFINE_RUN(linear_##name)

#define ORCA_DEFINE_QUANTIZED(format, Format)                                                                         \
  ORCA_EXPORT void orca_pack_##format(const int8_t *weight, orca::Format::Word *panels, int64_t inputs,               \
                                      int64_t outputs) {                                                              \
    orca::pack_quantized<orca::Format>(weight, panels, inputs, outputs);                                              \
  }                                                                                                                   \
  ORCA_DEFINE_RUN(pack_##format)                                                                                      \
  ORCA_DEFINE_QUANTIZED_LINEAR(format##_float32, Format, float, orca::linear)                                         \
  ORCA_DEFINE_QUANTIZED_LINEAR(format##_bfloat16, Format, orca::BFloat16, orca::linear)

#if defined(ORCA_MULTIPLY_ADD)
ORCA_DEFINE_QUANTIZED(int8, Int8)
ORCA_DEFINE_QUANTIZED(int4, Int4)
#endif
#if defined(__AMX_BF16__) && defined(__AMX_INT8__)
ORCA_DEFINE_QUANTIZED_LINEAR(int8_tiles_bfloat16, Int8, orca::BFloat16, orca::tile_linear)
ORCA_DEFINE_QUANTIZED_LINEAR(int4_tiles_bfloat16, Int4, orca::BFloat16, orca::tile_linear)
#endif

// Weights of four bits and rows of eight bits, for rows of either type. The panels are those of orca_pack_int4.
#define ORCA_DEFINE_GROUPED(name, T, ...)                                                                             \
  ORCA_EXPORT void orca_linear_##name(const T *x, const uint32_t *panels, const float *scales, const float *zeros,    \
                                      const T *bias, const T *residual, T *y, T *activated, int64_t rows,             \
                                      int64_t inputs, int64_t outputs, int64_t group) {                               \
    __VA_ARGS__(orca::GroupedIntegerCall<T>{                                                                          \
        {x, bias, residual, y, activated, rows, inputs, outputs}, panels, scales, zeros, group});                     \
  }                                                                                                                   \
  ORCA_DEFINE_RUN(linear_##name)
#define ORCA_GROUPED(T, Products) \
  orca::linear<orca::GroupedIntegerCall<T>, orca::GroupedIntegerBlocks<T, orca::Products>>

#if defined(ORCA_MULTIPLY_ADD)
#define ORCA_DEFINE_NIBBLES(name, T) ORCA_DEFINE_GROUPED(w4a8_##name, T, ORCA_GROUPED(T, NibbleProducts))
ORCA_FOR_EACH_TYPE(ORCA_DEFINE_NIBBLES)
#if defined(ORCA_VNNI)
#define ORCA_DEFINE_NIBBLE_BYTES(name, T) ORCA_DEFINE_GROUPED(w4a8_vnni_##name, T, ORCA_GROUPED(T, NibbleByteProducts))
ORCA_FOR_EACH_TYPE(ORCA_DEFINE_NIBBLE_BYTES)
#endif
#if defined(__AMX_INT8__)
#define ORCA_DEFINE_NIBBLE_TILES(name, T) ORCA_DEFINE_GROUPED(w4a8_tiles_##name, T, orca::tile_linear)
ORCA_FOR_EACH_TYPE(ORCA_DEFINE_NIBBLE_TILES)
#endif
#endif

// Weights and rows of eight bits, for rows of either type.
ORCA_EXPORT void orca_pack_w8a8(const int8_t *weight, uint32_t *panels, int64_t inputs, int64_t outputs) {
  orca::pack_integers(weight, panels, inputs, outputs);
}
ORCA_DEFINE_RUN(pack_w8a8)

#define ORCA_DEFINE_INTEGER_LINEAR(name, T, Call, ...)                                                                \
  ORCA_EXPORT void orca_linear_##name(const T *x, const uint32_t *panels, const float *scales, const T *bias,         \
                                      const T *residual, T *y, T *activated, int64_t rows, int64_t inputs,            \
                                      int64_t outputs) {                                                              \
    const orca::IntegerCall<T> call{                                                                                  \
        {x, bias, residual, y, activated, rows, inputs, outputs}, panels, scales};                                    \
    orca::__VA_ARGS__(orca::Call<T>{call});                                                                           \
  }                                                                                                                   \
  ORCA_DEFINE_RUN(linear_##name)

#define ORCA_INTEGER(T, Products) linear<orca::IntegerCall<T>, orca::IntegerBlocks<T, orca::Products>>

#define ORCA_DEFINE_PAIRS(name, T) \
  ORCA_DEFINE_INTEGER_LINEAR(w8a8_##name, T, IntegerCall, ORCA_INTEGER(T, PairProducts))
ORCA_FOR_EACH_TYPE(ORCA_DEFINE_PAIRS)
#if defined(ORCA_VNNI)
#define ORCA_DEFINE_BYTES(name, T) \
  ORCA_DEFINE_INTEGER_LINEAR(w8a8_vnni_##name, T, IntegerCall, ORCA_INTEGER(T, ByteProducts))
ORCA_FOR_EACH_TYPE(ORCA_DEFINE_BYTES)
#endif
#if defined(__AMX_INT8__)
#define ORCA_DEFINE_INTEGER_TILES(name, T) \
  ORCA_DEFINE_INTEGER_LINEAR(w8a8_tiles_##name, T, IntegerTileCall, tile_linear)
ORCA_FOR_EACH_TYPE(ORCA_DEFINE_INTEGER_TILES)
#endif

// The largest output of each row. `decided` is set to 1, or to 0 if all outputs must be computed.
#define ORCA_DEFINE_MOST_LIKELY(name, T, Call, Blocks, Products)                                                      \
  ORCA_EXPORT void orca_likeliest_##name(const T *x, const uint32_t *panels, const uint32_t *numbers,                 \
                                         const float *scales, const float *errors, const float *norms, T *y,          \
                                         int64_t *places, int64_t *decided, int64_t rows, int64_t inputs,             \
                                         int64_t outputs, int64_t most) {                                             \
    const orca::Call call{{x, nullptr, nullptr, y, nullptr, rows, inputs, outputs}, panels};                          \
    const orca::Copy copy{numbers, scales, errors, norms};                                                            \
    *decided = orca::likeliest<orca::Products, orca::Blocks<orca::Call>>(call, copy, places, most);                   \
  }                                                                                                                   \
  ORCA_DEFINE_RUN(likeliest_##name)

#if defined(ORCA_VNNI)
#define ORCA_DEFINE_LIKELIEST(kind, name, T, Call, Blocks)                        \
  ORCA_DEFINE_MOST_LIKELY(kind##name, T, Call, Blocks, PairProducts)              \
  ORCA_DEFINE_MOST_LIKELY(kind##vnni_##name, T, Call, Blocks, ByteProducts)
#else
#define ORCA_DEFINE_LIKELIEST(kind, name, T, Call, Blocks) \
  ORCA_DEFINE_MOST_LIKELY(kind##name, T, Call, Blocks, PairProducts)
#endif

#define ORCA_DEFINE_COPY(name, T)                                                                                     \
  ORCA_EXPORT void orca_make_copy_##name(const T *weight, uint32_t *panels, float *scales, float *errors,             \
                                         float *norms, int64_t inputs, int64_t outputs) {                             \
    orca::make_copy(weight, panels, scales, errors, norms, inputs, outputs);                                          \
  }                                                                                                                   \
  ORCA_DEFINE_RUN(make_copy_##name)

#if defined(ORCA_MULTIPLY_ADD)
ORCA_FOR_EACH_TYPE(ORCA_DEFINE_COPY)
ORCA_DEFINE_LIKELIEST(, float32, float, LinearCall<float>, RowBlocks)
ORCA_DEFINE_LIKELIEST(, bfloat16, orca::BFloat16, WideCall, RowBlocks)
#endif
#if defined(__AVX512BF16__)
ORCA_DEFINE_LIKELIEST(dots_, bfloat16, orca::BFloat16, LinearCall<orca::BFloat16>, RowBlocks)
#endif
#if defined(__AMX_BF16__)
ORCA_DEFINE_LIKELIEST(tiles_, bfloat16, orca::BFloat16, TileCall, TileBlocks)
#endif
