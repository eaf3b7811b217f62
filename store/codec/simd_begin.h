// No include guard: opens a region in which functions are compiled for the instructions named by WEIGHTFS_SIMD_TARGET.
// Only what is defined in the region is; nothing from a header leaks into it, so no other file can pick up a copy that
// this machine may not have. Close it with simd_end.h.
#if defined(__clang__)
#define WEIGHTFS_SIMD_PRAGMA_2(text) _Pragma(#text)
#define WEIGHTFS_SIMD_PRAGMA(name) \
  WEIGHTFS_SIMD_PRAGMA_2(clang attribute push(__attribute__((target(name))), apply_to = function))
WEIGHTFS_SIMD_PRAGMA(WEIGHTFS_SIMD_TARGET)
#else
#define WEIGHTFS_SIMD_PRAGMA_2(text) _Pragma(#text)
#define WEIGHTFS_SIMD_PRAGMA(name) WEIGHTFS_SIMD_PRAGMA_2(GCC target(name))
_Pragma("GCC push_options") WEIGHTFS_SIMD_PRAGMA(WEIGHTFS_SIMD_TARGET)
#endif
