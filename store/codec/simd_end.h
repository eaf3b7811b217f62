// No include guard: closes what simd_begin.h opened.
#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif
#undef WEIGHTFS_SIMD_PRAGMA
#undef WEIGHTFS_SIMD_PRAGMA_2
#undef WEIGHTFS_SIMD_TARGET
